"""A program's headroom: how much each lever, such as other demos, can improve the program's score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import dspy
import numpy as np
from pydantic import Field

from plr_dspy.compiling.futility import ENOUGH_ANSWERS, ENOUGH_PAIRS, ENOUGH_SCORES, FutilityCheck
from plr_dspy.compiling.paper import random_plan
from plr_dspy.data.examples import Rows
from plr_dspy.errors import UserError
from plr_dspy.labels.work import LabelWork
from plr_dspy.metrics.by_example import Metric
from plr_dspy.optimizer.base import DemoOptimizer
from plr_dspy.optimizer.estimate import Estimate, estimate_cost
from plr_dspy.optimizer.expected_scores import num_unread
from plr_dspy.optimizer.fewshot import PLFewShot
from plr_dspy.optimizer.learning import label_work
from plr_dspy.optimizer.lever_programs import Groups, programs_of_levers
from plr_dspy.optimizer.levers import (
    CALIBRATED,
    CALIBRATED_RANDOM,
    ORDERS,
    PROGRAM,
    RANDOM,
    Change,
    Headroom,
    Lever,
    advice_without_difference,
    best_advice,
    changes_of,
    lever_gains,
)
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.calls import MetricWork, adapter_advice
from plr_dspy.programs.checks import Count, arguments
from plr_dspy.scoring.confusion_scores import Answers, ConfusionScores
from plr_dspy.scoring.run_log import FAILED, CallRecord
from plr_dspy.search.space import Candidate, WholeProgram
from plr_dspy.statistics.arrays import Array, Mask
from plr_dspy.statistics.calibration import cross_validated, likely_shares, right_counts
from plr_dspy.statistics.levers import Gain, PairedExperiment

NUM_SETS = 4  # number of random sets of demos to score; a larger budget allows more
NUM_ORDERS = 3  # number of random orders of one set to score; a larger budget allows more
MIN_EXAMPLES = 10  # minimum number of examples; with fewer, most differences are due to chance
MIN_READ_EXAMPLES = 5  # minimum number of examples before an error about unparsable replies
TIMES_AS_MANY = 4  # factor by which the number of examples must grow to halve intervals


@arguments
class LeverSample(PLFewShot):
    """The optimizer that `headroom` uses to score the programs of all levers on the same examples."""

    name = "headroom"
    student_name = "program"

    max_metric_calls: Count = 300  # type: ignore[assignment]
    demos: Literal["auto"] = "auto"
    candidates: Literal["labeled"] = "labeled"
    instructions: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None

    def check(self, program: dspy.Module, trainset: Sequence[dspy.Example]) -> None:
        if self.instructions and len(program.predictors()) != 1:
            raise UserError(
                "program must have exactly one predictor if the argument instructions is passed; got "
                f"{len(program.predictors())} predictors: omit the argument instructions"
            )

    def work(self, setup: CompileSetup) -> MetricWork:
        work = label_work(setup, False)
        return work if isinstance(work, LabelWork) else DemoOptimizer.work(self, setup)

    def _with_plan(self, setup: CompileSetup, signal: str = "score") -> CompileSetup:
        return setup  # The plan depends on the programs to score, so `_designed` makes it later.

    def _designed(self, setup: CompileSetup) -> tuple[CompileSetup, Groups]:
        """Return the setup with a plan, and the programs to score for each lever.

        The budget determines how many random sets and orders of demos are scored.
        """
        num_usable = len(setup.scored_examples)
        if num_usable < MIN_EXAMPLES:
            raise UserError(
                f"trainset must contain at least {MIN_EXAMPLES} examples that are not used as demos; got "
                f"{num_usable} such examples among {len(setup.examples)}: pass more examples, ideally 100"
            )
        groups = programs_of_levers(setup, NUM_SETS, NUM_ORDERS)
        num_candidates = len(_candidates(groups))
        max_calls = self.max_metric_calls
        if max_calls < num_candidates * MIN_EXAMPLES:
            raise UserError(
                f"max_metric_calls must be at least {num_candidates * MIN_EXAMPLES} for {num_candidates} programs on "
                f"{MIN_EXAMPLES} examples; got {max_calls}: increase max_metric_calls"
            )
        num_examples = min(max_calls // num_candidates, num_usable)
        num_more = max_calls // num_examples - num_candidates
        groups = programs_of_levers(setup, NUM_SETS + num_more - num_more // 2, NUM_ORDERS + num_more // 2)
        num_candidates = len(_candidates(groups))
        plan = random_plan(
            num_candidates, num_examples=num_examples, num_best=0, num_compared=0, budget=max_calls
        )
        return setup.with_plan(plan), groups

    def estimate_measure(
        self, program: dspy.Module, trainset: Rows, inputs: Sequence[str] | None
    ) -> Estimate:
        """Return the estimated cost of calling `measure` with these arguments."""
        setup, groups = self._designed(self._prepare(program, trainset, [], inputs=inputs))
        self._check_before_calls(setup)
        sample = _sample(setup, DemoOptimizer.work(self, setup).confusion_scores)
        calls_of = dict.fromkeys(_candidates(groups), (0, len(sample)))
        return estimate_cost(setup, calls_of, [setup.scored_examples[number] for number in sample])

    def measure(self, program: dspy.Module, trainset: Rows, inputs: Sequence[str] | None) -> Headroom:
        """Score the program and its changed versions, and return each lever's estimated gain."""
        setup, groups = self._designed(self._prepare(program, trainset, [], inputs=inputs))
        candidates = _candidates(groups)
        rows = {
            name: [candidates.index(candidate) for candidate in group] for name, group in groups.items()
        }
        with self._open(setup) as open_compile:
            scored = _score_levers(open_compile, candidates, rows)
            metric = open_compile.evaluator.confusion_scores
            evaluator = open_compile.evaluator
            unread = [num_unread(evaluator, candidate, calibrated=False) for candidate in candidates]
            failed = []
            for candidate in candidates:
                failed.append(int(_has_failed(evaluator.records_of(candidate), scored.examples).sum()))
            program_calls = open_compile.evaluator.num_calls()
        experiment = PairedExperiment(
            scored.table, bounds=metric.bounds if metric else None, seed=self.seed
        )
        changes = changes_of(scored.rows, _num_orders(groups))
        gains = lever_gains(experiment, changes)
        num_examples = len(scored.examples)
        if scored.no_difference:
            advice = advice_without_difference(scored.no_difference)
        else:
            how_to_narrow = _how_to_narrow_intervals(setup, len(candidates), num_examples)
            advice = best_advice(changes, gains, num_examples=num_examples, how_to_narrow=how_to_narrow)
        noise_shares = {
            name: gain.noise_share for name, gain in gains.items() if gain.noise_share is not None
        }
        return Headroom(
            score=float(experiment.means[0]),
            levers=[_lever(change, gains[change.name], experiment, unread, failed) for change in changes],
            noise_shares=noise_shares,
            num_examples=num_examples,
            program_calls=program_calls,
            advice=advice,
            interval=experiment.own_interval,
            num_unread=unread[0],
            num_failed=failed[0],
            no_difference=scored.no_difference,
        )


