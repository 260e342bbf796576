"""A joint search over instructions and demos, in the simulated worlds of `benchmarks/instructions.py`."""

import numpy as np
import pytest
from instructions import compiled


@pytest.mark.parametrize("world", ["helps", "interacts", "hurts"])
def test_a_joint_search_is_as_good_as_separate_searches(world):
    """The mean of four compiles has a standard error of about two points."""
    scores = {}
    for way in ("all", "demos", "instructions"):
        scores[way] = np.mean(
            [compiled(seed, world=world, way=way, calls=1_000)["score"] for seed in range(4)]
        )
    assert scores["all"] > max(scores["demos"], scores["instructions"]) - 0.05
    if world == "helps":
        assert scores["all"] > max(scores["demos"], scores["instructions"]) + 0.03


def test_claims_are_rare_if_there_is_no_effect():
    rows = [compiled(seed, world="nothing", way="all", calls=300) for seed in range(8)]
    assert sum(row["claims"] == 1 for row in rows) <= 1
    assert abs(np.mean([row["score"] - row["before"] for row in rows])) < 0.03
