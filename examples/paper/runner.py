"""Makes the runs of an experiment that have no result yet: one after another here, or by many workers on Ray."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import dspy

from plr_dspy import __version__
from plr_dspy.runtime import Redactor

from .data import load
from .held_out import HeldOut, digest
from .model import MakeLM
from .protocol import Draw, Experiment, Run, draw, new_method
from .results import Result, opened
from .tasks import TASKS

logger = logging.getLogger(__name__)

MOST_FAILURES_IN_A_ROW = 3
"""So many failed runs in a row end an experiment: a dead server fails all."""

VERSIONS = {"plr_dspy": __version__, "dspy": dspy.__version__, "python": platform.python_version()}
"""What a result says that it was made with."""


@functools.lru_cache(maxsize=2)
def _examples(task: str, data_dir: Path) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """The train and the test part of a task, read once in a process."""
    return load(TASKS[task], data_dir=data_dir)


def _draw(experiment: Experiment, run: Run) -> Draw:
    """The demos and the examples of a run."""
    return draw(run, experiment, *_examples(run.task, experiment.data_dir))


def _data(drawn: Draw) -> dict[str, str]:
    """Digests of the examples that all methods and numbers of demos share."""
    return {"pool": digest(drawn.pool), "test": digest(drawn.test)}


@contextmanager
def _prepared(experiment: Experiment, run: Run, lm: dspy.LM) -> Iterator[tuple[dspy.Module, Any, Draw]]:
    """Yield the program in the order drawn, the optimizer, and the examples of a run; the LM is in place meanwhile."""
    task, drawn = TASKS[run.task], _draw(experiment, run)
    program = task.program(experiment.format)
    for predictor in program.predictors():
        predictor.demos = list(drawn.demos)
    optimizer = new_method(
        run.method,
        task,
        experiment,
        train=_examples(run.task, experiment.data_dir)[0],
        num_threads=experiment.num_threads,
        seed=run.seed,
        log_dir=experiment.folder_of(run),
        display_progress=False,
    )
    # Nobody looks at DSPy's history of calls, and over a run it takes gigabytes.
    with dspy.context(lm=lm, adapter=task.adapter(experiment.format), disable_history=True):
        yield program, optimizer, drawn


def count_calls(experiment: Experiment, run: Run) -> int:
    """Program calls that a run makes at most, those on the held-out examples included; none is made."""
    with _prepared(experiment, run, dspy.LM("none/none", cache=False)) as (program, optimizer, drawn):
        return int(optimizer.estimate(program, trainset=drawn.pool).program_calls + len(drawn.test))


def make_run(experiment: Experiment, run: Run, make_lm: MakeLM) -> Result:
    """Make one run: draw, order, and score on the held-out examples; what was paid for is kept in its folder."""
    lm = make_lm(TASKS[run.task].max_tokens(experiment.format))
    with _prepared(experiment, run, lm) as (program, optimizer, drawn):
        started = time.monotonic()
        compiled = optimizer.compile(program, trainset=drawn.pool)
        seconds, report = time.monotonic() - started, optimizer.report
        scores = HeldOut(
            compiled,
            metric=TASKS[run.task].metric(experiment.metric),
            examples=drawn.test,
            folder=experiment.folder_of(run),
            num_threads=experiment.num_threads,
        ).scores()
        kinds = ("prompt", "completion")
        tokens = {k: sum(each.get(f"{k}_tokens", 0) for each in report.tokens.values()) for k in kinds}
        return Result(
            **run._asdict(),
            model=experiment.model.model,
            format=experiment.format,
            settings=experiment.settings(),
            versions=VERSIONS,
            orderings=None if run.method == "DEmO" else tuple(tuple(slot.ordering) for slot in report.slots),
            accuracy=sum(scores) / len(scores),
            scores=tuple(scores),
            program_calls=dict(report.program_calls),
            tokens=tokens if any(tokens.values()) else {},
            seconds=round(seconds, 3),
            schema=1,
            data=_data(drawn),
        )


Engine: TypeAlias = Callable[[Experiment, Sequence[Run]], Iterator[tuple[Run, "Result | Exception"]]]
"""Makes runs, and yields each with its result, or with what it raised, as soon as it has ended."""


def here(experiment: Experiment, runs: Sequence[Run]) -> Iterator[tuple[Run, Result | Exception]]:
    """Make runs in this process, in their order."""
    with experiment.model.open(format=experiment.format) as make_lm:
        for run in runs:
            try:
                yield run, make_run(experiment, run, make_lm)
            except Exception as error:
                yield run, error


class Worker:
    """A process of a Ray cluster, which keeps the model open from run to run; those on a machine share its cores."""

    def __init__(self, experiment: Experiment, number: int, num_workers: int) -> None:
        self._experiment, self._stack = experiment, ExitStack()
        threads = max(1, (os.cpu_count() or 1) // num_workers)
        model, prompts = experiment.model, experiment.format
        self._make_lm = self._stack.enter_context(model.open(format=prompts, number=number, num_threads=threads))

    def run(self, run: Run) -> tuple[Run, Result | Exception]:
        """Make one run; what it raises comes as text, because not all exceptions can be sent."""
        try:
            return run, make_run(self._experiment, run, self._make_lm)
        except Exception as error:
            return run, RuntimeError(f"{type(error).__name__}: {error}")


def on_ray(
    experiment: Experiment, runs: Sequence[Run], *, address: str = "local", num_workers: int | None = None
) -> Iterator[tuple[Run, Result | Exception]]:
    """Make runs on a Ray cluster; their outcomes come in the order in which they end.

    The experiment's folder, its data and this file must be where every machine sees them under the same path. The
    address "local" starts a cluster here. As many runs are made at a time as the cluster has CPUs, or `num_workers`.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError("several workers need Ray: pip install 'plr-dspy[ray]'")
    import ray
    from ray.util import ActorPool

    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, path))}}
    before = signal.getsignal(signal.SIGTERM)
    cpus = {"num_cpus": num_workers} if address == "local" and num_workers else {}
    ray.init(address=address, log_to_driver=False, include_dashboard=False, **cpus)
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has set its own.
        count = min(len(runs), num_workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
        remote: Any = ray.remote(num_cpus=1, max_restarts=0, runtime_env=environment)(Worker)
        workers = ActorPool([remote.remote(experiment, number, count) for number in range(count)])
        yield from workers.map_unordered(lambda worker, run: worker.run.remote(run), runs)
    finally:
        ray.shutdown()


@dataclass
class Outcome:
    """How many runs of a grid had a result before, how many have been made, and what those raised that failed."""

    there: int = 0
    made: int = 0
    failed: dict[Run, Exception] = field(default_factory=dict)


def run_grid(experiment: Experiment, runs: Sequence[Run], *, engine: Engine = here) -> Outcome:
    """Make the runs that have no result yet; each result is on disk as soon as its run has ended.

    A run that fails leaves no result: the same grid makes it again, and pays for none of its finished calls twice.
    Where several in a row have failed, what the last one raised is raised.
    """
    with opened(experiment.folder, experiment.settings()) as store:
        missing = [run for run in runs if run not in store]
        known = {(result.task, result.seed): result for result in store.values() if result.data}
        for place, run in {(run.task, run.seed): run for run in missing}.items():
            if place in known and _data(_draw(experiment, run)) != known[place].data:
                raise ValueError(
                    f"{experiment.folder} holds {known[place].run} on other examples than those of {run.task!r} now: "
                    "take the data that it was made with, or another folder"
                )
        hide = Redactor([], variables=[experiment.model.api_key_env])
        outcome, in_a_row = Outcome(there=len(runs) - len(missing)), 0
        if outcome.there:
            logger.info("%d of %d runs have a result already", outcome.there, len(runs))
        for run, result in engine(experiment, missing) if missing else ():
            if isinstance(result, Exception):
                outcome.failed[run] = result
                in_a_row += 1
                logger.error("%s failed: %s: %s", run, type(result).__name__, hide(str(result)))
                if in_a_row >= MOST_FAILURES_IN_A_ROW:
                    raise result
                continue
            in_a_row = 0
            store.add(result)
            outcome.made += 1
            done, calls = outcome.there + outcome.made, result.program_calls["total"]
            accuracy = f"accuracy {result.accuracy:.3f} on {len(result.scores)} examples"
            cost = f"{calls:,} program calls, {result.seconds:.0f} s"
            logger.info("%d/%d %s: %s, %s", done, len(runs), run, accuracy, cost)
        return outcome
