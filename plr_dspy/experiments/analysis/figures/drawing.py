"""What the figures share: styles of methods, panels, intervals, files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Container, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from plr_dspy.experiments.analysis.frames import mean_intervals
from plr_dspy.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150
"""Resolution of pictures made of pixels."""

LEGEND_LABEL_INCHES = 1.3
"""Most that a label of the legend takes; with more columns it would run off the figure."""


class Style(NamedTuple):
    """How a method looks in every figure."""

    colour: str
    marker: str


# Colours of Okabe and Ito and of Paul Tol, chosen to stay apart under protanopia, deuteranopia and tritanopia;
# the markers tell the methods apart without any colour.
METHOD_STYLES = {
    "Static": Style("#000000", "X"),
    "Top-K": Style("#999999", "o"),
    "LocalE": Style("#E69F00", "^"),
    "GlobalE": Style("#663333", "v"),
    "PDO-FewShot": Style("#33BBEE", "<"),
    "PDO-FewShotU": Style("#0077BB", ">"),
    "PDO-FewShotUP": Style("#004488", "D"),
    "DEmO": Style("#EE3377", "P"),
    "PLR-EMA": Style("#117733", "s"),
    "PLR-1": Style("#AA3377", "p"),
    "PLR-4": Style("#222255", "h"),
    "Ours": Style("#D55E00", "*"),
}


def style_of(method: str) -> Style:
    """The method's colour and marker; a method that is not of the grid is grey, with its first letter as marker."""
    letter = next((c for c in method if c.isascii() and c.isalnum()), "")
    return METHOD_STYLES.get(method) or Style("#555555", f"${letter}$" if letter else "d")


def panels(
    rows: Sequence[Any],
    columns: Sequence[Any],
    *,
    present: Container[tuple[Hashable, Hashable]],
    size: tuple[float, float],
) -> tuple[Figure, dict[tuple[Any, Any], Axes]]:
    """Make a figure that no window and no global state know, and the axes of its panels, row by row.

    Args:
        rows, columns: What the panels show; those of a row share their y axis.
        present: Pairs of a row and a column that have a panel.
        size: Width and height of a panel in inches.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'plr-dspy[experiments]'") from error
    # The least width is that of the titles and the legend of a single panel; the legend takes up to an inch above.
    width = max(size[0] * len(columns), 5.0)
    figure = Figure(figsize=(width, size[1] * len(rows) + 1.0), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    axes: dict[tuple[Any, Any], Axes] = {}
    for row, of_row in zip(rows, grid, strict=True):
        for column, axis in zip(columns, of_row, strict=True):
            if (row, column) in present:
                axis.tick_params(labelsize=8, labelleft=row not in {known for known, _ in axes})
                axes[row, column] = axis
            else:
                axis.remove()
    return figure, axes


def finish(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    x_label: str = "",
    y_label: str,
    names: Sequence[str] | None = None,
) -> None:
    """Label a figure, put one legend above all panels, and write it; the file appears whole or not at all.

    Args:
        figure: The figure.
        path: Where to write it, in the format of the path's ending (PNG without one).
        x_label, y_label: Labels that all panels share.
        names: Labels of the legend; None takes those of the panels in their order.
    """
    if x_label:
        figure.supxlabel(x_label, fontsize=9)
    figure.supylabel(y_label, fontsize=9)
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = list(handles if names is None else names)
    num_rows = math.ceil(len(labels) / int(figure.get_figwidth() / LEGEND_LABEL_INCHES))
    columns = math.ceil(len(labels) / num_rows)
    shown = [handles[label] for label in labels]
    figure.legend(shown, labels, loc="outside upper center", ncols=columns, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DOTS_PER_INCH, format=Path(path).suffix.lstrip(".") or "png")
    write_atomically(Path(path), buffer.getvalue())


def means_and_margins(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Summarize the column "accuracy" of a frame by some other columns.

    Returns:
        The columns of `keys`, "mean", and "margin", half the 95 % interval: NaN, which draws no bar, of one value, or
        of two, whose interval says nothing.
    """
    means = mean_intervals(frame.groupby(keys, observed=True).accuracy)
    margin = (means["mean"] - means.low).where(means.seeds > 2)
    return means.assign(margin=margin)[["mean", "margin"]].reset_index()


def limit_accuracies(axis: Axes, means: pd.DataFrame) -> None:
    """Set the y axis of a row of panels so that it shows all of its means and intervals.

    It stops at 0 and 1, beyond which intervals of few seeds reach and accuracies do not.

    Args:
        axis: One of the row.
        means: As `means_and_margins` makes them.
    """
    margins = means.margin.fillna(0.0)
    low, high = float((means["mean"] - margins).min()), float((means["mean"] + margins).max())
    room = 0.05 * (high - low) or 0.05
    axis.set_ylim(max(low - room, -0.02), min(high + room, 1.02))
