"""Demos that a teacher's right answers make, by DSPy's `BootstrapFewShot`, each with the example it came from."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.teleprompt import BootstrapFewShot, LabeledFewShot
from filelock import FileLock, Timeout

from plr_dspy.programs.calls import Metric, as_score, metric_caller
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.evaluator import token_counts
from plr_dspy.programs.validation import check_log_dir
from plr_dspy.runtime.jsonl import append_json_line, mend_end, read_json_lines
from plr_dspy.runtime.signals import Interrupts

logger = logging.getLogger(__name__)

FILE = "bootstrapped.jsonl"
"""In a log_dir: what the attempts belong to, then each of them."""


@dataclass(frozen=True)
class Attempt:
    """What a teacher made of an example.

    Attributes:
        example: Its number in the trainset.
        demos: By predictor; empty where the answer was not right.
        tokens: Billed tokens by model and kind.
    """

    example: int
    demos: dict[str, Any]
    tokens: dict[str, dict[str, int]]


class Bootstrapper:
    """Runs a teacher on examples, one after the other, until enough of its answers were right.

    Args:
        student: Whose predictors get the demos; it is not changed.
        teacher: None takes the student. A teacher without demos that no optimizer has compiled is shown labelled
            examples, as by DSPy.
        metric: As in `PLFewShot`; DSPy's `trace` is passed to metrics that take three arguments.
        threshold: Of the metric's value; None takes any value that is true.
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
            teaching = LabeledFewShot(k=num_labelled).compile(teaching, trainset=list(labelled))
        self._dspy = BootstrapFewShot(
            metric=_with_trace(metric),
            metric_threshold=threshold,
            max_labeled_demos=0,
            max_errors=max_errors,
        )
        self._dspy.trainset = []
        try:
            self._dspy._prepare_student_and_teacher(copied, teaching)
            self._dspy._prepare_predictor_mappings()
        except AssertionError as error:
            raise ValueError(f"teacher must be a program like student: {error}") from error

    def attempt(self, number: int, example: dspy.Example) -> Attempt:
        """Run the teacher on an example; a failed call makes no demo.

        Raises:
            Exception: of the program or the metric, when `max_errors` have failed.
        """
        self._dspy.name2traces = {name: [] for name in self._dspy.name2predictor}
        with dspy.track_usage() as usage:
            right = self._dspy._bootstrap_one_example(example)
        demos = {name: made[0] for name, made in self._dspy.name2traces.items() if made and right}
        return Attempt(number, demos, token_counts(usage.get_total_tokens()))


def bootstrapped(
    bootstrapper: Bootstrapper,
    examples: dict[int, dspy.Example],
    *,
    num_wanted: int,
    max_attempts: int,
    log_dir: Path | None,
    identity: str,
    accept_changes: bool,
    deadline: float | None,
) -> list[Attempt]:
    """Attempts at examples in their order, until so many have succeeded; what a log_dir holds is not done again.

    Args:
        bootstrapper: Makes them.
        examples: By their numbers.
        num_wanted: Successes.
        max_attempts: Program calls, at most.
        log_dir: Keeps the attempts; None keeps nothing.
        identity: Digest of what decides them.
        accept_changes: Go on from attempts of another identity.
        deadline: By `time.monotonic`, when no further attempt may begin.

    Raises:
        ValueError: when the log_dir belongs to another compile.
        RuntimeError: when another compile is using it.
        Exception: of the program or the metric.
    """
    if log_dir is None:
        with Interrupts():
            return _attempts(bootstrapper, examples, [], num_wanted, max_attempts, deadline, None)
    check_log_dir(log_dir)
    try:
        with FileLock(log_dir / "lock", timeout=0, thread_local=False), Interrupts():
            path = log_dir / FILE
            known = _read(path, identity, accept_changes=accept_changes)
            return _attempts(bootstrapper, examples, known, num_wanted, max_attempts, deadline, path)
    except Timeout:
        raise RuntimeError(
            f"log_dir {log_dir} is in use by another compile: wait for its end, or pass another log_dir"
        ) from None


def _attempts(
    bootstrapper: Bootstrapper,
    examples: dict[int, dspy.Example],
    known: list[Attempt],
    num_wanted: int,
    max_attempts: int,
    deadline: float | None,
    path: Path | None,
) -> list[Attempt]:
    done = {attempt.example: attempt for attempt in known}
    attempts: list[Attempt] = []
    for number, example in list(examples.items())[:max_attempts]:
        if sum(bool(attempt.demos) for attempt in attempts) >= num_wanted:
            break
        if number not in done:
            if deadline is not None and time.monotonic() >= deadline:
                break
            done[number] = bootstrapper.attempt(number, example)
            if path is not None:
                done[number] = _written(path, done[number])
        attempts.append(done[number])
    found = sum(bool(attempt.demos) for attempt in attempts)
    logger.info("bootstrapped demos from %d of %d examples", found, len(attempts))
    return attempts


def _written(path: Path, attempt: Attempt) -> Attempt:
    """Add an attempt to the file; return it as it will be read from there, as demos of a saved program are."""
    demos = {name: serialize_object(dict(demo.items())) for name, demo in attempt.demos.items()}
    record = {"example": attempt.example, "demos": demos, "tokens": attempt.tokens}
    line = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    append_json_line(path, line)
    return _attempt(orjson.loads(line))


def _attempt(record: dict[str, Any]) -> Attempt:
    demos = {name: dspy.Example(**fields) for name, fields in record["demos"].items()}
    return Attempt(int(record["example"]), demos, record["tokens"])


def _read(path: Path, identity: str, *, accept_changes: bool) -> list[Attempt]:
    """The attempts that a file holds; one is begun where there is none."""
    if not path.exists():
        append_json_line(path, orjson.dumps({"identity": identity}))
        return []
    mend_end(path)
    try:
        records = [value for _, value in read_json_lines(path)]
        same = records[0]["identity"] == identity
        attempts = [_attempt(record) for record in records[1:]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} cannot be read ({error}): pass another log_dir") from error
    if not (same or accept_changes):
        raise ValueError(
            f"log_dir {path.parent} belongs to another compile: what decides the bootstrapped demos changed (the "
            "program, the teacher, the metric, the trainset or an argument). Pass another log_dir"
        )
    return attempts


def _with_trace(metric: Metric) -> Callable[..., Any]:
    """The metric as DSPy calls it when it bootstraps."""
    try:
        inspect.signature(metric).bind(None, None, None)
        takes_trace = True
    except (TypeError, ValueError):
        takes_trace = False
    two = metric_caller(metric)

    def called(example: Any, prediction: Any, trace: Any = None) -> float:
        return as_score(metric(example, prediction, trace) if takes_trace else two(example, prediction))

    return called
