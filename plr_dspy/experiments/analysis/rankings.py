"""The table of rankings: whether orders that a search finds probable are accurate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from plr_dspy.experiments.analysis.frames import counted
from plr_dspy.experiments.analysis.table import Table
from plr_dspy.experiments.runs.ranking import Ranking


def ranking_table(rankings: Mapping[tuple[str, int, int], Ranking]) -> Table:
    """Kendall's tau of learnt probability and accuracy over all orders, a row for each ranking.

    Args:
        rankings: Rankings by task, number of demos and seed.
    """
    numbers, texts = [], []
    for (task, num_demos, seed), ranking in rankings.items():
        (tau, p), lowest, highest = ranking.kendall, min(ranking.accuracies), max(ranking.accuracies)
        key = {"task": task, "num_demos": num_demos, "seed": seed, "orders": len(ranking.orders)}
        numbers.append({**key, "tau": tau, "p": p, "lowest": lowest, "highest": highest})
        cells = {
            "orders": str(len(ranking.orders)),
            "tau": "-" if math.isnan(tau) else f"{tau:+.2f}",
            "p": "-" if math.isnan(p) else f"{p:.3f}",
            "lowest accuracy": f"{100 * lowest:.1f}",
            "highest accuracy": f"{100 * highest:.1f}",
        }
        row = f"{task}, {counted(num_demos, 'demo')}, seed {seed}"
        texts += [{"block": "all", "row": row, "column": name, "text": text} for name, text in cells.items()]
    note = (
        "p is of the test that the two are independent; orders that share examples are not, so it is a guide. "
        "-: all orders are equally accurate."
    )
    title = "Kendall's tau of learnt probability and held-out accuracy, over all orders"
    return Table("ranking", title, pd.DataFrame(numbers), pd.DataFrame(texts), (note,))
