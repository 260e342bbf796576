"""Evaluation of programs on examples that no optimizer has seen."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, overload

import dspy
import numpy as np
from scipy import special

from plr_dspy.data.examples import Rows, as_examples
from plr_dspy.dspy_compat import current_adapter
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.checks import check_evaluation
from plr_dspy.labels.constant_answer import best_constant
from plr_dspy.labels.outputs import LabelOutput, label_output
from plr_dspy.metrics.by_example import Metric
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_value
from plr_dspy.programs.calls import MetricWork, calls_on
from plr_dspy.programs.checks import Checked, Flag, Folder, arguments, check_given, check_module, short_repr
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.rivals import Programs, Rival, named_programs
from plr_dspy.programs.slots import WholeProgramSlots
from plr_dspy.programs.splits import Examples
from plr_dspy.report.evaluations import ConstantScore, Evaluation, Evaluations, ProgramScore
from plr_dspy.runtime import progress_bar
from plr_dspy.scoring.causes import cause_of, fix_for
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, FUNCTION_FACT, WRONG, CallRecord, open_log
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.comparisons import (
    TAIL,
    likely_bounds,
    limited_interval,
    mean_interval,
    paired_interval,
)

logger = logging.getLogger(__name__)


@overload
def evaluate_programs(
    programs: Programs,
    metric: Mapping[str, Metric],
    devset: Rows,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
    inputs: Sequence[str] | None = None,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
) -> Evaluations: ...


@overload
def evaluate_programs(
    programs: Programs,
    metric: Metric,
    devset: Rows,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
    inputs: Sequence[str] | None = None,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
) -> Evaluation: ...


def evaluate_programs(
    programs: Programs,
    metric: Metric | Mapping[str, Metric],
    devset: Rows,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
    inputs: Sequence[str] | None = None,
    log_dir: str | Path | None = None,
    accept_changes: bool = False,
) -> Evaluation | Evaluations:
    """Score programs on the same examples, with 95% confidence intervals.

    If a call on an example fails, log a warning, and omit the example for all programs and
    metrics. For each interval, a few artificial answers with the lowest and highest possible
    scores are added. Otherwise, an interval for equal scores would have no width. For metrics
    over a set, the intervals are estimated with the infinitesimal jackknife.

    Args:
        programs: A dict that maps names to programs, or a list of programs. Each later program
            is compared with the first program. No program is modified.
        metric: A metric that scores single examples, or a metric over a set, such as
            ``F1("positive")``. For several metrics, pass a dict that maps names to metrics.
        devset: Examples that no optimizer has seen. Each program is called once on each
            example, even with several metrics.
        num_threads, max_errors, display_progress: As in `PLReorder`.
        inputs: As in `PLReorder.compile`. By default, inputs are inferred from the first program.
        log_dir: A folder that stores finished calls. A later evaluation with the same metrics,
            examples, model and adapter reuses the calls of unchanged programs, even if the programs
            were renamed. Failed calls are repeated.
        accept_changes: As in `PLReorder`.

    Raises:
        TypeError, ValueError: If an argument is invalid, before any program call.
        RuntimeError: If failed calls leave fewer than two examples.
        Exception: An error that every further call would raise, or the last error when the number
            of examples with failed calls reaches `max_errors`.
    """
    named = named_programs(programs, min_number=1)
    examples, metrics = _checked(named, metric, devset, inputs)
    rivals = [Rival(name, program) for name, program in named.items()]
    _warn_of_shown_examples(rivals, examples)
    options = _Options(
        num_threads=num_threads,
        max_errors=max_errors,
        display_progress=display_progress,
        log_dir=log_dir,
        accept_changes=accept_changes,
    )
    _warn_of_identical_programs(rivals)
    runs = [_ProgramRun(rival, metrics, examples) for rival in rivals]
    _make_calls(runs, metrics, options)
    indices = _examples_without_failure(runs, len(examples))
    answered = [examples[index] for index in indices]
    evaluations = {}
    for name, single_metric in metrics.items():
        constant = _constant_score(single_metric, runs[0].program, answered)
        scores = _compare(name, single_metric, runs, answered, indices)
        evaluations[name] = Evaluation(scores, len(indices), len(examples) - len(indices), constant)
    return Evaluations(evaluations) if isinstance(metric, Mapping) else evaluations[""]


def _constant_score(metric: Metric, program: dspy.Module, examples: Examples) -> ConstantScore | None:
    """Return the score of the best constant label, or None if it is unknown or there are no labels."""
    if not isinstance(label_output(program), LabelOutput):
        return None
    constant = best_constant(metric, program, examples)
    if constant is None or len(constant.labels) > 1:
        return None
    return ConstantScore(constant.labels[0], constant.score)


def _checked(
    programs: Mapping[str, dspy.Module],
    metric: Metric | Mapping[str, Metric],
    devset: Rows,
    inputs: Sequence[str] | None,
) -> tuple[Examples, dict[str, Metric]]:
    """Return the examples, and a dict that maps names to metrics. Raise an error if an argument is invalid."""
    metrics = dict(metric) if isinstance(metric, Mapping) else {"": metric}
    if not metrics or isinstance(metric, (list, tuple)):
        raise UserTypeError(
            f"metric must be a metric or a non-empty dict; got {short_repr(metric)}: pass a metric, or a dict such as "
            '{"accuracy": metric}'
        )
    if isinstance(metric, Mapping):
        for name in metrics:
            if not isinstance(name, str) or not name.strip():
                raise UserTypeError(
                    f"metric must be a dict with non-empty strings as names; got {name!r}: rename this metric"
                )
    for name, program in programs.items():
        check_module(program, f"programs[{name!r}]")
    first_name, first = next(iter(programs.items()))
    examples = as_examples(
        devset, first, name="devset", inputs=inputs, program_name=f"programs[{first_name!r}]"
    )
    for name, program in programs.items():
        check_given(program, name=f"programs[{name!r}]", to_order=False, devset=examples)
    if len(examples) < 2:
        raise UserError(f"devset must contain at least 2 examples; got {len(examples)}: pass more examples")
    for single_metric in metrics.values():
        check_evaluation(programs, single_metric, examples)
    return examples, metrics


def _warn_of_shown_examples(programs: Iterable[Rival], examples: Examples) -> None:
    """Log a warning about each program that may show some of the examples as fixed demos.

    Ignore retrieved demos: retrieval excludes the example being scored.
    """
    for program in programs:
        num_shown = len(program.leaked(examples))
        if num_shown:
            logger.warning(
                "programs[%r] may show %d of the %d examples in devset as demos, so its score may be too high: use "
                "other examples",
                program.name,
                num_shown,
                len(examples),
            )


@arguments
class _Options(Checked):
    """The checked arguments that `evaluate_programs` shares with the optimizers."""

    log_dir: Folder | None = None
    accept_changes: Flag = False


def _make_calls(runs: Sequence[_ProgramRun], metrics: Mapping[str, Metric], options: _Options) -> None:
    """Call each program on each example, or reuse the call from the log of an earlier evaluation.

    Identical programs share their calls.

    Args:
        runs: One run for each program.
        metrics: The metrics that score each call, keyed by name.
        options: Arguments of `evaluate_programs`.
    """
    folder = None if options.log_dir is None else Path(options.log_dir)
    examples = runs[0].examples
    num_calls = len({run.rival.digest for run in runs}) * len(examples)
    slots = WholeProgramSlots([run.rival for run in runs])
    with (
        open_log(
            folder, partial(_identity, metrics, examples), accept_changes=options.accept_changes
        ) as log,
        progress_bar(num_calls, display=options.display_progress, title="evaluate") as bar,
    ):
        log.repeat_failures()
        _check_scores(metrics, log.earlier_records)
        log.number_examples([digest(example) for example in examples])
        limits = {"num_threads": options.num_threads, "max_errors": options.max_errors}
        seen_digests: set[str] = set()
        for candidate, run in zip(slots.competing, runs, strict=True):
            run.call_program(
                slots, candidate, log=log, on_cell=lambda: bar.update(log.num_calls - bar.n), **limits
            )
            if run.rival.digest not in seen_digests:
                run.warn_of_errors()
            seen_digests.add(run.rival.digest)


def _warn_of_identical_programs(rivals: Sequence[Rival]) -> None:
    first_names: dict[str, str] = {}
    for rival in rivals:
        first_name = first_names.setdefault(rival.digest, rival.name)
        if first_name != rival.name:
            logger.warning(
                "programs[%r] is the same program as programs[%r], so both share the same calls",
                rival.name,
                first_name,
            )


def _identity(metrics: Mapping[str, Metric], devset: Examples) -> dict[str, object]:
    """Return the facts that determine the scores. Omit the programs, because the log's keys identify them."""
    facts: dict[str, object] = {FUNCTION_FACT: evaluate_programs.__name__}
    facts |= {f"the metric {name}".strip(): digest(metric) for name, metric in metrics.items()}
    return {
        **facts,
        "the model": digest(dspy.settings.lm),
        "the adapter": digest(current_adapter()),
        "the examples": digest(sorted(map(digest, devset))),
    }


