"""Draws the plots of a report, each on axes that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plr_dspy.orderings.trials import Iteration
from plr_dspy.report.captions import class_names, demo_captions, order_caption, probability_caption, shorten
from plr_dspy.report.positions import log_probability, most_probable, position_table
from plr_dspy.report.schema import CalibrationEffect, Comparison, SlotReport
from plr_dspy.report.text import is_scored_by_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from plr_dspy.report.report import Report

BLUE, PALE, ORANGE, GREY = "#2b7fc4", "#6aa9dd", "#e07b00", "#80868f"
"""Colours that can be read on white and on black, and told apart by eyes that see no red or green."""

INK = "#1b1d21"
"""The colour of text and lines."""

NUM_ORDERS = 10
"""How many of the most probable orders are shown."""


def draw_scores(axis: Axes, report: Report) -> None:
    """Draw mean and best score of the rounds by program calls, then both orders in the final comparison."""
    rounds = report.history if is_scored_by_metric(report) else []
    scores = [score for i in rounds for score in (i.mean_score, i.best_score)]
    if rounds:
        calls = [i.program_calls for i in rounds]
        means, best = [i.mean_score for i in rounds], [i.best_score_so_far for i in rounds]
        axis.plot(calls, means, "o--", color=PALE, markersize=4, linewidth=1.2, label="mean of the round")
        axis.plot(calls, best, "s-", color=BLUE, markersize=4, label="best so far, estimated")
        axis.set_xlabel("program calls")
    else:
        axis.set_xticks([])
    if (comparison := report.comparison) is not None:
        _draw_comparison(axis, comparison, report.program_calls["total"])
        scores += [comparison.original, comparison.chosen]
    axis.set_ylabel("score")
    axis.margins(0.06 if rounds else 1.0, 0.12)
    low, high = axis.get_ylim()
    if all(0.0 <= score <= 1.0 for score in scores):  # The interval of a share may reach beyond.
        axis.set_ylim(max(low, -0.03), min(high, 1.06))
    _add_legend(axis)


def _draw_comparison(axis: Axes, comparison: Comparison, calls: int) -> None:
    """Draw both scores side by side; on the chosen one the interval of the gain, from the original one."""
    difference, apart = comparison.chosen - comparison.original, 0.02 * calls
    low, high = comparison.interval
    ends = [[max(0.0, difference - low)], [max(0.0, high - difference)]]
    axis.plot([calls - apart], [comparison.original], "D", color=GREY, label="original, compared")
    label = f"chosen, with the gain's {100 * comparison.confidence:.0f} % interval"
    style: dict[str, Any] = {"fmt": "*", "markersize": 11, "color": ORANGE, "capsize": 4, "label": label}
    axis.errorbar([calls + apart], [comparison.chosen], yerr=ends, **style)


def _add_legend(axis: Axes) -> None:
    """Add a legend below everything."""
    axis.figure.legend(loc="outside lower center", ncols=2)


def draw_agreement(axis: Axes, history: Sequence[Iteration]) -> None:
    """Draw Kendall's W of each round's elites, beside what as many random orders would have."""
    rounds = [i.index + 1 for i in history]
    axis.plot(
        rounds, [i.agreement for i in history], "s-", color=BLUE, markersize=4, label="elites of the round"
    )
    chance = [1 / i.num_elites for i in history]
    axis.plot(rounds, chance, ":", color=GREY, marker=".", label="as many random orders")
    axis.set_ylim(0.0, 1.05)
    axis.locator_params("x", integer=True, min_n_ticks=1)
    axis.margins(x=0.06)
    axis.set_xlabel("round")
    axis.set_ylabel("Kendall's W (1: all agree)")
    _add_legend(axis)


def draw_reliability(axis: Axes, effect: CalibrationEffect) -> None:
    """Draw how often the chosen order's answers are right by how probable they are, as they are and calibrated."""
    axis.plot([0.0, 1.0], [0.0, 1.0], ":", color=GREY, label="right as often as said")
    kinds = (("as it is", effect.before, PALE, "o"), ("calibrated", effect.after, ORANGE, "s"))
    for name, found, color, marker in kinds:
        if found is None:
            continue
        counts, said, right = zip(*found.reliability, strict=True)
        label = f"{name}: error {found.calibration_error:.2f}, Brier score {found.brier_score:.2f}"
        axis.plot(said, right, "-", color=color, linewidth=1.0)
        axis.scatter(
            said, right, s=[12 + 8 * count for count in counts], color=color, marker=marker, label=label
        )
    axis.set_xlim(0.0, 1.03)
    axis.set_ylim(-0.03, 1.03)
    axis.set_xlabel("probability of the answer (size: number of answers)")
    axis.set_ylabel("share that is right")
    _add_legend(axis)


