"""What a run of an experiment is: its settings, its demos, its examples."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import dspy

from plr_dspy.experiments.runs.methods import check_method
from plr_dspy.experiments.runs.results import Run, applies
from plr_dspy.experiments.tasks.tasks import TASKS, Format, MetricName
from plr_dspy.programs.validation import whole_number

RANKING = "Ranking"
"""In place of a method: the paper's search with one Plackett-Luce, and then all orders on the held-out examples."""


@dataclass(frozen=True)
class Protocol:
    """What all runs of an experiment have in common, and what decides their results.

    Attributes:
        pool: Labelled examples beside the demos, 80/20 train and selection split.
        test: Held-out examples; None takes all that the task has.
        format: "plain" few-shot text, as in the paper, or DSPy's "chat".
        metric: "strict", or "lenient" as the published code scores reasoning tasks.
    """

    pool: int = 1_000
    test: int | None = None
    format: Format = "plain"
    metric: MetricName = "strict"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool, least=4)
        whole_number("test", self.test)
        for name, kind in (("format", Format), ("metric", MetricName)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}; got {getattr(self, name)!r}")

    @property
    def num_selection(self) -> int:
        """Examples of the selection split."""
        return round(0.2 * self.pool)

    @property
    def num_train(self) -> int:
        """Examples of the train split."""
        return self.pool - self.num_selection

    def settings(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Draw:
    """The demos and the examples of one (task, number of demos, seed): the same for all methods."""

    demos: list[dspy.Example]
    pool: list[dspy.Example]
    test: list[dspy.Example]


def draw(run: Run, protocol: Protocol, train: Sequence[dspy.Example], test: Sequence[dspy.Example]) -> Draw:
    """Draw demos and pool from the train part, and the held-out examples from the test part.

    The pool and the held-out examples of one seed are the same for all numbers of demos.

    Raises:
        ValueError: when there are too few examples.
    """
    num_test = len(test) if protocol.test is None else protocol.test
    for name, wanted, part, there in (
        ("pool", protocol.pool + run.num_demos, "train", len(train)),
        ("test", num_test, "test", len(test)),
    ):
        if wanted > there:
            with_demos = f", {run.num_demos} demos included," if name == "pool" else ""
            raise ValueError(
                f"{name}: expected at most the {there} examples in the {part} part of {run.task!r}; got {wanted}"
                f"{with_demos}: ask for fewer"
            )
    shuffled = random.Random(f"{run.task} {run.seed} pool").sample(list(train), len(train))
    pool, rest = shuffled[: protocol.pool], shuffled[protocol.pool :]
    demos = random.Random(f"{run.task} {run.seed} {run.num_demos} demos").sample(rest, run.num_demos)
    held_out = random.Random(f"{run.task} {run.seed} test").sample(list(test), num_test)
    return Draw(demos, pool, held_out)


def grid(
    *,
    tasks: Sequence[str],
    num_demos: Sequence[int],
    seeds: Sequence[int],
    methods: Sequence[str],
    rankings: Sequence[int] = (),
) -> list[Run]:
    """All runs, those of one draw together; methods that a task has no use for are left out.

    Args:
        tasks, num_demos, seeds, methods: What is crossed.
        rankings: Numbers of demos for which all orders are ranked too, at most 6.

    Raises:
        ValueError: for names or numbers that are none.
    """
    for task in tasks:
        if task not in TASKS:
            raise ValueError(f"tasks: expected some of {sorted(TASKS)}; got {task!r}")
    for method in methods:
        check_method(method)
    for k in num_demos:
        whole_number("num_demos", k, least=2)
    for k in rankings:
        whole_number("rankings", k, least=2, most=6)
    for seed in seeds:
        whole_number("seeds", seed, least=0)
    runs = [
        Run(task, k, seed, method)
        for task, k, seed in itertools.product(tasks, num_demos, seeds)
        for method in methods
        if applies(method, task)
    ]
    runs += [Run(task, k, seed, RANKING) for task, k, seed in itertools.product(tasks, rankings, seeds)]
    return list(dict.fromkeys(runs))
