"""The paper's methods and ablations, the grid of runs, and the demos and examples of each run."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from plr_dspy import MixtureEM, PLReorder, RankEMA
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder

from .model import ServedModel
from .tasks import REASONING, Format, MetricName, Task

LABEL_METHODS = ("LocalE", "GlobalE", "PDO-FewShot", "PDO-FewShotU", "PDO-FewShotUP", "DEmO")
"""Methods that read label probabilities, and therefore need a task with labels."""

METHODS = ("Static", "Top-K", *LABEL_METHODS, "PLR-EMA", "PLR-1", "PLR-4", "Ours")
"""The methods of the paper's tables, in order.

"PLR-C" is the paper's search with a mixture of C components.
"""

OUR_SHARE = 0.1
"""Budget of the method "Ours", as a share of the calls in the paper's algorithm."""

ABLATIONS: dict[str, dict[str, float]] = {
    "components": {f"PLR-{count}": count for count in (1, 2, 4, 8, 16, 32, 64)},
    "weighted": {"PLR-4": False, "PLR-4 weighted": True},
    "elite_fraction": {
        "PLR-4 elites=0.1": 0.1,
        "PLR-4": 0.2,
        "PLR-4 elites=0.3": 0.3,
        "PLR-4 elites=0.5": 0.5,
    },
}
"""The paper's ablations.

Each ablation varies one setting. It maps the names of methods to their values of this setting.
"""

ALL_ORDERS = " all orders"
"""Suffix of methods whose final distribution is compared with the accuracy of every order."""

PROBABILITY = ("PLR-EMA all orders", "PLR-1 all orders")
"""The methods in the paper's comparison of learned probability and accuracy.

The first updates the distribution by EMA, and the second by maximum likelihood.
"""

MAX_RANKED = 6
"""Maximum number of demos in runs that score all orders."""

_PAPER_METHOD = re.compile(
    r"PLR-(?P<update>EMA|[1-9]\d*)(?P<weighted> weighted)?(?: elites=(?P<elites>0?\.\d*[1-9]\d*|1))?"
    rf"(?P<ranked>{ALL_ORDERS})?"
)


class Run(NamedTuple):
    """One run of an experiment. The seed determines the demos and the examples."""

    task: str
    num_demos: int
    seed: int
    method: str

    def __str__(self) -> str:
        return f"{self.task}, {self.num_demos} demos, seed {self.seed}, {self.method}"


