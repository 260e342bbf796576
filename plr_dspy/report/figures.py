"""Makes the pictures of a report. This module needs matplotlib: import it where something is drawn."""

from __future__ import annotations

import base64
import io
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plr_dspy.report import plots
from plr_dspy.report.captions import shorten
from plr_dspy.report.positions import is_learnt
from plr_dspy.report.schema import SlotReport
from plr_dspy.report.text import is_scored_by_metric

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
except ImportError as error:
    raise ImportError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error

if TYPE_CHECKING:
    from plr_dspy.report.report import Report

WIDTH = 5.6
"""The width of a panel in inches."""

STYLE: dict[Any, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), plots.INK
    ),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8),
    "axes.labelsize": 9,
    "figure.titlesize": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "plr_dspy",
}
"""The look of all pictures. Texts of an SVG stay texts: a browser has fonts for more signs than matplotlib."""


class Picture(Figure):
    """A figure that notebooks show, though pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


@dataclass(frozen=True)
class Panel:
    """One picture of a report.

    Attributes:
        predictor: Whose demos it is about; None for the whole search.
        title: What it shows.
        height: In inches; the same for all panels of a predictor.
        draw: Draws it on axes that it is given.
    """

    predictor: str | None
    title: str
    height: float
    draw: Callable[[Axes], None]

    def data_uri(self) -> str:
        """Write the picture as the address of an image: an SVG without background, in base64."""
        buffer = io.BytesIO()
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Glyph"
            )  # A browser has the signs that fonts here lack.
            picture = Picture(figsize=(WIDTH, self.height), layout="constrained")
            self.draw_on(picture)
            picture.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"

    def draw_on(self, part: Figure | SubFigure) -> None:
        """Fill a figure, or a part of one, with the picture and its title."""
        self.draw(part.subplots())
        part.suptitle(self.title, x=0.01, ha="left", parse_math=False)


def panels(report: Report) -> list[Panel]:
    """List the pictures that have something to show: those of the search, then those of each predictor."""
    found = []
    rounds = report.history if is_scored_by_metric(report) else []
    if rounds or report.comparison is not None:
        title = "Score by program calls" if rounds else "Final comparison"
        found.append(Panel(None, title, 3.4, partial(plots.draw_scores, report=report)))
    if report.history and any(map(is_learnt, report.slots)):
        draw = partial(plots.draw_agreement, history=report.history)
        found.append(Panel(None, "Agreement of the elites", 3.4, draw))
    if (effect := report.calibration) is not None and effect.before is not None:
        draw = partial(plots.draw_reliability, effect=effect)
        found.append(Panel(None, f"Reliability on {effect.before.num_examples} examples", 3.4, draw))
    return found + [panel for slot in report.slots if slot.blocks for panel in _slot_panels(slot)]


def _slot_panels(slot: SlotReport) -> list[Panel]:
    """List the pictures of one predictor's demos."""
    name, learnt = shorten(slot.predictor, 36), is_learnt(slot)
    title = "probability of each demo at each position" if learnt else "nothing learnt, all positions alike"
    draws = {title: plots.draw_positions}
    if learnt and not slot.is_pool:
        draws["most probable orders"] = plots.draw_orders
    height = 1.2 + slot.num_demos * (0.26 if slot.num_demos <= 16 else 0.16)
    if learnt:
        height = max(height, 1.0 + 0.25 * min(plots.NUM_ORDERS + 2, math.factorial(min(slot.num_demos, 5))))
    return [
        Panel(slot.predictor, f"{name}: {title}", height, partial(draw, slot=slot))
        for title, draw in draws.items()
    ]


def figure(report: Report) -> Figure:
    """Draw all pictures in one figure: a row for the search, then a row for each predictor."""
    rows = [list(row) for _, row in itertools.groupby(panels(report), key=lambda panel: panel.predictor)]
    if not rows:
        empty = Picture(figsize=(WIDTH, 1.0))
        empty.text(0.5, 0.5, f"Nothing to show: {report.stopped}", ha="center", va="center")
        return empty
    columns, heights = max(map(len, rows)), [row[0].height for row in rows]
    with matplotlib.rc_context(STYLE):
        whole = Picture(figsize=(columns * WIDTH, sum(heights)), layout="constrained")
        parts = whole.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
        for row, places in zip(rows, parts, strict=True):
            for panel, place in zip(row, places, strict=False):  # A row may have fewer panels than others.
                panel.draw_on(place)
    return whole
