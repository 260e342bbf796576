"""The model of label log-probabilities, on simulated data that satisfy its assumptions."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import helmert
from scipy.special import softmax
from worlds import correlation

from plr_dspy import OrderingSpace
from plr_dspy.search.model.effects import EffectProcess, Posterior
from plr_dspy.search.model.features import Features
from plr_dspy.search.model.ordering_model import OrderingModel
from plr_dspy.search.model.response_model import ResponseModel
from plr_dspy.search.model.responses import Calls, LabelResponses, LabelTable
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.search.space import WITHOUT_DEMOS, WholeProgram

SPACE = OrderingSpace.of_sizes(6)
FEATURES = Features(SPACE)


class World:
    """A world in which the positions of items bias the answers of orderings towards labels.

    Args:
        num_calls: Number of examples on which each ordering is called.
        drawn: Whether answers are sampled, as at a temperature of 1. If not, they are the
            likeliest labels.
    """

    def __init__(
        self,
        *,
        num_labels=2,
        num_orderings=40,
        num_examples=30,
        num_calls=2,
        lean=1.0,
        separation=1.0,
        seed=0,
        drawn=False,
    ):
        rng = np.random.default_rng(seed)
        num_new = 2_000
        orderings = {}
        while len(orderings) < num_orderings:
            orderings[(tuple(rng.permutation(6).tolist()),)] = None
        self.orderings = list(orderings)
        features = FEATURES(self.orderings)
        region = features[FEATURES.names.index("region")]
        basis = helmert(num_labels)
        gold = rng.integers(num_labels, size=num_examples + num_new)
        directions = np.eye(num_labels)[gold] @ basis.T
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        own = rng.normal(size=(len(gold), num_labels - 1)) + separation * directions
        b = region @ rng.normal(size=(region.shape[1], num_labels - 1))
        z = own + (lean * b / b.std())[:, None] + 0.2 * rng.normal(size=(num_orderings, *own.shape))
        right = (z @ basis).argmax(axis=-1) == gold
        if drawn:
            shares = softmax(z @ basis, axis=-1)
            chances = np.take_along_axis(shares, gold[None, :, None], axis=-1)[..., 0]
            right = rng.random(chances.shape) < chances
        self.contrasts = z[:, :num_examples]
        self.scores = np.eye(num_labels)[gold[:num_examples]]
        self.right = right[:, :num_examples]
        self.truth = right[:, num_examples:].mean(axis=1)
        self.known = np.zeros(self.right.shape, dtype=bool)
        for i in range(num_orderings):
            # Assign examples in turn, like `ExampleSchedule`.
            start = num_calls * i + num_calls * i // num_examples
            self.known[i, (start + np.arange(num_calls)) % num_examples] = True
        self.features = features
        self.log_probabilities = np.where(self.known[..., None], self.contrasts, np.nan) @ basis

    def model(self):
        logs = self.log_probabilities
        calls = Calls(
            ScoreTable(np.where(self.known, self.right, np.nan)),
            LabelTable(logs, np.zeros(logs.shape, dtype=bool), self.scores),
            is_program=np.zeros(len(logs), dtype=bool),
            is_outsider=np.zeros(len(logs), dtype=bool),
        )
        responses = LabelResponses(self.scores, lambda ordering, example: None)
        return ResponseModel(responses, calls, features=self.features)


def offsets_of(fitted, ordering):
    return fitted.responses.answers.rounded_offsets(fitted.orderings.index(ordering))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("num_labels", [2, 3, 5])
def test_expected_scores_are_unbiased_for_sampled_and_likeliest_answers(num_labels, drawn):
    options = {
        "num_labels": num_labels,
        "num_examples": 100,
        "num_calls": 5,
        "separation": 1.5,
        "drawn": drawn,
    }
    worlds = [World(seed=seed, **options) for seed in range(10)]
    errors = [world.model().means.mean() - world.truth.mean() for world in worlds]
    assert np.mean(errors) == pytest.approx(0.0, abs=0.05)
    assert np.abs(errors).max() < 0.15


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 999), st.integers(1, 3))
def test_effect_process_equals_gaussian_conditioning(seed, outputs):
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(12, 4)) / 2, rng.normal(size=(12, 3)) / 2]
    kernels = [family @ family.T for family in features]
    variances = rng.uniform(0.1, 0.4, size=12)
    measured = Posterior(rng.normal(size=(12, outputs)), variances, np.zeros(outputs), np.ones(12))
    process = EffectProcess(features, kernels, measured, unit=0.5)
    *of_families, own = process.fit.variances
    prior = 0.5 * (np.tensordot(of_families, kernels, axes=1) + own * np.eye(12))
    noise = np.diag(1.0 / (1.0 / variances - 1.0))
    gain = prior @ np.linalg.inv(prior + noise)
    np.testing.assert_allclose(process.variances, np.diag(prior - gain @ prior), rtol=1e-6)
    others = [rng.normal(size=(5, 4)) / 2, rng.normal(size=(5, 3)) / 2]
    across = [other @ known.T for other, known in zip(others, features, strict=True)]
    squares = np.stack([(other**2).sum(axis=1) for other in others], axis=1)
    spread = process.predict_variances(across, squares)
    cross = 0.5 * np.tensordot(process.fit.variances[:-1], across, axes=1)
    before = 0.5 * (squares @ process.fit.variances[:-1] + process.fit.variances[-1])
    after = before - np.einsum("cm,mn,cn->c", cross, np.linalg.inv(prior + noise), cross)
    np.testing.assert_allclose(spread, after, rtol=1e-6)
    assert process.fit.values.shape == (12, outputs)


@pytest.mark.parametrize("num_labels", [2, 4])
def test_two_examples_per_ordering_predict_its_score(num_labels):
    """Predictions must be better than the accuracy on three times as many examples."""
    modeled = []
    counted = []
    for seed in range(5):
        world = World(seed=seed, num_labels=num_labels, num_orderings=60, num_examples=40)
        modeled.append(correlation(world.model().means, world.truth))
        counted.append(correlation(world.right[:, :6].mean(axis=1), world.truth))
    assert np.mean(modeled) > 0.6
    assert np.mean(modeled) > np.mean(counted) + 0.1


def test_gains_are_rarely_claimed_if_orderings_do_not_differ():
    """Orderings have a label bias, but no ordering separates the labels, so all have the same accuracy."""
    claims = 0
    for seed in range(40):
        world = World(seed=seed, separation=0.0, num_orderings=20, num_calls=6)
        chances = world.model().gains(0).summary()[1]
        claims += bool((chances >= 0.9).any())
    assert claims <= 6


class TestOrderingModel:
    def scores_of(self, world):
        scores = {}
        for i, ordering in enumerate(world.orderings):
            examples = np.flatnonzero(world.known[i]).tolist()
            values = world.right[i, examples].astype(float).tolist()
            scores[ordering] = dict(zip(examples, values, strict=True))
        return scores

    def responses(self, world, share=1.0):
        rows = {ordering: i for i, ordering in enumerate(world.orderings)}
        is_known = np.random.default_rng(0).random(world.known.shape) < share

        def logprobs_of(ordering, example):
            i = rows.get(ordering)
            if i is None or not is_known[i, example]:
                return None
            return world.log_probabilities[i, example], ()

        return LabelResponses(world.scores, logprobs_of)

    @pytest.mark.parametrize("calibrating", [False, True])
    @pytest.mark.parametrize("least", [-9999.0, -np.inf])
    def test_probabilities_of_0_and_1_lead_to_finite_results(self, least, calibrating):
        world = World(num_labels=3, num_calls=6)
        world.log_probabilities[world.log_probabilities < 0] = least
        responses = dataclasses.replace(self.responses(world), are_calibrated=calibrating)
        fitted = OrderingModel(SPACE, responses=responses).fit(self.scores_of(world))
        first = world.orderings[0]
        numbers = [[gain.expected, gain.probability] for gain in fitted.gains(first).values()]
        assert np.isfinite([*np.ravel(numbers), *offsets_of(fitted, first)]).all()

    def test_log_probabilities_are_ignored_if_most_calls_have_none(self):
        world = World()
        scores = self.scores_of(world)
        alone = OrderingModel(SPACE).fit(scores).estimates()
        for share, is_ignored in ((0.2, True), (1.0, False)):
            responses = self.responses(world, share=share)
            fitted = OrderingModel(SPACE, responses=responses).fit(scores)
            assert (fitted.estimates() == alone) == is_ignored

    def test_gains_over_a_program_without_readable_labels_are_predicted(self):
        """The original is an ordering without demos. The replies to its prompts never contain a label."""
        world = World(lean=2.0)
        scores = {WITHOUT_DEMOS: dict.fromkeys(range(25), 0.0), **self.scores_of(world)}
        fitted = OrderingModel(SPACE, responses=self.responses(world)).fit(scores)
        gains = fitted.gains(WITHOUT_DEMOS)
        truth = dict(zip(world.orderings, world.truth, strict=True))
        promised = np.array([gains[ordering].expected for ordering in world.orderings])
        true = np.array([truth[ordering] for ordering in world.orderings])
        assert np.corrcoef(promised, true)[0, 1] > 0.8
        assert np.abs(promised - true).mean() < 0.1

    @pytest.mark.parametrize(("unit", "lowest"), [(100.0, 0.0), (0.001, 0.0), (4.0, 1.0), (1.0, 1_000.0)])
    @pytest.mark.parametrize("calibrating", [False, True])
    def test_probabilities_do_not_depend_on_the_range_of_the_metric(self, calibrating, unit, lowest):
        """The program without demos answers like one of the orderings."""
        world = World(lean=2.0, num_calls=6)
        own = self.responses(world)
        scores = self.scores_of(world)
        scores[WITHOUT_DEMOS] = scores[world.orderings[1]]

        def logprobs_of(ordering, example):
            return own.logprobs_of(world.orderings[1] if ordering == WITHOUT_DEMOS else ordering, example)

        def gains(unit, lowest):
            scaled = {}
            for ordering, row in scores.items():
                scaled[ordering] = {example: lowest + unit * score for example, score in row.items()}
            label_scores = lowest + unit * world.scores
            responses = LabelResponses(label_scores, logprobs_of, are_calibrated=calibrating)
            return OrderingModel(SPACE, responses=responses).fit(scaled).gains(WITHOUT_DEMOS)

        scaled_gains = gains(unit, lowest)
        for ordering, gain in gains(1.0, 0.0).items():
            assert scaled_gains[ordering].expected == pytest.approx(unit * gain.expected, abs=0.0005 * unit)
            assert scaled_gains[ordering].probability == pytest.approx(gain.probability, abs=0.002)

    @pytest.mark.parametrize("is_sure", [False, True])
    def test_scores_of_a_program_without_demos_count_less_if_it_is_unsure_of_its_answers(self, is_sure):
        world = World(separation=1.5, num_calls=6)
        own = self.responses(world)
        scores = self.scores_of(world)
        scores[WITHOUT_DEMOS] = {example: float(is_sure or example % 2) for example in range(20)}

        def logprobs_of(ordering, example):
            if ordering != WITHOUT_DEMOS:
                return own.logprobs_of(ordering, example)
            leans = 6.0 if is_sure else 0.01 * example
            said = leans * (2.0 * world.scores[example] - 1.0)
            return said - np.logaddexp.reduce(said), ()

        responses = LabelResponses(world.scores, logprobs_of)
        fitted = OrderingModel(SPACE, responses=responses).fit(scores)
        expected = fitted.responses.expected
        variances = np.maximum(expected * (1.0 - expected), 0.02)
        *weights, weight = fitted.responses.information_weights
        assert set(weights) == {1.0}
        assert weight == pytest.approx(np.nanmean(variances) / np.nanmean(variances[-1]))
        assert (weight > 1.5) if is_sure else (weight < 0.6)

    def test_the_share_of_replies_without_a_label_affects_estimates(self):
        """If item 0 is in the second half, most replies contain no label."""
        errors = []
        of_first = []
        outside = []
        for seed in range(6):
            world = World(seed=seed, num_orderings=60, num_examples=40, num_calls=3)
            rng = np.random.default_rng(seed)
            places = np.array([ordering[0].index(0) for ordering in world.orderings])
            share = np.where(places >= 3, 0.7, 0.05)
            share[0] = 1.0
            world.known[0, :18] = True
            silent = rng.random(world.known.shape) < share[:, None]
            world.right &= ~silent
            world.log_probabilities[silent] = np.nan
            logs = dict(zip(world.orderings, world.log_probabilities, strict=True))

            def logprobs_of(ordering, example, logs=logs):
                row = logs[ordering][example]
                return None if np.isnan(row).any() else (row, ())

            responses = LabelResponses(world.scores, logprobs_of)
            fitted = OrderingModel(SPACE, responses=responses).fit(self.scores_of(world))
            first, other, *_ = world.orderings
            truth = dict(zip(world.orderings, world.truth * (1 - share), strict=True))
            estimates = dict(fitted.estimates())
            errors += [abs(estimates[ordering] - true) for ordering, true in truth.items()]
            of_first.append(estimates[first])
            for ordering, gain in fitted.gains(other).items():
                error = abs(gain.expected - truth[ordering] + truth[other])
                outside.append(error > 1.96 * gain.deviation + 1e-9)
        assert np.mean(errors) < 0.11
        assert np.mean(of_first) < 0.1
        assert np.mean(outside) < 0.1

    PROGRAM = WholeProgram(0, "nearest last")

    def fitted(self, examples, *, right, leans=3.0, calibrating=True, wide=30):
        """Return a model fitted to orderings and one whole program, and the world of the orderings."""
        world = World(num_calls=4, seed=4)
        own = self.responses(world)
        scores = self.scores_of(world)
        scores[world.orderings[0]] = {e: float(world.right[0, e]) for e in range(wide)}
        world.known[0, :wide] = True
        world.log_probabilities[0] = (world.contrasts[0] @ helmert(2))[: len(world.scores)]
        scores[self.PROGRAM] = dict(zip(examples, map(float, right), strict=True))

        def logprobs_of(ordering, example):
            said = np.array([-leans, leans]) + 0.1 * example
            log_probabilities = said - np.logaddexp.reduce(said)
            if ordering == self.PROGRAM:
                return log_probabilities, ()
            return own.logprobs_of(ordering, example)

        responses = LabelResponses(world.scores, logprobs_of, np.array([0.4, 0.6]), calibrating)
        space = dataclasses.replace(SPACE, programs=(self.PROGRAM,))
        return OrderingModel(space, responses=responses).fit(scores), world

    def test_log_probabilities_of_a_whole_program_do_not_affect_estimates(self):
        options = {"examples": range(4), "right": [0, 0, 1, 0], "calibrating": False}
        (one, _) = self.fitted(leans=3.0, **options)
        (other, _) = self.fitted(leans=-3.0, **options)
        assert one.estimates() == other.estimates()
        first = one.orderings[0]
        assert one.gains(first) == other.gains(first)

    @pytest.mark.parametrize(("share", "sure"), [(1.0, (0.99, 1.0)), (0.0, (0.0, 0.01))])
    def test_the_gain_of_a_whole_program_follows_its_scores(self, share, sure):
        fitted, world = self.fitted(range(30), right=[share] * 30, calibrating=False)
        gain = fitted.gains(world.orderings[0])[self.PROGRAM]
        assert sure[0] <= gain.probability <= sure[1]
        assert gain.expected == pytest.approx(share - world.right[0].mean(), abs=0.1)

    @pytest.mark.parametrize("count", [1, 4, 20])
    def test_a_whole_program_is_calibrated_by_its_own_answers(self, count):
        """The prior weighs as much as four additional answers with the target shares of the labels."""
        fitted, _ = self.fitted(range(count), right=np.ones(count))
        answers = np.exp([-3.0, 3.0]) / np.exp([-3.0, 3.0]).sum()
        means = (count * answers + 4 * np.array([0.4, 0.6])) / (count + 4)
        shares = np.array([0.4, 0.6])
        offsets = np.log(shares) - np.log(means)
        assert offsets_of(fitted, self.PROGRAM) == pytest.approx(offsets - offsets.mean(), abs=1e-5)
