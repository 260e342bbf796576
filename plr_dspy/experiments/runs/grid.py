"""Makes the runs of an experiment that have no result yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plr_dspy.experiments.runs.executors import Executor
from plr_dspy.experiments.runs.results import Result, Run
from plr_dspy.experiments.runs.runner import Experiment, Worker
from plr_dspy.experiments.runs.store import Store
from plr_dspy.runtime.redaction import Redactor

logger = logging.getLogger(__name__)

MOST_FAILURES_IN_A_ROW = 3
"""So many failed runs in a row end an experiment: a dead server fails all."""


@dataclass
class GridOutcome:
    """What became of the runs of a grid.

    Attributes:
        there: Number of runs that had a result before.
        made: Number of runs that have a result now.
        failed: Runs that failed, with what they raised.
    """

    there: int = 0
    made: int = 0
    failed: dict[Run, Exception] = field(default_factory=dict)


def run_grid(experiment: Experiment, runs: Sequence[Run], *, executor: Executor) -> GridOutcome:
    """Make the runs that have no result yet; each result is on disk as soon as its run has ended.

    A run that fails leaves no result: the same grid makes it again, and pays for none of its finished calls twice.

    Args:
        experiment: The experiment that the runs belong to.
        runs: All runs that there should be.
        executor: Makes the runs that are missing, see `plr_dspy.experiments.runs.executors`.

    Raises:
        Exception: of the last run, where several in a row have failed.
        ValueError, RuntimeError: as `Store` does.
    """
    with Store(experiment.folder, experiment.settings()) as store:
        missing = store.missing(runs)
        check_data(experiment, store.done.values(), missing)
        hide = Redactor([], variables=[experiment.served_model.api_key_env])
        outcome = GridOutcome(there=len(runs) - len(missing))
        if outcome.there:
            logger.info("%d of %d runs have a result already", outcome.there, len(runs))
        failed_in_a_row = 0
        for run, result in executor(experiment, missing) if missing else ():
            if isinstance(result, Exception):
                outcome.failed[run] = result
                failed_in_a_row += 1
                logger.error("%s failed: %s: %s", run, type(result).__name__, hide(str(result)))
                if failed_in_a_row >= MOST_FAILURES_IN_A_ROW:
                    raise result
                continue
            failed_in_a_row = 0
            store.add(result)
            outcome.made += 1
            done = f"{outcome.there + outcome.made}/{len(runs)} {run}"
            on_examples = f"accuracy {result.accuracy:.3f} on {len(result.scores)} examples"
            cost = f"{result.program_calls['total']:,} program calls, {result.seconds:.0f} s"
            logger.info("%s: %s, %s", done, on_examples, cost)
        return outcome


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
