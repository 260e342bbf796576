"""Demos that a teacher's right answers make, by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.teleprompt import BootstrapFewShot

from plr_dspy.optimizer.job import Attempt, Job
from plr_dspy.programs.calls import (
    WRONG_ANSWERS,
    WrongAnswer,
    as_score,
    metric_caller,
    models_of,
    own_copy,
    takes_trace,
)
from plr_dspy.programs.copies import ProgramFactory, language_models, named_predictors
from plr_dspy.programs.evaluator import Failures, token_counts
from plr_dspy.programs.identity import digest
from plr_dspy.programs.splits import shown_by
from plr_dspy.report.data import ErrorCount
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.budget import COST_LIMIT, TIME_LIMIT, Budget
from plr_dspy.scoring.cells import FAILED, Cell, error_counts
from plr_dspy.scoring.ledger import Ledger

logger = logging.getLogger(__name__)

WAYS_OUT = (
    " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or candidates='labeled', "
    "which needs none where the examples have the outputs; a larger max_errors allows more failures"
)
"""What can be done where too many of a teacher's calls fail."""

NO_DEMO = "gave no demo"
"""Outcome of an attempt that ended without an answer, or failed."""


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [
        (("", each.example), Cell(None, NO_DEMO, each.error, each.message)) for each in attempts if each.error
    ]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})


class Teacher:
    """Runs the teacher of a job, or its student, on examples; what is right makes demos.

    A teacher without demos that no optimizer has compiled is shown labelled examples, as by DSPy; DSPy's `trace` is
    passed to metrics that take three arguments. Teacher and student must be of the same structure.
    """

    def __init__(self, job: Job) -> None:
        optimizer: Any = job.optimizer
        copied = ProgramFactory(job.program).build({})
        copied._compiled = False  # DSPy refuses others
        teacher = copied if job.teacher is None else job.teacher
        names = [name for name, predictor in named_predictors(teacher) if not predictor.demos]
        if len(names) == len(named_predictors(teacher)) and not getattr(teacher, "_compiled", False):
            # Drawn as by LabeledFewShot, which itself would take the program's model away, and be logged by trackers.
            rng, labelled = random.Random(0), list(job.part.values())
            number = min(optimizer.max_demos, len(labelled))
            teacher = ProgramFactory(teacher).build({name: rng.sample(labelled, number) for name in names})
        metric = optimizer.metric
        two = metric_caller(metric)
        self._judge = (
            metric if takes_trace(metric) else lambda example, prediction, _: two(example, prediction)
        )
        self._threshold = optimizer.metric_threshold
        self.failures = Failures(
            {number: f"trainset[{number}]" for number in job.part},
            ran=(),
            scored=False,
            max_errors=optimizer.max_errors,
            redact=Redactor([dspy.settings.lm, *language_models(teacher), *models_of(metric)]),
            ways_out=WAYS_OUT,
        )
        # With one error as its limit, DSPy lets each out, and counts none itself.
        self._dspy = BootstrapFewShot(metric=self._accepts, max_labeled_demos=0, max_errors=1)
        self._dspy.trainset = []
        try:
            self._dspy._prepare_student_and_teacher(copied, teacher)
            self._dspy._prepare_predictor_mappings()
        except AssertionError as error:
            raise ValueError(f"teacher must be a program like student: {error}") from error
        self._shown = [(predictor, list(predictor.demos)) for predictor in self._dspy.teacher.predictors()]

    def attempt(self, number: int, example: dspy.Example) -> tuple[Cell, dict[str, dict[str, int]]]:
        """Run the teacher on an example, without its demos that show this example; return the cell and its tokens.

        The cell's value is the demos by predictor: none of a call that fails, or whose reply cannot be read.
        """
        # DSPy leaves out demos that equal the example, not saved or bootstrapped ones, and puts none back on a failure.
        for predictor, shown in self._shown:
            predictor.demos = [demo for demo in shown if not shown_by([demo], [example])]
        self._dspy.name2traces = {name: [] for name in self._dspy.name2predictor}
        self._has_answered = right = False
        error: BaseException | None = None
        with dspy.track_usage() as usage:
            try:
                right = self._dspy._bootstrap_one_example(own_copy(example))
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # of the user's teacher or metric, such as of sys.exit
                error = raised
        tokens = token_counts(usage.get_total_tokens())
        if error is None:
            self.failures.note_answer(number, scored=True)
            demos = {n: made[0] for n, made in self._dspy.name2traces.items() if made and right}
            plain = {name: serialize_object(dict(demo.items())) for name, demo in demos.items()}
            option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
            # As they will be read from the ledger: as those of a saved program are.
            return Cell(None, value=orjson.loads(orjson.dumps(plain, option=option, default=str))), tokens
        wrong = isinstance(error, WRONG_ANSWERS) and not self._has_answered
        message = self.failures.first_line(WrongAnswer(error) if wrong else error)  # type: ignore[arg-type]
        if wrong:
            self.failures.note_answer(number, scored=False)
        else:
            self.failures.note(error, number)
        return Cell(None, NO_DEMO if wrong else FAILED, type(error).__name__, message, {}), tokens

    def _accepts(self, example: Any, prediction: Any, trace: Any = None) -> bool:
        """Whether an answer makes a demo, as DSPy asks it of a metric."""
        self._has_answered = True
        score = as_score(self._judge(example, prediction, trace))
        return score != 0 if self._threshold is None else score >= self._threshold


def bootstrapped(
    job: Job,
    ledger: Ledger,
    budget: Budget,
    on_call: Callable[[], None],
    interrupted: threading.Event,
) -> list[Attempt]:
    """Run the teacher of a job on one example after the other, until so many of its answers were right.

    What the ledger holds is not done again. When money or calls are up, the attempts made are all there will be.

    Raises:
        RuntimeError: when the time is up before the end.
        Exception: of the program or the metric, when `max_errors` have failed, or every further call would.
    """
    optimizer: Any = job.optimizer
    teacher = Teacher(job)
    name = digest([job.teacher, optimizer.metric_threshold, optimizer.max_demos, job.seed])
    attempts: list[Attempt] = []
    for number, example in list(job.part.items())[: len(job.attempts)]:
        if (found := sum(bool(each.demos) for each in attempts)) >= optimizer.max_bootstrapped:
            break
        key = f"bootstrapped by {name}", digest(example)
        if key not in ledger.earlier:
            if not budget.begin():
                if budget.refused != TIME_LIMIT:
                    what = "its share of max_cost" if budget.refused == COST_LIMIT else "max_metric_calls"
                    logger.warning("bootstrapping ended with %s, after %d examples", what, len(attempts))
                    break
                raise RuntimeError(
                    f"max_seconds={budget.max_seconds:g} were over when {found} demos had been bootstrapped: raise it; "
                    "with log_dir, the next compile goes on from there"
                )
            try:
                cell, tokens = teacher.attempt(number, example)
                if interrupted.is_set():  # and swallowed by the program, whose answer is then worth nothing
                    raise KeyboardInterrupt
            except BaseException:
                budget.cancel()
                raise
            budget.end(tokens)
            ledger.add_earlier(key, cell, tokens)
            on_call()
            if teacher.failures.fatal is not None:
                ledger.retry()
                raise teacher.failures.fatal
        cell = ledger.earlier[key]
        demos = {predictor: dspy.Example(**fields) for predictor, fields in cell.value.items()}
        attempts.append(Attempt(number, key, demos, cell.error, cell.message))
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
