"""Ways to choose an order of demos within a number of program calls, run on landscapes by the package's own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from landscapes import Landscape, Order
from typing_extensions import Self

from plr_dspy import CrossEntropySearch, OrderingSpace
from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.path import Compilation
from plr_dspy.compilation.plan import Plan, make_plan
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.cells import Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.search import RandomSearch, Search
from plr_dspy.search.space import Ordering
from plr_dspy.search.thompson import ThompsonSearch
from plr_dspy.statistics.calibration import shares_to_try

MODES = ["light", "logprobs", "calibrated", "paper", "top-k"]


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
        return self.num_train + self.num_selection

    @property
    def space(self) -> OrderingSpace:
        size, most = self.landscape.num_demos, self.landscape.max_shown
        if most is None:
            return OrderingSpace.of_sizes(size)
        return OrderingSpace.of_sizes(size, max_length=min(most, size), identity=((),))

    def held_out(self, order: Order, offsets: Sequence[float] = ()) -> float:
        """Mean score on the held-out examples; with offsets of labels, of the answers that these calibrate."""
        if not offsets:
            return float(self.landscape.answers(order)[self.num_known :].mean())
        answers = (self.landscape.log_probabilities(order) + np.array(offsets)).argmax(axis=1)
        return float((answers == self.landscape.right_labels)[self.num_known :].mean())

    def plan(self, auto: str, budget: int | None = None, **overrides: Any) -> Plan:
        searched = {} if self.landscape.max_shown is None else {"searched": "demos"}
        return make_plan(
            auto,
            max_metric_calls=budget,
            **searched,
            **overrides,
            num_train=self.num_train,
            num_selection=self.num_selection,
            num_distinct=self.space.num_distinct,
        )


class LandscapePayer:
    """Answers the calls of a `CellScorer` from a landscape, up to a limit; None for none."""

    def __init__(self, landscape: Landscape, max_calls: int | None = None) -> None:
        self.ledger = Ledger()
        self.budget = Budget(self.ledger, max_calls=max_calls)
        self._landscape = landscape

    def told(self, ordering: Ordering, example: int) -> tuple[Sequence[float], Sequence[int]] | None:
        """The log-probabilities of labels, of a call that was paid for; all of them were seen."""
        cell = self.ledger.cells.get((self.fingerprint(ordering, None), example))
        return None if cell is None or cell.label_logprobs is None else (cell.label_logprobs, ())

    def fingerprint(self, ordering: Ordering, example: int | None) -> str:
        return repr(ordering)

    def pay(self, cells: Mapping[CellKey, Ordering | None]) -> None:
        shown = {name: ordering[0] for (name, _), ordering in cells.items() if ordering is not None}
        told = {
            name: (self._landscape.answers(order), self._landscape.log_probabilities(order))
            for name, order in shown.items()
        }
        for name, example in cells:
            right, logprobs = (values[example] for values in told[name])
            self.ledger.add((name, example), Cell(float(right), label_logprobs=tuple(logprobs.tolist())), {})


def compiled(pool: Pool, mode: str, budget: int | None, seed: int) -> Outcome | None:
    """What a compile in a mode of `MODES` finds; None where the budget is too small.

    Without a budget, "top-k" and the paper's search make as many calls as in the paper.
    """
    plan = _plan(pool, mode, budget)
    if plan is None:
        return None
    payer = LandscapePayer(pool.landscape, plan.max_metric_calls)
    search: Search
    common = {"num_samples": plan.num_samples, "seed": seed}
    if mode == "top-k":
        search = RandomSearch(pool.space, num_orderings=plan.num_samples, **common)
    elif mode == "paper":
        search = CrossEntropySearch(pool.space, update="mle", elite_fraction=plan.elite_fraction, **common)
    else:
        search = _thompson_search(pool, plan, payer, mode, **common)
    shape = {"num_train": pool.num_train, "original": pool.space.identity}
    shifted = mode in ("logprobs", "calibrated")
    return Compilation(search, CellScorer(payer), plan=plan, shifted=shifted, **shape).run()


def _plan(pool: Pool, mode: str, budget: int | None) -> Plan | None:
    if mode == "top-k":
        return _top_k_plan(pool, budget)
    if mode == "paper":
        return pool.plan("paper") if budget is None else _paper_plan(pool, budget)
    return pool.plan("light", budget, signal="score" if mode == "light" else "logprobs")


def _paper_plan(pool: Pool, budget: int) -> Plan | None:
    """PLR Algorithm 1 with the largest B and K for which at least two rounds fit a budget."""
    for size in range(15, 1, -1):
        try:
            plan = pool.plan("paper", budget, num_samples=size, num_final_draws=max(1, round(size * 2 / 3)))
        except ValueError:
            continue
        if size == 2 or plan.final_calls + 2 * size * pool.num_train <= budget:
            return plan
    return None


def _top_k_plan(pool: Pool, budget: int | None) -> Plan:
    """A random search; without a budget, with the paper's 225 orders and 10 finalists."""
    num_orders, num_best = 225, 10
    if budget is not None:
        num_best = min(10, max(1, budget // 5 // pool.num_selection - 1))
        num_orders = max(1, (budget - (num_best + 1) * pool.num_selection) // pool.num_train)
    return replace(
        pool.plan("paper"),
        num_iterations=1,
        num_samples=min(num_orders, pool.space.num_distinct),
        num_final_draws=0,
        num_best_seen=num_best,
        with_mode=False,
    )


def _thompson_search(pool: Pool, plan: Plan, payer: LandscapePayer, mode: str, **common: Any) -> ThompsonSearch:
    landscape, responses = pool.landscape, None
    if mode != "light":
        scores = landscape.label_scores[: pool.num_known]
        calibrating = {"shares": shares_to_try(scores), "calibrating": mode == "calibrated"}
        responses = LabelResponses(scores, payer.told, **calibrating)
    classes, example_classes = landscape.classes, landscape.example_classes
    return ThompsonSearch(
        pool.space,
        update="mle",
        elite_fraction=plan.elite_fraction,
        num_examples=plan.num_train_examples,
        num_initial=plan.num_initial,
        classes=classes and [classes],
        example_classes=example_classes and example_classes[: pool.num_known],
        responses=responses,
        **common,
    )


def claimed(found: Outcome) -> bool:
    """Whether the chosen order is called better than the original."""
    return found.comparison is not None and found.comparison.probability >= MIN_WIN_PROBABILITY


def random_search(pool: Pool, budget: int, seed: int) -> tuple[Order, int]:
    """The best of as many random arrangements as can be scored on all examples."""
    drawn = _drawn(pool, max(1, budget // pool.num_known), seed)
    best = max(drawn, key=lambda order: pool.landscape.answers(order)[: pool.num_known].mean())
    return best, len(drawn) * pool.num_known


def halving(pool: Pool, budget: int, seed: int, keep: float = 0.4) -> tuple[Order, int]:
    """Successive halving over the whole pool: the least that a search must beat; gives the best order, and the calls.

    Of 225 random orders, or of arrangements, which begin with 4 examples each in a third of the calls.
    """
    first, rng = 0, np.random.default_rng(seed)
    if pool.landscape.max_shown is None:
        drawn = [tuple(map(int, rng.permutation(pool.landscape.num_demos))) for _ in range(225)]
    else:
        drawn, first = _drawn(pool, max(1, budget // 12), seed), 4
    alive, calls, examples = list(dict.fromkeys(drawn)), 0, 0
    rungs = int(np.ceil(np.log(len(alive)) / np.log(1 / keep)))
    for rung in range(rungs):
        more = max(1, (budget - calls) // (rungs - rung) // len(alive))
        more = min(first if first and not rung else more, pool.num_known - examples)
        if calls + more * len(alive) > budget:
            break
        calls, examples = calls + more * len(alive), examples + more
        ranked = sorted(alive, key=lambda order: -pool.landscape.answers(order)[:examples].sum())
        alive = ranked[: max(1, int(np.ceil(keep * len(alive))))]
    return alive[0], calls


def _drawn(pool: Pool, number: int, seed: int) -> list[Order]:
    """The program without demos, and distinct random arrangements."""
    drawn = pool.space.draw(2 * number, np.random.default_rng(seed))
    return [order for (order,) in dict.fromkeys([pool.space.identity, *drawn])][:number]
