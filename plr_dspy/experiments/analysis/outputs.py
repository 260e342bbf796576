"""The ablations and figures of an experiment, as files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from plr_dspy.experiments.analysis.figures import Ranking, draw_ablation, draw_accuracy_by_calls, draw_ranking
from plr_dspy.experiments.analysis.layout import Block, Cell, Row, Table, Value
from plr_dspy.experiments.runs.methods import ABLATIONS, ablation_value
from plr_dspy.experiments.runs.results import METHODS, Result
from plr_dspy.runtime.files import write_atomically
from plr_dspy.statistics.comparisons import mean_interval


def save_ablations(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write accuracy by setting of each ablation, as a table and a picture; returns the files.

    Raises:
        ValueError: when no ablation has results of two settings.
    """
    rows = [
        {"ablation": ablation, "value": ablation_value(ablation, result.method), **_place(result)}
        for ablation, methods in ABLATIONS.items()
        if len({result.method for result in results} & set(methods)) > 1
        for result in results
        if result.method in methods
    ]
    if not rows:
        raise ValueError(
            "no ablation has results of two settings: make some with plr-dspy experiment run --ablations "
            + " ".join(ABLATIONS)
        )
    picture = folder / "ablation.png"
    draw_ablation(rows, picture)
    return [picture, *_save(_ablation_table(rows), folder)]


def save_figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write accuracy by calls, and by learnt probability where orders were ranked; returns the files.

    Raises:
        ValueError: when there is nothing to draw.
    """
    files = []
    methods = [result for result in results if result.method in METHODS]
    if methods:
        files.append(folder / "accuracy_by_calls.png")
        draw_accuracy_by_calls([vars(result) for result in methods], files[-1])
    rankings = [Ranking.from_dict({**_place(r), **r.ranking}) for r in results if r.ranking is not None]
    if rankings:
        files.append(folder / "ranking.png")
        draw_ranking(rankings, files[-1])
        files += _save(_ranking_table(rankings), folder)
    if not files:
        raise ValueError("no results of methods or rankings: make some with plr-dspy experiment run")
    return files


def _place(result: Result) -> dict[str, Any]:
    return {
        "task": result.task,
        "num_demos": result.num_demos,
        "seed": result.seed,
        "accuracy": result.accuracy,
    }


def _ablation_table(rows: Sequence[dict[str, Any]]) -> Table:
    places = sorted({(row["task"], row["num_demos"]) for row in rows})
    columns = tuple(f"{task}, {num_demos} demos" for task, num_demos in places)
    blocks = []
    for ablation in dict.fromkeys(row["ablation"] for row in rows):
        here = [row for row in rows if row["ablation"] == ablation]
        lines = []
        for value in sorted({row["value"] for row in here}):
            accuracies = [
                [r["accuracy"] for r in here if (r["value"], r["task"], r["num_demos"]) == (value, *place)]
                for place in places
            ]
            cells = (
                _accuracy_cell(a, {"ablation": ablation, "value": value, "task": task, "num_demos": k})
                for a, (task, k) in zip(accuracies, places, strict=True)
            )
            name = {True: "weighted", False: "unweighted"}[value] if isinstance(value, bool) else str(value)
            lines.append(Row(name, tuple(cells)))
        blocks.append(Block(ablation.replace("_", " "), columns, tuple(lines)))
    return Table(
        "ablation",
        "Held-out accuracy in % by setting",
        tuple(blocks),
        ("Means over seeds, with half the width of their 95 % t interval where there are two or more.",),
        ("ablation", "value", "task", "num_demos", "mean", "low", "high", "seeds"),
    )


def _accuracy_cell(accuracies: Sequence[float], place: dict[str, Value]) -> Cell:
    if not accuracies:
        return Cell()
    mean = fmean(accuracies)
    low, high = mean_interval(accuracies) if len(accuracies) > 1 else (None, None)
    tail = "" if high is None else f" ±{100 * (high - mean):.1f}"
    numbers: dict[str, Value] = {"mean": mean, "low": low, "high": high, "seeds": len(accuracies)}
    return Cell(f"{100 * mean:.1f}", tail, values=place | numbers)


def _ranking_table(rankings: Sequence[Ranking]) -> Table:
    rows = []
    for r in rankings:
        tau, p = r.kendall
        values: dict[str, Value] = {
            "task": r.task,
            "num_demos": r.num_demos,
            "seed": r.seed,
            "orders": len(r.orders),
        }
        numbers = {"tau": tau, "p": p, "lowest": min(r.accuracies), "highest": max(r.accuracies)}
        texts = [
            "-" if math.isnan(tau) else f"{tau:+.2f}",
            "-" if math.isnan(p) else f"{p:.3f}",
            f"{100 * numbers['lowest']:.1f}",
            f"{100 * numbers['highest']:.1f}",
        ]
        cells = [Cell(str(len(r.orders)), values=values | numbers), *map(Cell, texts)]
        rows.append(Row(f"{r.task}, {r.num_demos} demos, seed {r.seed}", tuple(cells)))
    return Table(
        "ranking",
        "Kendall's tau of learnt probability and held-out accuracy, over all orders",
        (Block("all", ("orders", "tau", "p", "lowest accuracy", "highest accuracy"), tuple(rows)),),
        (
            "p is of the test that the two are independent; orders that share examples are not, so it is a guide. "
            "-: all orders are equally accurate.",
        ),
        ("task", "num_demos", "seed", "orders", "tau", "p", "lowest", "highest"),
    )


def _save(table: Table, folder: Path) -> list[Path]:
    files = []
    for ending, text in (("md", table.to_markdown()), ("tex", table.to_latex()), ("csv", table.to_csv())):
        files.append(folder / f"{table.name}.{ending}")
        write_atomically(files[-1], text.encode())
    return files
