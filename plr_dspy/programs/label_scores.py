"""What a metric gives to each label of each example, which is known without any call of a language model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import dspy
import numpy as np
from dspy.adapters.types.decision import Score
from dspy.utils.callback import BaseCallback
from numpy.typing import NDArray

from plr_dspy.label_probabilities.stated import StatedProbabilities
from plr_dspy.lm.finite_outputs import labels_of, without_none
from plr_dspy.programs.calls import Metric, as_score, metric_caller, own_copy
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.prompts import decision_adapter

Array = NDArray[np.float64]

LABEL_TYPES = "a Literal, an enum or a bool"
"""What outputs with few possible values are, as messages say it; a Choice or a Noul is one, too."""

REANCHOR = "dspy.experimental.ReAnchor"
"""What fits decisions that have no labels to calibrate; reasons that name it say what to do."""

LONGEST_CALL = 0.05
"""Seconds: a metric that takes longer asks a model or a service in a way that nobody else sees."""


@dataclass(frozen=True, slots=True)
class LabelOutput:
    """The one output of a program that has few possible values.

    Attributes:
        predictor: Name of the predictor that gives it.
        name: Of the field.
        labels: Its values, by what demos call them.
        stated: How replies state the probabilities of its labels; None where log-probabilities tell them.
        kind: The type of what predictions hold, where that is a decision with a label; None for the label itself.
    """

    predictor: str
    name: str
    labels: Mapping[str, Any]
    stated: StatedProbabilities | None = None
    kind: Any = None


def label_outputs(name: str, predictor: dspy.Predict) -> list[LabelOutput]:
    """Find all outputs of a predictor that have few possible values."""
    decisions, found = decision_adapter(predictor), []
    state = None if decisions is None else decisions.state
    for field_name, field in predictor.signature.output_fields.items():
        kind = None if state is None else state.types.get(field_name)
        annotation = without_none(field.annotation) if kind is None else kind.model_fields["value"].annotation
        if (labels := labels_of(annotation)) is None:
            continue
        stated = None if state is None or kind is None else StatedProbabilities.of(state, field_name)
        found.append(
            LabelOutput(name, field_name, labels, stated, kind if field.annotation is kind else None)
        )
    return found


def label_output(program: dspy.Module, *, only: str | None = None) -> LabelOutput | str:
    """Find the only output with few possible values; a text is the reason why there is none.

    Args:
        program: Its predictors have the output.
        only: Name of the predictor that is looked at; None for all.
    """
    looked_at = [(name, each) for name, each in named_predictors(program) if only in (None, name)]
    found = [output for name, predictor in looked_at for output in label_outputs(name, predictor)]
    if not found:
        graded = [
            name
            for _, predictor in looked_at
            for name, field in predictor.signature.output_fields.items()
            if isinstance(field.annotation, type) and issubclass(field.annotation, Score)
        ]
        if graded:
            return (
                f"the output {graded[0]!r} is a Score, whose value lies between its levels (make it a Choice of the "
                f"levels, or let {REANCHOR} fit its cuts)"
            )
        return f"no output is {LABEL_TYPES}"
    predictors = len({output.predictor for output in found})
    if predictors > 1:
        return f"{predictors} predictors have an output that is {LABEL_TYPES}"
    if len(found) > 1:
        return f"{len(found)} outputs are {LABEL_TYPES}"
    (output,) = found
    if len(output.labels) < 2 or "" in output.labels:
        return f"the output {output.name!r} does not have two labels with a text"
    predictor = dict(looked_at)[output.predictor]
    if (decisions := decision_adapter(predictor)) is not None and decisions.system_one:
        client = type(predictor.lm or dspy.settings.lm).__name__
        return (
            f"the client {client} answers decision requests itself, past every adapter ({REANCHOR} can fit the weights "
            "of its labels)"
        )
    return output


def label_scores(metric: Metric, examples: Sequence[dspy.Example], output: LabelOutput) -> Array | str:
    """Ask a metric for the score of each label on each example.

    The metric gets predictions that hold the label alone. Nothing else may be needed for a score: a metric that
    looks at more, calls a language model, takes long, or fails is not asked any further.

    Args:
        metric: As in `MetricWork`.
        examples: ``[E]``; the metric gets copies.
        output: Its labels ``[L]`` are asked for.

    Returns:
        The scores ``[E, L]``, or the reason why there are none, in a few words.

    Raises:
        KeyboardInterrupt: When the user interrupts.
    """
    refusal = _Refusal()
    values = list(output.labels.values())
    if output.kind is not None:  # Without a confidence, so that a metric that looks at it is seen to.
        values = [output.kind.model_construct(value=value) for value in values]
    scores = np.zeros((len(examples), len(values)))
    durations: list[float] = []
    try:
        ask = metric_caller(metric)
        with dspy.context(callbacks=[_NoCalls(refusal)], trace=[]):
            for cell in np.ndindex(*scores.shape):
                prediction = _LabelAlone(refusal, output.name, values[cell[1]])
                began = time.perf_counter()
                scores[cell] = as_score(ask(own_copy(examples[cell[0]]), prediction))
                durations.append(time.perf_counter() - began)
                if refusal.reason:  # The metric has caught the exception, and gone on.
                    return refusal.reason
                if len(durations) == 2 and min(durations) > LONGEST_CALL:  # The first may load something.
                    return "the metric takes too long to be asked for every label"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return refusal.reason or (
            f"the metric raises {type(error).__name__} for a prediction that holds {output.name!r} alone"
        )
    if (scores == scores[:, :1]).all():
        return "the metric gives every label the same score"
    return scores


class _Stop(BaseException):
    """Ends a metric; no metric means to catch it."""


class _Refusal:
    """Keeps the reason why a metric is not asked any further."""

    def __init__(self) -> None:
        self.reason = ""

    def stop(self, reason: str) -> NoReturn:
        self.reason = self.reason or reason
        raise _Stop(reason)


class _NoCalls(BaseCallback):  # type: ignore[misc]
    """Stops a metric before it calls a language model: DSPy swallows but an `Exception` of a callback."""

    def __init__(self, refusal: _Refusal) -> None:
        self._refusal = refusal

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._refusal.stop("the metric calls a language model")


class _LabelAlone(dspy.Prediction):
    """A prediction that holds one field, and stops a metric that looks at anything else.

    All other methods of a prediction use its attributes, and stop there.
    """

    def __init__(self, refusal: _Refusal, name: str, value: Any) -> None:
        def read(key: Any) -> Any:
            if key != name:
                refusal.stop(f"the metric looks at more of the prediction than {name!r}")
            return value

        object.__setattr__(self, "_read", read)

    def __getattribute__(self, key: str) -> Any:
        if key in ("__class__", "get"):
            return object.__getattribute__(self, key)
        # A field that is called like a method is not what an attribute of this name is.
        return _reader(self)("" if hasattr(dspy.Prediction, key) else key)

    def __getitem__(self, key: Any) -> Any:
        return _reader(self)(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the label."""
        return _reader(self)(key)

    def __contains__(self, key: Any) -> bool:
        _reader(self)(key)
        return True

    def __bool__(self) -> bool:
        return True


def _reader(prediction: _LabelAlone) -> Callable[[Any], Any]:
    read: Callable[[Any], Any] = object.__getattribute__(prediction, "_read")
    return read
