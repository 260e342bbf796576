"""What one program call does: run the program on an example, and score what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import dspy
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from plr_dspy.programs.metrics import Metric, as_score, metric_caller
from plr_dspy.scoring.cells import Cell

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""Of a program: there is no answer that a metric could call right, and the order is at fault."""


SHOWN = 150
"""Characters of a reply or an answer that messages show."""


class WrongAnswer(Exception):
    """The program ended without an answer, by the fault of the order.

    Args:
        error: What it raised.
    """

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not read the reply {reply[:SHOWN]!r}"
        super().__init__(text)
        self.error = error


class Work(Protocol):
    """Makes a program call."""

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """What comes of it.

        Args:
            program: A copy of its own.
            example: Number of the example.
            usage: DSPy's usage tracker of this call.

        Raises:
            WrongAnswer: when there is no answer.
            Exception: of the program or what scores it.
        """


class MetricWork:
    """The program's answer, scored by a metric.

    Args:
        metric: ``metric(example, prediction)``, as in `dspy.Evaluate`.
        examples: What cells name by index.

    Attributes:
        sample: The start of the program's first answer, with its score.
    """

    def __init__(self, metric: Metric, examples: Sequence[dspy.Example]) -> None:
        self.sample = ""
        self._metric = metric_caller(metric)
        self._examples = examples

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """The metric's score."""
        shown = self._examples[example]
        if type(shown) is dspy.Example:
            shown = shown.copy()  # a program or metric that writes to it must not reach the trainset
        prediction = answer(program, shown)
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # DSPy does this only where nobody else tracks usage, and metrics may ask for it.
            prediction.set_lm_usage(usage.get_total_tokens())
        score = as_score(self._metric(shown, prediction))
        self.sample = self.sample or f"{repr(prediction)[:SHOWN]}, scored {score:g}"
        return Cell(score)


def answer(program: dspy.Module, example: dspy.Example) -> Any:
    """What the program answers.

    Raises:
        WrongAnswer: when it could not be parsed, or the prompt was too long.
        Exception: of the program.
    """
    try:
        return program(**example.inputs())
    except WRONG_ANSWERS as error:
        raise WrongAnswer(error) from error
