"""Writes short texts by which people tell demos and orders apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plr_dspy.report.schema import SlotReport

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

MOST_NAMED = 12
"""An order of at most so many demos is written in full; of a longer one, the first and the last demos are."""


def shorten(text: str, width: int) -> str:
    """Write the text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def demo_captions(slot: SlotReport) -> list[str]:
    """List the text of each demo in the field that tells most demos apart."""
    names = list(dict.fromkeys(name for demo in slot.demos for name in demo))
    if not names:
        return ["not shown by any prompt"] * len(slot.demos)
    telling = max(names, key=lambda name: len({demo.get(name) for demo in slot.demos}))
    return [" ".join(demo.get(telling, next(iter(demo.values()), "")).split()) for demo in slot.demos]


def class_names(slot: SlotReport) -> dict[int, str]:
    """Name each class of demos by the answer that they give, or by its number."""
    members: dict[int, list[dict[str, str]]] = {}
    for demo, number in zip(slot.demos, slot.classes, strict=True):
        if number is not None:
            members.setdefault(number, []).append(demo)
    names = dict.fromkeys(name for demo in slot.demos for name in demo)
    common = [
        name
        for name in names
        if all(len({demo.get(name) for demo in demos}) == 1 for demos in members.values())
        and len({demo.get(name) for demo in slot.demos}) > 1
    ]
    return {
        number: " / ".join(demos[0].get(name) or "none" for name in common) or f"class {number}"
        for number, demos in members.items()
    }


def order_caption(ordering: Sequence[int], first: Sequence[int]) -> str:
    """Write the numbers of the demos; if they are many, some of them, or what differs from the first order.

    Args:
        ordering: Demo indices by position.
        first: The order at the top of the list.
    """
    if len(ordering) <= MOST_NAMED:
        return " ".join(map(str, ordering))
    differing = [place for place, demo in enumerate(ordering) if demo != first[place]]
    if 0 < len(differing) <= 4:
        demos = " ".join(str(ordering[place]) for place in differing)
        return f"1st, but {demos} at {' '.join(str(place + 1) for place in differing)}"
    return " ".join([*map(str, ordering[:4]), "…", *map(str, ordering[-3:])])


def probability_caption(log_probability: float) -> str:
    """Write a probability in per cent, or with a power of ten if it is tiny."""
    if log_probability > math.log(1e-4):
        percent = 100 * math.exp(log_probability)
        return f"{percent:.0f} %" if percent >= 10 else f"{percent:#.2g} %"
    exponent = math.floor(log_probability / math.log(10))
    mantissa = math.exp(log_probability - exponent * math.log(10))
    return f"{mantissa:.1f} · 10{str(exponent).translate(_RAISED)}"
