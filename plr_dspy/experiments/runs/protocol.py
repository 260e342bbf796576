"""The grid of an experiment: which runs there are, and which demos and examples each of them has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from plr_dspy.experiments.names import RANKING, Format, MetricName, applies, check_method
from plr_dspy.experiments.runs.results import Run
from plr_dspy.experiments.tasks.tasks import TASKS
from plr_dspy.programs.validation import whole_number

MOST_RANKED_DEMOS = 6
"""Most demos of which all orders are ranked: 6 have 720 orders, and 7 have 5,040."""


@dataclass(frozen=True)
class Protocol:
    """What all runs of an experiment have in common, and what decides their results.

    Attributes:
        pool: Labelled examples beside the demos, 80/20 train and selection split.
        test: Held-out examples; None takes all that the task has.
        format: "plain" few-shot text, as in the paper, or DSPy's "chat".
        metric: "strict", or "lenient" as the published code scores reasoning tasks.

    Raises:
        TypeError: when a number of examples is no whole number.
        ValueError: when there are fewer than 4 examples in the pool, or no held-out ones.
    """

    pool: int = 1_000
    test: int | None = None
    format: Format = "plain"
    metric: MetricName = "strict"

    def __post_init__(self) -> None:
        whole_number("pool", self.pool, least=4)
        whole_number("test", self.test)

    @property
    def num_selection(self) -> int:
        """Number of examples in the selection split."""
        return round(0.2 * self.pool)

    @property
    def num_train(self) -> int:
        """Number of examples in the train split."""
        return self.pool - self.num_selection


@dataclass(frozen=True)
class Draw:
    """The demos and the examples of one task, number of demos and seed: the same for all methods."""

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
        ("pool and demos", protocol.pool + run.num_demos, "train", len(train)),
        ("test", num_test, "test", len(test)),
    ):
        if wanted > there:
            raise ValueError(
                f"{name}: expected at most the {there} examples in the {part} part of {run.task!r}; got {wanted}: "
                "ask for fewer"
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
    """List all runs, those of one draw together; methods that a task has no use for are left out.

    Args:
        tasks, num_demos, seeds, methods: What is crossed.
        rankings: Numbers of demos for which all orders are ranked too, at most 6.

    Raises:
        TypeError: for numbers that are not whole.
        ValueError: for names that are none, and numbers out of range.
    """
    for task in tasks:
        if task not in TASKS:
            raise ValueError(f"tasks: expected some of {sorted(TASKS)}; got {task!r}")
    for method in methods:
        check_method(method)
    for name, numbers, least, most in (
        ("num_demos", num_demos, 2, None),
        ("rankings", rankings, 2, MOST_RANKED_DEMOS),
        ("seeds", seeds, 0, None),
    ):
        for number in numbers:
            whole_number(name, number, least=least, most=most)
    runs = [
        Run(task, k, seed, method)
        for task, k, seed in itertools.product(tasks, num_demos, seeds)
        for method in methods
        if applies(method, task)
    ]
    runs += [Run(task, k, seed, RANKING) for task, k, seed in itertools.product(tasks, rankings, seeds)]
    return list(dict.fromkeys(runs))
