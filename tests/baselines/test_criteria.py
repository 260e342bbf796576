"""What published methods read off label probabilities: hand-made tables with known winners, and scipy's formulas."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from plr_dspy.baselines.label_methods import (
    best_confidence,
    closeness,
    entropy,
    global_entropy,
    local_entropy,
    mean_confidence,
)
from plr_dspy.baselines.per_input import fairness, influence


@st.composite
def tables(draw):
    shape = draw(st.tuples(st.integers(1, 8), st.sampled_from([2, 5, 6])))
    weights = draw(hnp.arrays(float, shape, elements=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])))
    weights[:, 0] += 0.25
    return weights / weights.sum(axis=1, keepdims=True)


class TestAgainstScipy:
    @given(tables())
    def test_entropies(self, table):
        np.testing.assert_allclose(entropy(table), scipy.stats.entropy(table, axis=1), atol=1e-12)
        assert local_entropy(table) == pytest.approx(scipy.stats.entropy(table, axis=1).mean())
        counts = np.bincount(table.argmax(axis=1), minlength=table.shape[1])
        assert global_entropy(table) == pytest.approx(scipy.stats.entropy(counts))
        assert mean_confidence(table) == -local_entropy(table)
        assert best_confidence(table) == pytest.approx(-scipy.stats.entropy(table, axis=1).min())
        assert fairness(table) == pytest.approx(scipy.stats.entropy(table.mean(axis=0)))

    @given(tables(), st.data())
    def test_divergence(self, table, data):
        size = table.shape[1]
        prior = np.array(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), dtype=float)
        prior /= prior.sum()
        assert closeness(table, prior) == pytest.approx(-scipy.stats.entropy(table.mean(axis=0), prior))


def test_influence_is_what_the_input_adds_to_the_label_predicted():
    assert influence([0.8, 0.2], [0.9, 0.1]) == pytest.approx(-0.1)
    assert influence([0.2, 0.8], [0.9, 0.1]) == pytest.approx(0.7)
    assert influence([0.5, 0.5], [0.1, 0.9]) == pytest.approx(0.4)  # a tie: the first label
