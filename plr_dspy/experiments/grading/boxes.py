"""Reads the answers that a LaTeX text puts in boxes."""

from __future__ import annotations

import re
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)


class Box(NamedTuple):
    """The content of one box, and the range of the text that the whole box takes."""

    content: str
    start: int
    end: int


def boxes(text: str) -> list[Box]:
    r"""Find the outermost boxes of a text, in its order.

    A box is a ``\boxed`` or ``\fbox`` with braces, which may be nested, or with a single word. Boxes within a box lose
    their commands. A box that is never closed has no content, and takes the rest of the text.
    """
    found: list[Box] = []
    end = 0
    while box := _BOX.search(text, end):
        content, end = _content(text, box.end())
        found.append(Box(_BOX.sub("", content).strip(), box.start(), end))
    return found


def boxed(solution: str) -> str:
    """Return the content of the last box of a solution, which is empty where there is none."""
    found = boxes(solution)
    return found[-1].content if found else ""


def _content(text: str, start: int) -> tuple[str, int]:
    """Return what a box holds that opens at an index, and where the box ends."""
    if text[start : start + 1] != "{":
        word = re.split(r"[\s$]", text[start:], maxsplit=1)[0].rstrip(".,")
        return word, start + len(word)
    depth = 0
    for brace in _BRACE_OR_ESCAPE.finditer(text, start):  # An escaped brace is text and closes nothing.
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()], brace.end()
    return "", len(text)
