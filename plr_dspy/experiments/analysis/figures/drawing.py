"""What the figures share: colours, panels, intervals, checks of their input, files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from plr_dspy.experiments.runs.results import TASKS, in_order
from plr_dspy.runtime.files import write_atomically
from plr_dspy.statistics.comparisons import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = TypeVar("Row", bound=Hashable)
Column = TypeVar("Column", bound=Hashable)
Size: TypeAlias = tuple[float, float]

_DPI = 150


@dataclass(frozen=True)
class Style:
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
_OTHER = Style("#555555", "d")


def style_of(method: str) -> Style:
    """The method's colour and marker; a method that is not of the grid is grey, with its first letter as marker."""
    if method in METHOD_STYLES:
        return METHOD_STYLES[method]
    letter = next((c for c in method if c.isascii() and c.isalnum()), "")
    return Style(_OTHER.colour, f"${letter}$" if letter else _OTHER.marker)


def in_grid_order(names: Iterable[str], *, grid: Collection[str] = TASKS) -> list[str]:
    """Distinct names: those of the grid in its order (tasks, if not said), then the others by alphabet."""
    return in_order(set(names), grid)


def panels(
    rows: Sequence[Row], columns: Sequence[Column], *, present: Container[tuple[Row, Column]], size: Size
) -> tuple[Figure, dict[tuple[Row, Column], Axes]]:
    """A figure that no window and no global state know, and the axes of its panels, row by row.

    Args:
        rows, columns: What the panels show; those of a row share their y axis.
        present: Pairs of a row and a column that have a panel.
        size: Width and height of a panel in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'plr-dspy[experiments]'") from error
    # The least width is that of the titles and the legend of a single panel; the legend takes up to an inch above.
    width = max(size[0] * len(columns), 5.0)
    figure = Figure(figsize=(width, size[1] * len(rows) + 1.0), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    axes = {}
    for i, row in enumerate(rows):
        labelled = False
        for j, column in enumerate(columns):
            if (row, column) in present:
                axes[row, column] = grid[i][j]
                grid[i][j].tick_params(labelsize=8, labelleft=not labelled)
                labelled = True
            else:
                grid[i][j].remove()
    return figure, axes


def add_legend(figure: Figure, names: Sequence[str] | None = None) -> None:
    """One legend above all panels, with each label once: as named, or in the order of the panels."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = list(handles if names is None else names)
    # A label takes at most 1.3 inches; more columns would run off the figure.
    num_rows = math.ceil(len(labels) / int(figure.get_figwidth() / 1.3))
    columns = math.ceil(len(labels) / num_rows)
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside upper center", ncols=columns, fontsize=8
    )


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure in the format of the path's ending (PNG without one); it appears whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=_DPI, format=Path(path).suffix.lstrip(".") or "png")
    write_atomically(Path(path), buffer.getvalue())


def mean_and_margin(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half its 95 % interval: NaN, which draws no bar, of one value, or of two, whose says nothing."""
    mean = math.fsum(values) / len(values)
    return mean, mean - mean_interval(values)[0] if len(values) > 2 else math.nan


def limit_accuracies(axis: Axes, ends: Iterable[float]) -> None:
    """Set the y axis of a row of panels, from the ends of all intervals in it.

    It stops at 0 and 1, beyond which intervals of few seeds reach and accuracies do not.

    Args:
        axis: One of the row.
        ends: Of the intervals; NaN does not count.
    """
    known = [end for end in ends if not math.isnan(end)]
    low, high = min(known), max(known)
    room = 0.05 * (high - low) or 0.05
    axis.set_ylim(max(low - room, -0.02), min(high + room, 1.02))


def checked(name: str, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    """Refuse rows that a figure cannot show.

    Args:
        name: The caller's name of the rows.
        rows: Each with an accuracy and the fields of `key`.
        key: Fields in which no two rows may agree.

    Raises:
        ValueError: when there are none, a field is missing, an accuracy is no number, or two rows agree.
    """
    if not rows:
        raise ValueError(f"{name} must hold at least one entry; got none: run the experiment first")
    seen: dict[tuple[Any, ...], int] = {}
    for i, row in enumerate(rows):
        if missing := [field for field in (*key, "accuracy") if field not in row]:
            raise ValueError(f"{name}[{i}] must have the fields {[*key, 'accuracy']}; {missing} missing")
        accuracy = row["accuracy"]
        if not isinstance(accuracy, int | float) or not 0.0 <= accuracy <= 1.0:
            raise ValueError(f"{name}[{i}] must have an accuracy from 0 to 1, a fraction; got {accuracy!r}")
        values = tuple(row[field] for field in key)
        if values in seen:
            run = ", ".join(f"{field} {value!r}" for field, value in zip(key, values, strict=True))
            raise ValueError(
                f"{name}[{seen[values]}] and {name}[{i}] are of one run ({run}): keep one, and draw runs of other "
                "models or settings in a figure of their own"
            )
        seen[values] = i
