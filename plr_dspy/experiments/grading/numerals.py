"""Reads the numbers in answers exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from plr_dspy.experiments.grading.latex import tidy

_MAX_LENGTH = 1000
_DIGITS = r"(?!0\d)\d+(?:\.\d+)?"
_RATIONAL = re.compile(
    rf"(?P<sign>-?)(?:(?P<whole>\d+)(?: (?=\d+/)|(?=\\frac)))?"
    rf"(?:\\frac ?\{{(?P<inner>-?)(?P<top>{_DIGITS})\}}\{{(?P<bottom>{_DIGITS})\}}"
    rf"|(?P<over>\d+)/(?P<under>\d+)|(?P<number>{_DIGITS}))"
)
_MENTION = re.compile(
    r"(?:(?<![\w)\].}^])-)?(?<![\w.^])[$\u20ac\u00a3]?"
    r"(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?!\.?\d)(?:/(?P<under>\d+))?"
    r"(?:\s*(?P<scale>hundred|thousand|million|billion|dozen)\b)?"
    # An unknown, or an abbreviated thousand, makes it another number.
    r"(?![xyznkMBK](?![A-Za-z]))"
)
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_JOINED = re.compile(
    r"\s*(?:[-+*/^x\u00d7\u00f7\u2013]|\\times|\\cdot|\\div|to|through|in|(?:out\s+)?of)\s*\(?|:"
    r"|[^.!?;\n=]*\b(?:or|and|times|plus|minus)\s*\(?|\s*[,;]\s*",
    re.IGNORECASE,
)
_PART_BEFORE = re.compile(
    r"(?:[\^_]\s*\{?|\\frac\s*\{?|\\sqrt\s*\{?|\}\s*\{|[A-Za-z)\]}]\s*[-+*/]\s*\(?)\s*-?$"
)
_PART_AFTER = re.compile(r"\s*(?:[\^_*+]|\\times|\\cdot|\\frac|\\sqrt|\\pi|/\s*\d)|!(?!\s*$)")
_DENIED = re.compile(r"\b(?:not|never|cannot)\b|n't\b", re.IGNORECASE)


class Mention(NamedTuple):
    """A number in a text: its value and where it stands."""

    value: Fraction
    start: int
    end: int


def rational(latex: str) -> Fraction | None:
    """Return the value of a tidy decimal, fraction or mixed number; None of anything else."""
    match = _RATIONAL.fullmatch(latex) if len(latex) <= _MAX_LENGTH else None
    if match is None:
        return None
    over, under = match["top"] or match["over"] or match["number"], match["bottom"] or match["under"] or "1"
    if not Fraction(under):
        return None
    value = Fraction(over) / Fraction(under)
    if match["inner"]:
        value = -value
    if match["whole"]:
        if value < 0 or value >= 1:
            return None
        value += int(match["whole"])
    return -value if match["sign"] else value


def mentions(text: str) -> list[Mention]:
    """Find all numbers of a text, in its order."""
    found = []
    for match in _MENTION.finditer(text.replace("\u2212", "-")):
        under = match["under"]
        if len(match[0]) > _MAX_LENGTH or (under and not int(under)):
            continue
        value = Fraction(match["number"].replace(",", "")) / int(under or 1)
        value *= _SCALES.get(match["scale"] or "", 1)
        found.append(Mention(-value if match[0].startswith("-") else value, match.start(), match.end()))
    return found


def stated_number(answer: str) -> Fraction | None:
    """Return the number that a stated answer, such as "$18 a day", names; None where it names none, or several."""
    if (value := _written_number(answer)) is not None:
        return value
    answer = answer.rsplit("=", 1)[-1]
    found = mentions(answer)
    if not found or _DENIED.search(answer[: found[0].start]) or not _alone(answer, found[0]):
        return None
    if len({mention.value for mention in found}) > 1:
        leads = not re.search(r"[A-Za-z]", answer[: found[0].start])
        if not leads or _JOINED.fullmatch(answer[found[0].end : found[1].start]):
            return None
    return found[0].value


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text; None where there is none, or where it is one term or choice of several."""
    if (value := _written_number(text)) is not None:
        return value
    found = mentions(text)
    if not found or not _alone(text, found[-1]) or re.search(r"\bnot\s*$", text[: found[-1].start]):
        return None
    if len(found) > 1 and found[-2].value != found[-1].value:
        between = text[found[-2].end : found[-1].start]
        if _JOINED.fullmatch(between.rstrip("$\u20ac\u00a3")):
            return None
    return found[-1].value


def _written_number(text: str) -> Fraction | None:
    """Return the value of a text that is a number and nothing else; None of any other."""
    return rational(tidy(text)) if len(text) <= _MAX_LENGTH else None


def _alone(text: str, mention: Mention) -> bool:
    """Whether a number is no part of a power, a product, a fraction or a subscript."""
    return not _PART_BEFORE.search(text[: mention.start]) and not _PART_AFTER.match(text, mention.end)
