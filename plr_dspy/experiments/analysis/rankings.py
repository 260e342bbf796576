"""The table of rankings: whether orders that a search finds probable are accurate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plr_dspy.experiments.analysis.frames import counted
from plr_dspy.experiments.analysis.table import Table
from plr_dspy.experiments.runs.ranking import Ranking


def ranking_table(rankings: Mapping[tuple[str, int, int], Ranking]) -> Table:
    """Kendall's tau of learnt probability and accuracy over all orders, a row for each ranking.

    Args:
        rankings: Rankings by task, number of demos and seed.
    """
    cells: list[dict[str, Any]] = []
    for (task, num_demos, seed), ranking in rankings.items():
        (tau, p), lowest, highest = ranking.kendall, min(ranking.accuracies), max(ranking.accuracies)
        numbers = {"task": task, "num_demos": num_demos, "seed": seed, "orders": len(ranking.orders)}
        numbers |= {"tau": tau, "p": p, "lowest": lowest, "highest": highest}
        texts = {
            "orders": str(len(ranking.orders)),
            "tau": "-" if math.isnan(tau) else f"{tau:+.2f}",
            "p": "-" if math.isnan(p) else f"{p:.3f}",
            "lowest accuracy": f"{100 * lowest:.1f}",
            "highest accuracy": f"{100 * highest:.1f}",
        }
        row = f"{task}, {counted(num_demos, 'demo')}, seed {seed}"
        shown = [{"block": "all", "row": row, "column": name, "text": text} for name, text in texts.items()]
        cells += [shown[0] | numbers, *shown[1:]]
    note = (
        "p is of the test that the two are independent; orders that share examples are not, so it is a guide. "
        "-: all orders are equally accurate."
    )
    title = "Kendall's tau of learnt probability and held-out accuracy, over all orders"
    fields = ["task", "num_demos", "seed", "orders", "tau", "p", "lowest", "highest"]
    return Table("ranking", title, cells, fields, [note])
