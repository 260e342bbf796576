"""Program calls that bring the log-probabilities of labels along, where the endpoint gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy
import numpy as np

from plr_dspy.label_probabilities.reader import Decision, Reading
from plr_dspy.label_probabilities.reader import reading as reading_adapter
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.lm.finite_outputs import label_text
from plr_dspy.programs.calls import Metric, MetricWork, WrongAnswer
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.label_scores import Array, LabelOutput
from plr_dspy.scoring.cells import Cell

DECIMALS = 4
"""Of log-probabilities: as many as the ledger keeps, so that a resumed compile sees the same numbers."""


class LabelWork(MetricWork):
    """Does what `MetricWork` does, and reads the label's log-probabilities from the program's own LM calls.

    No further LM call is made, but for one that the endpoint refuses: then log-probabilities are no longer asked
    for, nor are they where the first reply has none.

    Args:
        metric, examples: As in `MetricWork`.
        output: The program's output whose labels are read.
        scores: The metric's score ``[E, L]`` of each example and label, as of `label_scores`.
        calibrating: Whether answers are to be calibrated: then the likeliest label is the answer, also of replies that
            the adapter cannot read, as it is of a `CalibratedProgram`.
        original: Where answers are to be calibrated, the demos of what the user has, by predictor: it answers as it
            does in use, failed replies included.
        own: The calibration that it has in use; None for none.

    Attributes:
        output, scores: The same.
        lacking: Why the last call that asked for log-probabilities brought none to learn from; empty where it did.
    """

    def __init__(
        self,
        metric: Metric,
        examples: Sequence[dspy.Example],
        *,
        output: LabelOutput,
        scores: Array,
        calibrating: bool = False,
        original: Mapping[str, Sequence[Any]] | None = None,
        own: Decision | None = None,
    ) -> None:
        super().__init__(metric, examples)
        self._calibrating = calibrating
        self._original = original
        self._own = own
        self._why = self.lacking = ""
        self.output = output
        self.scores = scores
        self._requests = LogprobRequests()

    @property
    def reading(self) -> bool:
        """Whether log-probabilities are asked for; switched off, this is `MetricWork`."""
        return self._requests.wanted

    @reading.setter
    def reading(self, wanted: bool) -> None:
        self._requests.wanted = wanted

    @property
    def reason(self) -> str:
        """Why there are no log-probabilities to learn from; empty where there are."""
        return self._requests.reason or self._why

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Return a cell with the metric's score, and with log-probabilities if they belong to what was scored."""
        if not self.reading:
            return super().__call__(program, example, usage)
        name, labels = self.output.name, self.output.labels
        is_original = self._calibrating and all(
            list(predictor.demos) == list((self._original or {}).get(each, predictor.demos))
            for each, predictor in named_predictors(program)
        )
        raw: list[Reading] = []

        def decide(found: Reading) -> Reading:
            raw.append(found)
            likeliest = list(labels)[int(np.argmax(found.log_probabilities))]
            return self._own(found) if is_original and self._own else found._replace(label=likeliest)

        adapter = reading_adapter(
            dspy.settings.adapter or dspy.ChatAdapter(),
            name,
            labels,
            requests=self._requests,
            decision=decide if self._calibrating and (self._own or not is_original) else None,
            stated=self.output.stated,
        )
        try:
            with dspy.context(adapter=adapter):
                shown, prediction = self._answered(program, example, usage)
        except WrongAnswer as wrong:
            if is_original and adapter.unread is not None:
                wrong.told = _fields(adapter.unread)
            raise
        # Read before the metric, which may write to the prediction.
        value = prediction.get(name) if isinstance(prediction, dspy.Prediction) else None
        cell = self._scored(shown, prediction)
        if len(adapter.readings) > 1:
            self._why = "the program calls its classifier several times for an answer"
        found = adapter.readings[0] if len(adapter.readings) == 1 else None  # The answer may be that of any.
        if is_original and (found or adapter.unread):
            # It is scored as it is; calibrated, it would answer by its first reply.
            first = adapter.unread or (raw[0] if raw else found)
            return cell if first is None or len(adapter.readings) > 1 else replace(cell, **_fields(first))
        self.lacking = self._lacking(found, label_text(labels, value), cell, example)
        if found is None or self.lacking:
            return cell
        return replace(cell, **_fields(found))

    def _lacking(self, found: Reading | None, label: str | None, cell: Cell, example: int) -> str:
        """Say why what a reply tells of labels cannot be used; empty where it can."""
        if cell.outcome:
            return "the first replies could not be read"
        if found is None or found.label is None:
            adapter = type(dspy.settings.adapter or dspy.ChatAdapter()).__name__
            return f"no label is among the likeliest tokens of the replies that {adapter} reads"
        if found.label != label:
            return "the program answers something else than the label that its classifier said"
        if cell.score != self.scores[example, list(self.output.labels).index(found.label)]:
            return "the metric scores the same answer differently when it is asked again"
        return ""


def _fields(found: Reading) -> dict[str, Any]:
    """What a reply says of labels, as fields of a cell."""
    rounded = tuple(round(each, DECIMALS) for each in found.log_probabilities)
    return {"label_logprobs": rounded, "unseen_labels": found.unseen}
