"""The search and the objective that a plan asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plr_dspy.compilation.plan import Plan
from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.scoring.objectives import CommonExamples
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.cross_entropy import CrossEntropySearch
from plr_dspy.search.search import Search
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.thompson import ThompsonSearch


def new_search(
    plan: Plan,
    space: SearchSpace,
    *,
    update: str | UpdateRule,
    seed: int,
    classes: Sequence[Sequence[int]] | None = None,
    example_classes: Sequence[int] | None = None,
    responses: LabelResponses | None = None,
) -> Search:
    """The search that a plan asks for; `classes`, `example_classes` and `responses` are `ThompsonSearch`'s."""
    shape: dict[str, Any] = {
        "update": update,
        "num_samples": plan.num_samples,
        "elite_fraction": plan.elite_fraction,
        "seed": seed,
    }
    if plan.racing:
        return ThompsonSearch(
            space,
            num_examples=plan.num_train_examples,
            num_initial=plan.num_initial,
            classes=classes,
            example_classes=example_classes,
            responses=responses,
            **shape,
        )
    return CrossEntropySearch(space, **shape)


def new_objective(
    plan: Plan,
    scorer: CellScorer,
    *,
    num_train: int,
    original: Ordering | None = None,
    shifted: bool = False,
) -> CommonExamples | RacingExamples:
    """The objective that a plan asks for.

    Args:
        plan: The shape of the compile.
        scorer: Of the train split followed by others.
        num_train: Examples of the train split.
        original: The ordering that no other is to beat by the calls that failed.
        shifted: As in `RacingExamples`; for searches that learn from log-probabilities.
    """
    if plan.racing:
        first, more = plan.num_first_examples, plan.num_more_examples
        return RacingExamples(
            scorer,
            num_train=num_train,
            num_first=first,
            num_more=more,
            favoured=original,
            shifted=shifted,
        )
    return CommonExamples(scorer, num_examples=plan.num_train_examples, num_train=num_train)