def _lever(
    change: Change, gain: Gain, experiment: PairedExperiment, unread: Sequence[int], failed: Sequence[int]
) -> Lever:
    """Return the lever for a change.

    `unread` and `failed` contain each candidate's number of unparsable replies or failed calls.
    """
    return Lever(
        change.name,
        float(experiment.means[0]) + gain.value,
        gain.value,
        gain.interval,
        num_calls=len(change.rows) * experiment.num_examples,
        note=change.how,
        mean_score=float(experiment.means[change.rows].mean()),
        # The rows of calibrated answers, at the end of the table, have no calls of their own.
        num_unread=sum(unread[row] for row in change.rows if row < len(unread)),
        num_failed=sum(failed[row] for row in change.rows if row < len(failed)),
    )


def _candidates(groups: Groups) -> list[Candidate]:
    """Return the distinct programs of all groups, starting with the user's program."""
    return list(dict.fromkeys(itertools.chain.from_iterable(groups.values())))


def _num_orders(groups: Groups) -> int:
    """Return how many orders are possible for the demos that the lever "other orders" reorders."""
    ordering = groups.get(ORDERS, [()])[0]
    assert not isinstance(ordering, WholeProgram)
    # The instruction's block has a single item, so its factor is 1.
    return math.prod(math.factorial(len(items)) for items in ordering)