@dataclass(frozen=True)
class Experiment:
    """The settings that all runs share, as plain data to send to workers.

    Attributes:
        folder: Folder for the results and calls of all runs. Killed runs resume from this folder.
        data_dir: Folder with the examples of the tasks. If None, examples are read from the Hugging
            Face hub.
        pool: Number of labeled examples besides the demos. They are split 80/20 into a train and a
            selection split.
        test: Number of held-out examples. If None, the whole test part of the task is used.
        format: "plain" few-shot text, as in the paper, or DSPy's "chat".
        metric: "strict", or "lenient" to score reasoning tasks as the published code does.
        num_threads: Number of concurrent calls in each worker.
    """

    folder: Path
    data_dir: Path | None = None
    pool: int = 1_000
    test: int | None = None
    format: Format = "plain"
    metric: MetricName = "strict"
    model: ServedModel = field(default_factory=ServedModel)
    num_threads: int = 2

    def __post_init__(self) -> None:
        _check_at_least("pool", self.pool, 4)
        if self.test is not None:
            _check_at_least("test", self.test, 1)

    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the results."""
        settings = {name: asdict(self)[name] for name in ("pool", "test", "format", "metric")}
        return {**settings, "model": self.model.model}

    def folder_of(self, run: Run) -> Path:
        """Return the folder for the calls of a run."""
        method = re.sub(r"[^A-Za-z0-9.]+", "-", run.method)
        return self.folder / "calls" / run.task / f"k{run.num_demos}" / f"seed{run.seed}" / method


def _check_at_least(name: str, number: int, least: int) -> None:
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}. Increase {name}.")


def new_method(
    name: str, task: Task, experiment: Experiment, *, train: Sequence[dspy.Example], **common: Any
) -> Any:
    """Build the optimizer for a method.

    Args:
        name: Name of the method, as in `METHODS`.
        task: The task. It provides the metric and the labels.
        experiment: The experiment. It provides the metric's name and the pool size.
        train: The train part of the task. Its label shares are the prior for "PDO-FewShotUP".
        common: Arguments to pass to every optimizer.
    """
    metric = task.metric(experiment.metric)
    match = _PAPER_METHOD.fullmatch(name)
    if match is not None:
        return _paper_method(match, metric, common)
    if name == "Ours":
        return PLReorder(
            metric, max_metric_calls=math.ceil(OUR_SHARE * _paper_calls(experiment.pool)), **common
        )
    if name == "PDO-FewShotU":
        return PDO(metric, setting="unlabelled", **common)
    if name == "PDO-FewShotUP":
        counts = Counter(example[task.output_field] for example in train)
        prior = {label: count / counts.total() for label, count in sorted(counts.items())}
        return PDO(metric, setting="prior", prior=prior, **common)
    kinds: dict[str, Any] = {
        "Static": StaticOrder,
        "Top-K": TopKOrder,
        "LocalE": LocalE,
        "GlobalE": GlobalE,
        "PDO-FewShot": PDO,
        "DEmO": DEmO,
    }
    return kinds[name](metric, **common)


def _paper_method(match: re.Match[str], metric: Any, common: dict[str, Any]) -> PLReorder:
    """Build the paper's search with the update rule and elite fraction in a method's name."""
    weighted = match["weighted"] is not None
    update: RankEMA | MixtureEM
    if match["update"] == "EMA":
        update = RankEMA(weighted=weighted)
    else:
        update = MixtureEM(num_components=int(match["update"]), weighted=weighted)
    if match["elites"] is not None:
        common = {**common, "elite_fraction": float(match["elites"])}
    return PLReorder(metric, auto="paper", update=update, **common)


def _paper_calls(pool: int) -> int:
    """Return the number of program calls in PLR Algorithm 1.

    The algorithm scores 15 x 15 orderings on the train split and 10 on the selection split.
    """
    num_selection = round(0.2 * pool)
    return 15 * 15 * (pool - num_selection) + 10 * num_selection


class Draw(NamedTuple):
    """The demos and examples for one task, number of demos and seed. All methods share them."""

    demos: list[dspy.Example]
    pool: list[dspy.Example]
    test: list[dspy.Example]


def draw(
    run: Run, experiment: Experiment, train: Sequence[dspy.Example], test: Sequence[dspy.Example]
) -> Draw:
    """Draw demos and a pool from the train part, and held-out examples from the test part.

    The pool and the held-out examples depend only on the task and the seed.
    """
    num_test = experiment.test or len(test)
    _check_at_most(
        "pool and demos", experiment.pool + run.num_demos, len(train), f"the train part of {run.task!r}"
    )
    _check_at_most("test", num_test, len(test), f"the test part of {run.task!r}")
    shuffled = random.Random(f"{run.task} {run.seed} pool").sample(list(train), len(train))
    pool = shuffled[: experiment.pool]
    rest = shuffled[experiment.pool :]
    demos = random.Random(f"{run.task} {run.seed} {run.num_demos} demos").sample(rest, run.num_demos)
    held_out = random.Random(f"{run.task} {run.seed} test").sample(list(test), num_test)
    return Draw(demos, pool, held_out)


def _check_at_most(name: str, number: int, most: int, part: str) -> None:
    if number > most:
        raise ValueError(
            f"{name} must not exceed the {most} examples in {part}; got {number}. Reduce {name}."
        )


def grid(
    *, tasks: Sequence[str], num_demos: Sequence[int], seeds: Sequence[int], methods: Sequence[str]
) -> list[Run]:
    """Return all runs. Runs with the same demos and examples are adjacent.

    Methods that need labels have no runs on reasoning tasks.
    """
    for method in methods:
        if method not in METHODS and not _PAPER_METHOD.fullmatch(method):
            raise ValueError(
                f"method must be one of {list(METHODS)} or PLR-C for a mixture of C components, optionally followed by "
                f"' weighted', ' elites=0.3' and '{ALL_ORDERS}'; got {method!r}. Correct the name."
            )
        if method.endswith(ALL_ORDERS) and max(num_demos) > MAX_RANKED:
            raise ValueError(
                f"num_demos must be at most {MAX_RANKED} for {method!r}, because it scores every order; got "
                f"{max(num_demos)}. Pass --num-demos 3 4 5."
            )
    _check_at_least("num_demos", min(num_demos), 2)
    _check_at_least("seeds", min(seeds), 0)
    runs = []
    for task, count, seed, method in itertools.product(tasks, num_demos, seeds, methods):
        if method not in LABEL_METHODS or task not in REASONING:
            runs.append(Run(task, count, seed, method))
    return list(dict.fromkeys(runs))
