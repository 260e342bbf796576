"""What is run: the paper's methods and ablations, the grid of runs, and which demos and examples each of them has."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from plr_dspy import MixtureEM, PLReorder, RankEMA
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, StaticOrder, TopKOrder

from .model import ServedModel
from .tasks import REASONING, Format, MetricName, Task

LABEL_METHODS = ("LocalE", "GlobalE", "PDO-FewShot", "PDO-FewShotU", "PDO-FewShotUP", "DEmO")
"""Methods that read label probabilities: they do not apply where answers are no labels."""

METHODS = ("Static", "Top-K", *LABEL_METHODS, "PLR-EMA", "PLR-1", "PLR-4", "Ours")
"""The methods of the paper's tables, in its order; "PLR-C" is its search with a mixture of C Plackett-Luce models."""

OUR_SHARE = 0.1
"""Budget of "Ours" as a share of the paper's program calls."""

ABLATIONS: dict[str, dict[str, float]] = {
    "components": {f"PLR-{count}": count for count in (1, 2, 4, 8, 16, 32, 64)},
    "weighted": {"PLR-4": False, "PLR-4 weighted": True},
    "elite_fraction": {"PLR-4 elites=0.1": 0.1, "PLR-4": 0.2, "PLR-4 elites=0.3": 0.3, "PLR-4 elites=0.5": 0.5},
}
"""The paper's ablations: what varies, and the value that each method of it stands for."""

_PAPER_METHOD = re.compile(
    r"PLR-(?P<update>EMA|[1-9]\d*)(?P<weighted> weighted)?(?: elites=(?P<elites>0?\.\d*[1-9]\d*|1))?"
)


class Run(NamedTuple):
    """What tells one run of an experiment from another; the seed decides what is drawn."""

    task: str
    num_demos: int
    seed: int
    method: str

    def __str__(self) -> str:
        return f"{self.task}, {self.num_demos} demos, seed {self.seed}, {self.method}"


@dataclass(frozen=True)
class Experiment:
    """What all runs have in common, as plain data: everything that a worker must know.

    Attributes:
        folder: Folder that keeps the results and the calls of each run, so that one that was killed goes on.
        pool: Labelled examples beside the demos, 80/20 train and selection split.
        test: Held-out examples; None takes all that the task has.
        format: "plain" few-shot text, as in the paper, or DSPy's "chat".
        metric: "strict", or "lenient" as the published code scores reasoning tasks.
        num_threads: Calls under way at once, in each worker.
    """

    folder: Path
    data_dir: Path = Path()
    pool: int = 1_000
    test: int | None = None
    format: Format = "plain"
    metric: MetricName = "strict"
    model: ServedModel = field(default_factory=ServedModel)
    num_threads: int = 2

    def __post_init__(self) -> None:
        _check_least("pool", [self.pool], 4)
        _check_least("test", [] if self.test is None else [self.test], 1)

    def settings(self) -> dict[str, Any]:
        """What decides the results, as plain data."""
        mine = {name: getattr(self, name) for name in ("pool", "test", "format", "metric")}
        return {**mine, "model": self.model.model, "temperature": self.model.temperature}

    def folder_of(self, run: Run) -> Path:
        """Folder that keeps the calls of a run."""
        method = re.sub(r"[^A-Za-z0-9.]+", "-", run.method)
        return self.folder / "calls" / run.task / f"k{run.num_demos}" / f"seed{run.seed}" / method


def _check_least(name: str, numbers: Sequence[int], least: int) -> None:
    """Raise where a number is too small."""
    for number in numbers:
        if number < least:
            raise ValueError(f"{name} must be at least {least}; got {number}")


def new_method(name: str, task: Task, experiment: Experiment, *, train: Sequence[dspy.Example], **common: Any) -> Any:
    """Make the optimizer that a name stands for; `common` are arguments that all optimizers take.

    The shares of labels in the task's train part are the prior of "PDO-FewShotUP".
    """
    metric = task.metric(experiment.metric)
    if match := _PAPER_METHOD.fullmatch(name):
        weighted = match["weighted"] is not None
        rule: Any = RankEMA(weighted=weighted)
        if match["update"] != "EMA":
            rule = MixtureEM(num_components=int(match["update"]), weighted=weighted)
        elites = None if match["elites"] is None else float(match["elites"])
        return PLReorder(metric, auto="paper", update=rule, elite_fraction=elites, **common)
    if name == "Ours":
        num_selection = round(0.2 * experiment.pool)
        # PLR Algorithm 1 scores 15 x 15 orderings on the train split, and 10 on the selection split.
        papers = 15 * 15 * (experiment.pool - num_selection) + 10 * num_selection
        return PLReorder(metric, max_metric_calls=math.ceil(OUR_SHARE * papers), **common)
    if name == "PDO-FewShotUP":
        counts = Counter(example[task.output_field] for example in train)
        common["prior"] = {label: count / counts.total() for label, count in sorted(counts.items())}
    settings: dict[str, Any] = {"PDO-FewShotU": "unlabelled", "PDO-FewShotUP": "prior"}
    if name in settings:
        return PDO(metric, setting=settings[name], **common)
    kinds: dict[str, Any] = {"Static": StaticOrder, "Top-K": TopKOrder, "LocalE": LocalE, "GlobalE": GlobalE}
    return (kinds | {"PDO-FewShot": PDO, "DEmO": DEmO})[name](metric, **common)


class Draw(NamedTuple):
    """The demos and the examples of one task, number of demos and seed: the same for all methods."""

    demos: list[dspy.Example]
    pool: list[dspy.Example]
    test: list[dspy.Example]


def draw(run: Run, experiment: Experiment, train: Sequence[dspy.Example], test: Sequence[dspy.Example]) -> Draw:
    """Draw demos and pool from the train part, and the held-out examples from the test part.

    The pool and the held-out examples of one seed are the same for all numbers of demos.
    """
    num_test = len(test) if experiment.test is None else experiment.test
    for name, wanted, part, there in (
        ("pool and demos", experiment.pool + run.num_demos, "train", len(train)),
        ("test", num_test, "test", len(test)),
    ):
        if wanted > there:
            raise ValueError(
                f"{name}: expected at most the {there} examples in the {part} part of {run.task!r}; got {wanted}: "
                "ask for fewer"
            )
    shuffled = random.Random(f"{run.task} {run.seed} pool").sample(list(train), len(train))
    pool, rest = shuffled[: experiment.pool], shuffled[experiment.pool :]
    demos = random.Random(f"{run.task} {run.seed} {run.num_demos} demos").sample(rest, run.num_demos)
    held_out = random.Random(f"{run.task} {run.seed} test").sample(list(test), num_test)
    return Draw(demos, pool, held_out)


def grid(*, tasks: Sequence[str], num_demos: Sequence[int], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    """List all runs, those of one draw together.

    Methods that read label probabilities are left out of the reasoning tasks, which have no labels.
    """
    for name in methods:
        if name not in METHODS and not _PAPER_METHOD.fullmatch(name):
            raise ValueError(
                f"method must be one of {list(METHODS)}, or PLR-C for a mixture of C, also with ' weighted' and "
                f"' elites=0.3' after it; got {name!r}"
            )
    _check_least("num_demos", num_demos, 2)
    _check_least("seeds", seeds, 0)
    runs = itertools.starmap(Run, itertools.product(tasks, num_demos, seeds, methods))
    return list(dict.fromkeys(run for run in runs if run.method not in LABEL_METHODS or run.task not in REASONING))
