"""Program calls that bring along how likely each label was, and what a metric gives to each label without any call."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy
import numpy as np

from plr_dspy.dspy_compat import BaseCallback
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import Calibration
from plr_dspy.labels.outputs import LabelOutput, label_output, strange_answers
from plr_dspy.labels.reader import Decision, LogprobRequests, NoProbabilities, Reading, labels_read
from plr_dspy.lm.plain_text_adapter import name_of_label
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.copies import own_copy
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import Array

logger = logging.getLogger(__name__)

DECIMALS = 4  # of log-probabilities: as many as the log keeps, so that a resumed compile sees the same numbers
LONGEST_CALL = 0.05  # seconds: a metric that takes longer asks a model or a service in a way that nobody else sees
LONGEST_PROBE, PROBE_SHARE = 10.0, 0.1  # seconds that asking for all labels takes, and share of `max_seconds`, at most

SEVERAL = "the program calls its classifier several times for an answer"
ALL_ALIKE = "the metric gives every label the same score"
UNASKED = "the program answered without its classifier"


class LabelWork(MetricWork):
    """Does what `MetricWork` does, and reads the label's log-probabilities from the program's own LM calls."""

    def __init__(
        self,
        metric: Metric | None,  # without one, cells hold what replies say of labels, and no score
        examples: Sequence[dspy.Example],
        *,
        output: LabelOutput,
        scores: Array | None = None,  # the metric's, of each example and label, [E, L], as of `label_scores`
        purpose: str = "",  # as in `LogprobRequests`; where its `requests` are switched off, this is `MetricWork`
        calibrating: bool = False,  # whether the likeliest label is the answer, also where the adapter cannot read one
        original: dspy.Module | None = None,  # what the user has, which is not calibrated but by its `own` calibration
        own: Decision | None = None,
    ) -> None:
        labels = list(output.labels)
        if output.optional:
            labels.append(name_of_label(None))
        super().__init__(metric or (lambda example, prediction: 0.0), examples, labels)
        self._likeliest = Calibration.none(output.labels).applied if calibrating else None
        self._original, self._own = None if original is None or not calibrating else _shown(original), own
        self.output, self.requests = output, LogprobRequests(purpose)
        self.scores = np.empty((0, 0)) if scores is None else scores
        self.shares: Array | None = None  # of examples that labels are right for, as far as is guessed, [S, L]

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Return a cell with the metric's score, and with log-probabilities if they belong to what was scored."""
        if not (self.requests.wanted or self.requests.purpose):
            return super().__call__(program, example)
        is_original = self._original is not None and self._original == _shown(program)
        decision = self._own if is_original else self._likeliest
        try:
            reading = labels_read(program, self.output, self.requests, decision=decision)
            with reading as reader:
                prediction = self._answered(program, example)
        except WrongAnswer as wrong:
            told = self._told(reader.unread) if is_original or not self.scores.size else {}
            wrong.told = {"refused": self.requests.reason, **told}
            raise
        label = self.output.label_of(prediction)  # Read before the metric, which may write to it.
        cell = self._scored(example, prediction)
        if not self.scores.size:
            said = reader.unread or reader.behind(prediction)
            if said and not (isinstance(prediction, dspy.Prediction) and self.output.name in prediction):
                label = said.label  # The answer may hold it under another name, or be a text.
            return replace(cell, value=label, **self._told(said))
        if len(reader.readings) > 1:
            self.requests.reason = SEVERAL
            if self._likeliest is not None:  # Its other answers alone would be scored as calibrated.
                raise NoProbabilities(
                    f"calibrate needs one call of the classifier for an answer, and {SEVERAL}: leave calibrate out, or "
                    "call BatchCalibration(predictor=...) instead"
                )
        found = reader.readings[0] if len(reader.readings) == 1 else None  # Else it may be that of any.
        if is_original and (found or reader.unread):
            # It is scored as it is; calibrated, it would answer by its first reply.
            return replace(cell, **self._told(reader.unread or next(iter(reader.undecided), found)))
        lacking = ""
        if not reader.readings:
            lacking = UNASKED
        elif found is None or found.label is None:
            adapter = type(dspy.settings.adapter or dspy.ChatAdapter()).__name__
            lacking = f"no label is among the likeliest tokens of the replies that {adapter} reads"
        elif found.label != label:
            lacking = "the program answers something else than the label that its classifier said"
        elif cell.score != self.scores[example, list(self.output.labels).index(found.label)]:
            lacking = "the metric scores the same answer differently when it is asked again"
        told = {"refused": self.requests.reason, "lacking": lacking} if lacking else self._told(found)
        return replace(cell, **told)

    def responses(self, scorer: CellScorer, shares: Array | None) -> LabelResponses:
        """Say where the log-probabilities of labels are found, in the cells that were paid, and what labels score."""
        scores = self.scores
        if self.influence is not None:  # It updates the table in place.
            scores = self.influence.table[:, : len(self.output.labels)]

        def told(ordering: Candidate, example: int) -> tuple[Sequence[float], Sequence[int]] | None:
            cell = scorer.log.records.get(scorer.key(ordering, example))
            return None if cell is None or cell.label_logprobs is None else (cell.label_logprobs, cell.unseen_labels)

        return LabelResponses(scores, told, shares, self._likeliest is not None, self.influence)

    def _told(self, found: Reading | None) -> dict[str, Any]:
        """Return what a reply says of labels, as fields of a cell."""
        if found is None:
            return {}
        told = found.log_probabilities
        if self.scores.size:
            told = tuple(round(each, DECIMALS) for each in told)
        return {"label_logprobs": told, "unseen_labels": found.unseen}


