"""Program calls that read label probabilities, and the scores that a metric gives to labels."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import dspy
import numpy as np

from plr_dspy.dspy_compat import current_adapter
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.calibration import Calibration
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.labels.reader import (
    Decision,
    LabelReader,
    LogprobRequests,
    NoProbabilities,
    Reading,
    labels_read,
)
from plr_dspy.labels.trials import scorer, tried
from plr_dspy.lm.plain_text_adapter import Value, name_of_label
from plr_dspy.metrics.by_example import Metric
from plr_dspy.programs.calls import MetricWork, WrongAnswer
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.arrays import Array
from plr_dspy.statistics.calibration import LOG_DECIMALS

# Maximum time per metric call, in seconds. Slower metrics may call a model outside DSPy.
LONGEST_CALL = 0.05
LONGEST_PROBE = 10.0  # maximum time for scoring labels, in seconds
PROBE_SHARE = 0.1  # maximum time for scoring labels, as a share of `max_seconds`

SEVERAL = "the program calls its classifier several times per answer"
ALL_ALIKE = "the metric gives every label the same score"
UNASKED = "the program answered without calling its classifier"
OTHER_ANSWER = "the program's answer is not a label"


class LabelReadingWork(MetricWork):
    """Program calls whose records hold the answer's label and the log-probabilities of all labels.

    The records hold no scores. If `as_it_is` is true, programs keep their own answers. Otherwise,
    the likeliest label replaces each answer. If an answer is not a label, the record holds the label
    from the reply, and `OTHER_ANSWER` in `lacking`.
    """

    def __init__(
        self, examples: Sequence[dspy.Example], output: LabelOutput, *, purpose: str, as_it_is: bool = False
    ) -> None:
        super().__init__(lambda example, prediction: 0.0, examples)
        self._output = output
        self._requests = LogprobRequests(purpose)
        self._decision: Decision | None = None
        if not as_it_is:
            self._decision = Calibration.none(output.labels).applied

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        try:
            with labels_read(program, self._output, self._requests, decision=self._decision) as reader:
                prediction = self._answered(program, example)
        except WrongAnswer as wrong:
            wrong.record_fields = _label_fields(reader.unread)
            raise
        label = self._output.text_of(prediction)
        reading = reader.unread or reader.reading_for(prediction)
        lacking = ""
        if label is None and reading is not None:
            has_field = isinstance(prediction, dspy.Prediction) and self._output.name in prediction
            if has_field and self._decision is None:
                lacking = OTHER_ANSWER
            label = reading.label
        return CallRecord(None, value=label, lacking=lacking, **_label_fields(reading))


class LabelWork(MetricWork):
    """A `MetricWork` that records label log-probabilities if the label in the reply explains the score.

    Args:
        metric, examples: As in `MetricWork`.
        output: The output with the labels.
        scores: Each label's score on each example, ``[num_examples, num_labels]``.
        calibrating: Whether programs answer with the likeliest label, because they will be
            calibrated later.
        original: The user's program. It keeps its own answers even if `calibrating` is true.

    Attributes:
        shares: Possible label shares among correct answers, with one row per possibility. None
            means that all labels are assumed to be equally frequent.
    """

    shares: Array | None = None

    def __init__(
        self,
        metric: Metric,
        examples: Sequence[dspy.Example],
        *,
        output: LabelOutput,
        scores: Array,
        calibrating: bool = False,
        original: dspy.Module,
    ) -> None:
        labels = list(output.labels)
        if output.optional:
            labels.append(name_of_label(None))
        super().__init__(metric, examples, labels)
        self.output = output
        self.requests = LogprobRequests()
        self.scores = scores
        self._original_demos = _demos(original)
        self._signatures = _signatures(original)
        self._likeliest: Decision | None = None
        if calibrating:
            self._likeliest = Calibration.none(output.labels).applied

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        # Do not read log-probabilities if the provider does not return them. Do not read them either
        # if the signatures have changed, because the new signatures may have other labels.
        if self.requests.reason or _signatures(program) != self._signatures:
            return super().__call__(program, example)
        # The original program keeps its own answers even if other programs will be calibrated.
        keeps_answer = self._likeliest is not None and _demos(program) == self._original_demos
        decision = None if keeps_answer else self._likeliest
        try:
            with labels_read(program, self.output, self.requests, decision=decision) as reader:
                prediction = self._answered(program, example)
        except WrongAnswer as wrong:
            unread = reader.unread if keeps_answer else None
            wrong.record_fields = {"refused": self.requests.reason, **_label_fields(unread)}
            raise
        # Read the label before scoring, because a metric may modify the prediction.
        label = self.output.label_of(prediction)
        record = self._scored(example, prediction)
        fields = self._fields(reader, label, record.score, example, keeps_answer=keeps_answer)
        return replace(record, **fields)

    def _fields(
        self,
        reader: LabelReader,
        label: str | None,
        score: float | None,
        example: int,
        *,
        keeps_answer: bool,
    ) -> dict[str, Value]:
        """Return the record's fields about log-probabilities for an answer with this label and score."""
        if len(reader.readings) > 1:
            if self._likeliest is not None:
                raise NoProbabilities(
                    f"calibration during a search needs exactly one classifier call per answer, but {SEVERAL}. Omit "
                    "the argument calibrate, and calibrate the compiled program with BatchCalibration(predictor=...)."
                )
            return {"refused": SEVERAL}
        reading = reader.readings[0] if reader.readings else None
        first_reading = reader.unread or reading
        if keeps_answer and first_reading is not None:
            # Score the original program's final answer, but log the probabilities in its first
            # reply, because calibration would use that reply.
            return _label_fields(first_reading)
        lacking = UNASKED
        if reader.readings:
            lacking = self._lacking(reading, label, score, example)
        if lacking:
            return {"refused": self.requests.reason, "lacking": lacking}
        return _label_fields(reading)

    def _lacking(
        self, reading: Reading | None, label: str | None, score: float | None, example: int
    ) -> str:
        """Return why a reading does not explain the score, or an empty string if it does."""
        if reading is None or reading.label is None:
            adapter = type(current_adapter()).__name__
            return f"no label is among the likeliest tokens of the replies that {adapter} reads"
        if reading.label != label:
            return "the program's answer differs from the classifier's label"
        if score != self.scores[example, list(self.output.labels).index(reading.label)]:
            return "the metric gives the same answer a different score when called again"
        return ""

    def responses(self, evaluator: Evaluator) -> LabelResponses:
        scores = self.scores
        if self.confusion_scores is not None:
            # Use a view, because the table's scores are updated in place during the search.
            scores = self.confusion_scores.table[:, : len(self.output.labels)]

        def read(ordering: Candidate, example: int) -> tuple[Sequence[float], Sequence[int]] | None:
            record = evaluator.log.records.get(evaluator.key(ordering, example))
            if record is None or record.label_logprobs is None:
                return None
            return record.label_logprobs, record.unseen_labels

        return LabelResponses(scores, read, self.shares, self._likeliest is not None, self.confusion_scores)

    def answering(self, program: dspy.Module, revision: Revision | None) -> dspy.Module:
        if revision is None:
            return program
        calibration = Calibration(tuple(self.output.labels), revision.offsets, revision.shares)
        return CalibratedProgram(program, calibration, predictor=self.output.predictor)


