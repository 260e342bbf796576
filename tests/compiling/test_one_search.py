"""A joint search over instructions and demos, in the simulated worlds of `benchmarks/instructions.py`."""

from functools import cache

import numpy as np
import pytest
from instructions import compiled


@cache
def mean_score(world, way):
    """Return the mean score of three compiles."""
    return np.mean([compiled(seed, world=world, way=way, calls=600)["score"] for seed in range(3)])


DEMOS_ALONE = ("helps", "demos")
"""A search for demos alone. Its result also holds in the world "hurts", where only the instructions differ."""


@pytest.mark.parametrize(
    ("world", "parts", "least"),
    [
        ("helps", (DEMOS_ALONE, ("helps", "instructions")), 0.03),
        ("interacts", (("interacts", "instructions"),), -0.05),
        ("hurts", (DEMOS_ALONE,), -0.05),
    ],
)
def test_a_joint_search_is_about_as_good_as_the_best_separate_search_or_better(world, parts, least):
    """`parts` lists the separate searches that may be the best in this world."""
    assert mean_score(world, "all") > max(mean_score(*part) for part in parts) + least


def test_claims_are_rare_if_there_is_no_effect():
    rows = [compiled(seed, world="nothing", way="all", calls=300) for seed in range(6)]
    assert sum(row["claims"] == 1 for row in rows) <= 1
    assert abs(np.mean([row["score"] - row["before"] for row in rows])) < 0.03
