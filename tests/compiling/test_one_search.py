"""Instructions and demos in one search, in worlds of known truth; `benchmarks/instructions.py` has more of them."""

import numpy as np
import pytest
from instructions import compiled


@pytest.mark.parametrize("world", ["helps", "interacts", "hurts"])
def test_one_search_finds_what_a_search_for_either_finds(world):
    """On the mean of four compiles, whose error is about two points."""
    scores = {}
    for way in ("all", "demos", "instructions"):
        scores[way] = np.mean(
            [compiled(seed, world=world, way=way, calls=1_000)["score"] for seed in range(4)]
        )
    assert scores["all"] > max(scores["demos"], scores["instructions"]) - 0.05
    if world == "helps":
        assert scores["all"] > max(scores["demos"], scores["instructions"]) + 0.03


def test_claims_are_rare_where_nothing_matters():
    rows = [compiled(seed, world="nothing", way="all", calls=300) for seed in range(8)]
    assert sum(row["claims"] == 1 for row in rows) <= 1
    assert abs(np.mean([row["score"] - row["before"] for row in rows])) < 0.03
