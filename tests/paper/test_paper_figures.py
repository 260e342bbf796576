"""The figures: what they draw is what the runs gave, and nothing is cut off."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from result_records import result
from scipy import stats

from paper.figures import draw_accuracy_by_calls, draw_ranking
from paper.protocol import METHODS
from paper.tables import frame_of
from plr_dspy.statistics.comparisons import mean_interval

PNG = b"\x89PNG\r\n\x1a\n"
CALLS = {name: 10 * 3**i for i, name in enumerate(METHODS)} | {"Static": 0, "LocalE": 2400, "GlobalE": 2400}


def grid(methods=METHODS, tasks=("mr",), shots=(8,), seeds=range(1, 6)):
    rng = np.random.default_rng(0)
    return [
        result(t, k, s, m, [rng.integers(100, 180) / 200], program_calls={"total": CALLS.get(m, 500)})
        for t, k, s, m in itertools.product(tasks, shots, seeds, methods)
    ]


def ranked(num_demos=4, seed=1, **changes):
    rng = np.random.default_rng([num_demos, seed])
    orders = list(itertools.permutations(range(num_demos)))
    log_probs = rng.normal(-3, 1, len(orders))
    accuracies = rng.binomial(200, np.clip(0.7 + 0.05 * (log_probs + 3), 0, 1)) / 200
    fields = {"orders": orders, "log_probs": log_probs.tolist(), "accuracies": accuracies.tolist()}
    return result("mr", num_demos, seed, "Ranking", ranking=fields | changes)


def bars(axis):
    """Of each labelled error bar: x, means, lower and upper ends."""
    found = {}
    for container in axis.containers:
        line, _, (segments,) = container.lines
        ends = np.array([segment[:, 1] for segment in segments.get_segments() if len(segment)])
        found[container.get_label()] = (*line.get_data(orig=False), ends)
    return found


def assert_nothing_overlaps_or_is_cut(figure):
    FigureCanvasAgg(figure).draw()
    parts = [*figure.legends, figure._supxlabel, figure._supylabel, *(axis.title for axis in figure.axes)]
    drawn = [part.get_window_extent() for part in [*parts, *figure.axes]]
    width, height = figure.canvas.get_width_height()
    for box in drawn:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
    for one, other in itertools.combinations(drawn, 2):
        assert not one.overlaps(other)


class TestAccuracyByCalls:
    def test_a_panel_for_each_task_and_number_of_demos(self, tmp_path):
        tasks, shots = ("subj", "mr"), (4, 8, 16, 32)
        results = grid([*METHODS, "PLR-MLE"], tasks=tasks, shots=shots, seeds=(1, 2))
        figure = draw_accuracy_by_calls(frame_of(results), tmp_path / "c.png")
        titles = [f"{task}, {k} demos" for task in sorted(tasks) for k in shots]
        assert [axis.get_title() for axis in figure.axes] == titles
        assert {text.get_text() for text in figure.legends[0].get_texts()} == {*METHODS, "PLR-MLE"}
        assert (tmp_path / "c.png").read_bytes().startswith(PNG)
        assert_nothing_overlaps_or_is_cut(figure)

    def test_points_are_means_with_intervals_over_seeds(self, tmp_path):
        results = grid()
        (axis,) = draw_accuracy_by_calls(frame_of(results), tmp_path / "c.png").axes
        drawn, (line,) = bars(axis), [line for line in axis.get_lines() if line.get_label() == "Static"]
        assert set(drawn) == set(METHODS) - {"Static"}
        assert line.get_ydata()[0] == pytest.approx(
            np.mean([r.accuracy for r in results if r.method == "Static"])
        )
        for name, (x, y, ends) in drawn.items():
            accuracies = [r.accuracy for r in results if r.method == name]
            assert x == pytest.approx([CALLS[name]], rel=0.45), "moved a little"
            assert y == pytest.approx([np.mean(accuracies)])
            assert ends[0] == pytest.approx(mean_interval(accuracies))
        assert drawn["LocalE"][0] < drawn["GlobalE"][0], "of equal calls, side by side"


class TestRanking:
    def test_points_are_the_orders_by_falling_probability(self, tmp_path):
        run = ranked()
        (axis,) = draw_ranking(frame_of([run]), tmp_path / "r.png").axes
        lines = {line.get_label(): line for line in axis.get_lines()}
        by_probability = np.argsort(run.ranking.log_probs)[::-1]
        np.testing.assert_array_equal(lines["one order"].get_xdata(), np.arange(1, 25))
        np.testing.assert_array_equal(
            lines["one order"].get_ydata(), np.array(run.ranking.accuracies)[by_probability]
        )
        assert lines["original order"].get_xdata() == [list(by_probability).index(0) + 1]
        assert lines["original order"].get_ydata() == [run.ranking.accuracies[0]]
        tau, p = stats.kendalltau(run.ranking.log_probs, run.ranking.accuracies)
        assert axis.get_title() == f"mr, 4 demos, seed 1: τ = {tau:+.2f}, p = {p:.2g}"

    def test_merged_orders_can_leave_out_the_original(self, tmp_path):
        fewer = ranked(3, orders=[(1, 0, 2), (2, 0, 1)], log_probs=[-0.5, -1.0], accuracies=[0.5, 0.6])
        figure = draw_ranking(frame_of([fewer]), tmp_path / "r.png")
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one order", "running mean"]


def test_matplotlib_is_imported_for_drawing_only(monkeypatch, tmp_path):
    code = "import sys, paper.figures; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"plr-dspy\[examples\]"):
        draw_ranking(frame_of([ranked()]), tmp_path / "a.png")
