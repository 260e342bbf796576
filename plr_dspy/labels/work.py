"""Program calls with label probabilities, and the scores that a metric gives to labels."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import dspy
import numpy as np

from plr_dspy.dspy_compat import BaseCallback
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import Calibration
from plr_dspy.labels.outputs import LabelOutput, label_output, strange_answers
from plr_dspy.labels.reader import Decision, LabelReader, LogprobRequests, NoProbabilities, Reading, labels_read
from plr_dspy.lm.plain_text_adapter import Value, name_of_label
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.copies import own_copy
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import Array

logger = logging.getLogger(__name__)

DECIMALS = 4  # of log-probabilities in the log, so that a resumed compile sees the same
LONGEST_CALL = 0.05  # seconds; a slower metric may call a model unseen
LONGEST_PROBE = 10.0  # seconds to ask a metric for all labels
PROBE_SHARE = 0.1  # of `max_seconds` for that

SEVERAL = "the program calls its classifier several times for an answer"
ALL_ALIKE = "the metric gives every label the same score"
UNASKED = "the program answered without its classifier"


class LabelWork(MetricWork):
    """Do what `MetricWork` does, and read the log-probabilities of labels."""

    shares: Array | None = None  # possible shares of examples that labels are right for, [S, L]

    def __init__(
        self,
        metric: Metric | None,  # None: records hold no scores
        examples: Sequence[dspy.Example],
        *,
        output: LabelOutput,
        scores: Array | None = None,  # of `label_scores`, [E, L]
        purpose: str = "",  # as in `LogprobRequests`
        calibrating: bool = False,  # whether programs answer the likeliest label
        original: dspy.Module | None = None,  # the user's program, which answers as it is
        own: Decision | None = None,  # its decision, if it is calibrated
    ) -> None:
        labels = list(output.labels)
        if output.optional:
            labels.append(name_of_label(None))
        super().__init__(metric or (lambda example, prediction: 0.0), examples, labels)
        self.output = output
        self.requests = LogprobRequests(purpose)
        self.scores = np.empty((0, 0)) if scores is None else scores
        self._own = own
        self._original: dict[str, tuple[Value, Value]] | None = None
        self._likeliest: Decision | None = None
        if calibrating:
            self._likeliest = Calibration.none(output.labels).applied
            if original is not None:
                self._original = _demos(original)

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Return a score, with log-probabilities if they explain it."""
        if not (self.requests.wanted or self.requests.purpose):
            return super().__call__(program, example)
        is_original = self._original is not None and self._original == _demos(program)
        decision = self._own if is_original else self._likeliest
        try:
            reading = labels_read(program, self.output, self.requests, decision=decision)
            with reading as reader:
                prediction = self._answered(program, example)
        except WrongAnswer as wrong:
            wrong.told = {"refused": self.requests.reason}
            if is_original or not self.scores.size:
                wrong.told |= self._fields(reader.unread)
            raise
        label = self.output.label_of(prediction)  # read first, as metrics may write to it
        record = self._scored(example, prediction)
        if not self.scores.size:
            return self._unscored(record, reader, prediction, label)
        if len(reader.readings) > 1:
            self._refuse_several()
        only_reading = reader.readings[0] if len(reader.readings) == 1 else None
        if is_original and (only_reading or reader.unread):
            # It is scored as it is; calibrated, it would answer by its first reply.
            first = reader.unread or next(iter(reader.undecided), only_reading)
            return replace(record, **self._fields(first))
        lacking = self._lacking(only_reading, label, record, example)
        if not reader.readings:
            lacking = UNASKED
        if lacking:
            return replace(record, refused=self.requests.reason, lacking=lacking)
        return replace(record, **self._fields(only_reading))

    def _unscored(self, record: CallRecord, reader: LabelReader, prediction: Value, label: str | None) -> CallRecord:
        reading = reader.unread or reader.behind(prediction)
        has_output = isinstance(prediction, dspy.Prediction) and self.output.name in prediction
        if reading is not None and not has_output:
            # The answer is a text, or has the label under another name.
            label = reading.label
        return replace(record, value=label, **self._fields(reading))

    def _refuse_several(self) -> None:
        """Learn from scores alone; raise if answers are calibrated."""
        self.requests.reason = SEVERAL
        if self._likeliest is not None:
            raise NoProbabilities(
                f"calibrate needs one call of the classifier for an answer, and {SEVERAL}: leave calibrate out, or "
                "call BatchCalibration(predictor=...) instead"
            )

    def _lacking(self, reading: Reading | None, label: str | None, record: CallRecord, example: int) -> str:
        """Return why a reading does not explain the score, if so."""
        if reading is None or reading.label is None:
            adapter = type(dspy.settings.adapter or dspy.ChatAdapter()).__name__
            return f"no label is among the likeliest tokens of the replies that {adapter} reads"
        if reading.label != label:
            return "the program answers something else than the label that its classifier said"
        if record.score != self.scores[example, list(self.output.labels).index(reading.label)]:
            return "the metric scores the same answer differently when it is asked again"
        return ""

    def responses(self, scorer: Evaluator, shares: Array | None) -> LabelResponses:
        """Return the scores of labels, and access to log-probabilities in the log."""
        scores = self.scores
        if self.influence is not None:  # It updates the table in place.
            scores = self.influence.table[:, : len(self.output.labels)]

        def read(ordering: Candidate, example: int) -> tuple[Sequence[float], Sequence[int]] | None:
            record = scorer.log.records.get(scorer.key(ordering, example))
            if record is None or record.label_logprobs is None:
                return None
            return record.label_logprobs, record.unseen_labels

        return LabelResponses(scores, read, shares, self._likeliest is not None, self.influence)

    def _fields(self, reading: Reading | None) -> dict[str, Value]:
        if reading is None:
            return {}
        logs = reading.log_probabilities
        if self.scores.size:
            logs = tuple(round(log_probability, DECIMALS) for log_probability in logs)
        return {"label_logprobs": logs, "unseen_labels": reading.unseen}


