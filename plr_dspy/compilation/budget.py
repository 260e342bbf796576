"""How a budget of program calls is laid out over a search and the final comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from plr_dspy.compilation.plan import Plan
from plr_dspy.compilation.shortage import paper_shortage, shortage

BUDGETS = {"light": 1_000, "medium": 3_000, "heavy": 10_000}
"""Program calls of each `auto` setting."""

MIN_EXAMPLES = 2
"""Fewest examples a finalist is compared on."""

MIN_ORDERS = 4
"""Fewest orders that the first round scores."""

MIN_FIRST = {"score": 4, "logprobs": 2}
"""Fewest examples that an order is scored on at first, by what a call tells."""

SIGNALS = ("auto", *MIN_FIRST)
"""What a search can be asked to learn from a call."""

NUM_LOOKS = 360
"""First looks that the search's calls would pay for; larger budgets look more closely, not at more orders."""

ROUNDS = 30
"""Rounds of first looks that the search's calls would pay for."""

FIRST_ROUND = {"orders": 2.5, "demos": 8.0}
"""Random ones of the first round, at most, over the samples of a later one, by what is searched: more for choices of
demos, of which there are so many that a model needs more of them before its proposals are worth their calls."""

MORE_THAN_FIRST = 2
"""Examples each time that the search comes back to an order, over those of its first look."""

FINAL_SHARE, RACE_SHARE = 0.15, 0.15
"""Of the budget for the final comparison, at most, and of the rest for the race."""

CALLS_PER_SQUARE, LEAST_CALLS = 2.5, 20
"""Program calls over the square of the number of examples, at most, and the least such limit."""

MANY_ORDERS = 100
"""More orders than these are scored on all examples at once, where all of them are to be scored."""

MAX_ROUNDS = 1_000
"""A search ends with its calls, not its rounds, unless the user says so."""


def most_calls(num_usable: int) -> int:
    """Program calls that so few examples can make use of.

    On n examples chance alone moves the score of an order by up to 1 / sqrt(4 n), so that the best of many orders is
    the luckiest one. Looks at 2.5 n orders, each on all n, are as many as can pay.

    Args:
        num_usable: Examples of both splits.
    """
    return max(LEAST_CALLS, round(CALLS_PER_SQUARE * num_usable**2))


def make_plan(
    auto: str | None,
    *,
    num_train: int,
    num_selection: int,
    num_distinct: int,
    max_metric_calls: int | None = None,
    num_iterations: int | None = None,
    num_samples: int | None = None,
    elite_fraction: float | None = None,
    num_final_draws: int | None = None,
    signal: str = "score",
    searched: str = "orders",
) -> Plan:
    """Lay out a compile.

    Args:
        auto: "light", "medium", "heavy" or "paper"; None needs `max_metric_calls`.
        num_train, num_selection: Examples of the two splits.
        num_distinct: Distinct prompts in the space.
        max_metric_calls: Budget in program calls; None takes that of `auto`.
        num_iterations, num_samples, elite_fraction, num_final_draws: Win over the plan's own; None leaves them to it.
        signal: What a call tells: "score", or "logprobs" where it tells how likely each label was.
        searched: What the search is for: "orders" of given demos, or "demos" and their order.

    Raises:
        ValueError: when a budget is too small for what was asked.
    """
    fixed = {
        "num_iterations": num_iterations,
        "elite_fraction": elite_fraction,
        "num_final_draws": num_final_draws,
    }
    fixed = {name: value for name, value in fixed.items() if value is not None}

    def plan_for(calls: int, samples: int | None = num_samples) -> Plan | None:
        shape = fixed if samples is None else {**fixed, "num_samples": samples}
        first_round, min_first = FIRST_ROUND[searched], MIN_FIRST[signal]
        return _budget_plan(calls, shape, num_train, num_selection, num_distinct, first_round, min_first)

    if auto == "paper":
        shape = fixed if num_samples is None else {**fixed, "num_samples": num_samples}
        return _paper_plan(max_metric_calls, shape, num_train, num_selection, light=plan_for)
    budget = max_metric_calls or BUDGETS[auto or "light"]
    plan = plan_for(min(budget, most_calls(num_train + num_selection))) or plan_for(budget)
    if plan is None:
        raise shortage(
            budget,
            auto=auto if max_metric_calls is None else None,
            num_samples=num_samples,
            pays=lambda calls, number: plan_for(calls, number) is not None,
        )
    return plan


