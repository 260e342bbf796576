"""How a budget of program calls is laid out over a search and the final comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

BUDGETS = {"light": 1_000, "medium": 3_000, "heavy": 10_000}
"""Program calls of each `auto` setting."""

MIN_EXAMPLES = 2
"""Fewest examples a sample, or a finalist, is scored on."""

MAX_ITERATIONS = 30
"""Rounds that a budget left over by a small train split may add up to."""


@dataclass(frozen=True)
class Overrides:
    """What the user fixed; None leaves the choice to the plan."""

    max_metric_calls: int | None = None
    num_iterations: int | None = None
    num_samples: int | None = None
    elite_fraction: float | None = None
    num_final_draws: int | None = None


@dataclass(frozen=True)
class Plan:
    """The shape of one compile.

    Attributes:
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR Algorithm 1.
        num_best_seen: Best orderings of the search that join the final comparison.
        num_train_examples: Examples that score a sample; the same ones for all samples.
        num_selection_examples: Examples of the final comparison.
        archive: Whether orderings are never sampled twice and elites come from all iterations.
        exhaustive: Whether every distinct ordering is scored, in batches of `num_samples`.
        max_metric_calls: Hard limit on program calls; None for none.
    """

    num_iterations: int
    num_samples: int
    elite_fraction: float
    num_final_draws: int
    num_best_seen: int
    num_train_examples: int
    num_selection_examples: int
    archive: bool
    exhaustive: bool
    max_metric_calls: int | None

    @property
    def num_finalists(self) -> int:
        """Orderings of the final comparison, at most: the original, the mode, the best seen, the draws."""
        return 2 + self.num_best_seen + self.num_final_draws

    @property
    def final_calls(self) -> int:
        """Program calls of the final comparison, at most."""
        return self.num_finalists * self.num_selection_examples

    @property
    def search_calls(self) -> int:
        """Program calls of the search, at most."""
        return self.num_iterations * self.num_samples * self.num_train_examples

    @property
    def program_calls(self) -> int:
        """Program calls of the compile, at most."""
        planned = self.search_calls + self.final_calls
        return planned if self.max_metric_calls is None else min(planned, self.max_metric_calls)

    @property
    def call_limit(self) -> int:
        """Program calls that are never exceeded, with those that failed and were made again in a later part."""
        return self.program_calls if self.max_metric_calls is None else self.max_metric_calls


NOTHING_TO_DO = Plan(
    num_iterations=0,
    num_samples=1,
    elite_fraction=1.0,
    num_final_draws=0,
    num_best_seen=0,
    num_train_examples=0,
    num_selection_examples=0,
    archive=True,
    exhaustive=True,
    max_metric_calls=0,
)
"""The plan where all orders give the same prompt."""


def make_plan(
    auto: str, overrides: Overrides, *, num_train: int, num_selection: int, num_distinct: int
) -> Plan:
    """Lay out a compile.

    Args:
        auto: "light", "medium", "heavy" or "paper".
        overrides: Values that win over the plan's.
        num_train, num_selection: Examples of the two splits.
        num_distinct: Distinct prompts in the space.

    Raises:
        ValueError: when a budget is too small for what was asked.
    """
    if auto == "paper":
        return _paper_plan(overrides, num_train, num_selection)

    def plan_for(budget: int) -> Plan | None:
        return _budget_plan(budget, overrides, num_train, num_selection, num_distinct)

    budget = overrides.max_metric_calls or BUDGETS[auto]
    plan = plan_for(budget)
    if plan is None:
        enough = next((larger for larger in range(budget + 1, budget + 100_000) if plan_for(larger)), None)
        raise ValueError(
            f"max_metric_calls must be at least {enough or 'much more'} for this many samples and finalists; "
            f"got {budget}: raise it, or lower num_iterations, num_samples or num_final_draws"
        )
    return plan


def _budget_plan(
    budget: int, overrides: Overrides, num_train: int, num_selection: int, num_distinct: int
) -> Plan | None:
    """The plan for a budget, or None if that does not score each sample on `MIN_EXAMPLES` examples."""
    plan = _with_overrides(_shape(budget), overrides)
    for_each_finalist = max(budget // 3 // plan.num_finalists, MIN_EXAMPLES)
    plan = replace(plan, num_selection_examples=min(num_selection, for_each_finalist))
    search_budget = budget - plan.final_calls
    num_samples = min(plan.num_iterations * plan.num_samples, num_distinct)
    num_train_examples = min(num_train, search_budget // num_samples)
    if num_train_examples < min(num_train, MIN_EXAMPLES):
        return None
    plan = replace(plan, num_train_examples=num_train_examples)
    if overrides.num_iterations is None:
        # A small train split leaves budget: more rounds are the best use of it.
        affordable = search_budget // (plan.num_samples * num_train_examples)
        more = max(plan.num_iterations, min(affordable, MAX_ITERATIONS))
        plan = replace(plan, num_iterations=more)
    if num_distinct <= plan.num_iterations * plan.num_samples:
        num_iterations = math.ceil(num_distinct / plan.num_samples)
        return replace(plan, exhaustive=True, num_iterations=num_iterations)
    return plan


def _paper_plan(overrides: Overrides, num_train: int, num_selection: int) -> Plan:
    paper = Plan(
        num_iterations=15,
        num_samples=15,
        elite_fraction=0.2,
        num_final_draws=10,
        num_best_seen=1,
        num_train_examples=num_train,
        num_selection_examples=num_selection,
        archive=False,
        exhaustive=False,
        max_metric_calls=overrides.max_metric_calls,
    )
    plan = _with_overrides(paper, overrides)
    least = plan.final_calls + plan.num_samples * plan.num_train_examples
    if plan.max_metric_calls is not None and plan.max_metric_calls < least:
        raise ValueError(
            f"max_metric_calls must be at least {least} with auto='paper' on these splits, for one iteration and "
            f"the finalists; got {plan.max_metric_calls}: raise it, pass fewer examples, or use auto='light'"
        )
    return plan


def _shape(budget: int) -> Plan:
    """Rounds, samples and finalists that a budget affords; example counts are set later."""
    if budget < 500:
        rounds, samples, draws, best_seen = 2, 8, 1, 2
    elif budget < 2_000:
        rounds, samples, draws, best_seen = 3, 14, 2, 4
    elif budget < 6_000:
        rounds, samples, draws, best_seen = 5, 16, 4, 6
    else:
        rounds, samples, draws, best_seen = 8, 24, 6, 8
    return Plan(
        num_iterations=rounds,
        num_samples=samples,
        elite_fraction=0.2,
        num_final_draws=draws,
        num_best_seen=best_seen,
        num_train_examples=0,
        num_selection_examples=0,
        archive=True,
        exhaustive=False,
        max_metric_calls=budget,
    )


def _with_overrides(plan: Plan, overrides: Overrides) -> Plan:
    fixed = {
        "num_iterations": overrides.num_iterations,
        "num_samples": overrides.num_samples,
        "elite_fraction": overrides.elite_fraction,
        "num_final_draws": overrides.num_final_draws,
    }
    return replace(plan, **{name: value for name, value in fixed.items() if value is not None})  # type: ignore[arg-type]