def draw_positions(axis: Axes, slot: SlotReport) -> None:
    """Draw the probability of each demo at each position, and where the chosen order has it."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    table, count = position_table(slot), slot.num_demos
    shades = LinearSegmentedColormap.from_list("from nothing to blue", [f"{BLUE}00", BLUE])
    most = max(float(table.max()), min(1.0, 3 / count))
    # Of many demos most probabilities are small beside the largest: the root tells them apart.
    norm = PowerNorm(1.0 if count <= 16 else 0.5, vmin=0.0, vmax=most)
    image = axis.imshow(table, cmap=shades, norm=norm, aspect="auto", interpolation="none")
    axis.figure.colorbar(image, ax=axis, fraction=0.04, aspect=max(40, 2 * count), pad=0.02)
    size = max(3.0, min(8.0, 90 / count))
    dots: dict[str, Any] = {
        "color": ORANGE,
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": size / 10,
    }
    shown = slot.ordering[::-1] if slot.is_pool else slot.ordering
    places = {demo: place for place, demo in enumerate(shown)}  # It is empty where no demos are best.
    axis.plot([places[demo] for demo in sorted(places)], sorted(places), "o", **dots)
    axis.set_yticks(range(count), _row_labels(slot), fontsize=8 if count <= 16 else 6.5, parse_math=False)
    columns = table.shape[1]
    ticks = range(0, columns, -(-columns // (16 if columns < 100 else 10)) or 1)
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    counted = ", counted from its end" if slot.is_pool else ""
    axis.set_xlabel(f"position in the prompt{counted} (dot: in the chosen order)")


def _row_labels(slot: SlotReport) -> list[str]:
    """Name each demo by its number, class and text."""
    answers = {number: f"{shorten(name, 10)} · " for number, name in class_names(slot).items()}
    named = enumerate(zip(slot.classes, demo_captions(slot), strict=True))
    return [
        shorten(f"{demo} · {'' if number is None else answers[number]}{caption}", 36)
        for demo, (number, caption) in named
    ]


def draw_orders(axis: Axes, slot: SlotReport) -> None:
    """Draw the most probable orders, and the chosen and the original one wherever they stand."""
    chosen, original = tuple(slot.ordering), tuple(slot.original)
    shown = dict.fromkeys([*most_probable(slot, NUM_ORDERS), chosen, original])
    logs = {ordering: log_probability(slot, ordering) for ordering in shown if ordering}
    orders = sorted(logs, key=lambda ordering: -logs[ordering])
    rows = range(len(orders))
    lengths = [float(np.exp(logs[ordering] - logs[orders[0]])) for ordering in orders]
    colours = [{original: GREY, chosen: ORANGE}.get(ordering, BLUE) for ordering in orders]
    axis.barh(rows, lengths, color=colours, height=0.7)
    for row, (ordering, length) in enumerate(zip(orders, lengths, strict=True)):
        marks = ", chosen" * (ordering == chosen) + ", original" * (ordering == original)
        place: dict[str, Any] = {
            "xytext": (4, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8,
        }
        axis.annotate(probability_caption(logs[ordering]) + marks, (length, row), **place)
    axis.set_yticks(rows, [order_caption(ordering, orders[0]) for ordering in orders])
    axis.set_ylim(
        max(len(orders), slot.num_demos) - 0.5, -0.5
    )  # Bars as high as the rows of the panel beside.
    axis.set_xlim(0.0, 1.45)
    axis.set_xticks([])
    axis.set_xlabel("probability of the whole order")
