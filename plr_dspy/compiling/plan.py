"""The plan of a compile run: the rounds, orderings, examples and program calls of each phase."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plr_dspy.errors import UserError

BUDGETS = {
    "light": 1_000,
    "medium": 3_000,
    "heavy": 10_000,
}  # number of program calls for each `auto` setting
MIN_EXAMPLES = 2  # minimum number of examples in the final comparison, if the selection split is that large
MIN_ORDERS = 4  # minimum number of orders in the first round
# Minimum number of examples on which an order is first scored, for each signal.
MIN_FIRST = {"score": 4, "logprobs": 2}
SIGNALS = ("auto", *MIN_FIRST)  # values of the `signal` argument

# Maximum number of orders that a search scores on their first examples. A larger budget pays for more
# first examples per order, not for more orders.
MAX_ORDERS = 360
ROUNDS = 30  # target number of rounds in a search
# Maximum size of the random first round, relative to later rounds, if the budget does not allow all
# prompts: "orders" for a search that varies only orders, "demos" for one that also chooses demos.
FIRST_ROUND = {"orders": 2.5, "demos": 8.0}
MORE_THAN_FIRST = 2  # examples to add when an order is scored again, as a multiple of its first examples
COMPARISON_SHARE = 0.15  # maximum budget share of the final comparison, unless `MIN_EXAMPLES` needs more
RACE_SHARE = 0.15  # the race's share of the calls that are not reserved for the final comparison

# Share of the race's calls that score the original before the heats. The original's score may differ
# greatly from all other scores, so without these calls the original might be kept or replaced by
# mistake (see "help" and "lone original" in `benchmarks/landscapes.py`).
ORIGINAL_SHARE = {"orders": 0.5, "demos": 0.25}
# A search over orders has a longer race.
RACED = 3  # number of orders that the longer race can score on all train examples
LARGEST_RACE = 0.25  # the longer race's maximum share of the calls not reserved for the final comparison

CALLS_PER_SQUARE = 2.5  # maximum number of useful calls, divided by the squared number of examples
LEAST_CALLS = 20  # smallest return value of `most_calls`
MAX_ROUNDS = 1_000  # a limit that is never reached, because the budget is spent first


@dataclass(frozen=True)
class ProblemSize:
    """The size of an optimization problem, from which the plan is made."""

    num_train: int  # number of examples in the train split
    num_selection: int  # number of examples in the selection split
    num_distinct: int  # number of distinct prompts in the search space
    num_attempts: int = 0  # maximum number of calls that bootstrap demos before the search


@dataclass(frozen=True)
class Plan:
    """The plan of a compile run: a search, a race of the best orderings, and a final comparison."""

    racing: ClassVar[bool] = True  # whether there is a race; if not, the search uses all train examples

    num_iterations: int = 0  # maximum number of rounds
    num_samples: int = 1  # number of orderings in each round
    num_best_seen: int = 0  # number of race winners (without a race, best orders) in the final comparison
    num_train_examples: int = 0  # maximum number of train examples on which an ordering is scored
    num_selection_examples: int = 0  # number of examples in the final comparison
    # Budget in program calls after bootstrapping, reduced if there are few examples; None if unlimited.
    max_metric_calls: int | None = None
    most_searched: int | None = None  # number of calls in an exhaustive search, if one is planned
    elite_fraction: float = 0.125  # share of the orderings to which the distribution is refitted
    # Number of orderings to draw from the final distribution. The draws enter the race or, if the plan
    # has no race, the final comparison.
    num_final_draws: int = 0
    num_initial: int = 0  # number of orderings in the first round or, in a random search, in all rounds
    num_first_examples: int = 1  # number of examples on which an ordering is first scored
    num_more_examples: int = 0  # number of examples added each time an ordering is scored again
    num_entrants: int = 0  # number of the search's best candidates that enter the race
    # Number of program calls in the race, in addition to calls left over from the search.
    race_calls: int = 0
    original_share: float = 0.0  # share of the race's calls that score the original before the heats

    @property
    def num_finalists(self) -> int:
        """The maximum number of orderings in the final comparison."""
        return 1 + self.num_best_seen

    @property
    def comparison_calls(self) -> int:
        """The maximum number of program calls in the final comparison."""
        return self.num_finalists * self.num_selection_examples

    @property
    def search_calls(self) -> int:
        """The maximum number of program calls in the search before the race."""
        if self.most_searched is not None:
            return self.most_searched
        return (self.max_metric_calls or 0) - self.comparison_calls - self.race_calls

    @property
    def num_looks(self) -> int:
        """The approximate number of times that a candidate is scored on several examples in a row."""
        looks_of_search = math.ceil((self.search_calls + self.race_calls) / self.num_first_examples)
        return looks_of_search + self.num_finalists

    @property
    def program_calls(self) -> int:
        """The maximum number of program calls in the search, the race and the final comparison."""
        planned = self.search_calls + self.race_calls + self.comparison_calls
        return planned if self.max_metric_calls is None else min(planned, self.max_metric_calls)


def most_calls(num_usable: int) -> int:
    """Return the maximum number of useful program calls with `num_usable` examples.

    On n examples, a mean score has a standard error of up to 1 / sqrt(4 n). So if a search scores
    too many orders, the order that scores best is probably best only by chance.
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
    """Return the plan of a compile run.

    Args:
        auto: "light", "medium" or "heavy". None requires `max_metric_calls`.
        max_metric_calls: Budget in program calls, which overrides `auto`.
        signal: "score", or "logprobs" if calls also return log-probabilities of labels.
        searched: What the search varies: "orders", or "demos" if it also chooses the demos.
        shape: `num_iterations`, `num_samples`, `elite_fraction` and `num_final_draws`. The plan
            chooses a value for each setting that is missing or None.

    Raises:
        ValueError: If the budget is too small.
    """
    fixed: dict[str, Any] = {name: value for name, value in shape.items() if value is not None}
    min_first = MIN_FIRST[signal]
    total = max_metric_calls or BUDGETS[auto or "light"]
    budget = total - size.num_attempts
    # Calls beyond `most_calls` are not useful. Plan them only if there is no plan without them.
    for calls in (min(budget, most_calls(size.num_train + size.num_selection)), budget):
        plan = _racing_plan(calls, size, searched, min_first, fixed)
        if plan is not None:
            return plan
    enough = next(
        calls
        for calls in itertools.count(budget)
        if _racing_plan(calls, size, searched, min_first, fixed) is not None
    )
    purpose = "a search and a final comparison"
    lower = ""
    if "num_samples" in fixed:
        purpose = f"a search with num_samples={fixed['num_samples']} and a final comparison"
        if _racing_plan(budget, size, searched, min_first, {**fixed, "num_samples": 1}) is not None:
            lower = ", or reduce num_samples"
    if size.num_attempts:
        purpose = f"{purpose}, and for {size.num_attempts} calls that bootstrap demos"
        if total >= enough:
            lower = ", or use PLFewShot(candidates='labeled'), which makes no calls to get demos"
    fix = (
        f"got {total}: increase max_metric_calls"
        if max_metric_calls is not None
        else f"{auto=} allows {total}: pass a larger max_metric_calls"
    )
    raise UserError(
        f"max_metric_calls must be at least {enough + size.num_attempts} for {purpose}; {fix}{lower}"
    )


