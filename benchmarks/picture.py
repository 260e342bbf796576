"""The picture of the README: accuracy before and after, and by program calls, from the tables of docs/evidence.md.

python benchmarks/picture.py     # writes docs/before_and_after.png
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from command import options

DOCS = Path(__file__).resolve().parents[1] / "docs"
STYLES = {
    "`PLReorder`": ("PLReorder", "C0", "o"),
    "halving of all orders": ("halving of all orders", "C1", "s"),
    "Top-K": ("best of random orders (Top-K)", "C2", "^"),
    "paper MLE": ("the paper's search", "C3", "D"),
}
"""Columns of the table of recorded answers: label, colour and marker."""


def table(text: str, first_column: str) -> pd.DataFrame:
    """Read the table of a Markdown page whose first heading begins so."""
    lines = text[text.index(f"| {first_column}") :].split("\n\n")[0].strip()
    frame = pd.read_csv(
        io.StringIO(lines), sep=r"\s*\|\s*", engine="python", dtype=str, keep_default_na=False
    )
    return frame.iloc[1:, 1:-1].apply(lambda column: column.str.strip("*"))  # without the rule


def seeds(text: str) -> pd.DataFrame:
    """Read the original and the chosen accuracy of each seed, and the range of its random orders."""
    rows = table(text, "seed").query("seed.str.isdigit()")
    spread = rows["12 random orders: worst / mean / best"].str.split(" / ", expand=True)
    return rows[["original", "chosen"]].assign(worst=spread[0], best=spread[2]).astype(float)


def tasks(text: str) -> dict[tuple[str, float], pd.DataFrame]:
    """Read the table of recorded answers: the calls and the accuracy by method, by task and its best accuracy."""
    rows = table(text, "task (best of all orders)")
    named = rows.pop("task (best of all orders)").str.extract(r"(.+) \((\.\d+)\)").ffill()
    rows = rows[["limit", *STYLES]].assign(limit=rows.limit.str.replace(",", "")).astype(float)
    return {
        (name, float(best)): part for (name, best), part in rows.groupby([named[0], named[1]], sort=False)
    }


def draw_seeds(axis: Any, rows: pd.DataFrame) -> None:
    """Draw the accuracy of each seed before and after."""
    arrow = {"arrowstyle": "->", "color": "C0", "shrinkA": 4, "shrinkB": 4}
    ends = {"color": "0.85", "linewidth": 9, "capstyle": "butt", "label": "range of 12 random orders"}
    places = range(len(rows))
    axis.vlines(places, rows.worst, rows.best, **ends)
    for place, original, chosen in zip(places, rows.original, rows.chosen, strict=True):
        axis.annotate("", (place, chosen), (place, original), arrowprops=arrow)
    axis.plot(places, rows.original, "o", color="0.35", label="original order")
    axis.plot(places, rows.chosen, "o", color="C0", label="PLReorder, 1,000 calls")
    axis.set(title="before and after\n(MR, 8 demos)", xlabel="draw of demos", xticks=places)
    axis.set(xlim=(-0.5, len(rows) - 0.5), ylim=(0.36, None), ylabel="accuracy on held-out examples")
    axis.legend(fontsize=7, loc="lower left")


def main(arguments: Sequence[str] | None = None) -> None:
    from matplotlib.figure import Figure

    args = options(
        __doc__ or "", argv=arguments, tables=DOCS / "evidence.md", out=DOCS / "before_and_after.png"
    )
    text = args.tables.read_text(encoding="utf-8")
    figure, recorded = Figure(figsize=(12, 3.9), layout="constrained"), tasks(text)
    first, *others = figure.subplots(1, 1 + len(recorded), width_ratios=[1.25] + [1] * len(recorded))
    draw_seeds(first, seeds(text))
    height = 0.02 + max(best - rows[[*STYLES]].min(axis=None) for (_, best), rows in recorded.items())
    for axis, ((name, best), rows) in zip(others, recorded.items(), strict=True):
        for method, (label, colour, marker) in STYLES.items():
            axis.plot(rows.limit, rows[method], color=colour, marker=marker, markersize=4, label=label)
        axis.axhline(best, color="0.4", linestyle=":", label="best of all 120 orders")
        axis.set(title=f"by program calls\n({name}, 5 demos)", xlabel="program calls, at most", xscale="log")
        axis.set_xticks(rows.limit, [f"{calls:,.0f}" for calls in rows.limit], minor=False)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.set_ylim(best + 0.01 - height, best + 0.01)  # the same scale in all
    handles, labels = others[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower right", ncols=len(labels))
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
