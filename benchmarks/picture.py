"""The picture of the README: accuracy by program calls, from the tables of the docs, and what calibration does.

python benchmarks/picture.py     # writes docs/accuracy_by_calls.png, which is legible on light and on dark pages
"""

from typing import Any

import matplotlib
import numpy as np
from calibration import recorded_answers
from command import DOCS, RECORDED, options, read_table
from matplotlib.figure import Figure
from scipy.stats import binned_statistic

from plr_dspy.statistics.calibration import batch_offsets, calibrated

GREY, GREEN, ORANGE, BLUE, RED, PURPLE = "#888888", "#2ca02c", "#ff7f0e", "#1f77b4", "#d62728", "#9467bd"
STYLES = {
    "`LabeledFewShot`": ("random demos", GREY, "o"),
    "`LabeledFewShot`, then `BatchCalibration`": ("the same, calibrated", GREEN, "s"),
    "random search": ("DSPy's random search", ORANGE, "^"),
    "`PLFewShot` with 300 calls": ("PLFewShot", BLUE, "D"),
    "`PLFewShot`": (None, BLUE, "D"),
    "`PLFewShot(calibrate=True)`": ("PLFewShot, calibrated", RED, "P"),
}
"""Rows of the table of docs/fewshot.md: label, colour and marker."""

PLACES = {0: 0, 64: 1, 300: 2, 1_067: 3}
"""Of numbers of calls on the axis, the nearest of which counts."""

INK = "#808080"
TEXT = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
SIZES = {"axes.facecolor": "none", "legend.framealpha": 0.0, "font.size": 11, "lines.markersize": 7}


def draw_task(axis: Any, task: str, rows: Any, nearest: Any) -> None:
    """Draw the accuracy of each method on a task by its calls."""
    accuracies = rows[task].astype(float)
    calls = rows["calls"].str.replace(",", "").astype(int)
    places = {name: PLACES[min(PLACES, key=lambda known: abs(known - calls[name]))] for name in STYLES}
    for name, (label, colour, marker) in STYLES.items():
        axis.plot(places[name], accuracies[name], marker, color=colour, label=label)
    of_fewshot = ["`PLFewShot` with 300 calls", "`PLFewShot`"]
    axis.plot([places[name] for name in of_fewshot], accuracies[of_fewshot], color=BLUE)
    if task in nearest:
        axis.plot(0, float(nearest[task]), "D", color=PURPLE, fillstyle="none", label="8 nearest (other draws)")
    axis.set_xticks(list(PLACES.values()), [f"{calls:,}" for calls in PLACES])
    lowest = accuracies[list(STYLES)].min()
    axis.set(title=task, xlim=(-0.4, 3.4), ylim=(lowest - 0.04, lowest + 0.46), xlabel="program calls")


def draw_reliability(axis: Any) -> None:
    """Draw how often recorded answers are right by how sure they are, calibrated on one half and drawn of the other."""
    told: dict[str, list[Any]] = {"as it is": [], "calibrated": []}
    for path in sorted(RECORDED.glob("*.npz")):
        table, gold = recorded_answers(path)
        pool, held = np.array_split(np.random.default_rng(0).permutation(len(gold)), 2)
        moved = np.stack([calibrated(rows, batch_offsets(rows[pool])) for rows in table])
        for parts, likely in zip(told.values(), (table[:, held], moved[:, held]), strict=True):
            parts.append([np.exp(likely.max(axis=2)).ravel(), (likely.argmax(axis=2) == gold[held]).ravel()])
    axis.plot([0, 1], [0, 1], ":", color=INK)
    for (name, parts), colour in zip(told.items(), (GREY, GREEN), strict=True):
        sure, hits = np.concatenate(parts, axis=1)
        means, _, bins = binned_statistic(sure, [sure, hits], bins=10, range=(0.0, 1.0))
        enough = np.bincount(bins, minlength=11)[1:11] >= 100
        axis.plot(*means[:, enough], "o-", color=colour, markersize=5, label=name)
    axis.set(title="are sure answers right?", xlim=(0.2, 1), ylim=(0.2, 1))
    axis.set(xlabel="probability of the answer", ylabel="share of right answers")
    axis.legend(loc="lower right", fontsize=9)


def main() -> None:
    args = options(__doc__, out=DOCS / "accuracy_by_calls.png")
    rows = read_table((DOCS / "fewshot.md").read_text("utf-8"), "| MR | SST-5")
    found = read_table((DOCS / "evidence.md").read_text("utf-8"), "| TREC | AG News")
    nearest = found.loc["8 nearest, nearest last"]
    with matplotlib.rc_context(TEXT | SIZES):
        figure = Figure(figsize=(8.4, 5.6), layout="constrained")  # still to be read on a phone
        *axes, last, legend = figure.subplots(2, 3).flat
        for axis, task in zip(axes, ("MR", "SST-5", "TREC", "AG News"), strict=True):
            draw_task(axis, task, rows, nearest)
            axis.set_ylabel("held-out accuracy" if task in ("MR", "AG News") else "")
        draw_reliability(last)
        legend.axis("off")
        legend.legend(*axes[0].get_legend_handles_labels(), loc="center", title="accuracies")
        figure.savefig(args.out, dpi=130, transparent=True)


if __name__ == "__main__":
    main()
