"""The final answers of published solutions."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")


def boxed(solution: str) -> str:
    """Read the content of the last box in a LaTeX solution; braces in it may be nested. Empty without a box."""
    boxes = list(_BOX.finditer(solution))
    if not boxes:
        return ""
    rest = solution[boxes[-1].end() :]
    if not rest.startswith("{"):
        return re.split(r"[\s$]", rest, maxsplit=1)[0].rstrip(".,")
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", rest, re.DOTALL):  # an escaped brace is text
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return rest[1 : brace.start()].strip()
    return ""


def after_hashes(solution: str) -> str:
    """Read what follows the last "####" of a solution; empty without one."""
    return solution.rpartition("####")[2].strip() if "####" in solution else ""
