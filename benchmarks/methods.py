"""Ways to choose an order of demos within a number of program calls, run on landscapes by the package's own parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from landscapes import Landscape, LandscapePayer
from typing_extensions import Self

from plr_dspy import CrossEntropySearch, OrderingSpace
from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.paper import PaperCompilation
from plr_dspy.compilation.path import Compilation
from plr_dspy.compilation.plan import Plan, make_plan
from plr_dspy.plackett_luce.updates import UpdateRule
from plr_dspy.scoring.rounds import StagedScores
from plr_dspy.scoring.scorer import CellScorer, Payer
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.thompson import ThompsonSearch
from plr_dspy.statistics.calibration import shares_to_try


@dataclass(frozen=True)
class Pool:
    """A landscape and how many of its examples are for what: train, selection, and the rest held out."""

    landscape: Landscape
    num_train: int
    num_selection: int

    @classmethod
    def of(cls, landscape: Landscape, num_known: int) -> Self:
        """A landscape of which a search knows so many examples, a fifth of them for the final comparison."""
        num_selection = max(1, round(0.2 * num_known))
        return cls(landscape, num_known - num_selection, num_selection)

    @property
    def num_known(self) -> int:
        """Examples that a search has."""
        return self.num_train + self.num_selection

    @property
    def space(self) -> OrderingSpace:
        return OrderingSpace.of_sizes(self.landscape.num_demos)

    def held_out(self, order: tuple[int, ...], offsets: Sequence[float] = ()) -> float:
        """Mean score on the held-out examples; with offsets of labels, of the answers that these calibrate."""
        size = self.num_known
        if not offsets:
            return float(self.landscape.answers(order)[size:].mean())
        scores = self.landscape.label_scores
        answers = (self.landscape.log_probabilities(order) + np.array(offsets)).argmax(axis=1)
        return float(scores[np.arange(len(scores)), answers][size:].mean())

    def plan(self, auto: str, budget: int | None = None, **overrides: Any) -> Plan:
        return make_plan(
            auto,
            max_metric_calls=budget,
            **overrides,
            num_train=self.num_train,
            num_selection=self.num_selection,
            num_distinct=self.space.num_distinct,
        )


Method = Callable[[Pool, int], tuple[tuple[int, ...], int]]
"""A pool and a seed to the chosen order and the program calls."""


def outcome(
    pool: Pool, plan: Plan, search: Search, *, payer: Payer | None = None, shifted: bool = False
) -> Outcome:
    """All that `PLReorder` finds with a search.

    Args:
        pool: Answers the calls.
        plan, search: What to run.
        payer: Makes the calls; None for a new one.
        shifted: As in `StagedScores`; for searches that learn from log-probabilities.
    """
    scorer = CellScorer(payer or LandscapePayer(pool.landscape, plan.max_metric_calls))
    original = pool.space.identity
    staged = StagedScores(
        scorer,
        num_train=pool.num_train if plan.racing else plan.num_train_examples,
        num_first=plan.num_first_examples if plan.racing else plan.num_train_examples,
        num_more=plan.num_more_examples,
        favoured=original if plan.racing else None,
        shifted=shifted,
    )
    kind = Compilation if plan.racing else PaperCompilation
    return kind(search, scorer, staged, plan=plan, num_train=pool.num_train, original=original).run()


def planned_outcome(
    pool: Pool,
    plan: Plan,
    update: str | UpdateRule,
    seed: int,
    signal: str = "score",
    *,
    calibrating: bool = False,
    **options: Any,
) -> Outcome:
    """What the search of a plan finds, by scores, by log-probabilities as well, or for calibrated answers.

    Args:
        pool, plan: As in `outcome`.
        update, seed, **options: Of the search.
        signal: As in `PLReorder`.
        calibrating: Whether answers are calibrated.
    """
    landscape = pool.landscape
    shape = {"update": update, "num_samples": plan.num_samples, "elite_fraction": plan.elite_fraction}
    if not plan.racing:
        return outcome(pool, plan, CrossEntropySearch(pool.space, seed=seed, **shape))
    payer = LandscapePayer(landscape, plan.max_metric_calls)
    scores = landscape.label_scores[: pool.num_known]
    responses = LabelResponses(
        scores, payer.log_probabilities, shares=shares_to_try(scores), calibrating=calibrating
    )
    classes, example_classes = landscape.classes, landscape.example_classes
    known = {
        "classes": classes and [classes],
        "example_classes": example_classes and example_classes[: pool.num_known],
        "responses": responses if signal == "logprobs" else None,
    }
    search = ThompsonSearch(
        pool.space,
        num_examples=plan.num_train_examples,
        num_initial=plan.num_initial,
        seed=seed,
        **{**shape, **known, **options},
    )
    return outcome(pool, plan, search, payer=payer, shifted=signal == "logprobs")


def choice(found: Outcome) -> tuple[tuple[int, ...], int]:
    """The order that a compile chose, and its program calls."""
    return found.ordering[0], found.program_calls["total"]


def paper(update: str) -> Method:
    """PLR Algorithm 1 with the paper's values; cells are memoised, so it pays for distinct ones only."""
    return lambda pool, seed: choice(planned_outcome(pool, pool.plan("paper"), update, seed))