def _racing_plan(
    budget: int, size: ProblemSize, searched: str, min_first: int, fixed: dict[str, Any]
) -> Plan | None:
    """Return a plan that includes a race, or None if the budget is too small."""
    num_train = size.num_train
    num_best_seen = min(2, size.num_distinct - 1)
    num_affordable = int(COMPARISON_SHARE * budget) // (1 + num_best_seen)
    num_compared = min(size.num_selection, max(num_affordable, MIN_EXAMPLES))
    remaining = budget - (1 + num_best_seen) * num_compared
    race_calls = max(0, int(RACE_SHARE * remaining))
    if searched == "orders":
        race_calls = max(race_calls, min(RACED * num_train, int(LARGEST_RACE * remaining)))
    num_first = min(max((remaining - race_calls) // MAX_ORDERS, min_first), num_train)
    plan = Plan(
        num_iterations=MAX_ROUNDS,
        num_samples=min(max((remaining - race_calls) // (ROUNDS * min_first), 6), 24),
        num_best_seen=num_best_seen,
        num_train_examples=num_train,
        num_selection_examples=num_compared,
        max_metric_calls=budget,
        num_first_examples=num_first,
        num_more_examples=MORE_THAN_FIRST * num_first,
        num_entrants=min(max(race_calls // (MORE_THAN_FIRST * num_first), 4), 32),
        race_calls=race_calls,
        original_share=ORIGINAL_SHARE[searched],
    )
    plan = replace(plan, **fixed)
    affordable = plan.search_calls // (2 * num_first)
    num_random = size.num_distinct
    if num_random > affordable:
        num_random = round(FIRST_ROUND[searched] * plan.num_samples)
    num_initial = fixed.get("num_samples", max(MIN_ORDERS, min(num_random, affordable)))
    plan = replace(plan, num_initial=min(num_initial, size.num_distinct))
    return plan if plan.search_calls >= plan.num_initial * num_first else None
