"""Functions that make the missing runs of an experiment, in this process or in workers on Ray."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import dspy

from plr_dspy import Report, __version__
from plr_dspy.runtime import Redactor

from .data import load
from .held_out import HeldOut, digest, rank_orders
from .model import MakeLM
from .protocol import ALL_ORDERS, Draw, Experiment, Run, draw, new_method
from .results import Result, Store, open_store
from .tasks import TASKS

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3
"""Number of failed runs in a row after which an experiment stops, because the server is probably down."""

VERSIONS = {"plr_dspy": __version__, "dspy": dspy.__version__, "python": platform.python_version()}

Engine: TypeAlias = Callable[[Experiment, Sequence[Run]], Iterator[tuple[Run, "Result | Exception"]]]
"""A function that makes runs, and yields each run with its result or exception as soon as the run ends."""


@functools.lru_cache(maxsize=2)
def _load(task: str, data_dir: Path | None) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Load the train and test parts of a task, once per process."""
    return load(TASKS[task], data_dir=data_dir)


def _draw(experiment: Experiment, run: Run) -> Draw:
    train, test = _load(run.task, experiment.data_dir)
    return draw(run, experiment, train, test)


def _digests(drawn: Draw) -> dict[str, str]:
    """Return digests of the examples that all methods and numbers of demos share."""
    return {"pool": digest(drawn.pool), "test": digest(drawn.test)}


@contextmanager
def _prepare(experiment: Experiment, run: Run, lm: dspy.LM) -> Iterator[tuple[dspy.Module, Any, Draw]]:
    """Yield the program, optimizer and examples of a run, with the LM configured."""
    task = TASKS[run.task]
    drawn = _draw(experiment, run)
    program = task.program(experiment.format)
    for predictor in program.predictors():
        predictor.demos = list(drawn.demos)
    optimizer = new_method(
        run.method,
        task,
        experiment,
        train=_load(run.task, experiment.data_dir)[0],
        num_threads=experiment.num_threads,
        seed=run.seed,
        log_dir=experiment.folder_of(run),
        display_progress=False,
    )
    # Disable DSPy's history of calls, because it would take gigabytes of memory.
    with dspy.context(lm=lm, adapter=task.adapter(experiment.format), disable_history=True):
        yield program, optimizer, drawn


def count_calls(experiment: Experiment, run: Run) -> int:
    """Return the maximum number of program calls in a run, including calls on held-out examples."""
    with _prepare(experiment, run, dspy.LM("none/none", cache=False)) as (program, optimizer, drawn):
        num_orders = 1
        if run.method.endswith(ALL_ORDERS):
            num_orders += math.factorial(run.num_demos)
        return int(
            optimizer.estimate(program, trainset=drawn.pool).program_calls + num_orders * len(drawn.test)
        )


def make_run(experiment: Experiment, run: Run, make_lm: MakeLM) -> Result:
    """Draw examples, order demos, and score held-out examples. Save finished calls in the run's folder."""
    task = TASKS[run.task]
    lm = make_lm(task.max_tokens(experiment.format))
    with _prepare(experiment, run, lm) as (program, optimizer, drawn):
        started = time.monotonic()
        compiled = optimizer.compile(program, trainset=drawn.pool)
        seconds = time.monotonic() - started
        held_out = partial(
            HeldOut,
            metric=task.metric(experiment.metric),
            examples=drawn.test,
            folder=experiment.folder_of(run),
            num_threads=experiment.num_threads,
        )
        scores = held_out(compiled).scores()
        report = optimizer.report
        ranking = None
        if run.method.endswith(ALL_ORDERS):
            ranking = rank_orders(report, held_out(program))
    orderings = None
    if run.method != "DEmO":
        orderings = tuple(tuple(slot.ordering) for slot in report.slots)
    return Result(
        **run._asdict(),
        model=experiment.model.model,
        format=experiment.format,
        settings=experiment.settings(),
        versions=VERSIONS,
        orderings=orderings,
        accuracy=sum(scores) / len(scores),
        scores=tuple(scores),
        program_calls=dict(report.program_calls),
        tokens=_count_tokens(report),
        seconds=round(seconds, 3),
        schema=1,
        data=_digests(drawn),
        ranking=ranking,
    )


def _count_tokens(report: Report) -> dict[str, int]:
    """Return the number of tokens of each kind, or an empty dict if no model reports tokens."""
    counts = {}
    for kind in ("prompt", "completion"):
        counts[kind] = sum(tokens.get(f"{kind}_tokens", 0) for tokens in report.tokens.values())
    return counts if any(counts.values()) else {}


def run_here(experiment: Experiment, runs: Sequence[Run]) -> Iterator[tuple[Run, Result | Exception]]:
    """Make runs in this process, in the given order."""
    with experiment.model.open(format=experiment.format) as make_lm:
        for run in runs:
            try:
                yield run, make_run(experiment, run, make_lm)
            except Exception as error:
                yield run, error


