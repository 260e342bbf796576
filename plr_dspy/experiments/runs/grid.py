"""Makes the runs of an experiment that have no result yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from plr_dspy.experiments.runs.executors import Outcome
from plr_dspy.experiments.runs.results import Result, Run
from plr_dspy.experiments.runs.runner import Experiment, Worker
from plr_dspy.experiments.runs.store import Store
from plr_dspy.runtime.redaction import Redactor

logger = logging.getLogger(__name__)

Executor: TypeAlias = Callable[[Experiment, Sequence[Run]], Iterator[Outcome]]

MOST_FAILURES = 3
"""So many runs in a row that fail end an experiment: a dead server fails all."""


@dataclass
class Progress:
    """What became of the runs.

    Attributes:
        there: Results that were there before.
        made: Results that are new.
        failed: Runs that failed, with what they raised.
    """

    there: int = 0
    made: int = 0
    failed: dict[Run, Exception] = field(default_factory=dict)


def run_grid(experiment: Experiment, runs: Sequence[Run], *, executor: Executor) -> Progress:
    """Make the runs that have no result yet; each result is on disk as soon as its run has ended.

    A run that fails leaves no result: the same grid makes it again, and pays for none of its finished calls twice.

    Args:
        experiment: What the runs belong to.
        runs: All that there should be.
        executor: Where they are made, see `plr_dspy.experiments.runs.executors`.

    Raises:
        Exception: of the last run, where several in a row have failed.
        ValueError, RuntimeError: as `Store` does.
    """
    with Store(experiment.folder, experiment.settings()) as store:
        missing = store.missing(runs)
        check_data(experiment, store.done.values(), missing)
        hide = Redactor([], variables=[experiment.endpoint.api_key_env])
        progress = Progress(there=len(runs) - len(missing))
        if progress.there:
            logger.info("%d of %d runs have a result already", progress.there, len(runs))
        in_a_row = 0
        if missing:
            for run, outcome in executor(experiment, missing):
                if isinstance(outcome, Exception):
                    progress.failed[run] = outcome
                    in_a_row += 1
                    logger.error("%s failed: %s: %s", run, type(outcome).__name__, hide(str(outcome)))
                    if in_a_row >= MOST_FAILURES:
                        raise outcome
                    continue
                in_a_row = 0
                result = store.add(outcome)
                progress.made += 1
                logger.info(
                    "%d/%d %s: accuracy %.3f on %d examples, %s program calls, %.0f s",
                    progress.there + progress.made,
                    len(runs),
                    run,
                    result.accuracy,
                    len(result.scores),
                    f"{result.program_calls['total']:,}",
                    result.seconds,
                )
        return progress


def check_data(experiment: Experiment, done: Iterable[Result], missing: Iterable[Run]) -> None:
    """Raise unless the runs that are missing would have the examples of those of their task and seed that are done.

    Raises:
        ValueError: when they would have others.
    """
    known = {(result.task, result.seed): result for result in done if result.data}
    first = {(run.task, run.seed): run for run in missing}
    with Worker(experiment) as worker:
        for place, run in first.items():
            if place in known and worker.data(run) != known[place].data:
                raise ValueError(
                    f"{experiment.folder} holds {known[place].run} on other examples than those of {run.task!r} now: "
                    "take the data that it was made with, or another folder"
                )
