"""The pictures of a report, each drawn on axes that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plr_dspy.report.captions import class_names, demo_captions, order_caption, probability_caption, shortened
from plr_dspy.report.positions import LikelyOrder, Places
from plr_dspy.report.schema import Comparison, Findings, SlotReport
from plr_dspy.report.text import scored_on_examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, PALE, ORANGE, GREY = "#2b7fc4", "#6aa9dd", "#e07b00", "#80868f"
"""Colours that can be read on white and on black, and told apart by eyes that see no red or green."""

INK = "#1b1d21"
"""Of text and lines; in a page they take the colour of its text."""

NUM_ORDERS = 10
"""Of the most probable orders that are shown."""


def draw_scores(axis: Axes, findings: Findings) -> None:
    """Mean and best score of the rounds by program calls, then chosen and original order in the final comparison."""
    scored = scored_on_examples(findings)
    if scored and findings.history:
        calls = [iteration.program_calls for iteration in findings.history]
        means = [iteration.mean_score for iteration in findings.history]
        best = [iteration.best_score_so_far for iteration in findings.history]
        axis.plot(calls, means, "o--", color=PALE, markersize=4, linewidth=1.2, label="mean of the round")
        axis.plot(calls, best, "s-", color=BLUE, markersize=4, label="best so far, estimated")
    if (comparison := findings.comparison) is not None:
        _draw_comparison(axis, comparison, findings.program_calls["total"])
    axis.set_ylabel("score")
    if scored and findings.history:
        axis.set_xlabel("program calls")
        axis.margins(0.06, 0.12)
    else:
        axis.set_xticks([])
        axis.margins(1.0, 0.12)
    low, high = axis.get_ylim()
    if all(0.0 <= score <= 1.0 for score in _scores(findings)):  # the interval of a share may reach beyond
        axis.set_ylim(max(low, -0.03), min(high, 1.06))
    _add_legend(axis)


def _scores(findings: Findings) -> list[float]:
    compared = findings.comparison
    ends = [] if compared is None else [compared.original, compared.chosen]
    rounds = findings.history if scored_on_examples(findings) else []
    return ends + [score for i in rounds for score in (i.mean_score, i.best_score)]


def _add_legend(axis: Axes) -> None:
    """Below everything."""
    axis.figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK)


def _draw_comparison(axis: Axes, comparison: Comparison, calls: int) -> None:
    """Both scores side by side; on the chosen one the interval of the gain, from the original one."""
    chosen = comparison.chosen
    ends = [max(0.0, chosen - comparison.original - comparison.interval[0])]
    ends.append(max(0.0, comparison.interval[1] - (chosen - comparison.original)))
    apart = 0.02 * calls
    axis.plot([calls - apart], [comparison.original], "D", color=GREY, label="original order, compared")
    label = f"chosen order, with the gain's {100 * comparison.confidence:.0f} % interval"
    axis.errorbar(
        [calls + apart],
        [chosen],
        yerr=np.array(ends)[:, None],
        fmt="*",
        markersize=11,
        color=ORANGE,
        capsize=4,
        label=label,
    )


def draw_agreement(axis: Axes, findings: Findings) -> None:
    """Kendall's W of each round's elites, beside what as many random orders would have."""
    from matplotlib.ticker import MaxNLocator

    rounds = [iteration.index + 1 for iteration in findings.history]
    values = [iteration.agreement for iteration in findings.history]
    chance = [1 / iteration.num_elites for iteration in findings.history]
    axis.plot(rounds, values, "s-", color=BLUE, markersize=4, label="elites of the round")
    axis.plot(rounds, chance, ":", color=GREY, marker=".", label="as many random orders")
    axis.set_ylim(0.0, 1.05)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.margins(x=0.06)
    axis.set_xlabel("round")
    axis.set_ylabel("Kendall's W (1: all agree)")
    _add_legend(axis)


def draw_positions(axis: Axes, slot: SlotReport) -> None:
    """Probability of each demo at each position, and where the chosen order has it."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    probabilities, count = Places(slot).probabilities(), slot.num_demos
    # From nothing to blue: readable on any ground.
    shades = LinearSegmentedColormap.from_list("shades", [f"{BLUE}00", BLUE])
    most = max(float(probabilities.max()), min(1.0, 3 / count))
    # Of many demos most probabilities are small beside the largest: the root tells them apart.
    norm = PowerNorm(1.0 if count <= 16 else 0.5, vmin=0.0, vmax=most)
    image = axis.imshow(probabilities, cmap=shades, norm=norm, aspect="auto", interpolation="none")
    bar = axis.figure.colorbar(image, ax=axis, fraction=0.04, aspect=max(40, 2 * count), pad=0.02)
    bar.ax.tick_params(labelsize=8)
    size = max(3.0, min(8.0, 90 / count))
    position_of = {demo: position for position, demo in enumerate(slot.ordering)}
    axis.plot(
        [position_of[demo] for demo in sorted(position_of)],
        sorted(position_of),
        "o",
        color=ORANGE,
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=size / 10,
    )
    small = 8 if count <= 16 else 6.5
    axis.set_yticks(range(count), _row_labels(slot), fontsize=small, parse_math=False)
    step = -(-count // (16 if count < 100 else 10))
    axis.set_xticks(range(0, count, step), [str(position + 1) for position in range(0, count, step)])
    axis.set_xlabel("position in the prompt (dot: in the chosen order)")


def _row_labels(slot: SlotReport) -> list[str]:
    """Number, class and text of each demo."""
    classes = class_names(slot)
    labels = []
    for demo, (caption, number) in enumerate(zip(demo_captions(slot), slot.classes, strict=True)):
        answer = "" if number is None else f"{shortened(classes[number], 10)} · "
        labels.append(shortened(f"{demo} · {answer}{caption}", 36))
    return labels


def draw_orders(axis: Axes, slot: SlotReport) -> None:
    """The most probable orders by the final distribution, and the chosen and the original one wherever they stand."""
    places = Places(slot)
    chosen, original = tuple(slot.ordering), places.original
    shown = places.most_probable(NUM_ORDERS)
    for ordering in dict.fromkeys((chosen, original)):
        if ordering and ordering not in [order.ordering for order in shown]:
            shown.append(places.order(ordering))
    shown.sort(key=lambda order: -order.log_probability)
    lengths = np.exp([order.log_probability - shown[0].log_probability for order in shown])
    colours = [{original: GREY, chosen: ORANGE}.get(order.ordering, BLUE) for order in shown]
    rows = range(len(shown))
    axis.barh(rows, lengths, color=colours, height=0.7)
    for row, (order, length) in enumerate(zip(shown, lengths, strict=True)):
        axis.annotate(
            _mark(order, chosen, original),
            (length, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axis.set_yticks(rows, [order_caption(order.ordering, shown[0].ordering) for order in shown])
    axis.invert_yaxis()
    axis.set_xlim(0.0, 1.45)
    axis.set_xticks([])
    axis.set_xlabel("probability of the whole order")


def _mark(order: LikelyOrder, chosen: tuple[int, ...], original: tuple[int, ...]) -> str:
    marks = [
        name for name, ordering in (("chosen", chosen), ("original", original)) if order.ordering == ordering
    ]
    return ", ".join([probability_caption(order.log_probability), *marks])
