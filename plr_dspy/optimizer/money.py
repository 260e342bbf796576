"""What `max_cost` needs before the first call: prices, and money enough."""

from __future__ import annotations

import math

import dspy

from plr_dspy.compilation.budget import MIN_ORDERS
from plr_dspy.compilation.final_comparison import MIN_COMPARED
from plr_dspy.lm.prices import cost_of, without_price
from plr_dspy.optimizer.cost_estimate import cost_a_call, tokens_a_call
from plr_dspy.optimizer.job import Job
from plr_dspy.optimizer.reporting import models_in_use
from plr_dspy.programs.copies import language_models
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.scoring.purse import Purse


def make_purse(
    job: Job,
    max_cost: float | None,
    ledger: Ledger | None = None,
    *,
    teacher: dspy.Module | None = None,
    share: float = 0.0,
) -> Purse:
    """Return the purse of a compile.

    Args:
        job: What is paid for.
        max_cost: Dollars; None for no limit.
        ledger: What an earlier part has paid for, if there was one.
        teacher: A program that is called before.
        share: Of the money, for what is called before.

    Raises:
        ValueError: when a model has no price, or the money pays for no comparison of a few orders.
    """
    if max_cost is None:
        return Purse()
    teaching = [] if teacher is None else language_models(teacher)
    if unknown := without_price([*models_in_use(job), *teaching]):
        raise ValueError(f"max_cost needs a price for {', '.join(unknown)}: pass max_metric_calls instead")
    expected = cost_a_call(job, tokens_a_call(job))
    earlier = [*(each.tokens for each in job.earlier), *([] if ledger is None else ledger.resumed_tokens)]
    purse = Purse(max_cost, price=cost_of, expected=expected, earlier=earlier)
    if not earlier:
        _check_enough(job, max_cost, purse, share)
    return purse


def _check_enough(job: Job, max_cost: float, purse: Purse, share: float) -> None:
    """Raise unless the money pays for a few orders and a final comparison, as far as can be told."""
    plan = job.plan
    num_first = plan.num_first_examples if plan.racing else plan.num_train_examples
    num_orders = min(MIN_ORDERS, job.slots.space.num_distinct)
    num_compared = min(MIN_COMPARED, plan.num_selection_examples)
    calls = num_orders * num_first + plan.num_finalists * num_compared
    least = purse.cost(calls) if plan.program_calls else None
    least = None if least is None else least / (1.0 - share)
    if least is not None and max_cost < least:
        scale = 10.0 ** (math.floor(math.log10(least)) - 1)
        enough = (math.floor(least / scale) + 1) * scale
        raise ValueError(
            f"max_cost={max_cost:g} is too small for {num_orders} orders on {num_first} examples and a final "
            f"comparison on {num_compared}, some {calls} calls: pass max_cost={enough:.2g} or more"
        )
