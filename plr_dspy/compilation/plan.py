"""The shape of one compile: rounds, orderings and examples of each phase, and the calls that these make."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from plr_dspy.errors import UserError

BUDGETS = {"light": 1_000, "medium": 3_000, "heavy": 10_000}  # program calls of each `auto` setting
MIN_EXAMPLES, MIN_ORDERS = 2, 4  # examples a finalist is compared on, and orders that the first round scores, at least
MIN_FIRST = {"score": 4, "logprobs": 2}  # fewest examples that an order is scored on at first, by what a call tells
SIGNALS = ("auto", *MIN_FIRST)  # what a search can be asked to learn from a call

NUM_LOOKS, ROUNDS = 360, 30  # first looks and rounds that a search's calls pay for; larger budgets look more closely
FIRST_ROUND = {"orders": 2.5, "demos": 8.0}
"""Random ones of the first round, at most, over the samples of a later one, by what is searched: more for choices of
demos, of which there are so many that a model needs more of them before its proposals are worth their calls."""

MORE_THAN_FIRST = 2  # examples each time that the search comes back to an order, over those of its first look
FINAL_SHARE, RACE_SHARE = 0.15, 0.15  # of the budget for the final comparison, at most, and of the rest for the race

RACED, LARGEST_RACE, ORIGINAL_SHARE = 3, 0.25, 0.5
"""Where orders are searched, the race has calls for so many of them on all train examples, up to a share of the rest.
Another share, of the race's calls, is for the original one alone.

