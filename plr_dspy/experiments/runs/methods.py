"""The methods of the paper's tables by name, and what its ablations vary.

"PLR-C" is the paper's search with a mixture of C Plackett-Luce models.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder
from plr_dspy.experiments.runs.results import METHODS
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.orderings.updates import MixtureEM, RankEMA
from plr_dspy.programs.calls import Metric

ABLATIONS = {
    "components": tuple(f"PLR-{c}" for c in (1, 2, 4, 8, 16, 32, 64)),
    "weighted": ("PLR-4", "PLR-4 weighted"),
    "elite_fraction": ("PLR-4 elites=0.1", "PLR-4", "PLR-4 elites=0.3", "PLR-4 elites=0.5"),
}
"""The paper's ablations by what varies, as names of methods; "PLR-4" has unweighted elites and a fraction of .2."""

OUR_SHARE = 0.1
"""Of the paper's program calls: the budget of "Ours"."""


class Runtime(TypedDict, total=False):
    """How an optimizer runs."""

    num_threads: int
    seed: int
    log_dir: Path
    display_progress: bool


_PAPER = re.compile(r"PLR-(?P<update>EMA|[1-9]\d*)(?P<weighted> weighted)?(?: elites=(?P<elites>0?\.\d+|1))?")


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


def ablation_value(ablation: str, method: str) -> int | float | bool:
    """What a method of an ablation stands for: a number of components, whether weighted, a fraction of elites.

    Raises:
        KeyError: for an unknown ablation.
        ValueError: for a method that is none of it.
    """
    if method not in ABLATIONS[ablation]:
        raise ValueError(f"method must be one of {list(ABLATIONS[ablation])}; got {method!r}")
    match = _PAPER.fullmatch(method)
    assert match is not None
    if ablation == "components":
        return int(match["update"])
    if ablation == "weighted":
        return match["weighted"] is not None
    return float(match["elites"] or 0.2)


def new_method(
    name: str,
    metric: Metric,
    *,
    num_train: int,
    num_selection: int,
    prior: Mapping[Any, float] | None,
    common: Runtime,
) -> Reorderer:
    """The optimizer that a name stands for.

    Args:
        name: One of `METHODS`, or "PLR-C", "PLR-C weighted", "PLR-C elites=0.3".
        metric: Of the task.
        num_train, num_selection: Examples of the two splits; they decide the budget of "Ours".
        prior: Shares of the labels, for "PDO-FewShotUP".
        common: Arguments that all optimizers take, but a budget.

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
    makers: dict[str, Callable[[], Reorderer]] = {
        "Static": lambda: StaticOrder(metric, **common),
        "Top-K": lambda: TopKOrder(metric, **common),
        "LocalE": lambda: LocalE(metric, **common),
        "GlobalE": lambda: GlobalE(metric, **common),
        "PDO-FewShot": lambda: PDO(metric, **common),
        "PDO-FewShotU": lambda: PDO(metric, setting="unlabelled", **common),
        "PDO-FewShotUP": lambda: PDO(metric, setting="prior", prior=prior, **common),
        "DEmO": lambda: DEmO(metric, **common),
    }
    return makers[name]()


def shares(labels: Sequence[Any]) -> dict[Any, float]:
    """Share of each label in a list of them."""
    return {label: count / len(labels) for label, count in sorted(Counter(labels).items())}
