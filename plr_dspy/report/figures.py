"""Draws what a compile did and found. Matplotlib is imported when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from plr_dspy.report.captions import shortened
from plr_dspy.report.plots import INK, NUM_ORDERS, draw_agreement, draw_orders, draw_positions, draw_scores
from plr_dspy.report.positions import Places
from plr_dspy.report.schema import Findings
from plr_dspy.report.text import scored_on_examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDTH = 5.6
"""Of a panel, in inches."""


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        predictor: Whose demos it is about; None for the whole search.
        title: What it shows.
        height: In inches.
        draw: Draws it.
    """

    predictor: str | None
    title: str
    height: float
    draw: Callable[[Axes], None]


def panels(findings: Findings) -> list[Panel]:
    """The pictures that there is something to show in."""
    found = []
    rounds = scored_on_examples(findings) and findings.history
    if rounds or findings.comparison is not None:
        title = "Score by program calls" if rounds else "Final comparison"
        found.append(Panel(None, title, 3.4, partial(draw_scores, findings=findings)))
    if findings.history and any(Places(slot).learnt for slot in findings.slots):
        found.append(Panel(None, "Agreement of the elites", 3.4, partial(draw_agreement, findings=findings)))
    for slot in findings.slots:
        if not slot.blocks:
            continue
        rows = slot.num_demos * (0.26 if slot.num_demos <= 16 else 0.16)
        learnt, name = Places(slot).learnt, shortened(slot.predictor, 36)
        title = (
            "probability of each demo at each position" if learnt else "nothing learnt, all positions alike"
        )
        draw = partial(draw_positions, slot=slot)
        found.append(Panel(slot.predictor, f"{name}: {title}", 1.2 + rows, draw))
        if learnt:
            height = 1.0 + 0.25 * min(NUM_ORDERS + 2, math.factorial(min(slot.num_demos, 5)))
            draw = partial(draw_orders, slot=slot)
            found.append(Panel(slot.predictor, f"{name}: most probable orders", height, draw))
    return found


def canvas() -> ModuleType:
    """The module that makes pictures.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from plr_dspy.report import canvas
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'plr-dspy[plots]'") from error
    return canvas


def whole(findings: Findings) -> Figure:
    """All pictures in one figure: those of the search, then a row for each predictor."""
    rows: dict[str | None, list[Panel]] = {}
    for panel in panels(findings):
        rows.setdefault(panel.predictor, []).append(panel)
    if not rows:
        picture: Figure = canvas().new_picture(WIDTH, 1.0)
        picture.text(0.5, 0.5, f"Nothing to show: {findings.stopped}", ha="center", va="center")
        return picture
    heights = [max(panel.height for panel in row) for row in rows.values()]
    columns = max(map(len, rows.values()))
    picture = canvas().new_picture(columns * WIDTH, sum(heights))
    grid = picture.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, row in enumerate(rows.values()):
        for j, panel in enumerate(row):
            _draw(panel, picture.add_subfigure(grid[i, j]), height=heights[i])
    return picture


def single(panel: Panel, *, name: str) -> str:
    """One picture as SVG, for a page; `name` is no other picture's there."""
    picture = canvas().new_picture(WIDTH, panel.height)
    _draw(panel, picture, height=panel.height)
    text: str = canvas().svg(picture, name=name, title=panel.title, ink=INK)
    return text


def _draw(panel: Panel, part: Figure | SubFigure, *, height: float) -> None:
    """Draw a panel as all of a figure, or at the top of a part of it that has this height."""
    grid = part.add_gridspec(2, 1, height_ratios=[panel.height, max(height - panel.height, 1e-6)])
    axis = part.add_subplot(grid[0] if height > panel.height else grid[:])
    axis.tick_params(labelsize=8)
    panel.draw(axis)
    part.suptitle(panel.title, x=0.01, ha="left", fontsize=10, color=INK, parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)
    for each in part.axes:
        each.tick_params(colors=INK)
        each.xaxis.label.set(color=INK, fontsize=9)
        each.yaxis.label.set(color=INK, fontsize=9)
        for spine in each.spines.values():
            spine.set_color(INK)