def paper_within(budget: int, update: str = "mle") -> Method:
    """PLR Algorithm 1 with the largest B and K for which at least two rounds fit a budget; as many as do."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        for size in range(15, 1, -1):
            shape = {"num_samples": size, "num_final_draws": max(1, round(size * 2 / 3))}
            try:
                plan = pool.plan("paper", budget, **shape)
            except ValueError:
                continue
            if size == 2 or plan.final_calls + 2 * size * pool.num_train <= budget:
                return choice(planned_outcome(pool, plan, update, seed))
        return tuple(range(pool.landscape.num_demos)), 0

    return method


def top_k(budget: int | None = None) -> Method:
    """Random search: orders on the whole train split, the best of them on the selection split.

    Without a budget the paper's 225 orders and 10 finalists.
    """

    return lambda pool, seed: choice(top_k_outcome(pool, seed, budget))


def top_k_outcome(pool: Pool, seed: int, budget: int | None = None) -> Outcome:
    """All that a random search finds."""
    num_orders, num_best = 225, 10
    if budget is not None:
        num_best = min(10, max(1, budget // 5 // pool.num_selection - 1))
        num_orders = max(1, (budget - (num_best + 1) * pool.num_selection) // pool.num_train)
    plan = replace(
        pool.plan("paper"),
        num_iterations=1,
        num_samples=min(num_orders, pool.space.num_distinct),
        num_final_draws=0,
        num_best_seen=num_best,
        with_mode=False,
    )
    number = plan.num_samples
    search = RandomSearch(pool.space, num_orderings=number, num_samples=number, seed=seed)
    return outcome(pool, plan, search)


def halving(budget: int, num_orders: int = 225, keep: float = 0.4) -> Method:
    """Sequential halving of random orders over the whole pool: the least that a search must beat."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        rng = np.random.default_rng(seed)
        drawn = (tuple(map(int, rng.permutation(pool.landscape.num_demos))) for _ in range(num_orders))
        alive = list(dict.fromkeys(drawn))
        scorer = CellScorer(LandscapePayer(pool.landscape, budget))
        rungs = int(np.ceil(np.log(len(alive)) / np.log(1 / keep)))
        examples = 0
        for rung in range(rungs):
            more = max(1, (budget - scorer.budget.calls) // (rungs - rung) // len(alive))
            examples = min(examples + more, pool.num_known)
            orderings = [(order,) for order in alive]
            if not scorer.fits(dict.fromkeys(orderings, range(examples))):
                break
            _, rows = scorer.table(orderings, range(examples))
            best = sorted(range(len(alive)), key=lambda i: -sum(rows[i]))
            alive = [alive[i] for i in best[: max(1, int(np.ceil(keep * len(alive))))]]
        return alive[0], scorer.budget.calls

    return method


def default(budget: int, signal: str = "score") -> Method:
    """`PLReorder` with ``max_metric_calls`` and ``signal``."""
    return lambda pool, seed: choice(
        planned_outcome(pool, pool.plan("light", budget, signal=signal), "mle", seed, signal)
    )


def ablation(budget: int) -> dict[str, Method]:
    """The default search with one part taken out."""

    def without(*, race: bool = True, **options: Any) -> Method:
        def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
            plan = pool.plan("light", budget)
            if not race:
                plan = replace(plan, race_calls=0, num_entrants=plan.num_best_seen)
            return choice(planned_outcome(pool, plan, "mle", seed, **options))

        return method

    return {
        "default": without(),
        "no race": without(race=False),
        "no classes of demos": without(classes=None),
        "no leaning": without(example_classes=None),
    }
