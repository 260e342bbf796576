import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from result_records import record, result
from scipy import stats
from scipy.optimize import minimize

from plr_dspy.experiments.analysis.figures import draw_ablation, draw_accuracy_by_calls, draw_ranking
from plr_dspy.experiments.analysis.figures.calls_figure import move_apart
from plr_dspy.experiments.analysis.figures.drawing import METHOD_STYLES, style_of
from plr_dspy.experiments.analysis.figures.ranking_figure import running_mean
from plr_dspy.experiments.analysis.outputs import save_ablations
from plr_dspy.experiments.runs.ranking import Ranking
from plr_dspy.experiments.runs.results import Result, read_results
from plr_dspy.statistics.comparisons import mean_interval

PNG = b"\x89PNG\r\n\x1a\n"
GRID = tuple(METHOD_STYLES)
CALLS = {name: 10 * 3**i for i, name in enumerate(GRID)} | {"Static": 0, "LocalE": 2400, "GlobalE": 2400}


def ranking(num_demos=4, seed=1, **changes):
    rng = np.random.default_rng([num_demos, seed])
    orders = list(itertools.permutations(range(num_demos)))
    log_probs = rng.normal(-3, 1, len(orders))
    accuracies = rng.binomial(200, np.clip(0.7 + 0.05 * (log_probs + 3), 0, 1)) / 200
    fields = {"orders": orders, "log_probs": log_probs.tolist(), "accuracies": accuracies.tolist()}
    return Ranking(**(fields | changes))


def run(method="Ours", *, task="mr", num_demos=8, seed=1, accuracy=0.7, calls=None):
    total = CALLS[method] if calls is None else calls
    return result(task, num_demos, seed, method, [accuracy], program_calls={"total": total, "search": total})


def runs(*, tasks=("mr",), shots=(8,), seeds=range(1, 6), methods=GRID):
    rng = np.random.default_rng(0)
    return [
        run(m, task=task, num_demos=k, seed=s, accuracy=rng.integers(100, 180) / 200)
        for task, k, s, m in itertools.product(tasks, shots, seeds, methods)
    ]


def ablation(name="components", values=(1, 2, 4), *, tasks=("mr",), shots=(8,), seeds=range(1, 6)):
    rng = np.random.default_rng(1)
    rows = [
        {
            "ablation": name,
            "value": v,
            "task": t,
            "num_demos": k,
            "seed": s,
            "accuracy": rng.uniform(0.5, 0.9),
        }
        for v, t, k, s in itertools.product(values, tasks, shots, seeds)
    ]
    return pd.DataFrame(rows).astype({"value": object})


def bars(axis):
    """Of each labelled error bar: x, means, lower and upper ends."""
    found = {}
    for container in axis.containers:
        line, _, (segments,) = container.lines
        ends = np.array([segment[:, 1] for segment in segments.get_segments() if len(segment)])
        x, y = line.get_data(orig=False)
        found[container.get_label()] = (x, y, ends)
    return found


def legend_labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def boxes(figure):
    """Where the figure's own texts, titles, legend and axes are drawn, in pixels."""
    FigureCanvasAgg(figure).draw()
    labels = [figure._supxlabel, figure._supylabel]
    parts = [*figure.legends, *(label for label in labels if label is not None)]
    parts += [axis.title for axis in figure.axes]
    return [part.get_window_extent() for part in parts] + [axis.get_window_extent() for axis in figure.axes]


def assert_nothing_overlaps_or_is_cut(figure):
    drawn, (width, height) = boxes(figure), figure.canvas.get_width_height()
    for box in drawn:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
    for one, other in itertools.combinations(drawn, 2):
        assert not one.overlaps(other)
    for axis in figure.axes:
        ticks = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        ticks = [box for box in ticks if axis.bbox.x0 <= (box.x0 + box.x1) / 2 <= axis.bbox.x1]
        assert len(ticks) >= 2
        assert not any(a.overlaps(b) for a, b in itertools.combinations(ticks, 2))


