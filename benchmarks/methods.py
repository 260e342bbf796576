"""Ways to choose an order of demos within a number of program calls, run on landscapes by the package's own parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from landscapes import Landscape, LandscapePayer

from plr_dspy import CrossEntropySearch, OrderingSpace
from plr_dspy.compilation.assembly import new_objective, new_search
from plr_dspy.compilation.budget import make_plan
from plr_dspy.compilation.engine import Compilation
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.compilation.plan import Plan
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.scoring.checkpoint import Checkpoint
from plr_dspy.scoring.objectives import CommonExamples
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.search import Search
from plr_dspy.search.surrogate.features import FAMILIES
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.thompson import ThompsonSearch
from plr_dspy.statistics.calibration import shares_to_try


@dataclass(frozen=True)
class Pool:
    """A landscape and how many of its examples are for what: train, selection, and the rest held out."""

    landscape: Landscape
    num_train: int
    num_selection: int

    @property
    def space(self) -> OrderingSpace:
        return OrderingSpace.of_sizes(self.landscape.num_demos)

    def held_out(self, order: tuple[int, ...], offsets: Sequence[float] = ()) -> float:
        """Mean score on the held-out examples; with offsets of labels, of the answers that these calibrate."""
        size = self.num_train + self.num_selection
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


def compiled(
    pool: Pool,
    plan: Plan,
    search: Search,
    objective: Callable[[CellScorer], CommonExamples | RacingExamples] | None = None,
) -> tuple[tuple[int, ...], int]:
    """Run what `PLReorder` runs."""
    found = outcome(pool, plan, search, objective)
    return found.ordering[0], found.program_calls["total"]


def outcome(
    pool: Pool,
    plan: Plan,
    search: Search,
    objective: Callable[[CellScorer], CommonExamples | RacingExamples] | None = None,
    payer: LandscapePayer | None = None,
) -> Outcome:
    """All that `PLReorder` finds."""
    payer = payer or LandscapePayer(pool.landscape)
    scorer = CellScorer(payer, max_metric_calls=plan.call_limit)
    with Checkpoint(None, dict) as checkpoint, ProgressBar(0, display=False) as bar:
        return Compilation(
            search,
            objective(scorer) if objective else new_objective(plan, scorer, num_train=pool.num_train),
            scorer,
            plan=plan,
            num_train=pool.num_train,
            stoppers=[],
            max_seconds=None,
            checkpoint=checkpoint,
            bar=bar,
        ).run()


def planned(pool: Pool, plan: Plan, update: str, seed: int) -> tuple[tuple[int, ...], int]:
    found = planned_outcome(pool, plan, update, seed)
    return found.ordering[0], found.program_calls["total"]


def planned_outcome(
    pool: Pool,
    plan: Plan,
    update: str | UpdateRule,
    seed: int,
    signal: str = "score",
    calibrating: bool = False,
) -> Outcome:
    """What the search of a plan finds, by scores, by log-probabilities as well, or for calibrated answers."""
    payer, scores = LandscapePayer(pool.landscape), pool.landscape.label_scores
    shares = shares_to_try(scores)
    responses = LabelResponses(scores, payer.log_probabilities, shares=shares, calibrating=calibrating)
    search = new_search(
        plan,
        pool.space,
        update=update,
        seed=seed,
        classes=pool.landscape.classes and [pool.landscape.classes],
        example_classes=pool.landscape.example_classes,
        responses=responses if signal == "logprobs" else None,
    )
    objective = partial(new_objective, plan, num_train=pool.num_train, shifted=signal == "logprobs")
    return outcome(pool, plan, search, objective, payer)


def paper(update: str) -> Method:
    """PLR Algorithm 1 with the paper's values; cells are memoised, so it pays for distinct ones only."""
    return lambda pool, seed: planned(pool, pool.plan("paper"), update, seed)


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
                return planned(pool, plan, update, seed)
        return tuple(range(pool.landscape.num_demos)), 0

    return method


