"""Figures of the results: drawn values, and numbers compared with scipy and with calculations by hand."""

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
from result_records import record, result, runs
from scipy import stats

from paper.figures import draw_probability, draw_ranks, probability_frame, rank_frame, save_figures
from paper.protocol import PROBABILITY
from paper.results import RESULT
from paper.tables import frame_of

PNG = b"\x89PNG\r\n\x1a\n"


def ranked(num_demos=3, seed=1, method=PROBABILITY[0], **changes):
    """Return the result of a run that scored all orders, with random scores and probabilities."""
    rng = np.random.default_rng([num_demos, seed])
    orders = list(itertools.permutations(range(num_demos)))
    fields = {
        "orders": orders,
        "log_probabilities": rng.normal(-3, 1, len(orders)).tolist(),
        "accuracies": (rng.integers(10, 20, len(orders)) / 20).tolist(),
    }
    return result("mr", num_demos, seed, method, ranking=fields | changes)


def test_the_frame_has_tau_and_accuracies_of_each_run():
    scored = [ranked(3), ranked(4, seed=2, method=PROBABILITY[1])]
    frame = probability_frame([*scored, result("mr", 3, 1, "Static")])
    assert frame[["num_demos", "update", "seed", "orders"]].values.tolist() == [
        [3, "EMA", 1, 6],
        [4, "MLE", 2, 24],
    ]
    for row, run in zip(frame.itertuples(), scored, strict=True):
        log_probabilities = list(run.ranking.log_probabilities)
        accuracies = run.ranking.accuracies
        test = stats.kendalltau(log_probabilities, accuracies)
        assert (row.tau, row.p) == pytest.approx((test.statistic, test.pvalue))
        assert row.most_probable == accuracies[log_probabilities.index(max(log_probabilities))]
        assert (row.best, row.mean) == pytest.approx((max(accuracies), sum(accuracies) / len(accuracies)))
    assert probability_frame([result()]).empty


def test_the_ablation_is_drawn_with_the_most_probable_order_first():
    seeds = (1, 2)
    scored = [ranked(count, seed, method) for count in (3, 4) for seed in seeds for method in PROBABILITY]
    figure = draw_probability(probability_frame(scored[1:]))
    places = [(count, update) for count in (3, 4) for update in ("EMA", "MLE")]
    first_axes = figure.axes[:: len(seeds)]
    assert [axis.get_ylabel() for axis in first_axes] == [
        f"mr, k = {count}, {update}" for count, update in places
    ]
    assert not figure.axes[0].lines, "a missing run must have an empty plot"
    run = scored[2]
    axis = figure.axes[1]
    lines = {line.get_label(): line for line in axis.lines}
    by_probability = np.argsort(run.ranking.log_probabilities)[::-1]
    assert lines["one order"].get_ydata().tolist() == [
        run.ranking.accuracies[number] for number in by_probability
    ]
    assert lines["original order"].get_xdata() == [by_probability.tolist().index(0) + 1]
    assert axis.get_title().startswith("seed 2: τ = ")


def test_figures_of_equal_probabilities_and_without_the_original_order():
    same = ranked(3, log_probabilities=[-1.8] * 6)
    fewer = ranked(
        3, seed=2, orders=[(1, 0, 2), (2, 0, 1)], log_probabilities=[-0.5, -1.0], accuracies=[0.5, 0.6]
    )
    first, second = draw_probability(probability_frame([same, fewer])).axes
    assert first.get_title() == "seed 1: no correlation"
    assert [line.get_label() for line in second.lines] == ["one order", "running mean"]


def test_rankings_are_checked():
    orders = {"orders": [(0, 1), (0, 1)], "log_probabilities": [-1.0, -1.0], "accuracies": [0.5, 0.5]}
    with pytest.raises(ValueError, match="orders must be distinct"):
        RESULT.validate_python(record(ranking=orders))


def test_only_methods_with_all_runs_are_ranked():
    """Static and PLR-1 tie on mr, PLR-4 has no run for one seed, and Ours is the best on both tasks."""
    results = [
        *runs("Static", [10, 12]),
        *runs("PLR-1", [12, 10]),
        *runs("Ours", [15, 15]),
        *runs("PLR-4", [20, None]),
        *runs("Static", [10, 10], task="trec"),
        *runs("PLR-1", [11, 11], task="trec"),
        *runs("Ours", [12, 12], task="trec"),
        *runs("PLR-4", [20, 20], task="trec"),
    ]
    ranks = rank_frame(frame_of(results))
    expected = {"Ours": [1.0, 1.0], "PLR-1": [2.5, 2.0], "Static": [2.5, 3.0]}
    assert dict(zip(ranks.index, ranks.values.tolist(), strict=True)) == expected
    (axis,) = draw_ranks(ranks).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "Ours (1.0)",
        "PLR-1 (2.2)",
        "Static (2.8)",
    ]
    (means,) = [line for line in axis.lines if line.get_label() == "mean"]
    assert means.get_xdata().tolist() == [1.0, 2.25, 2.75]


def test_figures_are_saved_with_their_numbers(tmp_path):
    results = [ranked(seed=9), *runs("Static", [10, 12]), *runs("Ours", [15, 15])]
    paths = save_figures(results, frame_of(results), tmp_path)
    assert [path.name for path in paths] == ["probability.png", "probability.csv", "ranks.png", "ranks.csv"]
    assert all(path.read_bytes().startswith(PNG) for path in paths[::2])
    assert pd.read_csv(paths[1]).orders.tolist() == [6]
    assert pd.read_csv(paths[3])["rank"].tolist() == [1.0, 2.0]


def test_without_results_to_draw_or_matplotlib_an_error_is_raised(tmp_path, monkeypatch):
    results = runs("Static", [10, 12])
    with pytest.raises(ValueError, match=r"figures need runs of '--ablations probability'"):
        save_figures(results, frame_of(results), tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"plr-dspy\[examples\]"):
        save_figures([ranked()], frame_of(results), tmp_path)