def _label_fields(reading: Reading | None) -> dict[str, Value]:
    """Return a reading as fields of a call record, rounded so that a resumed run gets the same values."""
    if reading is None:
        return {}
    logs = np.round(reading.log_probabilities, LOG_DECIMALS)
    return {"label_logprobs": tuple(logs.tolist()), "unseen_labels": reading.unseen}


def _signatures(program: dspy.Module) -> dict[str, list[str]]:
    """Return the field names of each predictor's signature."""
    return {name: list(predictor.signature.fields) for name, predictor in program.named_predictors()}


def _demos(program: dspy.Module) -> dict[str, tuple[Value, Value]]:
    """Return each predictor's demos and retrieval settings."""
    demos = {}
    for name, predictor in program.named_predictors():
        retrieval = getattr(predictor, "retrieval", None)
        demos[name] = (list(predictor.demos), getattr(retrieval, "nearest", None))
    return demos


def label_scores(
    metric: Metric,
    examples: Sequence[dspy.Example],
    output: LabelOutput,
    *,
    max_seconds: float | None = None,
) -> Array | str:
    """Return the metric's score for each label on each example, ``[num_examples, num_labels]``.

    If the metric fails, calls a language model, is too slow, or gives every label the same score,
    return the reason instead. Scoring may take at most `LONGEST_PROBE` seconds, and at most the
    share `PROBE_SHARE` of `max_seconds`.
    """
    values = list(output.labels.values())
    score = scorer(metric)
    longest = min(LONGEST_PROBE, PROBE_SHARE * (max_seconds or math.inf))
    scores = np.zeros((len(examples), len(values)))
    num_slow = 0
    total_seconds = 0.0
    for number, (example, label) in enumerate(np.ndindex(*scores.shape), start=1):
        began = time.perf_counter()
        trial = tried(score, examples[example], {output.name: values[label]})
        seconds = time.perf_counter() - began
        if trial.calls_model:
            return "the metric calls a language model"
        if trial.error is not None:
            error = type(trial.error).__name__
            return f"the metric raises {error} for a prediction whose only field is {output.name!r}"
        scores[example, label] = trial.result
        total_seconds += seconds
        num_slow += seconds > LONGEST_CALL
        # Tolerate one slow call at first, and later slow calls if they are fewer than half of all calls.
        if 2 * num_slow >= max(number, 4) or total_seconds > longest:
            return "the metric is too slow to score every label"
    if (scores == scores[:, :1]).all():
        return ALL_ALIKE
    return scores
