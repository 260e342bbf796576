"""What the search learns from a call: the metric's score alone, or how likely each label was as well.

Log-probabilities are taken where they come with the calls that are made anyway. Whether the program and the metric
allow for them is known before any call; whether the endpoint gives them, after the first one, which the search makes
whatever it learns from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from plr_dspy.calibration.outputs import prior_shares, warn_of_labels
from plr_dspy.compilation.assembly import new_objective
from plr_dspy.compilation.plan import Plan
from plr_dspy.label_probabilities.reader import Decision
from plr_dspy.label_probabilities.servers import NoProbabilities
from plr_dspy.optimizer.job import Job
from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.calls import Metric, MetricWork
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.label_calls import LabelWork
from plr_dspy.programs.label_scores import Array, label_output, label_scores
from plr_dspy.report.schema import Signal
from plr_dspy.scoring.cells import FAILED, WRONG, Cell
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.search import Search
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.statistics.calibration import right_counts, shares_to_try

MOST_TRIES = 8
"""Calls that may bring no log-probabilities: replies may be no label, and a program may answer some examples without an
LM."""

FIRST_CALLS = 2
"""Examples of the first look of either kind of search: where the first call fails, the next one tells. Where replies
were read and had none, no more are tried, unless log-probabilities must come."""


def work_of(
    metric: Metric, job: Job, signal: str, *, calibrating: bool = False, own: Decision | None = None
) -> tuple[MetricWork, Signal]:
    """The work of a job, and what its search learns from as far as is known before any call.

    The signal is "logprobs" where the program and the metric allow for it; the work is then a `LabelWork`.

    Raises:
        ValueError: when they must be the signal, and the program, the metric or the plan does not allow for it.
    """
    examples = [*job.splits.train, *job.splits.selection]
    if calibrating and job.slots.space.num_distinct < 2:
        raise ValueError(
            "calibrate=True chooses among orders, and all orders of the demos give the same prompt: pass the program "
            "to BatchCalibration"
        )
    if signal == "score" or job.slots.space.num_distinct < 2:
        return MetricWork(metric, examples), Signal("score", "", [])
    reason = "auto='paper' scores orders as the paper does"
    if job.plan.racing:
        work = label_work(metric, job, calibrating=calibrating, own=own)
        if isinstance(work, LabelWork):
            return work, Signal("logprobs", "", list(work.output.labels))
        reason = work
    if calibrating:
        names = [name for name, _ in named_predictors(job.program)]
        possible = any(not isinstance(label_output(job.program, only=name), str) for name in names)
        after = ", or calibrate the program that comes out with BatchCalibration" * possible
        raise ValueError(f"calibrate=True is not possible: {reason}. Leave it out{after}")
    if signal == "logprobs":
        raise ValueError(
            f"signal='logprobs' is not possible: {reason}. Pass signal='auto', which takes scores in this case"
        )
    return MetricWork(metric, examples), Signal("score", reason, [])


def label_work(
    metric: Metric, job: Job, *, calibrating: bool = False, own: Decision | None = None
) -> LabelWork | str:
    """Make work that reads log-probabilities, or say why the program or the metric does not allow for it."""
    examples = [*job.splits.train, *job.splits.selection]
    output = label_output(job.program)
    if isinstance(output, str):
        return output
    scores = label_scores(metric, examples, output)
    if isinstance(scores, str):
        return scores
    warn_of_labels(job.program, output, right_counts(scores))
    return LabelWork(
        metric,
        examples,
        output=output,
        scores=scores,
        calibrating=calibrating,
        original=job.slots.demos(job.original),
        own=own,
    )


def listened(
    job: Job,
    scorer: CellScorer,
    *,
    signal: str,
    plan: Plan,
    search: Callable[[Plan, LabelResponses], Search],
    shares: Array,
    calibrating: bool = False,
    deadline: float | None = None,
) -> Job:
    """The job as it is done after the first call has shown whether the endpoint gives log-probabilities.

    Args:
        job: Its work is a `LabelWork`.
        scorer: Makes the first call, unless it has been paid.
        signal: As in `PLReorder`.
        plan: Of a search that learns from log-probabilities.
        search: Makes that search.
        shares: Guesses of the share of examples that each label is right for, as of `label_shares`.
        calibrating: Whether answers are calibrated to it.
        deadline: By `time.monotonic`, when no further call may begin.

    Raises:
        NoProbabilities: when they must be the signal, and there are none.
        Exception: of the program or the metric.
    """
    setup, work = job.setup, job.setup.work
    assert isinstance(work, LabelWork)
    required = calibrating or signal == "logprobs"
    num_first = min(job.plan.num_first_examples, plan.num_first_examples, FIRST_CALLS)
    cell = _telling_cell(job, scorer, work, num_first=num_first, required=required, deadline=deadline)
    if cell is None:
        return job
    if cell.label_logprobs is None:
        work.reading = False
        without = work.lacking or "the first answers came without any"
        reason = work.reason or ("the first calls failed" if cell.outcome == FAILED else without)
        if required and cell.outcome == FAILED:
            raise scorer.nothing_ran([cell], 1)
        if calibrating:
            raise NoProbabilities(
                f"calibrate=True needs the log-probabilities of labels, and there are none: {reason}. Leave it out to "
                "go on with scores"
            )
        if signal == "logprobs":
            raise NoProbabilities(
                f"signal='logprobs' needs the log-probabilities of labels, and there are none: {reason}. Pass "
                "signal='auto' to go on with scores"
            )
        return job.laid_out(job.plan, replace(setup, signal=Signal("score", reason, [])))

    def log_probabilities(ordering: Ordering, example: int) -> Sequence[float] | None:
        paid = scorer.is_paid(ordering, example)
        return scorer.cell(ordering, example).label_logprobs if paid else None

    def unseen(ordering: Ordering, example: int) -> Sequence[int]:
        return scorer.cell(ordering, example).unseen_labels

    responses = LabelResponses(work.scores, log_probabilities, unseen, shares, calibrating)
    num_train = len(job.splits.train)
    objective = partial(new_objective, plan, num_train=num_train, original=job.original, shifted=True)
    return job.laid_out(plan, replace(setup, search=search(plan, responses), objective=objective))


def _telling_cell(
    job: Job, scorer: CellScorer, work: LabelWork, *, num_first: int, required: bool, deadline: float | None
) -> Cell | None:
    """The first cell that says whether log-probabilities come, or the last one tried.

    None where an earlier part has spent the money, and lost this call.
    """
    cell = None
    # A student without demos may never say a label; with demos it does.
    first = [job.slots.space.identity] * num_first
    tried = [*first, *job.slots.longest(MOST_TRIES - num_first, job.seed)]
    for example, shown in enumerate(tried[: len(job.splits.train)]):
        if not (cells := scorer.cells_each({shown: [example]})):
            return None
        cell = cells[0][example]
        late = deadline is not None and time.monotonic() >= deadline
        if cell.label_logprobs is not None or work.reason or late:
            break
        if example + 1 >= num_first and not required and cell.outcome != WRONG:
            break
    return cell


def label_shares(calibrate: bool | Mapping[Any, float], work: LabelWork) -> Array:
    """Guesses of the shares of examples that labels are right for, ``[S, L]``, which answers are calibrated to.

    See `shares_to_try`.

    Args:
        calibrate: As in `PLReorder`; not False.
        work: Knows what labels score.

    Raises:
        ValueError: when they are given for other labels, or do not sum to 1.
    """
    if isinstance(calibrate, Mapping):
        return prior_shares(calibrate, work.output.labels, name="calibrate")[None]
    return shares_to_try(work.scores)
