"""The methods of the paper's tables by name, and what its ablations vary.

"PLR-C" is the paper's search with a mixture of C Plackett-Luce models.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder
from plr_dspy.experiments.tasks.tasks import TASKS
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.orderings.updates import MixtureEM, RankEMA
from plr_dspy.programs.calls import Metric

LABEL_METHODS = ("LocalE", "GlobalE", "PDO-FewShot", "PDO-FewShotU", "PDO-FewShotUP", "DEmO")
"""Methods that read label probabilities: they do not apply where answers are no labels."""

METHODS = ("Static", "Top-K", *LABEL_METHODS, "PLR-EMA", "PLR-1", "PLR-4", "Ours")
"""The methods of the paper's tables, in its order."""

RANKING = "Ranking"
"""In place of a method: the paper's search with one Plackett-Luce, and then all orders on the held-out examples."""

PAPER_ELITE_FRACTION = 0.2
"""Share of the orderings that a step of the paper's search learns from."""

ABLATIONS: dict[str, dict[str, float]] = {
    "components": {f"PLR-{count}": count for count in (1, 2, 4, 8, 16, 32, 64)},
    "weighted": {"PLR-4": False, "PLR-4 weighted": True},
    "elite_fraction": {
        "PLR-4 elites=0.1": 0.1,
        "PLR-4": PAPER_ELITE_FRACTION,
        "PLR-4 elites=0.3": 0.3,
        "PLR-4 elites=0.5": 0.5,
    },
}
"""The paper's ablations: what varies, and the value that each method of it stands for."""

OUR_SHARE = 0.1
"""Budget of "Ours" as a share of the paper's program calls."""

_PAPER = re.compile(r"PLR-(?P<update>EMA|[1-9]\d*)(?P<weighted> weighted)?(?: elites=(?P<elites>0?\.\d+|1))?")


def applies(method: str, task: str) -> bool:
    """Whether the method can order demos of the task: those that read label probabilities need labels."""
    return method not in LABEL_METHODS or task not in TASKS or not TASKS[task].reasoning


def paper_calls(num_train: int, num_selection: int) -> int:
    """Program calls of PLR Algorithm 1: 15 x 15 orderings on the train split, 10 on the selection split."""
    return 15 * 15 * num_train + 10 * num_selection


def check_method(method: str) -> None:
    """Raise unless a method has this name.

    Raises:
        ValueError: with the names there are.
    """
    match = _PAPER.fullmatch(method)
    if method not in METHODS and (match is None or float(match["elites"] or 1) == 0.0):
        raise ValueError(
            f"method must be one of {list(METHODS)}, or PLR-C for a mixture of C, also with ' weighted' and "
            f"' elites=0.3' after it; got {method!r}"
        )


def new_method(
    name: str,
    metric: Metric,
    *,
    num_train: int,
    num_selection: int,
    prior: Mapping[Any, float],
    common: dict[str, Any],
) -> Reorderer:
    """Make the optimizer that a name stands for.

    Args:
        name: One of `METHODS`, or "PLR-C", "PLR-C weighted", "PLR-C elites=0.3".
        metric: Metric of the task.
        num_train, num_selection: Examples of the two splits; they decide the budget of "Ours".
        prior: Shares of the labels, for "PDO-FewShotUP".
        common: Arguments that all optimizers take: num_threads, seed, log_dir, display_progress.

    Raises:
        ValueError: for an unknown name.
    """
    check_method(name)
    if match := _PAPER.fullmatch(name):
        weighted = match["weighted"] is not None
        rule: RankEMA | MixtureEM
        if match["update"] == "EMA":
            rule = RankEMA(weighted=weighted)
        else:
            rule = MixtureEM(num_components=int(match["update"]), weighted=weighted)
        elites = None if match["elites"] is None else float(match["elites"])
        return PLReorder(metric, auto="paper", update=rule, elite_fraction=elites, **common)
    if name == "Ours":
        budget = math.ceil(OUR_SHARE * paper_calls(num_train, num_selection))
        return PLReorder(metric, max_metric_calls=budget, **common)
    if name == "PDO-FewShotU":
        return PDO(metric, setting="unlabelled", **common)
    if name == "PDO-FewShotUP":
        return PDO(metric, setting="prior", prior=prior, **common)
    kinds: dict[str, type[Reorderer]] = {
        "Static": StaticOrder,
        "Top-K": TopKOrder,
        "LocalE": LocalE,
        "GlobalE": GlobalE,
        "PDO-FewShot": PDO,
        "DEmO": DEmO,
    }
    return kinds[name](metric, **common)


def shares(labels: Sequence[Any]) -> dict[Any, float]:
    """Share of each label in a list of them."""
    return {label: count / len(labels) for label, count in sorted(Counter(labels).items())}