@dataclass(frozen=True)
class LeverScores:
    """The scores of all programs on the same examples.

    Attributes:
        examples: Indices of the examples.
        table: The scores, with a row for each program and a column for each example. The last
            rows contain the scores of calibrated answers.
        rows: The indices of each lever's rows in `table`, keyed by lever.
        no_difference: Why all gains are 0, as a clause. Empty if scores may differ.
    """

    examples: list[int]
    table: Array
    rows: dict[str, list[int]]
    no_difference: str = ""


def _sample(setup: CompileSetup, metric: ConfusionScores | None) -> list[int]:
    """Return the indices of the examples to score, in the order in which they are added."""
    num_usable = len(setup.scored_examples)
    indices = list(range(num_usable)) if metric is None else metric.alternate_labels(num_usable)
    return indices[: setup.plan.num_train_examples]


def _how_to_narrow_intervals(setup: CompileSetup, num_candidates: int, num_examples: int) -> str:
    """Return advice on how to halve the intervals or, if there are too few examples, to narrow them."""
    num_usable = len(setup.scored_examples)
    if num_examples == num_usable:
        return "pass more examples"
    num_calls = num_candidates * min(num_usable, TIMES_AS_MANY * num_examples)
    return f"measure with max_metric_calls={num_calls}"


def _score_levers(
    open_compile: OpenCompile, candidates: Sequence[Candidate], rows: Mapping[str, list[int]]
) -> LeverScores:
    """Score candidates on more and more examples, and return the scores. Stop early if no scores differ."""
    evaluator = open_compile.evaluator
    sample = _sample(open_compile.setup, evaluator.confusion_scores)
    futility = FutilityCheck(
        evaluator,
        len(open_compile.setup.scored_examples),
        lambda: open_compile.work.sample,
        compares=False,
        advice=adapter_advice(),
    )
    # Score a few examples first, and raise an error if hardly any answer can be parsed.
    # A few examples may be unusually hard, so score at least `MIN_READ_EXAMPLES`.
    num_first = max(MIN_READ_EXAMPLES, math.ceil(ENOUGH_ANSWERS / len(candidates)))
    evaluator.table(candidates, sample[:num_first])
    futility.check()
    futility.compares = True
    num_first = max(MIN_EXAMPLES, math.ceil(ENOUGH_SCORES / len(candidates)))
    num_paired = max(num_first, math.ceil(ENOUGH_PAIRS / max(1, len(candidates) - 1)))
    for number in (num_first, num_paired, len(sample)):
        examples, scores = _score_table(open_compile, candidates, sample[:number])
        scores, calibrated_rows = _with_calibrated(open_compile, candidates, rows, examples, scores)
        # The check knows only original answers, and calibrated answers may differ.
        differs = np.ptp(scores, axis=0).any()
        no_difference = "" if differs else futility.check()
        if no_difference:
            break
    return LeverScores(examples, scores, {**rows, **calibrated_rows}, no_difference)


def _score_table(
    open_compile: OpenCompile, candidates: Sequence[Candidate], sample: Sequence[int]
) -> tuple[list[int], Array]:
    """Score candidates, and return the examples and a table of scores.

    The table has a row for each candidate and a column for each example. A failed call gets the
    mean score of the other candidates on the same example. A metric over a set is linearized at
    each candidate's own answers.
    """
    evaluator = open_compile.evaluator
    metric = evaluator.confusion_scores
    examples, rows = evaluator.table(candidates, sorted(sample))
    table = np.array(rows)
    for number, candidate in enumerate(candidates):
        records = evaluator.records_of(candidate)
        failed = _has_failed(records, examples)
        if metric is not None:
            table[number] = _linearized(metric, metric.answers(records, {}), examples, failed)
        table[number, failed] = np.nan
    return examples, np.where(np.isnan(table), np.nanmean(table, axis=0), table)


def _has_failed(records: Mapping[int, CallRecord], examples: Sequence[int]) -> Mask:
    """Return a mask of the examples on which the call failed."""
    return np.array([records[example].outcome == FAILED for example in examples])