So a good order that nothing else tells of is replaced by mistake a third as often (`benchmarks/offline.py`, "lone
original"). Where demos are chosen, the original is seldom a rival, and a search finds less by fewer calls.
"""

CALLS_PER_SQUARE, LEAST_CALLS = 2.5, 20  # calls over the square of the number of examples, at most; least such limit
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
    """The shape of one compile; what follows `num_initial` is of racing plans only."""

    num_iterations: int = 0  # T, B, rho and K of PLR Algorithm 1 are this, and the three like it
    num_samples: int = 1
    num_best_seen: int = 0  # best orderings of the search, or winners of its race, that join the final comparison
    num_train_examples: int = 0  # that score a sample, the same ones for all samples; with `racing` at most
    num_selection_examples: int = 0  # of the final comparison
    max_metric_calls: int | None = None  # most program calls, fewer than allowed where examples are few; None for any
    most_searched: int | None = None  # calls for every ordering on every train example, where the limit pays for them
    elite_fraction: float = 0.125
    num_final_draws: int = 0
    racing: bool = False  # whether orderings are scored on few examples at first, and the good ones on more and more
    with_mode: bool = True  # whether the most probable ordering joins the final comparison
    num_initial: int = 0  # orderings of the first round
    num_first_examples: int = 1  # that score an ordering at first
    num_more_examples: int = 0  # each time it is asked for again
    num_entrants: int = 0  # of the race that ends the search
    race_calls: int = 0
    original_share: float = 0.0  # of the race's calls for the original one alone, before the first heat

    @property
    def num_finalists(self) -> int:
        """Orderings of the final comparison, at most; in a racing plan the mode and the draws run in the race."""
        return 1 + self.num_best_seen + (0 if self.racing else self.with_mode + self.num_final_draws)

    @property
    def final_calls(self) -> int:
        """Program calls of the final comparison, at most."""
        return self.num_finalists * self.num_selection_examples

    @property
    def search_calls(self) -> int:
        """Program calls of the search before the race, at most."""
        if self.most_searched is not None:
            return self.most_searched
        if self.max_metric_calls is not None and self.racing:
            return self.max_metric_calls - self.final_calls - self.race_calls
        return self.num_iterations * self.num_samples * self.num_train_examples

    @property
    def program_calls(self) -> int:
        """Program calls of search, race and final comparison, at most."""
        planned = self.search_calls + self.race_calls + self.final_calls
        return planned if self.max_metric_calls is None else min(planned, self.max_metric_calls)


NOTHING_TO_DO = Plan(max_metric_calls=0)  # the plan where all choices give the same prompt


def most_calls(num_usable: int) -> int:
    """Program calls that so few examples, of both splits together, can make use of.

    On n examples chance alone moves the score of an order by up to 1 / sqrt(4 n), so that the best of many orders is
    the luckiest one. Looks at 2.5 n orders, each on all n, are as many as can pay.
    """
    return max(LEAST_CALLS, round(CALLS_PER_SQUARE * num_usable**2))


def make_plan(
    auto: str | None,  # "light", "medium", "heavy" or "paper"; None needs `max_metric_calls`, which wins
    *,
    num_train: int,
    num_selection: int,
    num_distinct: int,  # prompts in the space
    max_metric_calls: int | None = None,
    signal: str = "score",  # what a call tells; "logprobs" where it tells how likely each label was
    searched: str = "orders",  # of given demos, or "demos" and their order
    spent: int = 0,  # calls of the budget that make demos before the search, or may
    **chosen: Any,
) -> Plan:
    """Lay out a compile.

    `chosen` are fields of the plan (`num_iterations`, `num_samples`, `elite_fraction`, `num_final_draws`) that win over
    its own; None leaves them to it.

    Raises:
        ValueError: when a budget is too small for what was asked.
    """
    sizes = {"num_train": num_train, "num_selection": num_selection, "num_distinct": num_distinct}
    fixed = {name: value for name, value in chosen.items() if value is not None}
    plan_for: Callable[..., Plan | None] = partial(
        _racing_plan, searched=searched, min_first=MIN_FIRST[signal], **sizes, **fixed
    )
    if auto == "paper":  # with its values: 15 rounds of 15, elites of a fifth, and 10 draws
        own = {"num_initial": 0, "elite_fraction": 0.2, "num_final_draws": 10, "with_mode": True}
        whole: dict[str, Any] = {"num_examples": num_train, "num_compared": num_selection, "budget": max_metric_calls}
        plan = replace(random_plan(15 * 15, batch=15, num_best=1, **whole), **{**own, **fixed})
        least = plan.final_calls + plan.num_samples * plan.num_train_examples
        if max_metric_calls is not None and max_metric_calls < least:
            raise UserError(
                f"max_metric_calls must be at least {least} with auto='paper' on these splits, for one iteration and "
                f"the finalists; got {max_metric_calls}: raise it, or use auto='light'"
            )
        return plan
    total = max_metric_calls or BUDGETS[auto or "light"]
    budget = total - spent
    if found := plan_for(min(budget, most_calls(num_train + num_selection))) or plan_for(budget):
        return found
    enough = next(calls for calls in itertools.count(budget) if plan_for(calls) is not None)
    purpose, lower = "a search and a final comparison", ""
    if "num_samples" in fixed:
        purpose = f"num_samples={fixed['num_samples']}"
        lower = ", or lower num_samples" if plan_for(budget, num_samples=1) is not None else ""
    if spent:
        purpose = f"{spent} calls that may make demos, then {purpose}"
        lower = ", or pass candidates='labeled', which makes none by calls"
    came = f"got {total}: raise it" if max_metric_calls is not None else f"{auto=} gives {total}: pass it"
    raise UserError(f"max_metric_calls must be at least {enough + spent} for {purpose}; {came}{lower}")


def _racing_plan(
    budget: int, *, num_train: int, num_selection: int, num_distinct: int, searched: str, min_first: int, **fixed: Any
) -> Plan | None:
    """Rounds, samples and entrants that a budget affords; None if it is too small."""
    num_best_seen = min(2, num_distinct - 1)
    num_compared = min(num_selection, max(int(FINAL_SHARE * budget) // (1 + num_best_seen), MIN_EXAMPLES))
    left = budget - (1 + num_best_seen) * num_compared
    race_calls, original_share = max(0, int(RACE_SHARE * left)), 0.0
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
        racing=True,
        max_metric_calls=budget,
        num_first_examples=num_first,
        num_more_examples=MORE_THAN_FIRST * num_first,
        num_entrants=min(max(race_calls // (MORE_THAN_FIRST * num_first), 4), 32),
        race_calls=race_calls,
        original_share=original_share,
    )
    plan = replace(plan, **fixed)
    affordable = plan.search_calls // (2 * num_first)
    random = num_distinct if num_distinct <= affordable else round(FIRST_ROUND[searched] * plan.num_samples)
    num_initial = fixed.get("num_samples", max(MIN_ORDERS, min(random, affordable)))
    plan = replace(plan, num_initial=min(num_initial, num_distinct))
    return plan if plan.search_calls >= plan.num_initial * num_first else None


def random_plan(
    num_orders: int, *, num_examples: int, num_best: int, num_compared: int, budget: int | None, batch: int = 0
) -> Plan:
    """The plan of a compile that scores random orders, each once, and compares the best with the original one; 0 is a
    batch of all."""
    batch = min(batch or num_orders, num_orders)
    return Plan(
        num_iterations=-(-num_orders // batch),
        num_samples=batch,
        num_best_seen=num_best,
        num_train_examples=num_examples,
        num_selection_examples=num_compared,
        num_first_examples=num_examples,
        max_metric_calls=budget,
        with_mode=False,
        num_initial=num_orders,
    )
