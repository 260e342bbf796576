"""Demos that a teacher's right answers make, as by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.utils.hasher import Hasher

from plr_dspy.metrics.by_example import takes_trace
from plr_dspy.optimizer.job import Attempt, Job
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, WrongAnswer
from plr_dspy.programs.copies import ProgramFactory, language_models, named_predictors
from plr_dspy.programs.identity import digest
from plr_dspy.programs.splits import shown_by
from plr_dspy.report.data import ErrorCount
from plr_dspy.scoring.budget import COST_LIMIT, TIME_LIMIT, Budget
from plr_dspy.scoring.cells import Cell, error_counts
from plr_dspy.scoring.ledger import Ledger

logger = logging.getLogger(__name__)

WAYS_OUT = (
    " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or candidates='labeled', "
    "which needs none where the examples have the outputs; a larger max_errors allows more failures"
)
"""What can be done where too many of a teacher's calls fail."""


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [
        (("", each.example), Cell(None, "gave no demo", each.error, each.message))
        for each in attempts
        if each.error
    ]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})


class TeacherWork(MetricWork):
    """Runs the teacher of a job, or its student, on examples; cells hold the demos that right answers make.

    A teacher without demos that no optimizer has compiled is shown labelled examples, as by DSPy; DSPy's `trace` is
    passed to metrics that take three arguments. Teacher and student must be of the same structure.
    """

    def __init__(self, job: Job) -> None:
        optimizer: Any = job.optimizer
        super().__init__(optimizer.metric, list(job.part.values()))
        if takes_trace(optimizer.metric):
            self._metric = lambda example, prediction: optimizer.metric(
                example, prediction, dspy.settings.trace
            )
        self._threshold = optimizer.metric_threshold
        teacher = job.program if job.teacher is None else job.teacher
        needed = {name: each.signature for name, each in named_predictors(job.program)}
        names = [name for name, each in named_predictors(teacher)]
        alike = list(needed) == names and all(
            needed[name].equals(each.signature) for name, each in named_predictors(teacher)
        )
        if not alike:
            raise ValueError(
                "teacher must be a program like student, with the same predictors and signatures"
            )
        labelled, number = {}, min(optimizer.max_demos, len(job.part))
        without = not any(each.demos for _, each in named_predictors(teacher))
        if without and (job.teacher is None or not getattr(teacher, "_compiled", False)):
            rng = random.Random(0)  # as LabeledFewShot, which itself would take the program's model away
            labelled = {name: rng.sample(list(job.part.values()), number) for name in names}
        self.teacher = ProgramFactory(teacher).build(labelled)
        self.models += language_models(self.teacher)
        self._shown = {name: (each, list(each.demos)) for name, each in named_predictors(self.teacher)}

    def __call__(self, program: dspy.Module, example: int) -> Cell:
        """Run the teacher on an example, without its demos that show this example."""
        for predictor, shown in self._shown.values():
            predictor.demos = [demo for demo in shown if not shown_by([demo], [self._examples[example]])]
        try:
            with self._answering(example) as asked:
                prediction = self.teacher(**asked.inputs())
        except WrongAnswer as wrong:
            wrong.told = {"value": {}}
            raise
        trace = list(dspy.settings.trace)
        score = self._scored(asked, prediction).score or 0.0
        if score == 0 if self._threshold is None else score < self._threshold:
            return Cell(None, value={})
        made: dict[str, list[dspy.Example]] = defaultdict(list)
        for name, (predictor, _) in self._shown.items():
            for asking, inputs, outputs in trace:
                if asking is predictor:
                    made[name].append(dspy.Example(augmented=True, **inputs, **outputs))
        chosen = {name: _one_of(demos) for name, demos in made.items()}
        plain = {name: serialize_object(dict(demo.items())) for name, demo in chosen.items()}
        option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        # As they will be read from the ledger: as those of a saved program are.
        return Cell(None, value=orjson.loads(orjson.dumps(plain, option=option, default=str)))


def _one_of(demos: Sequence[dspy.Example]) -> dspy.Example:
    """Of a predictor that is asked several times for an answer, the last demo or an earlier one, drawn as by DSPy."""
    if len(demos) == 1:
        return demos[0]
    rng = random.Random(Hasher.hash(tuple(demos)))
    return rng.choice(demos[:-1]) if rng.random() < 0.5 else demos[-1]


def bootstrapped(
    job: Job, ledger: Ledger, budget: Budget, on_call: Callable[[], object], interrupted: threading.Event
) -> list[Attempt]:
    """Run the teacher of a job on one example after the other, until so many of its answers were right.

    What the ledger holds is not done again. When money or calls are up, the attempts made are all there will be; when
    the time is, that is a RuntimeError. Exceptions are let out as by `ProgramEvaluator.pay`.
    """
    optimizer: Any = job.optimizer
    work = TeacherWork(job)
    prompt = (
        f"bootstrapped by {digest([job.teacher, optimizer.metric_threshold, optimizer.max_demos, job.seed])}"
    )
    contents = list(map(digest, job.part.values()))
    ledger.number_examples(contents)
    evaluator = ProgramEvaluator(
        job.slots,
        work,
        names=[f"trainset[{number}]" for number in job.part],
        ledger=ledger,
        num_threads=1,
        max_errors=optimizer.max_errors,
        on_cell=on_call,
        budget=budget,
        interrupted=interrupted,
        ways_out=WAYS_OUT,
    )
    attempts: list[Attempt] = []
    for i, number in enumerate(list(job.part)[: len(job.attempts)]):
        if (found := sum(bool(each.demos) for each in attempts)) >= optimizer.max_bootstrapped:
            break
        if (prompt, i) not in ledger.cells:
            evaluator.pay({(prompt, i): None})
        if (prompt, i) not in ledger.cells:
            if budget.refused == TIME_LIMIT:
                raise RuntimeError(
                    f"max_seconds={budget.max_seconds:g} were over when {found} demos had been bootstrapped: raise it; "
                    "with log_dir, the next compile goes on from there"
                )
            what = "its share of max_cost" if budget.refused == COST_LIMIT else "max_metric_calls"
            logger.warning("bootstrapping ended with %s, after %d examples", what, len(attempts))
            break
        cell = ledger.cells[prompt, i]
        demos = {predictor: dspy.Example(**fields) for predictor, fields in (cell.value or {}).items()}
        attempts.append(Attempt(number, (prompt, contents[i]), demos, cell.error, cell.message))
    ledger.settle()
    if found := sum(bool(each.demos) for each in attempts):
        logger.info("bootstrapped demos from %d of %d examples", found, len(attempts))
    elif attempts:
        errors = attempt_errors(attempts)
        reasons = [f"{error.count} ended in {error.type} ({error.message})" for error in errors]
        if others := len(attempts) - sum(error.count for error in errors):
            reasons.append(f"{others} gave an answer that is not right")
        logger.warning(
            "no demo was bootstrapped: of %d calls of the teacher, %s. Only the other demos can be chosen, if there "
            "are any; another teacher may do better",
            len(attempts),
            ", ".join(reasons),
        )
    return attempts