class TestRanking:
    def test_survives_a_file(self):
        first = ranking()
        fields = {"orders": first.orders, "log_probs": first.log_probs, "accuracies": first.accuracies}
        read = Result.from_dict(record(ranking=fields | {"original": "other fields are ignored"}))
        assert (read.ranking.orders, read.ranking.log_probs) == (tuple(first.orders), tuple(first.log_probs))
        assert read.ranking.accuracies == tuple(first.accuracies)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "results.jsonl")
            path.write_bytes(read.to_json())
            assert read_results(path) == [read]

    def test_kendall_is_positive_where_probable_orders_are_accurate(self):
        agreeing = ranking(num_demos=3, accuracies=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], log_probs=range(-6, 0))
        # Of the 6! ways to pair them up, one agrees and one disagrees as much.
        assert agreeing.kendall == pytest.approx((1.0, 2 / 720))

    def test_equal_accuracies_have_no_kendall(self):
        assert np.isnan(ranking(accuracies=[0.5] * 24).kendall).all()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"orders": [], "log_probs": [], "accuracies": []}, "at least one"),
            ({"log_probs": [0.0]}, "one entry for each order"),
            ({"orders": [(0, 0, 1, 2)] * 24}, "permutations of 0 to 3"),
            ({"orders": [(0, 1, 2, 3)] * 24}, "differ"),
            ({"accuracies": [float("nan")] * 24}, "accuracies must be finite"),
            ({"log_probs": [float("-inf")] * 24}, "log_probs must be finite"),
        ],
    )
    def test_refuses_what_does_not_fit(self, changes, message):
        with pytest.raises(ValueError, match=message):
            ranking(**changes)

    def test_refuses_data_without_a_field(self):
        with pytest.raises(ValueError, match="accuracies is missing"):
            result(ranking={"orders": [[0, 1]], "log_probs": [0.0]})


