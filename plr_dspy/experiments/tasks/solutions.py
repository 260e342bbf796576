"""The final answers of published solutions."""

from __future__ import annotations


def after_hashes(solution: str) -> str:
    """Read what follows the last "####" of a solution; empty without one."""
    return solution.rpartition("####")[2].strip() if "####" in solution else ""
