"""The picture of the README: accuracy by program calls, from the tables of the docs, and what calibration does.

python benchmarks/picture.py     # writes docs/accuracy_by_calls.png, which is legible on light and on dark pages
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from command import DOCS, RECORDED, options, read_table
from scipy.special import log_softmax

from plr_dspy.statistics.calibration import batch_offsets, calibrated

STYLES = {
    "`LabeledFewShot`": ("random demos", "#888888", "o"),
    "`LabeledFewShot`, then `BatchCalibration`": ("the same, calibrated", "#2ca02c", "s"),
    "random search": ("DSPy's random search over demos", "#ff7f0e", "^"),
    "`PLFewShot` with 300 calls": ("PLFewShot", "#1f77b4", "D"),
    "`PLFewShot`": ("", "#1f77b4", "D"),
    "`PLFewShot(calibrate=True)`": ("PLFewShot(calibrate=True)", "#d62728", "P"),
}
"""Rows of the table of docs/fewshot.md: label, colour and marker."""

NEAREST = "8 nearest, nearest last (`max_metric_calls=0`)"
TASKS = ("MR", "SST-5", "TREC", "AG News")
PLACES = {0: 0, 64: 1, 300: 2, 1_067: 3}
"""Of numbers of calls on the axis, the nearest of which counts."""

INK = "#808080"
BINS = np.linspace(0.0, 1.0, 11)


def reliability() -> tuple[np.ndarray, np.ndarray]:
    """How often answers are right by how sure they are, ``[2, bins]``, as they are and calibrated, and the confidence.

    Of all recorded answers under all orders: calibrated on one half of the examples of each, and drawn of the other.
    """
    confidence: list[list[np.ndarray]] = [[], []]
    right: list[list[np.ndarray]] = [[], []]
    for path in sorted(RECORDED.glob("*.npz")):
        data = np.load(path)
        table = log_softmax(data["logprobs"].astype(np.float64), axis=2)
        shuffled = np.random.default_rng(0).permutation(len(data["gold"]))
        pool, held = np.array_split(shuffled, 2)
        moved = np.stack([calibrated(rows, batch_offsets(rows[pool])) for rows in table])
        for number, told in enumerate((table[:, held], moved[:, held])):
            confidence[number].append(np.exp(told.max(axis=2)).ravel())
            right[number].append((told.argmax(axis=2) == data["gold"][held]).ravel())
    shares = np.full((2, 2, len(BINS) - 1), np.nan)
    for number in range(2):
        sure, hits = np.concatenate(confidence[number]), np.concatenate(right[number])
        bins = np.clip(np.digitize(sure, BINS) - 1, 0, len(BINS) - 2)
        for each in range(len(BINS) - 1):
            if (bins == each).sum() >= 100:
                shares[:, number, each] = hits[bins == each].mean(), sure[bins == each].mean()
    return shares[0], shares[1]


def draw_task(axis: Any, task: str, rows: Any, nearest: dict[str, str]) -> None:
    """Draw the accuracy of each method on a task by its calls."""
    points: dict[str, list[tuple[float, float]]] = {}
    for name, (_, colour, marker) in STYLES.items():
        row = rows.loc[name]
        calls = int(row["calls"].replace(",", ""))
        place = PLACES[min(PLACES, key=lambda known: abs(known - calls))]
        axis.plot(place, float(row[task]), marker, color=colour, markersize=7)
        points.setdefault(colour, []).append((place, float(row[task])))
    axis.plot(*zip(*points["#1f77b4"], strict=True), color="#1f77b4")
    if task in nearest:
        axis.plot(0, float(nearest[task]), "D", color="#9467bd", fillstyle="none", markersize=7)
    axis.set_title(task, color=INK)
    axis.set_xticks(list(PLACES.values()), ["0", "64", "300", "1,067"])
    lowest = min(accuracy for of in points.values() for _, accuracy in of)
    axis.set(
        xlim=(-0.4, 3.4), ylim=(lowest - 0.04, lowest + 0.46), xlabel="program calls"
    )  # the same scale in all


def main(arguments: Sequence[str] | None = None) -> None:
    from matplotlib.figure import Figure

    args = options(__doc__ or "", argv=arguments, out=DOCS / "accuracy_by_calls.png")
    rows = read_table((DOCS / "fewshot.md").read_text("utf-8"), "| MR | SST-5")
    found = read_table((DOCS / "evidence.md").read_text("utf-8"), "| TREC | AG News")
    nearest = found.loc[NEAREST].to_dict()
    figure = Figure(figsize=(12.5, 3.6), layout="constrained")
    *axes, last = figure.subplots(1, len(TASKS) + 1, width_ratios=[1] * len(TASKS) + [1.15])
    for axis, task in zip(axes, TASKS, strict=True):
        draw_task(axis, task, rows, nearest)
    axes[0].set_ylabel("accuracy on held-out examples")
    right, sure = reliability()
    last.plot([0, 1], [0, 1], ":", color=INK)
    for number, (label, colour) in enumerate((("as it is", "#888888"), ("calibrated", "#2ca02c"))):
        last.plot(sure[number], right[number], "o-", color=colour, markersize=5, label=label)
    last.set(
        title="is a sure answer right?", xlabel="probability of the answer", xlim=(0.2, 1), ylim=(0.2, 1)
    )
    last.set_ylabel("share of right answers")
    last.title.set_color(INK)
    last.legend(fontsize=8, labelcolor=INK, framealpha=0.0, loc="upper left")
    for axis in (*axes, last):
        axis.tick_params(colors=INK)
        axis.patch.set_alpha(0.0)
        axis.xaxis.label.set_color(INK)
        axis.yaxis.label.set_color(INK)
        for spine in axis.spines.values():
            spine.set_color(INK)
    drawn = [axes[0].plot([], [], m, color=c, label=label)[0] for label, c, m in STYLES.values() if label]
    other = axes[0].plot(
        [], [], "D", color="#9467bd", fillstyle="none", label="8 nearest demos, another draw"
    )
    figure.legend(
        handles=[*drawn, *other],
        fontsize=8,
        loc="outside lower center",
        ncols=6,
        labelcolor=INK,
        framealpha=0.0,
    )
    figure.savefig(args.out, dpi=110, transparent=True)


if __name__ == "__main__":
    main()
