"""Demos that a teacher's right answers make, by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.teleprompt import BootstrapFewShot

from plr_dspy.programs.calls import (
    WRONG_ANSWERS,
    Metric,
    WrongAnswer,
    as_score,
    metric_caller,
    models_of,
    own_copy,
    takes_trace,
)
from plr_dspy.programs.copies import ProgramFactory, language_models, named_predictors
from plr_dspy.programs.evaluator import Failures, token_counts
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


@dataclass(frozen=True)
class Attempt:
    """What a teacher made of an example.

    Attributes:
        example: Its number in the trainset.
        key: Of its cell in the ledger.
        demos: By predictor; empty where the answer was not right.
        error, message: Class name and first line of the exception that it ended in; empty where it ended in none.
    """

    example: int
    key: tuple[str, str]
    demos: dict[str, Any]
    error: str = ""
    message: str = ""


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [
        (("", each.example), Cell(None, NO_DEMO, each.error, each.message)) for each in attempts if each.error
    ]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})


class Bootstrapper:
    """Runs a teacher on examples, one after the other, until enough of its answers were right.

    Args:
        student: Whose predictors get the demos; it is not changed.
        teacher: None takes the student. A teacher without demos that no optimizer has compiled is shown labelled
            examples, as by DSPy.
        metric: As in `PLFewShot`; DSPy's `trace` is passed to metrics that take three arguments.
        threshold: Least value of the metric that makes a demo; None takes any but 0.
        examples: By their numbers: what the teacher is run on, and what one without demos may be shown.
        num_labelled: How many of them it is shown.
        max_errors: As in `PLFewShot`.

    Attributes:
        failures: Of the attempts so far.

    Raises:
        ValueError: when teacher and student are not of the same structure.
    """

    def __init__(
        self,
        student: dspy.Module,
        teacher: dspy.Module | None,
        *,
        metric: Metric,
        threshold: float | None,
        examples: Mapping[int, dspy.Example],
        num_labelled: int,
        max_errors: int | None,
    ) -> None:
        copied = ProgramFactory(student).build({})
        copied._compiled = False  # DSPy refuses others
        teaching = copied if teacher is None else teacher
        bare = not any(predictor.demos for _, predictor in named_predictors(teaching))
        if bare and num_labelled and not getattr(teaching, "_compiled", False):
            teaching = _shown(teaching, list(examples.values()), num_labelled)
        self._judge, self._threshold = _with_trace(metric), threshold
        self.failures = Failures(
            {number: f"trainset[{number}]" for number in examples},
            ran=(),
            scored=False,
            max_errors=dspy.settings.max_errors if max_errors is None else max_errors,
            redact=Redactor([dspy.settings.lm, *language_models(teaching), *models_of(metric)]),
            ways_out=WAYS_OUT,
        )
        # With one error as its limit, DSPy lets each out, and counts none itself.
        self._dspy = BootstrapFewShot(metric=self._accepts, max_labeled_demos=0, max_errors=1)
        self._dspy.trainset = []
        try:
            self._dspy._prepare_student_and_teacher(copied, teaching)
            self._dspy._prepare_predictor_mappings()
        except AssertionError as error:
            raise ValueError(f"teacher must be a program like student: {error}") from error
        self._shown = [(predictor, list(predictor.demos)) for predictor in self._dspy.teacher.predictors()]

    def attempt(self, number: int, example: dspy.Example) -> tuple[Cell, dict[str, dict[str, int]]]:
        """Run the teacher on an example, without its demos that show this example.

        A call that fails makes no demo, nor does one whose reply cannot be read.

        Returns:
            A cell whose value is the demos by predictor, and the tokens of the call.
        """
        # DSPy leaves out demos that equal the example, not saved or bootstrapped ones, and puts none back on a failure.
        for predictor, shown in self._shown:
            predictor.demos = [demo for demo in shown if not shown_by([demo], [example])]
        self._dspy.name2traces = {name: [] for name in self._dspy.name2predictor}
        self._has_answered = right = False
        error: Exception | None = None
        with dspy.track_usage() as usage:
            try:
                right = self._dspy._bootstrap_one_example(own_copy(example))
            except Exception as raised:  # of the user's teacher or metric
                error = raised
        tokens = token_counts(usage.get_total_tokens())
        if error is None:
            self.failures.note_answer(number, scored=True)
            demos = {n: made[0] for n, made in self._dspy.name2traces.items() if made and right}
            return Cell(None, value=_as_json(demos)), tokens
        wrong = isinstance(error, WRONG_ANSWERS) and not self._has_answered
        message = self.failures.first_line(WrongAnswer(error) if wrong else error)
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
    bootstrapper: Bootstrapper,
    examples: Mapping[int, dspy.Example],
    keys: Mapping[int, tuple[str, str]],
    *,
    num_wanted: int,
    max_attempts: int,
    ledger: Ledger,
    budget: Budget,
    on_call: Callable[[], None],
) -> list[Attempt]:
    """Attempts at examples in their order, until so many have succeeded.

    Args:
        bootstrapper: Makes them.
        examples: By their numbers.
        keys: Of the cells by the numbers of the examples.
        num_wanted: Successes.
        max_attempts: Program calls, at most.
        ledger: Keeps them; what it holds is not done again.
        budget: Pays for them. When they end for want of money or calls, those made are all there will be.
        on_call: Called after each call.

    Raises:
        RuntimeError: when the time is up before the end.
        Exception: of the program or the metric, when `max_errors` have failed, or every further call would.
    """
    attempts: list[Attempt] = []
    for number, example in list(examples.items())[:max_attempts]:
        if (found := _successes(attempts)) >= num_wanted:
            break
        key = keys[number]
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
                cell, tokens = bootstrapper.attempt(number, example)
            except BaseException:
                budget.cancel()
                raise
            budget.end(tokens)
            ledger.add_earlier(key, cell, tokens)
            on_call()
            if bootstrapper.failures.fatal is not None:
                ledger.retry()
                raise bootstrapper.failures.fatal
        cell = ledger.earlier[key]
        demos = {name: dspy.Example(**fields) for name, fields in cell.value.items()}
        attempts.append(Attempt(number, key, demos, cell.error, cell.message))
    ledger.settle()
    _say_what_came(attempts)
    return attempts


def _as_json(demos: Mapping[str, Any]) -> Any:
    """Demos as they will be read from the ledger: as those of a saved program are."""
    plain = {name: serialize_object(dict(demo.items())) for name, demo in demos.items()}
    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return orjson.loads(orjson.dumps(plain, option=option, default=str))


def _shown(program: dspy.Module, labelled: Sequence[dspy.Example], most: int) -> dspy.Module:
    """Return a copy that shows labelled examples, drawn as by `LabeledFewShot`."""
    # LabeledFewShot itself would take the program's model away, and be logged by trackers of DSPy's optimizers.
    rng = random.Random(0)
    drawn = {n: rng.sample(list(labelled), min(most, len(labelled))) for n, _ in named_predictors(program)}
    return ProgramFactory(program).build(drawn)


def _with_trace(metric: Metric) -> Callable[[Any, Any, Any], Any]:
    """Return the metric as a function of an example, a prediction and a trace, which not every metric takes."""
    if takes_trace(metric):
        return metric
    two = metric_caller(metric)
    return lambda example, prediction, _: two(example, prediction)


def _say_what_came(attempts: Sequence[Attempt]) -> None:
    """Log how many attempts made demos, as a warning where none did."""
    if found := _successes(attempts):
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


def _successes(attempts: Sequence[Attempt]) -> int:
    """Count the attempts that made demos."""
    return sum(bool(attempt.demos) for attempt in attempts)