def _linearized(metric: ConfusionScores, answers: Answers, examples: Sequence[int], failed: Mask) -> Array:
    """Return one score per example, so that the scores' mean is the set metric's value for `answers`.

    The score of a failed call is NaN.
    """
    metric.linearize_at((example, answers[example]) for example in examples if example in answers)
    scores = np.array([metric.score(example, answers.get(example)) for example in examples])
    scores = np.where(failed, np.nan, scores)
    (weighted,) = metric.reweighted(scores[None], np.array(examples))
    return np.asarray(weighted)


def _with_calibrated(
    open_compile: OpenCompile,
    candidates: Sequence[Candidate],
    rows: Mapping[str, list[int]],
    examples: Sequence[int],
    scores: Array,
) -> tuple[Array, dict[str, list[int]]]:
    """Return `scores` with rows for calibrated answers appended, and the indices of these rows.

    The indices are keyed by the name of the calibrated lever.
    """
    tables = [scores]
    num_rows = len(scores)
    calibrated_rows = {}
    for name, group in ((CALIBRATED, PROGRAM), (CALIBRATED_RANDOM, RANDOM)):
        calibrated = [
            _calibrated(open_compile, candidates[row], examples, scores[row]) for row in rows.get(group, ())
        ]
        if calibrated and all(map(np.size, calibrated)):
            calibrated_rows[name] = list(range(num_rows, num_rows + len(calibrated)))
            num_rows += len(calibrated)
            tables.append(np.array(calibrated))
    return np.vstack(tables), calibrated_rows


def _calibrated(
    open_compile: OpenCompile, candidate: Candidate, examples: Sequence[int], scores: Array
) -> Array:
    """Return the score of a program's calibrated answer to each example.

    Return an empty array if most calls have no log-probabilities. Otherwise, calls without
    log-probabilities are scored by their uncalibrated answers. Failed calls keep their value in
    `scores`.
    """
    work = open_compile.work
    records = open_compile.evaluator.records_of(candidate)
    places_with_logprobs = [
        place for place, example in enumerate(examples) if records[example].label_logprobs is not None
    ]
    if not isinstance(work, LabelWork) or 2 * len(places_with_logprobs) < len(examples):
        return np.empty(0)
    readings = [records[examples[place]] for place in places_with_logprobs]
    logs = np.array([reading.label_logprobs for reading in readings])
    unseen = np.zeros(logs.shape, dtype=bool)
    for row, reading in enumerate(readings):
        unseen[row, list(reading.unseen_labels)] = True
    shares = likely_shares(right_counts(work.scores))[0]
    # To avoid bias, calibrate each answer only with log-probabilities for other inputs.
    labels = cross_validated(logs, shares, unseen=unseen).tolist()
    numbers = [examples[place] for place in places_with_logprobs]
    if work.confusion_scores is not None:
        answers = work.confusion_scores.answers(records, dict(zip(numbers, labels, strict=True)))
        failed = _has_failed(records, examples)
        return np.where(failed, scores, _linearized(work.confusion_scores, answers, examples, failed))
    scores = scores.copy()
    scores[places_with_logprobs] = work.scores[numbers, labels]
    return scores


def headroom(
    program: dspy.Module,
    metric: Metric,
    trainset: Rows,
    *,
    max_metric_calls: int = 300,
    max_demos: int = 8,
    num_threads: int | None = None,
    max_errors: int | None = None,
    seed: int = 0,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
    display_progress: bool = True,
    instructions: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
) -> Headroom:
    """Measure how much each lever, such as other demos or another order, can improve a program's score.

    A quarter of the trainset (at most 50 examples) becomes demos. All programs are scored on
    the same sample of the other examples.

    Args:
        program: Program to improve. The program itself is not modified.
        trainset: At least 20 labeled examples, ideally 100.
        max_metric_calls: Maximum number of program calls.
        max_demos: Maximum number of demos per predictor.
        instructions: Other instructions to try, each with random demos. The program must have
            exactly one predictor.
        inputs: As in `PLReorder.compile`.
        metric, num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As
            in `PLReorder`.

    Raises:
        TypeError, ValueError: If an argument is invalid, before any program call.
        RuntimeError: If another process is using `log_dir`, or if hardly any of the first answers
            can be parsed.
        Exception: If too many program calls fail, as in `PLReorder.compile`.
    """
    options = {
        name: value for name, value in locals().items() if name not in ("program", "trainset", "inputs")
    }
    return LeverSample(**options).measure(program, trainset, inputs)
