"""Ties between label probabilities: a search must score the answers of the calibrated program."""

from typing import Literal

import numpy as np
import pytest
from fakes import digest, using
from hypothesis import given, settings
from hypothesis import strategies as st
from label_engines import normal
from label_world import Hesitant, go, labeled, student
from scipy.special import log_softmax

from plr_dspy import Calibration, OrderingSpace
from plr_dspy.labels.reader import Reading
from plr_dspy.search.model.ordering_model import OrderingModel
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.statistics.calibration import likeliest_labels

SPACE = OrderingSpace.of_sizes(4)
LABELS = ("alpha", "bravo", "carbon", "delta", "echo", "foxtrot")
WORLDS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 999),
        "num_labels": st.integers(2, 6),
        "lean": st.sampled_from([0.0, 1.0]),
        "noise": st.sampled_from([0.0, 1e-5, 1e-4, 1e-3, 1.0]),
        "missing": st.sampled_from([None, "always", "sometimes"]),
        "shares": st.sampled_from(["even", "uneven", "none"]),
    }
)


class TieWorld:
    """Orders whose label probabilities are the same for all inputs, apart from noise.

    Args:
        lean: Standard deviation of the labels' log-probabilities. If it is 0, all labels tie.
        noise: Standard deviation of the differences between inputs.
        missing: How often the first label is missing from the likeliest tokens. None means never.
        shares: The label shares to which answers are calibrated, or "none" for uncalibrated answers.
    """

    def __init__(self, *, seed, num_labels, lean, noise, missing, shares):
        rng = np.random.default_rng(seed)
        self.labels = LABELS[:num_labels]
        self.gold = rng.integers(num_labels, size=20)
        logits = lean * rng.normal(size=num_labels)
        self.orderings = [*SPACE.enumerate()][:12]
        self.examples = {}
        self.readings = {}
        for ordering in self.orderings:
            self.examples[ordering] = rng.choice(20, 6, replace=False).tolist()
            for example in self.examples[ordering]:
                logs = log_softmax(logits + noise * rng.normal(size=num_labels))
                unseen = missing == "always" or (missing == "sometimes" and rng.random() < 0.5)
                self.readings[ordering, example] = Reading(None, tuple(logs.tolist()), (0,) * unseen)
        self.shares = {
            "even": None,
            "uneven": np.arange(1, num_labels + 1) / np.arange(1, num_labels + 1).sum(),
            "none": np.full((1, num_labels), np.nan),
        }[shares]

    def fit(self):
        """Return the scores of the uncalibrated answers, and a model fitted to these scores."""
        scores = {}
        for ordering, examples in self.examples.items():
            scores[ordering] = {}
            for example in examples:
                likeliest = np.argmax(self.readings[ordering, example].log_probabilities)
                scores[ordering][example] = float(likeliest == self.gold[example])

        def logprobs_of(ordering, example):
            reading = self.readings[ordering, example]
            return np.round(reading.log_probabilities, 4), reading.unseen

        label_scores = np.eye(len(self.labels))[self.gold]
        responses = LabelResponses(label_scores, logprobs_of, self.shares, are_calibrated=True)
        return scores, OrderingModel(SPACE, responses=responses).fit(scores)

    def score(self, ordering, example, calibration):
        label = calibration.applied(self.readings[ordering, example]).label
        return float(self.labels.index(label) == self.gold[example])


@settings(deadline=None, max_examples=40)
@given(WORLDS)
def test_the_scores_of_a_search_are_those_of_the_calibrated_program(options):
    world = TieWorld(**options)
    scores, fitted = world.fit()
    counted = fitted.counted(scores)
    for ordering in world.orderings:
        revision = fitted.revision(ordering)
        calibration = Calibration(world.labels, revision.offsets, revision.shares)
        real = {example: world.score(ordering, example, calibration) for example in scores[ordering]}
        assert counted[ordering] == real


EXAMPLES = [labeled(f"text {i}", LABELS[int(digest(f"gold {i}") * 6)]) for i in range(40)]
VALSET = [labeled(f"validation {i}", LABELS[int(digest(f"validation {i}") * 6)]) for i in range(10)]


@pytest.mark.parametrize(
    "probabilities",
    [
        lambda demos, text: [1 / 6] * 6,
        lambda demos, text: 1 / 6 + 1e-5 * np.array([normal(f"{text} {label}") for label in LABELS]),
        lambda demos, text: [0.1, 0.1, 0.2, 0.2, 0.2, 0.2],
        lambda demos, text: [0.0, 0.2, 0.2, 0.2, 0.2, 0.2],
    ],
    ids=["ties", "near ties", "the same for all inputs", "one label is missing"],
)
def test_a_returned_program_scores_on_the_valset_as_reported(probabilities):
    engine = Hesitant(labels=LABELS, probabilities=probabilities)
    program = student(Literal[LABELS], [labeled(f"demo {i}", LABELS[i]) for i in range(4)])
    options = {"calibrate": True, "max_metric_calls": 200, "valset": VALSET, "trainset": EXAMPLES}
    program, report = go(engine, program=program, **options)
    assert report.is_calibrated
    with using(engine):
        answers = [program(text=example.text).label for example in VALSET]
    right = np.mean([answer == example.label for answer, example in zip(answers, VALSET, strict=True)])
    assert report.comparison.num_examples == len(VALSET)
    assert report.comparison.chosen == pytest.approx(right)


class TestLikeliestLabels:
    def test_the_likeliest_label_before_calibration_wins_a_tie(self):
        logs = np.log([0.3, 0.5, 0.2])
        assert likeliest_labels(logs, -logs) == 1
        assert likeliest_labels(logs, -logs + [2e-3, 0, 0]) == 0
        assert likeliest_labels(logs, -logs + [5e-4, 0, 0]) == 1

    def test_the_first_of_equal_labels_wins(self):
        errors = np.array([[0, 1, 0], [0, 0, 1], [0, 1, 2]])
        equal = np.log([[1 / 3] * 3] * 3)
        assert likeliest_labels(equal, 1e-12 * errors).tolist() == [0, 0, 0]
        assert likeliest_labels(equal + 1e-4 * errors, np.zeros(3)).tolist() == [0, 0, 0]
        assert likeliest_labels(equal + 2e-3 * errors, np.zeros(3)).tolist() == [1, 2, 2]

    def test_unseen_labels_win_only_if_all_are_unseen(self):
        logs = np.log([[0.8, 0.2], [0.8, 0.2]])
        unseen = [[True, False], [True, True]]
        assert likeliest_labels(logs, [0.0, 0.0], unseen=unseen).tolist() == [1, 0]
