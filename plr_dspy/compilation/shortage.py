"""The errors for budgets that are too small: how much would do, and what else the user can change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def shortage(
    budget: int, *, auto: str | None, num_samples: int | None, pays: Callable[[int, int | None], bool]
) -> ValueError:
    """The error for a budget that does not pay for a plan.

    Args:
        budget: In program calls.
        auto: The setting that gave it; None where the user gave a number.
        num_samples: What the user asked for; None if nothing.
        pays: Whether a budget pays for so many samples.
    """
    purpose = "a search and a final comparison" if num_samples is None else f"{num_samples=}"
    came = f"got {budget}: raise it" if auto is None else f"{auto=} gives {budget}: pass it"
    enough = _least(lambda calls: pays(calls, num_samples), above=budget)
    fewer = 0
    if num_samples is not None:
        fewer = bisect_left(range(1, num_samples), True, key=lambda number: not pays(budget, number))
    lower = f", or lower num_samples to {fewer}" if fewer else ""
    return ValueError(f"max_metric_calls must be at least {enough} for {purpose}; {came}{lower}")


def paper_shortage(budget: int, least: int, *, fewer_examples: bool, light: bool) -> ValueError:
    """The error for a budget that does not pay for the paper's settings.

    Args:
        budget, least: Program calls there are, and that would do.
        fewer_examples: Whether it would do for some examples.
        light: Whether it would do with ``auto="light"``.
    """
    cures = ["raise it"]
    cures += ["pass fewer examples"] * fewer_examples
    cures += ["use auto='light'"] * light
    return ValueError(
        f"max_metric_calls must be at least {least} with auto='paper' on these splits, for one iteration and "
        f"the finalists; got {budget}: {', or '.join(cures)}"
    )


def _least(works: Callable[[int], bool], *, above: int) -> int:
    """The least number above one that works, if all larger ones do as well."""
    low, high = above, 2 * above
    while not works(high):
        low, high = high, 2 * high
    return bisect_left(range(high + 1), True, lo=low + 1, key=works)