def _demos(program: dspy.Module) -> dict[str, tuple[Value, Value]]:
    """Return the demos of each predictor, and how it finds others."""
    demos = {}
    for name, predictor in program.named_predictors():
        retrieval = getattr(predictor, "retrieval", None)
        demos[name] = (list(predictor.demos), getattr(retrieval, "nearest", None))
    return demos


def label_scores(
    metric: Metric, examples: Sequence[dspy.Example], output: LabelOutput, *, max_seconds: float | None = None
) -> Array | str:
    """Return the score of each label on each example, ``[E, L]``, or why there is none.

    A metric that needs more than a label, calls a model, or is slow has none.
    """
    values = list(output.labels.values())
    if output.decision is not None and output.held:
        # These have no confidence; a metric that reads it fails.
        values = [output.decision.model_construct(value=value) for value in values]
    calls = NoCalls()
    longest = min(LONGEST_PROBE, PROBE_SHARE * (max_seconds or math.inf))
    scores = None
    try:
        with dspy.context(callbacks=[calls], trace=[]):
            scores = _ask_labels(metric, examples, output.name, values, calls=calls, longest=longest)
    except (Exception, SystemExit) as error:
        if not calls.stopped:
            return f"the metric raises {type(error).__name__} for a prediction that holds {output.name!r} alone"
    if calls.stopped:
        return "the metric calls a language model"
    if scores is None:
        return "the metric takes too long to be asked for every label"
    if (scores == scores[:, :1]).all():
        return ALL_ALIKE
    return scores


def _ask_labels(
    metric: Metric,
    examples: Sequence[dspy.Example],
    name: str,
    values: Sequence[Value],
    *,
    calls: "NoCalls",
    longest: float,
) -> Array | None:
    """Return the scores of labels, ``[E, L]``; None if the metric is slow."""
    call_metric = metric_caller(metric)
    scores = np.zeros((len(examples), len(values)))
    num_slow = 0
    total_seconds = 0.0
    for number, (example, label) in enumerate(np.ndindex(*scores.shape), start=1):
        began = time.perf_counter()
        prediction = dspy.Prediction({name: values[label]})
        scores[example, label] = as_score(call_metric(own_copy(examples[example]), prediction))
        seconds = time.perf_counter() - began
        total_seconds += seconds
        num_slow += seconds > LONGEST_CALL
        if calls.stopped:  # The metric caught the exception.
            break
        # The first call may load something; some are slow for wrong labels alone.
        if 2 * num_slow >= max(number, 4) or total_seconds > longest:
            return None
    return scores


def check_answers(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], *, name: str, told: Sequence[str] = ()
) -> list[str]:
    """Warn of impossible answers in the examples `name`; return warnings not in `told`.

    Raises:
        ValueError: If all are impossible, and every label has the same score.
    """
    warnings = [warning for warning in strange_answers(program, examples) if warning not in told]
    for warning in warnings:
        logger.warning(f"{name}: {warning}: no answer is right there, unless the metric reads others")
    output = label_output(program)
    # A metric may read other outputs.
    if not isinstance(output, LabelOutput) or _answered_outputs(program, examples) != {output.name}:
        return warnings
    strange = output.strange(examples)
    if strange.startswith(f"{len(examples)} of") and label_scores(metric, examples, output) == ALL_ALIKE:
        raise UserError(
            f"{name}: {strange}, and {ALL_ALIKE}: no answer can be right. Give each example one of the labels, of "
            "their type"
        )
    return warnings


def _answered_outputs(program: dspy.Module, examples: Sequence[dspy.Example]) -> set[str]:
    names: set[str] = set()
    for example in examples:
        names |= set(example.keys())
    outputs: set[str] = set()
    for predictor in program.predictors():
        outputs |= set(predictor.signature.output_fields)
    return names & outputs


class NoCalls(BaseCallback):  # type: ignore[misc]
    """Stop a metric before it calls a language model."""

    stopped = False

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, Value]) -> None:
        self.stopped = True
        # Neither DSPy nor metrics mean to catch this exception.
        raise SystemExit("the metric calls a language model")