def _shown(program: dspy.Module) -> dict[str, tuple[list[Any], Any]]:
    """Return the demos that predictors have, and how they find others."""
    predictors = program.named_predictors()
    return {n: (list(each.demos), getattr(getattr(each, "retrieval", None), "nearest", None)) for n, each in predictors}


def label_scores(
    metric: Metric, examples: Sequence[dspy.Example], output: LabelOutput, *, max_seconds: float | None = None
) -> Array | str:
    """Ask a metric for the score of each label on each example, ``[E, L]``, or say why there are none.

    Predictions hold the label alone. A metric that needs more, calls a model, takes long, or fails is asked no further.
    """
    values = list(output.labels.values())
    if output.decision is not None and output.held:  # Without a confidence: a metric that looks at it fails.
        values = [output.decision.model_construct(value=value) for value in values]
    scores, num_slow, spent, calls = np.zeros((len(examples), len(values))), 0, 0.0, NoCalls()
    longest = min(LONGEST_PROBE, PROBE_SHARE * (max_seconds or math.inf))
    try:
        ask = metric_caller(metric)
        with dspy.context(callbacks=[calls], trace=[]):
            for number, (example, label) in enumerate(np.ndindex(*scores.shape), start=1):
                began = time.perf_counter()
                prediction = dspy.Prediction({output.name: values[label]})
                scores[example, label] = as_score(ask(own_copy(examples[example]), prediction))
                seconds = time.perf_counter() - began
                num_slow, spent = num_slow + (seconds > LONGEST_CALL), spent + seconds
                if calls.stopped:  # The metric has caught the exception, and gone on.
                    break
                # One may load something; some are slow for wrong labels alone.
                if 2 * num_slow >= max(number, 4) or spent > longest:
                    return "the metric takes too long to be asked for every label"
    except (Exception, SystemExit) as error:
        if not calls.stopped:
            return f"the metric raises {type(error).__name__} for a prediction that holds {output.name!r} alone"
    if calls.stopped:
        return "the metric calls a language model"
    if (scores == scores[:, :1]).all():
        return ALL_ALIKE
    return scores


def check_answers(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], *, name: str, told: Sequence[str] = ()
) -> list[str]:
    """Warn of examples that hold what the outputs can never be, unless that was `told` before; return the warnings.

    It is a ValueError if all examples do, and the metric can go by nothing else and gives every label the same score.
    """
    found = [said for said in strange_answers(program, examples) if said not in told]
    for said in found:
        logger.warning(f"{name}: {said}: no answer is right there, unless the metric reads others")
    output = label_output(program)
    # Other outputs may be what a metric reads.
    if not isinstance(output, LabelOutput) or _answered_outputs(program, examples) != {output.name}:
        return found
    strange = output.strange(examples)
    if strange.startswith(f"{len(examples)} of") and label_scores(metric, examples, output) == ALL_ALIKE:
        raise UserError(
            f"{name}: {strange}, and {ALL_ALIKE}: no answer can be right. Give each example one of the labels, of "
            "their type"
        )
    return found


def _answered_outputs(program: dspy.Module, examples: Sequence[dspy.Example]) -> set[str]:
    """Return the names of the outputs that some examples have."""
    names = {name for predictor in program.predictors() for name in predictor.signature.output_fields}
    return {name for name in names if any(name in example for example in examples)}


class NoCalls(BaseCallback):  # type: ignore[misc]
    """Stops a metric before it calls a language model, by what neither DSPy nor metrics mean to catch."""

    stopped = False

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.stopped = True
        raise SystemExit("the metric calls a language model")
