"""The optimizers that the names of methods stand for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder
from plr_dspy.experiments.names import PAPER_METHOD, check_method
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.orderings.updates import MixtureEM, RankEMA
from plr_dspy.programs.calls import Metric

OUR_SHARE = 0.1
"""Budget of "Ours" as a share of the paper's program calls."""


def paper_calls(num_train: int, num_selection: int) -> int:
    """Program calls of PLR Algorithm 1: 15 x 15 orderings on the train split, 10 on the selection split."""
    return 15 * 15 * num_train + 10 * num_selection


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
        name: One of `names.METHODS`, or "PLR-C", "PLR-C weighted", "PLR-C elites=0.3".
        metric: Metric of the task.
        num_train, num_selection: Examples of the two splits; they decide the budget of "Ours".
        prior: Shares of the labels, for "PDO-FewShotUP".
        common: Arguments that all optimizers take: num_threads, seed, log_dir, display_progress.

    Raises:
        ValueError: for an unknown name.
    """
    check_method(name)
    if match := PAPER_METHOD.fullmatch(name):
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
