"""Makes one run of an experiment: draws, orders, and scores on the held-out examples."""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.baselines.per_input import PerInputOrder
from plr_dspy.experiments.runs.endpoints import Endpoint, MakeLM
from plr_dspy.experiments.runs.held_out import HeldOut, ranked_orders
from plr_dspy.experiments.runs.methods import new_method, shares
from plr_dspy.experiments.runs.protocol import RANKING, Draw, Protocol, draw
from plr_dspy.experiments.runs.results import Run
from plr_dspy.experiments.tasks.loading import load
from plr_dspy.experiments.tasks.tasks import TASKS, Task
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.programs.digest.description import digest
from plr_dspy.report.report import Report

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Experiment:
    """Everything that a worker must know, as plain data.

    Attributes:
        protocol: What all runs have in common.
        endpoint: The language model.
        folder: Keeps the calls of each run, so that one that was killed goes on.
        data_dir: Folder with the tasks' files; None takes the Hugging Face hub.
        num_threads: Calls under way at once, in each worker.
    """

    protocol: Protocol
    endpoint: Endpoint
    folder: Path
    data_dir: Path | None = None
    num_threads: int = 2

    def settings(self) -> dict[str, Any]:
        """What decides the results, as plain data."""
        return {**self.protocol.settings(), **self.endpoint.settings()}


@dataclass(frozen=True)
class Prepared:
    """What a run needs.

    Attributes:
        program: With the demos drawn, in the order drawn.
        optimizer: Of the run's method.
        drawn: The examples.
        folder: Keeps the calls.
    """

    program: dspy.Module
    optimizer: Reorderer
    drawn: Draw
    folder: Path


class Worker:
    """Makes runs, one after another, as a context that keeps the model open.

    Args:
        experiment: What the runs belong to.
        number: Which of the workers this is.
        num_workers: How many there are; those on one machine share its cores.
    """

    def __init__(self, experiment: Experiment, number: int = 0, num_workers: int = 1) -> None:
        self._experiment = experiment
        self._place = {"worker": number, "num_workers": num_workers}
        self._stack = ExitStack()
        self._make_lm: MakeLM | None = None
        self._load = functools.lru_cache(maxsize=2)(
            lambda name: load(TASKS[name], data_dir=experiment.data_dir)
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self, run: Run) -> dict[str, Any]:
        """Make one run.

        Returns:
            Its record, as a line of the results holds it.

        Raises:
            Exception: of the program or the model; what was paid for is kept in the experiment's folder.
        """
        with self._prepared(run) as made:
            started = time.monotonic()
            compiled = made.optimizer.compile(made.program, trainset=made.drawn.pool)
            assert made.optimizer.report is not None
            seconds = time.monotonic() - started
            new_held_out = functools.partial(
                HeldOut,
                metric=made.optimizer.metric,
                examples=made.drawn.test,
                folder=made.folder,
                num_threads=self._experiment.num_threads,
            )
            scores = new_held_out(compiled).scores()
            record = self._record(run, made, compiled, scores, seconds)
            if run.method == RANKING:
                record["ranking"] = ranked_orders(made.optimizer.report, new_held_out(made.program))
            return record

    def data(self, run: Run) -> dict[str, str]:
        """Digests of the examples that a run would have."""
        return digests(draw(run, self._experiment.protocol, *self._load(run.task)))

    def calls(self, run: Run) -> int:
        """Program calls that a run makes at most, those on the held-out examples included; none is made."""
        unused = dspy.LM("none/none", cache=False)  # a server would be started for nothing
        with self._prepared(run, unused) as made:
            estimate = made.optimizer.estimate(made.program, trainset=made.drawn.pool)
            orders = estimate.distinct_prompts if run.method == RANKING else 1
            return estimate.program_calls + orders * len(made.drawn.test)

    @contextmanager
    def _prepared(self, run: Run, lm: dspy.LM | None = None) -> Iterator[Prepared]:
        """What a run needs, with the prompt format of the experiment and a model, or its own one, in place."""
        experiment, task = self._experiment, TASKS[run.task]
        protocol = experiment.protocol
        train, test = self._load(run.task)
        program = task.program(protocol.format)
        drawn = draw(run, protocol, train, test)
        for predictor in program.predictors():
            predictor.demos = list(drawn.demos)
        folder = experiment.folder / "calls" / _file_name(run)
        optimizer = new_method(
            "PLR-1" if run.method == RANKING else run.method,
            task.metric(protocol.metric),
            num_train=protocol.num_train,
            num_selection=protocol.num_selection,
            prior=shares([example[task.output_field] for example in train]),
            common={
                "num_threads": experiment.num_threads,
                "seed": run.seed,
                "log_dir": folder,
                "display_progress": False,
            },
        )
        lm, adapter = lm or self._lm(task), task.adapter(protocol.format)
        with dspy.context(
            lm=lm, adapter=adapter, disable_history=True
        ):  # nobody looks at it, and it takes gigabytes
            yield Prepared(program, optimizer, drawn, folder)

    def _lm(self, task: Task) -> dspy.LM:
        prompts = self._experiment.protocol.format
        if self._make_lm is None:  # a worker that has nothing to do starts no server
            endpoint = self._experiment.endpoint
            self._make_lm = self._stack.enter_context(endpoint.open(format=prompts, **self._place))
        return self._make_lm(task.max_tokens(prompts))

    def _record(
        self, run: Run, made: Prepared, compiled: dspy.Module, scores: list[float], seconds: float
    ) -> dict[str, Any]:
        report, protocol = made.optimizer.report, self._experiment.protocol
        assert report is not None
        settings = self._experiment.settings()
        per_input = isinstance(compiled, PerInputOrder)
        return {
            "schema": SCHEMA_VERSION,
            "task": run.task,
            "num_demos": run.num_demos,
            "seed": run.seed,
            "method": run.method,
            "model": self._experiment.endpoint.model,
            "format": protocol.format,
            "settings": settings,
            "versions": {
                "plr_dspy": __version__,
                "dspy": dspy.__version__,
                "python": platform.python_version(),
            },
            "orderings": None if per_input else [slot.ordering for slot in report.slots],
            "accuracy": sum(scores) / len(scores),
            "scores": scores,
            "program_calls": report.program_calls,
            "tokens": _tokens(report),
            "seconds": round(seconds, 3),
            "data": digests(made.drawn),
        }


def digests(drawn: Draw) -> dict[str, str]:
    """Of what all methods and numbers of demos share."""
    return {"pool": digest(drawn.pool), "test": digest(drawn.test)}


def _tokens(report: Report) -> dict[str, int]:
    """Of all models together."""
    kinds = ("prompt", "completion")
    totals = {k: sum(counts.get(f"{k}_tokens", 0) for counts in report.tokens.values()) for k in kinds}
    return totals if any(totals.values()) else {}


def _file_name(run: Run) -> str:
    method = re.sub(r"[^A-Za-z0-9.]+", "-", run.method)
    return f"{run.task}/k{run.num_demos}/seed{run.seed}/{method}"
