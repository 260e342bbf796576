"""Program calls that bring along how likely each label was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dspy
import numpy as np

from plr_dspy.labels.outputs import Array, LabelOutput
from plr_dspy.labels.reader import (
    Decision,
    Reading,
    answered_label,
    label_reader,
    labels_read,
    reading_of_answer,
)
from plr_dspy.labels.requests import LogprobRequests
from plr_dspy.programs.calls import Metric, MetricWork, WrongAnswer, answer, own_copy
from plr_dspy.programs.copies import named_predictors
from plr_dspy.scoring.cells import Cell

DECIMALS = 4
"""Of log-probabilities: as many as the ledger keeps, so that a resumed compile sees the same numbers."""


class ReadingWork:
    """Makes program calls for what their replies say of labels, which the LM must tell.

    Args:
        examples: What cells name by index; only their inputs are used.
        output: The output whose labels are read.
        purpose: What needs the probabilities, for messages.
        decision: Gives the answer, so that a reply that cannot be read costs no second call; None leaves it as it is.
    """

    sample = ""
    models: Sequence[dspy.BaseLM] = ()

    def __init__(
        self,
        examples: Sequence[dspy.Example],
        output: LabelOutput,
        *,
        purpose: str,
        decision: Decision | None = None,
    ) -> None:
        self.requests = LogprobRequests(required=True)
        self._examples = examples
        self._output = output
        self._purpose = purpose
        self._decision = decision

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Return a cell with the label answered and log-probabilities, if the reply has any."""
        found, given = self.read(program, self._examples[example])
        if found is None:
            return Cell(0.0)
        label = answered_label(self._output, given)
        return Cell(0.0, value=label, label_logprobs=found.log_probabilities, unseen_labels=found.unseen)

    def read(self, program: dspy.Module, example: dspy.Example) -> tuple[Reading | None, Any]:
        """Make one program call; return what its reply says of labels, and its answer, None for one that is unread.

        Raises:
            NoProbabilities: when the LM gives none.
            Exception: of the program.
        """
        given = None
        reading = labels_read(
            program, self._output, requests=self.requests, decision=self._decision, purpose=self._purpose
        )
        with reading as reader, suppress(WrongAnswer):  # It may say something of labels all the same.
            given = answer(program, own_copy(example))
        return reader.unread or reading_of_answer(reader, given), given


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
        self._original = original or {}
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
        is_original = self._calibrating and all(
            list(predictor.demos) == list(self._original.get(name, predictor.demos))
            for name, predictor in named_predictors(program)
        )
        raw: list[Reading] = []

        def decide(found: Reading) -> Reading:
            raw.append(found)
            likeliest = list(self.output.labels)[int(np.argmax(found.log_probabilities))]
            return self._own(found) if is_original and self._own else found._replace(label=likeliest)

        decides = self._calibrating and (self._own or not is_original)
        reader = label_reader(
            program, self.output, requests=self._requests, decision=decide if decides else None
        )
        try:
            with dspy.context(adapter=reader):
                shown, prediction = self._answered(program, example, usage)
        except WrongAnswer as wrong:
            if is_original and reader.unread is not None:
                wrong.told = told_in_cell(reader.unread)
            raise
        label = answered_label(self.output, prediction)  # Read before the metric, which may write to it.
        cell = self._scored(shown, prediction)
        if len(reader.readings) > 1:
            self._why = "the program calls its classifier several times for an answer"
        found = reader.readings[0] if len(reader.readings) == 1 else None  # The answer may be that of any.
        if is_original and (found or reader.unread):
            # It is scored as it is; calibrated, it would answer by its first reply.
            first = reader.unread or (raw[0] if raw else found)
            return cell if first is None or len(reader.readings) > 1 else replace(cell, **told_in_cell(first))
        self.lacking = self._lacking(found, label, cell, example)
        return cell if found is None or self.lacking else replace(cell, **told_in_cell(found))

    def _lacking(self, found: Reading | None, label: str | None, cell: Cell, example: int) -> str:
        """Say why what a reply tells of labels cannot be used; empty where it can."""
        if found is None or found.label is None:
            adapter = type(dspy.settings.adapter or dspy.ChatAdapter()).__name__
            return f"no label is among the likeliest tokens of the replies that {adapter} reads"
        if found.label != label:
            return "the program answers something else than the label that its classifier said"
        if cell.score != self.scores[example, list(self.output.labels).index(found.label)]:
            return "the metric scores the same answer differently when it is asked again"
        return ""


def told_in_cell(found: Reading) -> dict[str, Any]:
    """What a reply says of labels, as fields of a cell."""
    rounded = tuple(round(each, DECIMALS) for each in found.log_probabilities)
    return {"label_logprobs": rounded, "unseen_labels": found.unseen}
