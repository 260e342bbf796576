"""The picture of the README: accuracy before and after, and by program calls, from the tables of docs/evidence.md.

python benchmarks/picture.py     # writes docs/before_and_after.png
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
STYLES = {
    "`PLReorder`": ("PLReorder", "C0", "o"),
    "halving of all orders": ("halving of all orders", "C1", "s"),
    "Top-K": ("best of random orders (Top-K)", "C2", "^"),
    "paper MLE": ("the paper's search", "C3", "D"),
}
"""Columns of the table of recorded answers: label, colour and marker."""


def table(text: str, first_column: str) -> list[dict[str, str]]:
    """Read the rows of the table of a Markdown page whose first heading begins so."""
    lines = iter(text.splitlines())
    names = next(cells(line) for line in lines if line.startswith(f"| {first_column}"))
    next(lines)  # the rule below the headings
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(names, cells(line), strict=True)))
    return rows


def cells(line: str) -> list[str]:
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


def seeds(text: str) -> list[dict[str, float]]:
    """Read the original and the chosen accuracy of each seed, and the range of its random orders."""
    rows = []
    for row in table(text, "seed"):
        if row["seed"].isdigit():
            worst, _, best = map(float, row["12 random orders: worst / mean / best"].split("/"))
            original, chosen = float(row["original"]), float(row["chosen"])
            rows.append({"original": original, "chosen": chosen, "worst": worst, "best": best})
    return rows


@dataclass
class Task:
    """What the table of recorded answers says of a task."""

    name: str
    best: float
    """Held-out accuracy of the best of all orders."""
    curves: dict[str, list[tuple[int, float]]]
    """(calls, held-out accuracy) by method."""


def tasks(text: str) -> list[Task]:
    """Read the table of recorded answers."""
    found: list[Task] = []
    for row in table(text, "task (best of all orders)"):
        named = re.match(r"(.+) \((\.\d+)\)", row["task (best of all orders)"])
        if named:
            found.append(Task(named[1], float(named[2]), {method: [] for method in STYLES}))
        calls = int(row["limit"].replace(",", ""))
        for method, points in found[-1].curves.items():
            points.append((calls, float(row[method])))
    return found


def draw_seeds(axis: Any, rows: list[dict[str, float]]) -> None:
    for number, row in enumerate(rows):
        first = number == 0
        axis.plot(
            [number, number],
            [row["worst"], row["best"]],
            color="0.85",
            linewidth=9,
            solid_capstyle="butt",
            label="range of 12 random orders" if first else None,
        )
        axis.annotate(
            "",
            (number, row["chosen"]),
            (number, row["original"]),
            arrowprops={"arrowstyle": "->", "color": "C0", "shrinkA": 4, "shrinkB": 4},
        )
        axis.plot(number, row["original"], "o", color="0.35", label="original order" if first else None)
        axis.plot(number, row["chosen"], "o", color="C0", label="PLReorder, 1,000 calls" if first else None)
    axis.set(title="before and after\n(MR, 8 demos)", xlabel="draw of demos", xticks=range(len(rows)))
    axis.set(xlim=(-0.5, len(rows) - 0.5), ylim=(0.36, None), ylabel="accuracy on held-out examples")
    axis.legend(fontsize=7, loc="lower left")


def draw_task(axis: Any, task: Task, height: float) -> None:
    for method, points in task.curves.items():
        label, colour, marker = STYLES[method]
        calls, accuracy = zip(*points, strict=True)
        axis.plot(calls, accuracy, color=colour, marker=marker, markersize=4, label=label)
    axis.axhline(task.best, color="0.4", linestyle=":", label="best of all 120 orders")
    axis.set(title=f"by program calls\n({task.name}, 5 demos)", xlabel="program calls, at most", xscale="log")
    axis.set_xticks(calls, [f"{count:,}" for count in calls], minor=False)
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.set_ylim(task.best + 0.01 - height, task.best + 0.01)


def draw(text: str) -> Any:
    """Draw both tables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.9), layout="constrained")
    recorded = tasks(text)
    first, *others = figure.subplots(1, 1 + len(recorded), width_ratios=[1.25] + [1] * len(recorded))
    draw_seeds(first, seeds(text))
    lowest = [min(accuracy for points in task.curves.values() for _, accuracy in points) for task in recorded]
    height = 0.02 + max(task.best - low for task, low in zip(recorded, lowest, strict=True))
    for axis, task in zip(others, recorded, strict=True):
        draw_task(axis, task, height)  # the same scale in all
    handles, labels = others[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower right", ncols=len(labels))
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", type=Path, default=DOCS / "evidence.md", help="page that holds the tables"
    )
    parser.add_argument("--out", type=Path, default=DOCS / "before_and_after.png", help="where to write it")
    options = parser.parse_args(arguments)
    draw(options.tables.read_text(encoding="utf-8")).savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
