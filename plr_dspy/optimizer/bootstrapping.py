"""Demos that a teacher's right answers make, by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.teleprompt import BootstrapFewShot

from plr_dspy.optimizer.attempts import Attempt, KeptAttempts, attempt_errors
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
from plr_dspy.programs.evaluator import token_counts
from plr_dspy.programs.failures import Failures
from plr_dspy.programs.splits import shown_by
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.purse import Purse

logger = logging.getLogger(__name__)

WAYS_OUT = (
    " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or candidates='labeled', "
    "which needs none where the examples have the outputs; a larger max_errors allows more failures"
)
"""What can be done where too many of a teacher's calls fail."""


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
        self._failures = Failures(
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

    def attempt(self, number: int, example: dspy.Example) -> Attempt:
        """Run the teacher on an example, without its demos that show this example.

        A call that fails makes no demo, nor does one whose reply cannot be read.

        Raises:
            Exception: of the program or the metric, when `max_errors` have failed, or every further call would.
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
        if error is not None:
            return Attempt(number, {}, tokens, type(error).__name__, self._note(error, number))
        self._failures.note_answer(number, scored=True)
        demos = {name: made[0] for name, made in self._dspy.name2traces.items() if made and right}
        return Attempt(number, demos, tokens)

    def _note(self, error: Exception, number: int) -> str:
        """Note that a call ended in an error, and return the first line of the error's message.

        Raises:
            Exception: when this ends the compile.
        """
        if isinstance(error, WRONG_ANSWERS) and not self._has_answered:
            self._failures.note_answer(number, scored=False)
            return self._failures.first_line(WrongAnswer(error))
        self._failures.note(error, number)
        if self._failures.fatal is not None:
            raise self._failures.fatal
        return self._failures.first_line(error)

    def _accepts(self, example: Any, prediction: Any, trace: Any = None) -> bool:
        """Whether an answer makes a demo, as DSPy asks it of a metric."""
        self._has_answered = True
        score = as_score(self._judge(example, prediction, trace))
        return score != 0 if self._threshold is None else score >= self._threshold


def bootstrapped(
    bootstrapper: Bootstrapper,
    examples: dict[int, dspy.Example],
    kept: KeptAttempts,
    *,
    num_wanted: int,
    max_attempts: int,
    max_seconds: float | None,
    purse: Purse,
) -> list[Attempt]:
    """Attempts at examples in their order, until so many have succeeded.

    Args:
        bootstrapper: Makes them.
        examples: By their numbers.
        kept: Keeps them; what it holds is not done again.
        num_wanted: Successes.
        max_attempts: Program calls, at most.
        max_seconds: After which no further attempt may begin.
        purse: Pays for the attempts. When they end for want of money, a later compile begins no other.

    Raises:
        RuntimeError: when the time is up before the end.
        Exception: of the program or the metric.
    """
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    attempts: list[Attempt] = []
    for number, example in list(examples.items())[:max_attempts]:
        if (found := _successes(attempts)) >= num_wanted:
            break
        if number in kept.done:
            purse.add(kept.done[number].tokens)
        elif kept.ended:
            break
        elif time.monotonic() >= deadline:
            raise RuntimeError(
                f"max_seconds={max_seconds:g} were over when {found} demos had been bootstrapped: raise it; with "
                "log_dir, the next compile goes on from there"
            )
        elif purse.begin():
            try:
                attempt = bootstrapper.attempt(number, example)
            except BaseException:
                purse.give_back()
                raise
            purse.note(attempt.tokens)
            kept.add(attempt)
        else:
            kept.end()
            break
        attempts.append(kept.done[number])
    _say_what_came(attempts)
    return attempts


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