def _budget_plan(
    budget: int,
    fixed: Mapping[str, Any],
    num_train: int,
    num_selection: int,
    num_distinct: int,
    first_round: float,
    min_first: int,
) -> Plan | None:
    """The plan for a budget, or None if that is too small."""
    exhaustive = replace(_exhaustive_plan(budget, num_train, num_selection, num_distinct), **fixed)
    if exhaustive.planned_calls <= budget:
        return replace(exhaustive, num_initial=min(fixed.get("num_samples", num_distinct), num_distinct))
    plan = replace(_racing_plan(budget, num_train, num_selection, num_distinct, min_first), **fixed)
    num_initial = fixed.get("num_samples")
    if num_initial is None:
        affordable = plan.search_calls // (2 * plan.num_first_examples)
        random = round(first_round * plan.num_samples) if num_distinct > affordable else num_distinct
        num_initial = max(MIN_ORDERS, min(random, affordable))
    plan = replace(plan, num_initial=min(num_initial, num_distinct))
    return plan if plan.search_calls >= plan.num_initial * plan.num_first_examples else None


def _racing_plan(budget: int, num_train: int, num_selection: int, num_distinct: int, min_first: int) -> Plan:
    """Rounds, samples and entrants that a budget affords."""
    num_best_seen = min(2, num_distinct - 1)
    num_compared = min(num_selection, max(int(FINAL_SHARE * budget) // (1 + num_best_seen), MIN_EXAMPLES))
    left = budget - (1 + num_best_seen) * num_compared
    race_calls = max(0, int(RACE_SHARE * left))
    num_first = min(max((left - race_calls) // NUM_LOOKS, min_first), num_train)
    return Plan(
        num_iterations=MAX_ROUNDS,
        num_samples=min(max((left - race_calls) // (ROUNDS * min_first), 6), 24),
        elite_fraction=0.125,
        num_final_draws=0,
        num_best_seen=num_best_seen,
        num_train_examples=num_train,
        num_selection_examples=num_compared,
        exhaustive=False,
        racing=True,
        max_metric_calls=budget,
        num_first_examples=num_first,
        num_more_examples=MORE_THAN_FIRST * num_first,
        num_entrants=min(max(race_calls // (MORE_THAN_FIRST * num_first), 4), 32),
        race_calls=race_calls,
    )


def _exhaustive_plan(budget: int, num_train: int, num_selection: int, num_distinct: int) -> Plan:
    """Every order on every train example, and as many as the budget pays for on every selection example.

    A quarter of the examples comes first, so that a search that is ended early, or can find nothing, saves the rest.
    """
    first = num_train if num_distinct > MANY_ORDERS else -(-num_train // 4)
    left = budget - num_distinct * num_train
    return Plan(
        num_iterations=MAX_ROUNDS,
        num_samples=min(24, num_distinct),
        elite_fraction=0.125,
        num_final_draws=0,
        num_best_seen=min(num_distinct - 1, max(2, left // num_selection - 1)),
        num_train_examples=num_train,
        num_selection_examples=num_selection,
        exhaustive=True,
        racing=True,
        max_metric_calls=budget,
        num_initial=num_distinct,
        num_first_examples=first,
        num_more_examples=num_train,
        num_entrants=num_distinct,
    )


def _paper_plan(
    budget: int | None,
    fixed: Mapping[str, Any],
    num_train: int,
    num_selection: int,
    *,
    light: Callable[[int], Plan | None],
) -> Plan:
    """The paper's values; `light` is the plan of other settings for a budget, if there is one."""
    paper = Plan(
        num_iterations=15,
        num_samples=15,
        elite_fraction=0.2,
        num_final_draws=10,
        num_best_seen=1,
        num_train_examples=num_train,
        num_selection_examples=num_selection,
        exhaustive=False,
        racing=False,
        max_metric_calls=budget,
    )
    plan = replace(paper, **fixed)
    least = plan.final_calls + plan.num_samples * plan.num_train_examples
    if budget is not None and budget < least:
        raise paper_shortage(
            budget,
            least,
            fewer_examples=plan.num_finalists + plan.num_samples <= budget,
            light=light(budget) is not None,
        )
    return plan