class TestDrawRanking:
    def test_has_a_panel_for_each_number_of_demos_and_task(self, tmp_path):
        rankings = {(task, k, 1): ranking(k) for task in ("trec", "mr") for k in (5, 3, 4)}
        figure = draw_ranking(rankings, tmp_path / "ranking.png")
        assert [axis.get_title().split(":")[0] for axis in figure.axes] == [
            f"{task}, {k} demos" for task in ("mr", "trec") for k in (3, 4, 5)
        ]
        assert (tmp_path / "ranking.png").read_bytes().startswith(PNG)
        assert_nothing_overlaps_or_is_cut(figure)

    def test_points_are_the_orders_by_falling_probability(self, tmp_path):
        shown = ranking()
        (axis,) = draw_ranking({("mr", len(shown.orders[0]), 1): shown}, tmp_path / "r.png").axes
        lines = {line.get_label(): line for line in axis.get_lines()}
        by_probability = np.argsort(shown.log_probs)[::-1]
        accuracies = np.array(shown.accuracies)[by_probability]
        np.testing.assert_array_equal(lines["one order"].get_xdata(), np.arange(1, 25))
        np.testing.assert_array_equal(lines["one order"].get_ydata(), accuracies)
        np.testing.assert_allclose(lines["running mean"].get_ydata(), running_mean(accuracies))
        original = list(by_probability).index(0)
        assert lines["original order"].get_xdata() == [original + 1]
        assert lines["original order"].get_ydata() == [shown.accuracies[0]]

    def test_title_has_the_tau_and_p_of_scipy(self, tmp_path):
        shown = ranking(num_demos=5)
        (axis,) = draw_ranking({("mr", len(shown.orders[0]), 1): shown}, tmp_path / "r.png").axes
        tau, p = stats.kendalltau(shown.log_probs, shown.accuracies)
        assert tau > 0.2
        assert axis.get_title().endswith(f"τ = {tau:+.2f}, p = {p:.2g}")

    def test_equal_accuracies_have_no_tau(self, tmp_path):
        (axis,) = draw_ranking({("mr", 4, 1): ranking(accuracies=[0.5] * 24)}, tmp_path / "r.png").axes
        assert "undefined" in axis.get_title()

    def test_merged_orders_can_leave_out_the_original(self, tmp_path):
        fewer = Ranking([(1, 0, 2), (2, 0, 1)], [-0.5, -1.0], [0.5, 0.6])
        figure = draw_ranking({("mr", 3, 1): fewer}, tmp_path / "r.png")
        assert legend_labels(figure) == ["one order", "running mean"]

    def test_seeds_have_rows_and_missing_panels_stay_empty(self, tmp_path):
        rankings = {("mr", 3, 1): ranking(3), ("mr", 4, 2): ranking(4, seed=2)}
        figure = draw_ranking(rankings, tmp_path / "r.png")
        names = [axis.get_title().split(":")[0] for axis in figure.axes]
        assert names == ["mr, 3 demos, seed 1", "mr, 4 demos, seed 2"]
        for axis in figure.axes:
            assert any(label.get_visible() and label.get_text() for label in axis.get_yticklabels())

    def test_refuses_none(self, tmp_path):
        with pytest.raises(ValueError, match="rankings must hold at least one"):
            draw_ranking({}, tmp_path / "r.png")
        assert not list(tmp_path.iterdir())

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=130))
    def test_the_running_mean_is_that_of_the_values_around(self, values):
        half = max(3, len(values) // 10) // 2
        if 3 <= len(values) < 40:
            expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
            np.testing.assert_allclose(running_mean(np.array(values)), expected, atol=1e-12)
        mean = running_mean(np.array(values))
        assert len(mean) == len(values)
        assert min(values) - 1e-12 <= mean.min() and mean.max() <= max(values) + 1e-12


class TestDrawAccuracyByCalls:
    def test_has_a_panel_for_each_task_and_number_of_demos(self, tmp_path):
        results = runs(tasks=("subj", "mr"), shots=(16, 4), seeds=(1, 2, 3))
        figure = draw_accuracy_by_calls(results, tmp_path / "calls.png")
        titles = ["mr, 4 demos", "mr, 16 demos", "subj, 4 demos", "subj, 16 demos"]
        assert [axis.get_title() for axis in figure.axes] == titles
        assert {axis.get_xscale() for axis in figure.axes} == {"log"}
        assert legend_labels(figure) == list(GRID)
        assert (tmp_path / "calls.png").read_bytes().startswith(PNG)
        assert_nothing_overlaps_or_is_cut(figure)

    @pytest.mark.parametrize("shots", [(8,), (4, 8, 16, 32)])
    def test_nothing_overlaps_at_the_grids_sizes(self, shots, tmp_path):
        figure = draw_accuracy_by_calls(runs(shots=shots, seeds=(1, 2)), tmp_path / "calls.png")
        assert_nothing_overlaps_or_is_cut(figure)

    def test_points_are_means_with_intervals_over_seeds(self, tmp_path):
        results = runs()
        for i, one in enumerate(results):
            one.program_calls["total"] *= 1 + i // len(GRID)
        (axis,) = draw_accuracy_by_calls(results, tmp_path / "calls.png").axes
        drawn = bars(axis)
        assert set(drawn) == set(GRID) - {"Static"}
        for name, (x, y, ends) in drawn.items():
            accuracies = [r.accuracy for r in results if r.method == name]
            assert x == pytest.approx([3 * CALLS[name]])
            assert y == pytest.approx([np.mean(accuracies)])
            assert ends[0] == pytest.approx(mean_interval(accuracies))

    def test_a_method_without_calls_is_a_line_across(self, tmp_path):
        results = runs()
        (axis,) = draw_accuracy_by_calls(results, tmp_path / "calls.png").axes
        (line,) = [line for line in axis.get_lines() if line.get_label() == "Static"]
        accuracies = [r.accuracy for r in results if r.method == "Static"]
        np.testing.assert_allclose(line.get_ydata(), [np.mean(accuracies)] * 2)

    def test_marks_of_equal_calls_do_not_hide_each_other(self, tmp_path):
        results = [run(name, seed=s, calls=1000) for name in GRID for s in (1, 2)]
        (axis,) = draw_accuracy_by_calls(results, tmp_path / "calls.png").axes
        FigureCanvasAgg(axis.figure).draw()
        lines = [container.lines[0] for container in axis.containers]
        pixels = sorted(line.get_transform().transform((1000, 0.7))[0] for line in lines)
        points = np.array(pixels) * 72 / axis.figure.dpi
        assert np.diff(points).min() > 7
        assert {float(line.get_xdata()[0]) for line in lines} == {1000.0}
        assert axis.bbox.x0 < pixels[0] and pixels[-1] < axis.bbox.x1

    @pytest.mark.parametrize("seeds", [(1,), (1, 2)])
    def test_all_means_lie_inside_the_panels(self, seeds, tmp_path):
        results = runs(shots=(4, 8), seeds=seeds)
        figure = draw_accuracy_by_calls(results, tmp_path / "calls.png")
        for axis in figure.axes:
            (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
            assert low >= -0.02 and high <= 1.02
            for x, y, _ in bars(axis).values():
                assert left < x[0] < right and low < y[0] < high

    def test_a_method_looks_the_same_everywhere(self, tmp_path):
        everything = draw_accuracy_by_calls(runs(shots=(4, 8), seeds=(1, 2)), tmp_path / "a.png")
        few = draw_accuracy_by_calls(runs(methods=("Ours", "DEmO"), seeds=(1,)), tmp_path / "b.png")
        for axis in [*everything.axes, *few.axes]:
            for container in axis.containers:
                style = METHOD_STYLES[container.get_label()]
                line = container.lines[0]
                assert (line.get_color(), line.get_marker()) == (style.colour, style.marker)

    def test_methods_outside_the_grid_come_last(self, tmp_path):
        results = [*runs(methods=("Ours", "Top-K")), run("PLR-MLE", calls=500), run("A", calls=5)]
        assert legend_labels(draw_accuracy_by_calls(results, tmp_path / "c.png")) == [
            "Top-K",
            "Ours",
            "A",
            "PLR-MLE",
        ]

    def test_only_free_methods_can_be_drawn(self, tmp_path):
        figure = draw_accuracy_by_calls([run("Static")], tmp_path / "c.png")
        assert_nothing_overlaps_or_is_cut(figure)

    @pytest.mark.parametrize(
        ("results", "message"),
        [
            ([], "results must hold at least one"),
            ([run(), run()], "two of mr, 8 demos, seed 1, Ours"),
        ],
    )
    def test_refuses_results_that_it_cannot_show(self, results, message, tmp_path):
        with pytest.raises(ValueError, match=message):
            draw_accuracy_by_calls(results, tmp_path / "calls.png")
        assert not list(tmp_path.iterdir())

    @given(st.lists(st.floats(0, 100), min_size=1, max_size=6).map(sorted))
    def test_moving_apart_moves_positions_as_little_as_it_must(self, positions):
        moved = np.array(move_apart(positions, 5.0))
        assert np.all(np.diff(moved) >= 5.0 - 1e-9)
        best = minimize(
            lambda x: np.sum((x - positions) ** 2),
            np.arange(len(positions)) * 40.0,
            jac=lambda x: 2 * (x - positions),
            constraints=[{"type": "ineq", "fun": lambda x: np.append(np.diff(x), 5.0) - 5.0}],
        )
        assert np.sum((moved - positions) ** 2) <= best.fun + 1e-6


class TestDrawAblation:
    def test_has_a_panel_for_each_ablation(self, tmp_path):
        parts = [
            ablation("elite_fraction", (0.5, 0.1, 0.3, 0.2)),
            ablation("weighted", (True, False)),
            ablation("components", (1, 2, 4, 8, 16, 32, 64)),
        ]
        figure = draw_ablation(pd.concat(parts), tmp_path / "ablation.png")
        assert [[label.get_text() for label in axis.get_xticklabels()] for axis in figure.axes] == [
            ["1", "2", "4", "8", "16", "32", "64"],
            ["unweighted", "weighted"],
            ["0.1", "0.2", "0.3", "0.5"],
        ]
        assert (tmp_path / "ablation.png").read_bytes().startswith(PNG)
        assert_nothing_overlaps_or_is_cut(figure)

    def test_points_are_means_with_intervals_over_seeds(self, tmp_path):
        rows = ablation(values=(4, 1, 2), tasks=("trec", "mr"), shots=(4, 8))
        (axis,) = draw_ablation(rows, tmp_path / "a.png").axes
        drawn = bars(axis)
        assert list(drawn) == ["mr, 4 demos", "mr, 8 demos", "trec, 4 demos", "trec, 8 demos"]
        for name, (x, y, ends) in drawn.items():
            assert np.round(x).tolist() == [0, 1, 2]
            for i, value in enumerate((1, 2, 4)):
                places = rows.task + ", " + rows.num_demos.astype(str) + " demos"
                accuracies = list(rows.accuracy[(rows.value == value) & (places == name)])
                assert y[i] == pytest.approx(np.mean(accuracies))
                assert ends[i] == pytest.approx(mean_interval(accuracies))
        assert len({tuple(x) for x, _, _ in drawn.values()}) == 4

    def test_a_task_without_a_setting_has_no_point_there(self, tmp_path):
        rows = [ablation(values=(1, 2, 4)), ablation(values=(4,), tasks=("trec",))]
        rows.append(ablation("weighted", (False, True)))
        first, second = draw_ablation(pd.concat(rows), tmp_path / "a.png").axes
        assert np.round(bars(first)["trec, 8 demos"][0]).tolist() == [2]
        assert list(bars(second)) == ["mr, 8 demos"]

    def test_one_seed_has_a_point_and_no_interval(self, tmp_path):
        rows = ablation(seeds=(1,))
        (axis,) = draw_ablation(rows, tmp_path / "a.png").axes
        ((_, y, ends),) = bars(axis).values()
        assert y.tolist() == rows.accuracy.tolist()
        assert not np.isfinite(ends).any()

    @pytest.mark.parametrize(
        ("results", "message"),
        [
            ([], "results must hold at least one"),
            ([run("PLR-1"), run("Ours")], "no ablation has results of two settings"),
            ([run("PLR-1"), run("PLR-4"), run("PLR-4")], "two of mr, 8 demos, seed 1, PLR-4"),
        ],
    )
    def test_refuses_results_that_it_cannot_show(self, results, message, tmp_path):
        with pytest.raises(ValueError, match=message):
            save_ablations(results, tmp_path)
        assert not list(tmp_path.iterdir())


class TestColours:
    # Linear-RGB simulations of full protanopia, deuteranopia and tritanopia: Machado, Oliveira and Fernandes (2009).
    VISION = (
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    )
    TO_XYZ = ([0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505])

    def lab(self, colour, vision):
        rgb = np.array(colors.to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        xyz = np.array(self.TO_XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / [0.9505, 1.0, 1.089]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    @pytest.mark.parametrize("vision", VISION, ids=["usual", "protan", "deutan", "tritan"])
    def test_methods_differ_to_every_eye(self, vision):
        found = [self.lab(style.colour, vision) for style in METHOD_STYLES.values()]
        # A difference of 2.3 in CIELAB can just be seen side by side; 10 is plain.
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(found, 2)) > 10

    def test_markers_differ_too(self):
        assert len({style.marker for style in METHOD_STYLES.values()}) == len(METHOD_STYLES)

    def test_methods_outside_the_grid_have_a_style(self):
        assert style_of("PLR-MLE") == style_of("PLR-MLE")
        assert style_of("?").marker == "d"


def test_the_paths_ending_names_the_format(tmp_path):
    draw_ablation(ablation(), tmp_path / "deep" / "a.pdf")
    assert (tmp_path / "deep" / "a.pdf").read_bytes().startswith(b"%PDF")
    draw_ablation(ablation(), str(tmp_path / "plain"))
    assert (tmp_path / "plain").read_bytes().startswith(PNG)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (
        lambda path: draw_ranking({("mr", 4, 1): ranking()}, path),
        lambda path: draw_accuracy_by_calls([run()], path),
        lambda path: draw_ablation(ablation(), path),
    ):
        with pytest.raises(ImportError, match=r"plr-dspy\[experiments\]"):
            draw(tmp_path / "a.png")


def test_matplotlib_is_imported_for_drawing_only_and_its_global_state_never(tmp_path):
    code = (
        "import sys, pandas, plr_dspy.experiments.analysis.figures as figures\n"
        "assert 'matplotlib' not in sys.modules\n"
        "row = {'ablation': 'weighted', 'value': True, 'task': 'mr', 'num_demos': 4, 'seed': 1, 'accuracy': 0.5}\n"
        f"figures.draw_ablation(pandas.DataFrame([row]), {str(tmp_path / 'a.png')!r})\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
