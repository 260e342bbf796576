"""What do the parts of the method add? Accuracy by setting, one part at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from plr_dspy.experiments.analysis.ablations import setting_name
from plr_dspy.experiments.analysis.figures.drawing import finish, limit_accuracies, means_and_margins, panels
from plr_dspy.experiments.analysis.frames import in_order
from plr_dspy.experiments.tasks.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "components": "number of mixture components",
    "weighted": "do elites count by their scores?",
    "elite_fraction": "elite fraction",
}
# The colours of Okabe and Ito, without their yellow, which is pale on white, and with a grey.
_TASK_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_STYLES_BY_NUM_DEMOS = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"))


def draw_ablation(frame: pd.DataFrame, path: str | os.PathLike[str]) -> Figure:
    """Draw accuracy by setting: the mean over seeds with 95 % intervals, a line for each task and number of demos.

    A panel for each ablation; the settings are evenly spaced, in their order.

    Args:
        frame: Runs with "ablation", "value", "task", "num_demos", "seed" and "accuracy", as
            `plr_dspy.experiments.analysis.ablations.ablation_frame` makes it.
        path: Where to write the picture; its ending names the format.

    Raises:
        ImportError: without matplotlib.
    """
    tasks = in_order(set(frame.task), TASKS)
    lines = sorted(
        set(zip(frame.task, frame.num_demos, strict=True)), key=lambda line: (tasks.index(line[0]), line[1])
    )
    names = [name for name in _TITLES if (frame.ablation == name).any()]
    figure, axes = panels(
        ["accuracy"], names, present={("accuracy", name) for name in names}, size=(3.8, 3.0)
    )
    means = means_and_margins(frame, ["ablation", "value", "task", "num_demos"])
    for (_, name), axis in axes.items():
        _draw_settings(axis, name, means[means.ablation == name], lines)
        axis.set_title(_TITLES[name], fontsize=9)
    limit_accuracies(axis, means)
    finish(figure, path, y_label="held-out accuracy, 95 % interval")
    return figure


def _draw_settings(axis: Axes, ablation: str, means: pd.DataFrame, lines: Sequence[tuple[str, int]]) -> None:
    """Draw the panel of one ablation, a line for each task and number of demos."""
    values = sorted(means.value.unique())
    tasks = list(dict.fromkeys(task for task, _ in lines))
    numbers = sorted({num_demos for _, num_demos in lines})
    for i, (task, num_demos) in enumerate(lines):
        line = means[(means.task == task) & (means.num_demos == num_demos)].sort_values("value")
        if line.empty:
            continue
        # Side by side within a third of the space between two settings, so that the bars stay apart.
        shift = (i - (len(lines) - 1) / 2) / (3 * len(lines))
        marker, linestyle = _STYLES_BY_NUM_DEMOS[numbers.index(num_demos) % len(_STYLES_BY_NUM_DEMOS)]
        axis.errorbar(
            [values.index(value) + shift for value in line.value],
            line["mean"],
            yerr=line.margin,
            color=_TASK_COLOURS[tasks.index(task) % len(_TASK_COLOURS)],
            marker=marker,
            linestyle=linestyle,
            linewidth=1.0,
            markersize=4.5,
            capsize=2.0,
            label=f"{task}, {num_demos} demos",
        )
    axis.set_xticks(range(len(values)), [setting_name(ablation, value) for value in values])
    axis.set_xlim(-0.5, len(values) - 0.5)
