"""Functions that format numbers, scores, prices and tables for reports and messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from plr_dspy.report.schema import Alternative, FrontEntry

TEXT_WIDTH = 100  # maximum number of characters shown per instruction


def count(number: int, noun: str) -> str:
    """Format a number and a noun, such as "3 demos"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def listed(names: Iterable[str], limit: int) -> str:
    """Join the first `limit` names, and say how many are left, as in "a, b and 3 more"."""
    names = list(names)
    text = ", ".join(names[:limit])
    num_left = len(names) - limit
    return f"{text} and {num_left} more" if num_left > 0 else text


def dollars(cost: float) -> str:
    """Format an amount in US dollars, rounded to cents or, below ten cents, to two significant digits."""
    decimals = 2
    if 0 < cost < 0.1:
        decimals = 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` characters."""
    if len(text) <= width:
        return text
    return text[: width - 1].rstrip() + "…"


def one_line(text: str, width: int = TEXT_WIDTH) -> str:
    """Format text as one line of at most `width` characters."""
    return shorten(" ".join(text.split()), width)


def share_text(share: float) -> str:
    """Format a share or a probability. Show positive numbers that would be rounded to 0 as "<0.01"."""
    if 0.0 < share < 0.005:
        return "<0.01"
    return f"{share:.2f}"


def shares_by_label(labels: Sequence[str], shares: Iterable[float]) -> str:
    """Format a list of labels with their shares."""
    return ", ".join(f"{label!r} {share_text(share)}" for label, share in zip(labels, shares, strict=False))


def score_text(score: float, *interval: float, sign: str = "", digits: int = 3) -> str:
    """Format a score and its interval, if any. For a difference, pass `sign="+"`."""
    # Adding 0.0 turns -0.0 into 0.0.
    text, *ends = (f"{round(number, digits) + 0.0:{sign}.{digits}f}" for number in (score, *interval))
    return f"{text} [{', '.join(ends)}]" if ends else text


def score_of(scored: Alternative) -> str:
    """Format the score of an alternative and its interval, if any."""
    return score_text(scored.score, *(scored.interval or ()))


def unread_note(num_unread: int) -> str:
    """Return a note on unparsable replies, or an empty string if there are none."""
    return f"; replies that could not be parsed: {num_unread}" if num_unread else ""


def price(entry: FrontEntry) -> str:
    """Format a prompt's size in tokens, without inputs. Add the cost of predictions if known and not 0."""
    cost = f", {dollars(entry.cost)} per 1,000 predictions" if entry.cost else ""
    return f"{count(entry.prompt_tokens, 'prompt token')}{cost}"


def table(rows: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a table with two columns: the keys and the values of `rows`."""
    names = [" ".join(name.split()) for name in rows]  # Users' names may contain line breaks.
    width = max(map(len, names))
    for name, text in zip(names, rows.values(), strict=True):
        yield f"  {name:<{width}}  {text}"