def _check_scores(metrics: Mapping[str, Metric], records: Iterable[CallRecord]) -> None:
    """Raise a ValueError if a logged call lacks a metric's score or, for a metric over a set, the label."""
    answered = [record.value or {} for record in records if not record.outcome]
    for name, metric in metrics.items():
        for results in answered:
            if name not in results or (isinstance(metric, SetMetric) and results[name][1] is None):
                described = f"the metric {name}".strip()
                raise UserError(
                    f"log_dir must hold calls that {described} scored; got calls without such a score: pass another "
                    "log_dir"
                )


class _ProgramRun(MetricWork):
    """A program's calls on the examples, scored with all metrics."""

    # The log identifies programs by their content, so it can also hold the calls of changed programs.
    advice_on_changes = (
        "you can change the programs first, but if you change a metric, pass another log_dir"
    )

    def __init__(self, rival: Rival, metrics: Mapping[str, Metric], examples: Examples) -> None:
        super().__init__(lambda example, prediction: 0.0, examples)
        self.rival = rival
        self.name = rival.name
        self.program = rival.program
        self.records: list[CallRecord] = []
        self._metrics = {name: MetricWork(metric, examples) for name, metric in metrics.items()}
        for work in self._metrics.values():
            self.models += work.models

    def call_program(self, slots: WholeProgramSlots, candidate: Candidate, **options: Any) -> None:
        """Call the program on each example."""
        self.records, _ = calls_on(
            slots, self, len(self.examples), candidate=candidate, called="example", **options
        )

    def warn_of_errors(self) -> None:
        """Warn if calls are scored as incorrect because of an error such as an exceeded context window."""
        unread = [record for record in self.records if record.outcome == WRONG]
        errors = [record.error for record in unread if cause_of(record.error) is not None]
        if errors:
            logger.warning(
                f"for {self.name}, {len(errors)} of {len(self.records)} calls count as incorrect because of errors "
                f"such as {errors[0]}: {fix_for(errors, otherwise='')}"
            )

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Call the program, and return a record of how each metric scores a copy of the answer.

        The record's value is a dict that maps each metric's name to the score and, for a metric over a
        set, the label.
        """
        prediction = self._answered(program, example)
        results = {}
        for name, work in self._metrics.items():
            record = work._scored(example, own_value(prediction))
            results[name] = [record.score, record.value]
        return CallRecord(0.0, value=results)

    def record_by(self, metric_name: str, index: int) -> CallRecord:
        """Return an example's record with one metric's score, or without a score if the reply was unparsable."""
        result = (self.records[index].value or {}).get(metric_name)
        return CallRecord(None) if result is None else CallRecord(result[0], value=result[1])


def _examples_without_failure(runs: Sequence[_ProgramRun], num_examples: int) -> list[int]:
    """Return the indices of the examples on which no call failed, and warn about failures.

    Raise a RuntimeError if fewer than two examples remain.
    """
    failures = {}
    for run in runs:
        for index, record in enumerate(run.records):
            if record.outcome == FAILED:
                failures[index] = record
    indices = [index for index in range(num_examples) if index not in failures]
    if failures:
        first = failures[min(failures)]
        warning = (
            f"calls on {len(failures)} of {num_examples} examples failed "
            f"(the first with {first.error}: {first.message})"
        )
        if len(indices) < 2:
            errors = [record.error for record in failures.values()]
            raise RuntimeError(f"{warning}: {fix_for(errors, otherwise='fix the cause, or try again')}")
        logger.warning("%s: these examples are omitted", warning)
    return indices


def _compare(
    name: str, metric: Metric, runs: Sequence[_ProgramRun], examples: Examples, indices: Sequence[int]
) -> dict[str, ProgramScore]:
    """Return the programs' scores, with their differences from the first program's score, keyed by name.

    `indices` are the examples' indices in the devset.
    """
    records = {run.name: [run.record_by(name, index) for index in indices] for run in runs}
    scorer: _MeanScores | _SetScores
    if isinstance(metric, SetMetric):
        labels: list[str] = []
        for run in runs:
            labels += metric.output_labels(run.program, examples)
        scorer = _SetScores(metric, metric.right_labels(examples), labels)
    else:
        scorer = _MeanScores(records.values())
    first, *others = records
    scores = {first: scorer.score(records[first])}
    for other in others:
        score = scorer.score(records[other])
        interval = scorer.difference_interval(records[first], records[other])
        difference = score.score - scores[first].score
        scores[other] = replace(score, difference=difference, difference_interval=interval)
    return scores


class _MeanScores:
    """The mean scores of programs, with confidence intervals.

    An unparsable reply gets the lowest score of any reply, but at most 0.
    """

    def __init__(self, records: Iterable[Sequence[CallRecord]]) -> None:
        scores = [record.score for record in chain.from_iterable(records)]
        self._least = min([0.0, *(score for score in scores if score is not None)])

    def score(self, records: Sequence[CallRecord]) -> ProgramScore:
        """Return the mean score and its confidence interval.

        Before the interval is calculated, two scores at each end of the likely range are added. The
        interval is clipped at 0 and 1, but not at other extreme scores: the scale may extend further.

        Source: A. Agresti and B. Coull, The American Statistician 52, 1998.
        """
        scores = self._scores(records)
        low, high = likely_bounds(scores)
        least, most = mean_interval([*scores, low, low, high, high])
        if low == 0.0:
            least = max(low, least)
        if high in (0.0, 1.0):
            most = min(high, most)
        return ProgramScore(float(np.mean(scores)), (least, most), num_unread=_num_unread(records))

    def difference_interval(
        self, before: Sequence[CallRecord], after: Sequence[CallRecord]
    ) -> tuple[float, float]:
        scores_before = self._scores(before)
        scores_after = self._scores(after)
        low, high = likely_bounds([*scores_before, *scores_after])
        differences = [new - old for old, new in zip(scores_before, scores_after, strict=True)]
        return limited_interval(differences, high - low)

    def _scores(self, records: Sequence[CallRecord]) -> list[float]:
        return [self._least if record.score is None else record.score for record in records]


class _SetScores:
    """The scores that a metric over a set gives to programs, with confidence intervals.

    The intervals are estimated from each answer's influence on the metric.
    """

    def __init__(self, metric: SetMetric, right_labels: Sequence[str], labels: Sequence[str]) -> None:
        self._influence = ConfusionScores(metric, right_labels, labels)

    def score(self, records: Sequence[CallRecord]) -> ProgramScore:
        answers = _labels(records)
        self._influence.linearize_at(answers)
        value = self._influence.value(answers)
        scores = self._scores(records)
        low, high = self._influence.bounds
        center, error = self._influence.mean_with_error(scores, value)
        margin = float(special.stdtrit(len(scores) + 3, 1 - TAIL)) * error
        interval = max(low, min(value, center - margin)), min(high, max(value, center + margin))
        return ProgramScore(value, interval, num_unread=_num_unread(records))

    def difference_interval(
        self, before: Sequence[CallRecord], after: Sequence[CallRecord]
    ) -> tuple[float, float]:
        """Return the confidence interval for the difference between two programs' scores.

        The metric is linearized at the answers of both programs. This approximation is poor if
        the answers differ a lot, for example if all replies of one program are unparsable.
        Therefore, the interval is widened to include the difference itself.
        """
        self._influence.linearize_at([*_labels(before), *_labels(after)])
        low, high = self._influence.bounds
        pairs = zip(self._scores(before), self._scores(after), strict=True)
        differences = [score_after - score_before for score_before, score_after in pairs]
        # Add an artificial difference, the largest that one answer can make. Otherwise, the interval
        # would be too narrow if programs differ on few examples, or only on examples with little influence.
        least, most = paired_interval(differences, largest=self._influence.largest_change())
        difference = self._influence.value(_labels(after)) - self._influence.value(_labels(before))
        return max(low - high, min(least, difference)), min(high - low, max(most, difference))

    def _scores(self, records: Sequence[CallRecord]) -> list[float]:
        return [self._influence.score(*answer) for answer in _labels(records)]


def _labels(records: Sequence[CallRecord]) -> list[tuple[int, str | None]]:
    return [(index, record.value) for index, record in enumerate(records)]


def _num_unread(records: Sequence[CallRecord]) -> int:
    return sum(record.score is None for record in records)
