"""What published methods read off label probabilities: hand-made tables with known winners, and scipy's formulas."""

import math

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


def sure_of(*labels, num_labels):
    """Rows that give a label .8, and the others the rest."""
    rows = np.full((len(labels), num_labels), 0.2 / (num_labels - 1))
    rows[np.arange(len(labels)), labels] = 0.8
    return rows


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


class TestWinners:
    @pytest.mark.parametrize("num_labels", [2, 5])
    def test_global_entropy_prefers_orders_that_predict_every_label(self, num_labels):
        def found(*labels):
            return global_entropy(sure_of(*labels, num_labels=num_labels))

        assert found(*range(num_labels)) == pytest.approx(math.log(num_labels))
        assert found(*[num_labels - 1] * num_labels) == 0.0  # the other labels have a count of zero
        assert found(*[0, 1] * 15) == pytest.approx(math.log(2))

    @pytest.mark.parametrize("num_labels", [2, 5])
    def test_closeness_is_greatest_at_the_prior(self, num_labels):
        uniform = np.full(num_labels, 1 / num_labels)
        balanced = sure_of(*range(num_labels), num_labels=num_labels)
        assert closeness(balanced, uniform) == pytest.approx(0.0)
        assert closeness(balanced[:-1], uniform) < 0
        assert closeness(balanced[:1], uniform) <= closeness(balanced[:-1], uniform)

    def test_influence_is_what_the_input_adds_to_the_label_predicted(self):
        assert influence([0.7, 0.3], [0.5, 0.5]) == pytest.approx(0.2)
        assert influence([0.8, 0.2], [0.9, 0.1]) == pytest.approx(-0.1)
        assert influence([0.2, 0.8], [0.9, 0.1]) == pytest.approx(0.7)
        assert influence([0.5, 0.5], [0.1, 0.9]) == pytest.approx(0.4)  # a tie: the first label
