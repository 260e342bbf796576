"""The README's figure: accuracies against program calls, from tables in the docs, and a reliability diagram.

python benchmarks/picture.py     # writes docs/accuracy_by_calls.png, for light and dark pages
"""

import matplotlib
import numpy as np
import pandas as pd
from calibration import recorded_answers
from command import DOCS, RECORDED, options, read_table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binned_statistic

from plr_dspy.statistics.calibration import batch_offsets, calibrated

GRAY = "#888888"
GREEN = "#2ca02c"
ORANGE = "#ff7f0e"
BLUE = "#1f77b4"
RED = "#d62728"
PURPLE = "#9467bd"

STYLES = {
    "`LabeledFewShot`": ("random demos", GRAY, "o"),
    "`LabeledFewShot`, then `BatchCalibration`": ("the same, calibrated", GREEN, "s"),
    "random search": ("DSPy's random search", ORANGE, "^"),
    "`PLFewShot` with 300 calls": ("PLFewShot", BLUE, "D"),
    "`PLFewShot`": (None, BLUE, "D"),
    "`PLFewShot(calibrate=True)`": ("PLFewShot, calibrated", RED, "P"),
}
"""Label, color and marker for each row of the table in docs/fewshot.md."""

CALLS = [0, 64, 300, 1_067]
"""Numbers of calls on the horizontal axis. Each method is drawn at the nearest number."""

INK = "#808080"
TEXT = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
SIZES = {"axes.facecolor": "none", "legend.framealpha": 0.0, "font.size": 11, "lines.markersize": 7}


def place_of(num_calls: int) -> int:
    """Return the position on the axis that is nearest to a number of calls."""
    distances = [abs(calls - num_calls) for calls in CALLS]
    return distances.index(min(distances))


def draw_task(axis: Axes, task: str, rows: pd.DataFrame, nearest: pd.Series) -> None:
    """Plot each method's accuracy on a task against its number of calls."""
    accuracies = rows[task].astype(float)
    calls = rows["calls"].str.replace(",", "").astype(int)
    places = {name: place_of(calls[name]) for name in STYLES}
    for name, (label, color, marker) in STYLES.items():
        axis.plot(places[name], accuracies[name], marker, color=color, label=label)
    of_fewshot = ["`PLFewShot` with 300 calls", "`PLFewShot`"]
    axis.plot([places[name] for name in of_fewshot], accuracies[of_fewshot], color=BLUE)
    if task in nearest:
        label = "8 nearest (other draws)"
        axis.plot(0, float(nearest[task]), "D", color=PURPLE, fillstyle="none", label=label)
    axis.set_xticks(range(len(CALLS)), [f"{number:,}" for number in CALLS])
    lowest = accuracies[list(STYLES)].min()
    axis.set(title=task, xlabel="program calls")
    axis.set(xlim=(-0.4, 3.4), ylim=(lowest - 0.04, lowest + 0.46))


def draw_reliability(axis: Axes) -> None:
    """Plot the accuracies of recorded answers against their probabilities.

    One curve shows answers before calibration, and one shows answers after calibration.
    """
    points: dict[str, list[np.ndarray]] = {"as it is": [], "calibrated": []}
    for path in sorted(RECORDED.glob("*.npz")):
        table, gold = recorded_answers(path)
        shuffled = np.random.default_rng(0).permutation(len(gold))
        pool, held_out = np.array_split(shuffled, 2)
        calibrated_tables = np.stack([calibrated(rows, batch_offsets(rows[pool])) for rows in table])
        for name, log_probabilities in (("as it is", table), ("calibrated", calibrated_tables)):
            of_held_out = log_probabilities[:, held_out]
            confidence = np.exp(of_held_out.max(axis=2)).ravel()
            is_right = (of_held_out.argmax(axis=2) == gold[held_out]).ravel()
            points[name].append(np.stack([confidence, is_right]))
    axis.plot([0, 1], [0, 1], ":", color=INK)
    for name, color in (("as it is", GRAY), ("calibrated", GREEN)):
        confidence, is_right = np.concatenate(points[name], axis=1)
        means, _, bins = binned_statistic(confidence, [confidence, is_right], bins=10, range=(0.0, 1.0))
        enough = np.bincount(bins, minlength=11)[1:11] >= 100
        axis.plot(*means[:, enough], "o-", color=color, markersize=5, label=name)
    axis.set(title="are sure answers right?", xlim=(0.2, 1), ylim=(0.2, 1))
    axis.set(xlabel="probability of the answer", ylabel="share of right answers")
    axis.legend(loc="lower right", fontsize=9)


def main() -> None:
    args = options(__doc__, out=DOCS / "accuracy_by_calls.png")
    rows = read_table((DOCS / "fewshot.md").read_text("utf-8"), "| MR | SST-5")
    others = read_table((DOCS / "evidence.md").read_text("utf-8"), "| TREC | AG News")
    nearest = others.loc["8 nearest, nearest last"]
    with matplotlib.rc_context(TEXT | SIZES):
        figure = Figure(figsize=(8.4, 5.6), layout="constrained")  # size that is legible on a phone
        *axes, last, legend = figure.subplots(2, 3).flat
        for axis, task in zip(axes, ("MR", "SST-5", "TREC", "AG News"), strict=True):
            draw_task(axis, task, rows, nearest)
        axes[0].set_ylabel("held-out accuracy")
        axes[3].set_ylabel("held-out accuracy")
        draw_reliability(last)
        legend.axis("off")
        handles, labels = axes[0].get_legend_handles_labels()
        legend.legend(handles, labels, loc="center", title="accuracies")
        figure.savefig(args.out, dpi=130, transparent=True)


if __name__ == "__main__":
    main()
