"""Makes one run of an experiment: draws, orders, and scores on the held-out examples."""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.baselines.per_input import PerInputOrder
from plr_dspy.experiments.names import RANKING
from plr_dspy.experiments.runs.held_out import HeldOut, ranked_orders
from plr_dspy.experiments.runs.methods import new_method, shares
from plr_dspy.experiments.runs.protocol import Draw, Protocol, draw
from plr_dspy.experiments.runs.results import Result, Run
from plr_dspy.experiments.runs.served_model import MakeLM, ServedModel
from plr_dspy.experiments.tasks.loading import load
from plr_dspy.experiments.tasks.tasks import TASKS, Task
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.programs.digest.description import digest
from plr_dspy.report.report import Report

VERSIONS = {"plr_dspy": __version__, "dspy": dspy.__version__, "python": platform.python_version()}
"""What a result says that it was made with."""


@dataclass(frozen=True)
class Experiment:
    """Everything that a worker must know, as plain data.

    Attributes:
        protocol: What all runs have in common.
        served_model: The language model.
        folder: Folder that keeps the results and the calls of each run, so that one that was killed goes on.
        data_dir: Folder with the tasks' files; None takes the Hugging Face hub.
        num_threads: Calls under way at once, in each worker.
    """

    protocol: Protocol
    served_model: ServedModel
    folder: Path
    data_dir: Path | None = None
    num_threads: int = 2

    def settings(self) -> dict[str, Any]:
        """What decides the results, as plain data."""
        return {**asdict(self.protocol), **self.served_model.settings()}


class Worker:
    """Makes runs, one after another, as a context that keeps the model open.

    Args:
        experiment: The experiment that the runs belong to.
        number: Number of this worker, from 0.
        num_workers: Number of workers; those on one machine share its cores.
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

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, run: Run) -> Result:
        """Make one run.

        Raises:
            Exception: of the program or the model; what was paid for is kept in the experiment's folder.
        """
        protocol, served_model = self._experiment.protocol, self._experiment.served_model
        with self._prepared(run) as (program, optimizer, drawn):
            started = time.monotonic()
            compiled = optimizer.compile(program, trainset=drawn.pool)
            seconds = time.monotonic() - started
            report = optimizer.report
            assert report is not None
            new_held_out = functools.partial(
                HeldOut,
                metric=optimizer.metric,
                examples=drawn.test,
                folder=self._folder(run),
                num_threads=self._experiment.num_threads,
            )
            scores = new_held_out(compiled).scores()
            per_input = isinstance(compiled, PerInputOrder)
            return Result(
                **run._asdict(),
                model=served_model.model,
                format=protocol.format,
                settings=self._experiment.settings(),
                versions=VERSIONS,
                orderings=None if per_input else tuple(tuple(slot.ordering) for slot in report.slots),
                accuracy=sum(scores) / len(scores),
                scores=tuple(scores),
                program_calls=dict(report.program_calls),
                tokens=total_tokens(report),
                seconds=round(seconds, 3),
                schema=1,
                ranking=ranked_orders(report, new_held_out(program)) if run.method == RANKING else None,
                data=digests(drawn),
            )

    def data(self, run: Run) -> dict[str, str]:
        """Digests of the examples that a run would have."""
        return digests(draw(run, self._experiment.protocol, *self._load(run.task)))

    def calls(self, run: Run) -> int:
        """Program calls that a run makes at most, those on the held-out examples included; none is made."""
        unused = dspy.LM("none/none", cache=False)  # a server would be started for nothing
        with self._prepared(run, unused) as (program, optimizer, drawn):
            estimate = optimizer.estimate(program, trainset=drawn.pool)
            orders = estimate.distinct_prompts if run.method == RANKING else 1
            return estimate.program_calls + orders * len(drawn.test)

    def _folder(self, run: Run) -> Path:
        """Folder that keeps the calls of a run."""
        method = re.sub(r"[^A-Za-z0-9.]+", "-", run.method)
        place = f"{run.task}/k{run.num_demos}/seed{run.seed}/{method}"
        return self._experiment.folder / "calls" / place

    @contextmanager
    def _prepared(self, run: Run, lm: dspy.LM | None = None) -> Iterator[tuple[dspy.Module, Reorderer, Draw]]:
        """Yield the program in the order drawn, the optimizer, and the examples of a run.

        The experiment's prompt format and its model (or another LM) are in place while this context lasts.
        """
        experiment, protocol, task = self._experiment, self._experiment.protocol, TASKS[run.task]
        train, test = self._load(run.task)
        program, drawn = task.program(protocol.format), draw(run, protocol, train, test)
        for predictor in program.predictors():
            predictor.demos = list(drawn.demos)
        optimizer = new_method(
            "PLR-1" if run.method == RANKING else run.method,
            task.metric(protocol.metric),
            num_train=protocol.num_train,
            num_selection=protocol.num_selection,
            prior=shares([example[task.output_field] for example in train]),
            common={
                "num_threads": experiment.num_threads,
                "seed": run.seed,
                "log_dir": self._folder(run),
                "display_progress": False,
            },
        )
        # Nobody looks at DSPy's history of calls, and over a run it takes gigabytes.
        with dspy.context(
            lm=lm or self._lm(task), adapter=task.adapter(protocol.format), disable_history=True
        ):
            yield program, optimizer, drawn

    def _lm(self, task: Task) -> dspy.LM:
        """Make the LM of a task; the model is opened for the first one, as a worker may have nothing to do."""
        prompt_format = self._experiment.protocol.format
        if self._make_lm is None:
            opened = self._experiment.served_model.open(format=prompt_format, **self._place)
            self._make_lm = self._stack.enter_context(opened)
        return self._make_lm(task.max_tokens(prompt_format))


def digests(drawn: Draw) -> dict[str, str]:
    """Digests of the examples that all methods and numbers of demos share."""
    return {"pool": digest(drawn.pool), "test": digest(drawn.test)}


def total_tokens(report: Report) -> dict[str, int]:
    """Prompt and completion tokens of all models together; empty where none are known."""
    kinds = ("prompt", "completion")
    totals = {k: sum(counts.get(f"{k}_tokens", 0) for counts in report.tokens.values()) for k in kinds}
    return totals if any(totals.values()) else {}
