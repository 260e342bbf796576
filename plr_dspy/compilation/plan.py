"""The shape of one compile: rounds, orderings and examples of each phase, and the calls that these make."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plr_dspy.errors import UserError

BUDGETS = {"light": 1_000, "medium": 3_000, "heavy": 10_000}  # program calls of each `auto` setting
MIN_EXAMPLES = 2  # on which a finalist is compared, at least
MIN_ORDERS = 4  # that the first round scores, at least
MIN_FIRST = {"score": 4, "logprobs": 2}  # fewest examples that an order is scored on at first, by what a call tells
SIGNALS = ("auto", *MIN_FIRST)  # what a search can be asked to learn from a call

NUM_LOOKS = 360  # first looks that a search's calls pay for; larger budgets look more closely
ROUNDS = 30  # that a search's calls pay for
FIRST_ROUND = {"orders": 2.5, "demos": 8.0}  # random candidates of the first round over those of a later one, at most
MORE_THAN_FIRST = 2  # examples each time that the search comes back to an order, over those of its first look
FINAL_SHARE = 0.15  # of the budget for the final comparison, at most
RACE_SHARE = 0.15  # of the rest for the race

# If orders are searched, an original that is unlike all others must not be replaced by mistake: see "lone original" in
# `benchmarks/offline.py`. So the race is longer, and scores the original alone first.
RACED = 3  # orders that the race has calls for on all train examples
LARGEST_RACE = 0.25  # of the calls that the comparison leaves
ORIGINAL_SHARE = 0.5  # of the race's calls

CALLS_PER_SQUARE = 2.5  # calls over the square of the number of examples, at most
LEAST_CALLS = 20  # smallest such limit
MAX_ROUNDS = 1_000  # a search ends with its calls, not its rounds, unless the user says so


@dataclass(frozen=True)
class ProblemSize:
    """What a plan depends on, beside the optimizer's arguments."""

    num_train: int  # examples
    num_selection: int
    num_distinct: int  # prompts in the space
    num_attempts: int = 0  # calls of the budget that make demos before the search, at most


@dataclass(frozen=True)
class Plan:
    """The shape of one compile: a search on few examples, a race of the best on more, and a final comparison."""

    racing: ClassVar[bool] = True  # whether it has a race; else orderings are scored on all train examples at once

    num_iterations: int = 0  # rounds
    num_samples: int = 1  # orderings of a round
    num_best_seen: int = 0  # winners of the race, which join the final comparison
    num_train_examples: int = 0  # that score an ordering, at most
    num_selection_examples: int = 0  # of the final comparison
    max_metric_calls: int | None = None  # fewer than allowed if examples are few; None for any number
    most_searched: int | None = None  # calls for every ordering on every train example, if the limit pays for them
    elite_fraction: float = 0.125  # of the orderings, which refits the distribution
    num_final_draws: int = 0  # of the final distribution, which enter the race
    num_initial: int = 0  # orderings of the first round
    num_first_examples: int = 1  # that score an ordering at first
    num_more_examples: int = 0  # each time it is asked for again
    num_entrants: int = 0  # of the race
    race_calls: int = 0
    original_share: float = 0.0  # of these for the original alone, before the first heat

    @property
    def num_finalists(self) -> int:
        """Orderings of the final comparison, at most."""
        return 1 + self.num_best_seen

    @property
    def final_calls(self) -> int:
        """Program calls of the final comparison, at most."""
        return self.num_finalists * self.num_selection_examples

    @property
    def search_calls(self) -> int:
        """Program calls of the search before the race, at most."""
        if self.most_searched is not None:
            return self.most_searched
        return (self.max_metric_calls or 0) - self.final_calls - self.race_calls

    @property
    def program_calls(self) -> int:
        """Program calls of search, race and final comparison, at most."""
        planned = self.search_calls + self.race_calls + self.final_calls
        return planned if self.max_metric_calls is None else min(planned, self.max_metric_calls)


def most_calls(num_usable: int) -> int:
    """Return the program calls that this many examples can make use of.

    On n examples chance moves the score of an order by up to 1 / sqrt(4 n). So the best of many orders is the luckiest.
    """
    return max(LEAST_CALLS, round(CALLS_PER_SQUARE * num_usable**2))


