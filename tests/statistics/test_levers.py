"""Estimated gains from levers on simulated scores with known true gains, and the resulting advice."""

import headroom as benchmark
import numpy as np
import pytest

from plr_dspy.optimizer.levers import HOW, NOTHING_TO_GAIN, Change, best_advice
from plr_dspy.statistics import comparisons
from plr_dspy.statistics.levers import Gain, PairedExperiment

TABLES = 150
FEWER_TABLES = 80
"""Number of tables that suffices if the limits are far from the rates."""


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Use few draws, and restore the numbers of draws after each test, because the benchmark changes them."""
    monkeypatch.setattr(comparisons, "NUM_DRAWS", 2_000)
    monkeypatch.setattr(comparisons, "NUM_FLIPS", 999)


WITHOUT_EFFECT = [
    benchmark.World(has_demos, accuracy, 0.4, num_examples=num_examples)
    for has_demos in (False, True)
    for accuracy, num_examples in ((0.5, 30), (0.8, 0))
]


@pytest.mark.parametrize("world", WITHOUT_EFFECT)
def test_noise_is_not_mistaken_for_a_gain(world):
    """Each interval excludes 0 in about 5% of the tables, and the program is kept in at least 90%."""
    rates = benchmark.results(world, TABLES)
    assert rates.pop("kept")[0] >= 0.9
    del rates["instructed"]
    for covered, excluded, *_ in rates.values():
        assert excluded <= 0.09
        assert covered == pytest.approx(1 - excluded)


@pytest.mark.parametrize("world", [*benchmark.with_effects(), *benchmark.with_instructions()])
def test_intervals_contain_the_true_gain_and_estimates_are_not_biased_upwards(world):
    """Estimates are shrunk towards 0, so they may be too low, but not too high."""
    rates = benchmark.results(world, FEWER_TABLES)
    del rates["kept"], rates["instructed"]
    for covered, _, _, error in rates.values():
        assert covered >= 0.9
        assert -0.16 < error < 0.08


@pytest.mark.parametrize("has_demos", [False, True])
def test_an_instruction_is_compared_with_the_same_demos_without_it(has_demos):
    """A useless instruction is not recommended. A good instruction is recommended even if demos help too."""
    world = benchmark.World(has_demos, accuracy=0.4, demos=0.2, sets=0.15, instruction=0.0, num_examples=75)
    assert benchmark.results(world, FEWER_TABLES)["instructed"][0] < 0.08
    world = benchmark.World(
        has_demos, accuracy=0.4, demos=0.15, sets=0.05, instruction=0.2, num_examples=75
    )
    assert benchmark.results(world, FEWER_TABLES)["instructed"][0] > 0.5


def test_the_largest_of_equal_gains_is_shrunk():
    """Ten programs are as good as the baseline, but the best observed score is higher by chance."""
    rng = np.random.default_rng(0)
    observed = []
    estimated = []
    for seed in range(TABLES):
        scores = (rng.random((11, 30)) < 0.5).astype(float)
        experiment = PairedExperiment(scores, seed=seed)
        gains = [experiment.gain([row]) for row in range(1, 11)]
        assert all(low <= gain.value <= high for gain in gains for low, high in [gain.interval])
        observed.append(max(experiment.means[1:] - experiment.means[0]))
        estimated.append(max(gain.value for gain in gains))
    assert np.mean(observed) > 0.1
    assert np.mean(estimated) < 0.5 * np.mean(observed)


def test_large_gains_hardly_shrink():
    scores = np.zeros((2, 40))
    scores[0, :8] = 1.0
    scores[1, :36] = 1.0
    gain = PairedExperiment(scores).gain([1])
    assert 0.65 < gain.value < 0.7


def test_large_effects_are_detected():
    rates = benchmark.results(benchmark.World(False, demos=0.3, sets=0.05), FEWER_TABLES)
    assert rates["kept"][0] < 0.2


def test_intervals_of_equal_scores_have_width_and_gains_stay_below_the_maximum_score():
    experiment = PairedExperiment(np.ones((6, 30)))
    single = experiment.gain([1])
    average = experiment.gain([2, 3, 4, 5])
    best = experiment.gain_of_best([2, 3, 4, 5], average, 20)
    assert single.value == average.value == best.value == 0.0
    assert single.interval[0] < 0 < single.interval[1] < 0.1
    assert best.noise_share is None
    differing = np.vstack([np.full((1, 30), 0.9), np.eye(4, 30) * 0.0 + np.linspace(0.5, 1.0, 4)[:, None]])
    experiment = PairedExperiment(differing)
    best = experiment.gain_of_best([1, 2, 3, 4], experiment.gain([1, 2, 3, 4]), 20)
    assert best.value == pytest.approx(0.1)
    assert best.noise_share == pytest.approx(0.0)


@pytest.mark.parametrize("num_examples", [10, 20, 40])
@pytest.mark.parametrize(("own", "other"), [(0.0, 0.9), (0.5, 1.0), (0.5, 0.0), (1.0, 0.1), (0.0, 0.0)])
def test_gains_lead_from_a_possible_score_to_a_possible_score(num_examples, own, other):
    """The program's score on new examples plus any gain is within the bounds of the metric."""
    scores = np.zeros((8, num_examples))
    scores[0, : round(own * num_examples)] = 1.0
    scores[1:6, num_examples - round(other * num_examples) :] = 1.0
    scores[6] = 1.0 - scores[0]
    experiment = PairedExperiment(scores)
    average = experiment.gain([1, 2, 3, 6])
    gains = [experiment.gain([4]), average, experiment.gain_of_best([1, 2, 3, 6], average, 20)]
    gains.append(experiment.gain_on_top(average, 6, 1))
    low, high = experiment.own_interval
    assert 0 <= low < high <= 1
    for gain in gains:
        assert -high <= gain.interval[0] < gain.interval[1] <= 1 - low
        assert -own <= gain.value <= 1 - own
        assert gain.draws.min() >= -1
        assert gain.draws.max() <= 1


