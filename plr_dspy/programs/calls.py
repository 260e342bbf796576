"""What one program call does: run the program on an example, and score its answer with the user's metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from plr_dspy.metrics.by_example import SHOWN, Metric, as_score, metric_caller
from plr_dspy.metrics.over_set import SetMetric
from plr_dspy.programs.copies import language_models
from plr_dspy.programs.splits import folded_key, source_of
from plr_dspy.report.data import Signal
from plr_dspy.scoring.cells import Cell
from plr_dspy.scoring.influence import Influence

WRONG_ANSWERS = (AdapterParseError, ContextWindowExceededError)
"""Of a program: there is no answer that a metric could call right, and the order is at fault."""


@dataclass(frozen=True)
class Scored:
    """An example that is scored: no demo that is found for it is made of it, or asks the same."""

    source: str  # what identifies its inputs
    values: frozenset[bytes]  # what identifies each of them, whatever its name

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Scored:
        """The example with these inputs."""
        return cls(source_of(inputs), frozenset(map(folded_key, dict(inputs.items()).values())))


def scored() -> Scored | None:
    """The example that is scored; None where that is not known, or there is none.

    It is in DSPy's settings, which reach threads that DSPy starts; other context variables do not.
    """
    inputs = dspy.settings.get("plr_dspy_scored")
    return None if inputs is None else Scored.of(inputs)


class WrongAnswer(Exception):
    """The program ended without an answer, by the fault of the order.

    Attributes:
        told: What the reply says all the same, as fields of a `Cell`.
    """

    def __init__(self, error: Exception) -> None:
        text = str(error)
        if isinstance(error, AdapterParseError):
            reply = " ".join(str(error.lm_response).split())
            text = f"{error.adapter_name} could not read the reply {reply[:SHOWN]!r}"
        super().__init__(text)
        self.error = error
        self.told: dict[str, Any] = {}


class MetricWork:
    """Makes program calls on examples, which cells name by index, and has a metric score the answers.

    Attributes:
        sample: The start of the program's first answer, with its score.
        models: The language models that the metric calls, as far as they can be found.
        influence: Scores outputs, where the metric is one over a set; else None.
        signal: What a search learns from calls, as far as it is known; None where nothing is learned.
    """

    signal: Signal | None = None

    def __init__(self, metric: Metric, examples: Sequence[dspy.Example]) -> None:
        self.sample = ""
        self.models = models_of(metric)
        self._examples = examples
        self._over_set = metric if isinstance(metric, SetMetric) else None
        self._metric = metric_caller(metric if self._over_set is None else self._over_set.alone)
        self.influence: Influence | None = None
        if self._over_set is not None:
            self.influence = Influence(self._over_set, [self._over_set.fact(example) for example in examples])

    def __call__(self, program: dspy.Module, example: int, usage: Any) -> Cell:
        """Call a program's copy on an example, with DSPy's tracker of its usage; a WrongAnswer where there is none."""
        return self._scored(*self._answered(program, example, usage))

    def inputs(self, example: int | None) -> dict[str, Any] | None:
        """Those of an example; None for none."""
        return None if example is None else dict(self._examples[example].inputs().items())

    def _answered(self, program: dspy.Module, example: int, usage: Any) -> tuple[dspy.Example, Any]:
        """Return the example as the program was shown it, and what the program answers."""
        shown = own_copy(self._examples[example])
        try:
            with dspy.context(plr_dspy_scored=shown.inputs()):
                prediction = program(**shown.inputs())
        except WRONG_ANSWERS as error:
            raise WrongAnswer(error) from error
        if dspy.settings.track_usage and isinstance(prediction, dspy.Prediction):
            # DSPy does this only where nobody else tracks usage, and metrics may ask for it.
            prediction.set_lm_usage(usage.get_total_tokens())
        return shown, prediction

    def _scored(self, shown: dspy.Example, prediction: Any) -> Cell:
        """Return the cell of an answer."""
        score = as_score(self._metric(shown, prediction))
        self.sample = self.sample or f"{repr(prediction)[:SHOWN]}, scored {score:g}"
        return Cell(score, value=self._over_set and self._over_set.outputs(shown, prediction))


def own_copy(example: dspy.Example) -> dspy.Example:
    """Return an example for a program or metric that may write to it, which must not reach the trainset."""
    return example.copy() if type(example) is dspy.Example else example


def models_of(metric: Metric) -> list[dspy.BaseLM]:
    """The LMs of a judge, or those that a metric object holds."""
    if isinstance(metric, dspy.Module):
        return language_models(metric)
    held = getattr(metric, "__dict__", {}).values()
    models = [value for value in held if isinstance(value, dspy.BaseLM)]
    return models + [lm for value in held if isinstance(value, dspy.Module) for lm in language_models(value)]
