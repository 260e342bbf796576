"""What the search learns from a call: the metric's score alone, or how likely each label was as well.

Log-probabilities are taken where they come with the calls that are made anyway. Whether the program and the metric
allow for them is known before any call; whether the endpoint gives them, after the first one, which the search makes
whatever it learns from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plr_dspy.compilation.plan import MIN_FIRST
from plr_dspy.labels.outputs import label_output, prior_shares, warn_of_labels
from plr_dspy.labels.reader import NoProbabilities
from plr_dspy.labels.work import LabelWork, label_scores
from plr_dspy.metrics.over_set import SetMetric
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import MetricWork
from plr_dspy.programs.copies import named_predictors
from plr_dspy.report.data import Signal
from plr_dspy.scoring.cells import FAILED, WRONG, Cell
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.calibration import Array, right_counts, shares_to_try

MOST_TRIES = 8
"""Calls that may bring no log-probabilities: replies may be no label, and a program may answer some examples without an
LM."""

FIRST_CALLS = 2
"""Examples of the first look of either kind of search: where the first call fails, the next one tells. Where replies
were read and had none, no more are tried, unless log-probabilities must come."""


def label_work(job: Job) -> LabelWork | str:
    """Make work that reads log-probabilities, or say why the program or the metric does not allow for it."""
    examples, optimizer = [*job.splits.train, *job.splits.selection], job.optimizer
    output = label_output(job.program)
    if isinstance(output, str):
        return output
    scores = label_scores(optimizer.metric, examples, output)
    if isinstance(scores, str):
        return scores
    warn_of_labels(
        job.program, output, right_counts(scores), by_accuracy=not isinstance(optimizer.metric, SetMetric)
    )
    return LabelWork(
        optimizer.metric,
        examples,
        output=output,
        scores=scores,
        calibrating=optimizer.calibrate is not False,
        original=job.slots.demos(job.original),
        own=None if job.own is None or job.own.calibration is None else job.own.calibration.applied,
    )


def work_of(job: Job) -> MetricWork:
    """The work of a job, whose `signal` says what a search learns from it as far as is known before any call.

    That is "logprobs", and the work a `LabelWork`, where the program and the metric allow for it; where they do not
    and it must be, or where shares to calibrate to do not fit the labels, a ValueError.
    """
    optimizer, one_prompt = job.optimizer, job.slots.space.num_distinct < 2
    calibrating, signal = optimizer.calibrate is not False, optimizer.signal
    if calibrating and one_prompt:
        raise ValueError(
            "calibrate=True chooses among orders, and all orders of the demos give the same prompt: pass the program "
            "to BatchCalibration"
        )
    found: LabelWork | str = "auto='paper' scores orders as the paper does"
    if signal == "score" or one_prompt:
        found = ""
    elif job.plan.racing:
        found = label_work(job)
    if isinstance(found, LabelWork):
        found.signal = Signal(used="logprobs", reason="", labels=list(found.output.labels))
        label_shares(optimizer.calibrate, found)
        return found
    if calibrating:
        names = [name for name, _ in named_predictors(job.program)]
        possible = any(not isinstance(label_output(job.program, only=name), str) for name in names)
        chosen = "(predictor=...)" if len(names) > 1 else ""
        after = f", or calibrate the program that comes out with BatchCalibration{chosen}" * possible
        raise ValueError(f"calibrate=True is not possible: {found}. Leave it out{after}")
    if signal == "logprobs" and found:
        raise ValueError(
            f"signal='logprobs' is not possible: {found}. Pass signal='auto', which takes scores in this case"
        )
    work = MetricWork(optimizer.metric, [*job.splits.train, *job.splits.selection])
    work.signal = Signal(used="score", reason=found, labels=[])
    return work


def probe(job: Job, work: LabelWork, scorer: CellScorer) -> LabelResponses | None:
    """Make the first call, unless it has been paid, and say in the work's `signal` whether log-probabilities come.

    Returns:
        Where the search finds them; None where there are none, which is NoProbabilities where they must be the signal.
    """
    calibrate = job.optimizer.calibrate
    calibrating = calibrate is not False
    required = calibrating or job.optimizer.signal == "logprobs"
    cell = _telling_cell(job, scorer, work, required=required)
    if cell is not None and cell.label_logprobs is None:
        work.requests.wanted = False
        without = work.lacking or "the first answers came without any"
        reason = work.reason or ("the first calls failed" if cell.outcome == FAILED else without)
        if required and cell.outcome == FAILED:
            raise scorer.nothing_ran([cell], 1)
        if required:
            asked, cure = (
                ("calibrate=True", "Leave it out")
                if calibrating
                else ("signal='logprobs'", "Pass signal='auto'")
            )
            raise NoProbabilities(
                f"{asked} needs the log-probabilities of labels, and there are none: {reason}. {cure} to go on with "
                "scores"
            )
        work.signal = Signal(used="score", reason=reason, labels=[])
        return None

    def log_probabilities(ordering: Ordering, example: int) -> Sequence[float] | None:
        cell = scorer.cell(ordering, example)
        return None if cell is None else cell.label_logprobs

    def unseen(ordering: Ordering, example: int) -> Sequence[int]:
        cell = scorer.cell(ordering, example)
        return () if cell is None else cell.unseen_labels

    shares = label_shares(calibrate, work)
    return LabelResponses(work.counted_scores(), log_probabilities, unseen, shares, calibrating)


def _telling_cell(job: Job, scorer: CellScorer, work: LabelWork, *, required: bool) -> Cell | None:
    """The first cell that says whether log-probabilities come, or the last one tried; None where none could be paid."""
    cell, num_first = None, min(job.plan.num_first_examples, MIN_FIRST["logprobs"], FIRST_CALLS)
    # A student without demos may never say a label; with demos it does.
    first = [job.slots.space.identity] * num_first
    tried = [*first, *job.slots.longest(MOST_TRIES - num_first, job.seed)]
    for example, shown in enumerate(tried[: len(job.splits.train)]):
        if not scorer.fits({shown: [example]}) or not (cells := scorer.cells({shown: [example]})):
            break
        cell = cells[shown][example]
        if cell.label_logprobs is not None or work.reason:
            break
        if example + 1 >= num_first and not required and cell.outcome != WRONG:
            break
    return cell


def label_shares(calibrate: bool | Mapping[Any, float], work: LabelWork) -> Array:
    """Guesses of the shares of examples that labels are right for, ``[S, L]``, which answers are calibrated to."""
    if isinstance(calibrate, Mapping):
        return prior_shares(calibrate, work.output.labels, name="calibrate")[None]
    return shares_to_try(work.scores, between=work.influence is not None)
