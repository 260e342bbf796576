"""Finds the final answer in an output."""

from __future__ import annotations

import re

from plr_dspy.experiments.grading.boxes import Box, boxes

_MARKER = re.compile(
    r"####|\banswer\b(?:\s+to\b[^.:\n]{0,80}?)?\s*(?:\bis\b|\bare\b|=|:)(?:\s*:)?", re.IGNORECASE
)
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)(?<!\\)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])")
_LINK = re.compile(
    r"[\s$]*(?:\\\)|\\\])?\s*(?:,|;|,?\s*and|,?\s*or)?\s*(?:\\\(|\\\[)?[\s$]*(?:[A-Za-z]\s*=\s*)?"
)
_ASIDE = re.compile(r"\s+\b(?:because|since|which)\b.*", re.DOTALL)
_SENTENCE_END = re.compile(r"(?:[.?]|(?<=[A-Za-z]{2})!)(?=\s|$)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z])")
_SCALE = re.compile(r"\s*(?:hundred|thousand|million|billion|dozen|percent|%)(?![A-Za-z])")
_AND = re.compile(r"\s*(?:,\s*)?(?:and|or)(?![A-Za-z])\s*|\s*,\s*")
_LAST_WORD = re.compile(r"\b(yes|no|true|false)\W*$", re.IGNORECASE)
_VERDICTS = {"yes": True, "true": True, "no": False, "false": False}


def stated_answer(output: str) -> str | None:
    """Find the answer that an output marks: the last in a box, else after the last "answer is", "Answer:" or "####".

    Returns:
        Its text, which is empty where the marker is followed by nothing; None where nothing is marked.
    """
    output = _BOLD.sub("", output)
    boxed = _boxed_answer(output)
    if boxed is not None:
        return boxed
    marker = next(iter(reversed(list(_MARKER.finditer(output)))), None)
    if marker is None:
        return None
    rest = output[marker.end() :].strip()
    return _formulas(rest) or _clause(rest)


def unmarked(output: str) -> str:
    """Return an output without markup for bold text."""
    return _BOLD.sub("", output).strip()


def last_expression(output: str) -> tuple[str, bool]:
    """Find the expression that an output which marks no answer ends with.

    Returns:
        The expression, and whether words stand around it.
    """
    lines = [line.strip() for line in unmarked(output).splitlines() if line.strip()]
    if not lines:
        return "", False
    last = lines[-1]
    if len(_WORD.findall(re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", last))) < 3:
        return last, False
    formulas = list(_MATH.finditer(last))
    if formulas:
        return next(group for group in formulas[-1].groups() if group), True
    return last.rsplit("=", 1)[-1].strip(), True


def verdict(output: str) -> bool | None:
    """Return whether an output says yes (or true) or no (or false); None where it says neither, or both."""
    stated = stated_answer(output)
    lines = [line for line in unmarked(output if stated is None else stated).splitlines() if line.strip()]
    if not lines:
        return None
    # "No, because the limit is not finite": a first word that stands alone speaks for all.
    first = re.match(r"\W*([A-Za-z]+)(?=\s*(?:[.,;:!}\u2014-]|$))", lines[0])
    leading = _VERDICTS.get(first[1].lower()) if first else None
    if stated is not None:
        return _only_verdict(stated) if leading is None else leading
    last = _LAST_WORD.search(lines[-1])
    closing = _VERDICTS[last[1].lower()] if last and _only_verdict(lines[-1]) is not None else None
    return leading if closing is None or closing == leading else (closing if leading is None else None)


def _only_verdict(text: str) -> bool | None:
    """Return the only verdict in a text; None where there is none, or one that is denied, or several."""
    words = re.findall(r"[a-z]+(?:'t)?", text.lower())
    found = {_VERDICTS[word] for word in words if word in _VERDICTS}
    if len(found) != 1 or any(word in {"not", "cannot", "neither"} or word.endswith("'t") for word in words):
        return None
    return found.pop()


def _boxed_answer(output: str) -> str | None:
    """Return the last box of an output, as a list with those that lead up to it: "x = [1] or x = [2]"."""
    found: list[Box] = []
    for box in boxes(output):
        if found and not _LINK.fullmatch(output, found[-1].end, box.start):
            found = []
        found.append(box)
    return ",".join(dict.fromkeys(box.content for box in found)) if found else None


def _formulas(text: str) -> str:
    """Return the formulas that a text begins with, as a list; nothing where it begins, or goes on, with words."""
    found: list[str] = []
    end = 0
    while (formula := _MATH.match(text, end)) is not None:
        content = next(group for group in formula.groups() if group)
        scale = _SCALE.match(text, formula.end())
        found.append(content + (scale[0] if scale else ""))
        link = _AND.match(text, scale.end() if scale else formula.end())
        if link is None:
            return ",".join(found)
        end = link.end()
    return "" if not found or text[:end].rstrip().endswith(("and", "or")) else ",".join(found)


def _clause(text: str) -> str:
    """Return a text up to the end of its first sentence or line, without the reason that may follow."""
    lines = text.splitlines()
    if not lines:
        return ""
    return _ASIDE.sub("", _SENTENCE_END.split(lines[0], maxsplit=1)[0]).strip()