def top_k(budget: int | None = None) -> Method:
    """Random search: orders on the whole train split, the best of them on the selection split.

    Without a budget the paper's 225 orders and 10 finalists.
    """

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        found = top_k_outcome(pool, seed, budget)
        return found.ordering[0], found.program_calls["total"]

    return method


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
    search = CrossEntropySearch(pool.space, num_samples=plan.num_samples, archive=True, seed=seed)
    return outcome(pool, plan, search)


def halving(budget: int, num_orders: int = 225, keep: float = 0.4) -> Method:
    """Sequential halving of random orders over the whole pool: the least that a search must beat."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        rng = np.random.default_rng(seed)
        drawn = (tuple(map(int, rng.permutation(pool.landscape.num_demos))) for _ in range(num_orders))
        alive = list(dict.fromkeys(drawn))
        scorer = CellScorer(LandscapePayer(pool.landscape), max_metric_calls=budget)
        rungs = int(np.ceil(np.log(len(alive)) / np.log(1 / keep)))
        examples = 0
        for rung in range(rungs):
            left = budget - scorer.program_calls
            more = max(1, left // (rungs - rung) // len(alive))
            examples = min(examples + more, pool.num_train + pool.num_selection)
            orderings = [(order,) for order in alive]
            if scorer.program_calls + scorer.cost(orderings, range(examples)) > budget:
                break
            trials = scorer.score(orderings, range(examples))
            best = sorted(range(len(alive)), key=lambda i: -trials[i].score)
            alive = [alive[i] for i in best[: max(1, int(np.ceil(keep * len(alive))))]]
        return alive[0], scorer.program_calls

    return method


def default(budget: int, signal: str = "score") -> Method:
    """`PLReorder` with ``max_metric_calls`` and ``signal``."""

    def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
        found = planned_outcome(pool, pool.plan("light", budget, signal=signal), "mle", seed, signal)
        return found.ordering[0], found.program_calls["total"]

    return method


class SameExamples(RacingExamples):
    """All orderings begin at the first example."""

    def _standing(self, orderings: Any) -> Any:
        return [(ordering, asked, 0) for ordering, asked, _ in super()._standing(orderings)]


def ablation(budget: int) -> dict[str, Method]:
    """The default search with one part taken out."""

    def without(
        *,
        model: bool = True,
        race: bool = True,
        objective: type[RacingExamples] = RacingExamples,
        classes: bool = True,
        leaning: bool = True,
        **settings: Any,
    ) -> Method:
        def method(pool: Pool, seed: int) -> tuple[tuple[int, ...], int]:
            plan = pool.plan("light", budget)
            if not race:
                plan = replace(plan, race_calls=0, num_entrants=plan.num_best_seen)
            shape: dict[str, Any] = {"num_samples": plan.num_samples, "seed": seed}
            if model:
                search: Search = ThompsonSearch(
                    pool.space,
                    num_examples=plan.num_train_examples,
                    num_initial=plan.num_initial,
                    elite_fraction=plan.elite_fraction,
                    classes=[pool.landscape.classes] if classes else None,
                    example_classes=pool.landscape.example_classes if leaning else None,
                    **shape,
                    **settings,
                )
            else:
                search = CrossEntropySearch(pool.space, archive=True, **shape)
            num_first, num_more = plan.num_first_examples, plan.num_more_examples

            def racing(scorer: CellScorer) -> RacingExamples:
                return objective(scorer, num_train=pool.num_train, num_first=num_first, num_more=num_more)

            return compiled(pool, plan, search, racing)

        return method

    places = [name for name in FAMILIES if "adjacency" not in name]
    return {
        "default": without(),
        "no model (cross-entropy)": without(model=False),
        "no second looks": without(propose_known=False),
        "no race": without(race=False),
        "all on the same examples": without(objective=SameExamples),
        "no classes of demos": without(classes=False),
        "no leaning": without(leaning=False),
        "no adjacency": without(families=places),
        "one score an item": without(families=["rank"]),
    }