def make_plan(
    auto: str | None,
    size: ProblemSize,
    *,
    max_metric_calls: int | None = None,
    signal: str = "score",
    searched: str = "orders",
    **shape: float | None,
) -> Plan:
    """Lay out a compile.

    Args:
        auto: "light", "medium" or "heavy"; None needs `max_metric_calls`.
        size: The problem.
        max_metric_calls: Budget in program calls, in place of that of `auto`.
        signal: What a call tells: "score", or "logprobs" of labels as well.
        searched: "orders" of given demos, or "demos" and their order.
        shape: `num_iterations`, `num_samples`, `elite_fraction` and `num_final_draws` of the plan, if given.

    Raises:
        ValueError: If the budget is too small.
    """
    fixed: dict[str, Any] = {name: value for name, value in shape.items() if value is not None}
    min_first = MIN_FIRST[signal]
    total = max_metric_calls or BUDGETS[auto or "light"]
    budget = total - size.num_attempts
    for calls in (min(budget, most_calls(size.num_train + size.num_selection)), budget):
        plan = _racing_plan(calls, size, searched, min_first, fixed)
        if plan is not None:
            return plan
    enough = next(
        calls for calls in itertools.count(budget) if _racing_plan(calls, size, searched, min_first, fixed) is not None
    )
    purpose = "a search and a final comparison"
    lower = ""
    if "num_samples" in fixed:
        purpose = f"num_samples={fixed['num_samples']}"
        if _racing_plan(budget, size, searched, min_first, {**fixed, "num_samples": 1}) is not None:
            lower = ", or lower num_samples"
    if size.num_attempts:
        purpose = f"{size.num_attempts} calls that may make demos, then {purpose}"
        lower = ", or pass candidates='labeled', which makes none by calls"
    cure = f"got {total}: raise it" if max_metric_calls is not None else f"{auto=} gives {total}: pass it"
    raise UserError(f"max_metric_calls must be at least {enough + size.num_attempts} for {purpose}; {cure}{lower}")


def _racing_plan(budget: int, size: ProblemSize, searched: str, min_first: int, fixed: dict[str, Any]) -> Plan | None:
    """Return the rounds, samples and entrants that a budget affords; None if it is too small."""
    num_train = size.num_train
    num_best_seen = min(2, size.num_distinct - 1)
    num_affordable = int(FINAL_SHARE * budget) // (1 + num_best_seen)
    num_compared = min(size.num_selection, max(num_affordable, MIN_EXAMPLES))
    left = budget - (1 + num_best_seen) * num_compared
    race_calls = max(0, int(RACE_SHARE * left))
    original_share = 0.0
    if searched == "orders":
        race_calls = max(race_calls, min(RACED * num_train, int(LARGEST_RACE * left)))
        original_share = ORIGINAL_SHARE
    num_first = min(max((left - race_calls) // NUM_LOOKS, min_first), num_train)
    plan = Plan(
        num_iterations=MAX_ROUNDS,
        num_samples=min(max((left - race_calls) // (ROUNDS * min_first), 6), 24),
        num_best_seen=num_best_seen,
        num_train_examples=num_train,
        num_selection_examples=num_compared,
        max_metric_calls=budget,
        num_first_examples=num_first,
        num_more_examples=MORE_THAN_FIRST * num_first,
        num_entrants=min(max(race_calls // (MORE_THAN_FIRST * num_first), 4), 32),
        race_calls=race_calls,
        original_share=original_share,
    )
    plan = replace(plan, **fixed)
    affordable = plan.search_calls // (2 * num_first)
    num_random = size.num_distinct
    if num_random > affordable:
        num_random = round(FIRST_ROUND[searched] * plan.num_samples)
    num_initial = fixed.get("num_samples", max(MIN_ORDERS, min(num_random, affordable)))
    plan = replace(plan, num_initial=min(num_initial, size.num_distinct))
    return plan if plan.search_calls >= plan.num_initial * num_first else None