class Worker:
    """A process of a Ray cluster. It keeps the model loaded between runs."""

    def __init__(self, experiment: Experiment, number: int, num_workers: int) -> None:
        self._experiment = experiment
        self._stack = ExitStack()  # stays open until the process exits, to keep the model loaded
        num_threads = max(1, (os.cpu_count() or 1) // num_workers)
        model = experiment.model.open(format=experiment.format, number=number, num_threads=num_threads)
        self._make_lm = self._stack.enter_context(model)

    def run(self, run: Run) -> tuple[Run, Result | Exception]:
        """Make one run. Return errors as a RuntimeError, because some exceptions cannot be pickled."""
        try:
            return run, make_run(self._experiment, run, self._make_lm)
        except Exception as error:
            return run, RuntimeError(f"{type(error).__name__}: {error}")


def run_on_ray(
    experiment: Experiment, runs: Sequence[Run], *, address: str, num_workers: int | None
) -> Iterator[tuple[Run, Result | Exception]]:
    """Make runs on a Ray cluster, and yield each run and its result as soon as the run ends.

    The experiment's folder, the data and this file must have the same paths on every machine.

    Args:
        experiment: The settings of all runs.
        runs: Runs without a result.
        address: Address of the cluster; "local" starts a cluster on this machine.
        num_workers: Number of concurrent runs; None uses all CPUs of the cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError("Ray is needed for several workers. Run pip install 'plr-dspy[ray]'.")
    import ray
    from ray.util import ActorPool

    num_cpus = num_workers if address == "local" else None
    python_path = str(Path(__file__).parents[1])
    if "PYTHONPATH" in os.environ:
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, num_cpus=num_cpus, log_to_driver=False, include_dashboard=False)
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Restore the handler that Ray has replaced.
        count = min(len(runs), num_workers or int(ray.cluster_resources().get("CPU", 1)))
        make_worker: Any = ray.remote(num_cpus=1, runtime_env={"env_vars": {"PYTHONPATH": python_path}})(
            Worker
        )
        workers = [make_worker.remote(experiment, number, count) for number in range(count)]
        yield from ActorPool(workers).map_unordered(lambda worker, run: worker.run.remote(run), runs)
    finally:
        ray.shutdown()


@dataclass
class Outcome:
    """The result of `run_grid`.

    Attributes:
        num_known: Number of runs that already had a result.
        num_made: Number of new results.
        failed: Exceptions of the failed runs.
    """

    num_known: int = 0
    num_made: int = 0
    failed: dict[Run, Exception] = field(default_factory=dict)


def run_grid(experiment: Experiment, runs: Sequence[Run], *, engine: Engine = run_here) -> Outcome:
    """Make the runs that have no result yet, and save each result as soon as its run ends.

    Failed runs have no result. The next call repeats these runs, but not their finished calls.

    Raises:
        ValueError: If the folder has results with other settings or examples.
        Exception: The exception of the last run, if `MAX_FAILURES_IN_A_ROW` runs in a row failed.
    """
    with open_store(experiment.folder, experiment.settings()) as store:
        missing = [run for run in runs if run not in store]
        outcome = Outcome(num_known=len(runs) - len(missing))
        if outcome.num_known:
            logger.info("a result already exists for %d of %d runs", outcome.num_known, len(runs))
        if not missing:
            return outcome
        _check_same_examples(experiment, missing, store)
        hide = Redactor([], variables=[experiment.model.api_key_env])
        num_failures = 0
        for run, result in engine(experiment, missing):
            if isinstance(result, Exception):
                outcome.failed[run] = result
                logger.error("%s failed: %s: %s", run, type(result).__name__, hide(str(result)))
                num_failures += 1
                if num_failures == MAX_FAILURES_IN_A_ROW:
                    raise result
            else:
                num_failures = 0
                store.add(result)
                outcome.num_made += 1
                _log_result(result, outcome.num_known + outcome.num_made, len(runs))
        return outcome


def _check_same_examples(experiment: Experiment, missing: Sequence[Run], store: Store) -> None:
    """Raise a ValueError if missing runs and stored results of one task and seed have different examples."""
    stored = {(result.task, result.seed): result for result in store.values() if result.data}
    first_runs = {(run.task, run.seed): run for run in reversed(missing)}
    for place in stored.keys() & first_runs.keys():
        if _digests(_draw(experiment, first_runs[place])) != stored[place].data:
            raise ValueError(
                f"{experiment.folder} has a result ({stored[place].run}) whose examples differ from the current data "
                f"of {place[0]!r}. Use the data of that result, or another folder."
            )


def _log_result(result: Result, number: int, total: int) -> None:
    accuracy = f"accuracy {result.accuracy:.3f} on {len(result.scores)} examples"
    cost = f"{result.program_calls['total']:,} program calls, {result.seconds:.0f} s"
    logger.info("%d/%d %s: %s, %s", number, total, result.run, accuracy, cost)
