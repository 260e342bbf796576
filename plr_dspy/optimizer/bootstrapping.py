"""Demos that a teacher's right answers make, by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import dspy
from dspy.teleprompt import BootstrapFewShot

from plr_dspy.optimizer.attempts import Attempt, KeptAttempts
from plr_dspy.programs.calls import Metric, as_score, metric_caller, own_copy, takes_trace
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.evaluator import token_counts
from plr_dspy.programs.failures import GOING_ON
from plr_dspy.programs.splits import shown_by
from plr_dspy.scoring.purse import Purse

logger = logging.getLogger(__name__)


class Bootstrapper:
    """Runs a teacher on examples, one after the other, until enough of its answers were right.

    Args:
        student: Whose predictors get the demos; it is not changed.
        teacher: None takes the student. A teacher without demos that no optimizer has compiled is shown labelled
            examples, as by DSPy.
        metric: As in `PLFewShot`; DSPy's `trace` is passed to metrics that take three arguments.
        threshold: Least value of the metric that makes a demo; None takes any but 0.
        labelled: Examples that a teacher without demos may be shown.
        num_labelled: How many of them.
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
        labelled: Sequence[dspy.Example],
        num_labelled: int,
        max_errors: int | None,
    ) -> None:
        copied = ProgramFactory(student).build({})
        copied._compiled = False  # DSPy refuses others
        teaching = copied if teacher is None else teacher
        bare = not any(predictor.demos for _, predictor in named_predictors(teaching))
        if bare and num_labelled and not getattr(teaching, "_compiled", False):
            teaching = _shown(teaching, labelled, num_labelled)
        self._dspy = BootstrapFewShot(
            metric=_accepting(metric, threshold),
            max_labeled_demos=0,
            max_errors=max_errors,
        )
        self._dspy.trainset = []
        try:
            self._dspy._prepare_student_and_teacher(copied, teaching)
            self._dspy._prepare_predictor_mappings()
        except AssertionError as error:
            raise ValueError(f"teacher must be a program like student: {error}") from error
        self._shown = [(predictor, list(predictor.demos)) for predictor in self._dspy.teacher.predictors()]

    def attempt(self, number: int, example: dspy.Example) -> Attempt:
        """Run the teacher on an example, without its demos that show this example; a failed call makes no demo.

        Raises:
            Exception: of the program or the metric, when `max_errors` have failed.
        """
        # DSPy leaves out demos that equal the example, not saved or bootstrapped ones, and puts none back on a failure.
        for predictor, shown in self._shown:
            predictor.demos = [demo for demo in shown if not shown_by([demo], [example])]
        self._dspy.name2traces = {name: [] for name in self._dspy.name2predictor}
        with dspy.track_usage() as usage:
            right = self._dspy._bootstrap_one_example(own_copy(example))
        demos = {name: made[0] for name, made in self._dspy.name2traces.items() if made and right}
        return Attempt(number, demos, token_counts(usage.get_total_tokens()))


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
            except BaseException as error:
                purse.give_back()
                if isinstance(error, Exception) and hasattr(error, "add_note"):
                    error.add_note(
                        f"plr_dspy ended the compile at trainset[{number}], of which the teacher was to make a demo. "
                        f"{GOING_ON}"
                    )
                raise
            purse.note(attempt.tokens)
            kept.add(attempt)
        else:
            kept.end()
            break
        attempts.append(kept.done[number])
    logger.info("bootstrapped demos from %d of %d examples", _successes(attempts), len(attempts))
    return attempts


def _shown(program: dspy.Module, labelled: Sequence[dspy.Example], most: int) -> dspy.Module:
    """Return a copy that shows labelled examples, drawn as by `LabeledFewShot`."""
    # LabeledFewShot itself would take the program's model away, and be logged by trackers of DSPy's optimizers.
    rng = random.Random(0)
    drawn = {n: rng.sample(list(labelled), min(most, len(labelled))) for n, _ in named_predictors(program)}
    return ProgramFactory(program).build(drawn)


def _successes(attempts: Sequence[Attempt]) -> int:
    """Count the attempts that made demos."""
    return sum(bool(attempt.demos) for attempt in attempts)


def _accepting(metric: Metric, threshold: float | None) -> Callable[..., bool]:
    """Return the metric as DSPy calls it when it bootstraps: it says whether an answer makes a demo."""
    traced, two = takes_trace(metric), metric_caller(metric)

    def accepts(example: Any, prediction: Any, trace: Any = None) -> bool:
        score = as_score(metric(example, prediction, trace) if traced else two(example, prediction))
        return score != 0 if threshold is None else score >= threshold

    return accepts