def test_bounds_of_the_metric_are_those_of_gains():
    scores = 20.0 * np.eye(2)[[1, 1, 0]].repeat(10, axis=1)
    gain = PairedExperiment(scores, bounds=(0.0, 20.0)).gain([2])
    assert -20 <= gain.draws.min() < gain.draws.max() <= 20


@pytest.mark.parametrize("num_examples", [10, 40])
@pytest.mark.parametrize(("accuracy", "nearest"), [(0.03, 0.0), (0.05, 0.8), (0.95, 0.0)])
def test_intervals_contain_true_gains_near_the_bounds(num_examples, accuracy, nearest):
    world = benchmark.World(True, accuracy, 0.1, nearest=nearest, num_examples=num_examples)
    rates = benchmark.results(world, 60)
    assert rates["nearest demos"][0] >= 0.9
    assert rates["random demos"][0] >= 0.9


def test_gains_share_the_draws_of_the_spread():
    """The draws of different gains are correlated, because they use the same draws of the standard deviation."""
    experiment = PairedExperiment(
        (np.random.default_rng(0).random((5, 40)) < 0.5).astype(float), bounds=(0.0, 9.0)
    )
    rows = [1, 2, 3, 4]
    average = experiment.gain(rows)
    first, second = (
        experiment.gain_of_best(rows, average, number).draws - average.draws for number in (20, 200)
    )
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(1.0)


def test_gains_do_not_depend_on_the_order_of_examples():
    scores = (np.random.default_rng(0).random((6, 40)) < 0.6).astype(float)
    first, second = (PairedExperiment(table).gain([2, 3, 4]) for table in (scores, scores[:, ::-1]))
    assert first.interval == second.interval


def gain(value, error=0.01, *, least=None):
    draws = value + error * np.random.default_rng(0).normal(size=1_000)
    return Gain(value, value, draws, draws if least is None else least.draws)


RANDOM = gain(0.2)


@pytest.mark.parametrize(
    ("gains", "advice"),
    [
        (
            {"no demos": gain(-0.1), "other sets": gain(-0.02)},
            "No gain is proven on 30 examples, and no interval reaches above +0.02: keep the program.",
        ),
        (
            {"random demos": gain(0.1, 0.1), "other sets": gain(0.02, 0.2)},
            "No gain is proven on 30 examples. The most promising lever is 'random demos' (+0.10 [-0.09, +0.28]): "
            "keep the program for now, or pass more examples to find out.",
        ),
        (
            {"random demos": gain(0.01, 0.1), "other sets": gain(-0.1, 0.3)},
            "No gain is proven on 30 examples. All expected gains are below +0.02, but the interval of 'other sets' is "
            "wide (-0.10 [-0.67, +0.45]): keep the program for now, or pass more examples to find out.",
        ),
        (
            {"random demos": RANDOM, "nearest demos": gain(0.3)},
            "The largest proven gain is that of 'nearest demos' (+0.30 [+0.28, +0.32]): run "
            "PLFewShot(demos='retrieved').",
        ),
        (
            {"random demos": RANDOM, "nearest demos": gain(0.3, 0.2)},
            "The largest proven gain is that of 'random demos'",
        ),
        (
            {"random demos": gain(0.301), "other sets": gain(0.303)},
            "The largest proven gain is that of 'random demos' (+0.30",
        ),
        (
            {"random demos": RANDOM, "other sets": gain(0.3, least=RANDOM)},
            "The simplest lever whose gain is proven is 'random demos' (+0.20 [+0.18, +0.22]): use "
            "dspy.LabeledFewShot. 'other sets' has a larger expected gain (+0.30 [+0.18, +0.32]), but the difference "
            "may be chance.",
        ),
    ],
)
def test_advice_names_the_simplest_of_the_best_levers(gains, advice):
    changes = [Change(name, [1], HOW[name]) for name in gains]
    text = best_advice(changes, gains, num_examples=30)
    assert text.startswith(advice)
    assert text.startswith(NOTHING_TO_GAIN) == ("No gain" in advice)


def test_advice_says_so_if_no_lever_could_be_tried():
    assert best_advice([], {}, num_examples=30).startswith("No lever could be tried")
