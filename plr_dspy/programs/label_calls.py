"""Program calls that bring the log-probabilities of labels along, where the endpoint gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy
import numpy as np

from plr_dspy.label_probabilities.reader import Reading
from plr_dspy.label_probabilities.reader import reading as reading_adapter
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.lm.finite_outputs import label_text
from plr_dspy.programs.calls import Metric, MetricWork
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

    Attributes:
        output, scores: The same.
    """

    def __init__(
        self,
        metric: Metric,
        examples: Sequence[dspy.Example],
        *,
        output: LabelOutput,
        scores: Array,
        calibrating: bool = False,
    ) -> None:
        super().__init__(metric, examples)
        self._calibrating = calibrating
        self._why = ""
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
        adapter = reading_adapter(
            dspy.settings.adapter or dspy.ChatAdapter(),
            name,
            labels,
            requests=self._requests,
            decision=self._likeliest if self._calibrating else None,
            stated=self.output.stated,
        )
        with dspy.context(adapter=adapter):
            shown, prediction = self._answered(program, example, usage)
        # Read before the metric, which may write to the prediction.
        value = prediction.get(name) if isinstance(prediction, dspy.Prediction) else None
        cell = self._scored(shown, prediction)
        if len(adapter.readings) > 1:
            self._why = "the program calls its classifier several times for an answer"
        found = adapter.readings[0] if len(adapter.readings) == 1 else None  # The answer may be that of any.
        if found is None or found.label != label_text(labels, value):
            return cell
        if cell.score != self.scores[example, list(labels).index(found.label)]:
            return cell
        rounded = tuple(round(each, DECIMALS) for each in found.log_probabilities)
        return replace(cell, label_logprobs=rounded, unseen_labels=found.unseen)

    def _likeliest(self, found: Reading) -> Reading:
        """Decide for the likeliest label, as calibrated programs do."""
        return found._replace(label=list(self.output.labels)[int(np.argmax(found.log_probabilities))])
