"""What a metric gives to each label of each example, which is known without any call of a language model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import dspy
import numpy as np
from dspy.utils.callback import BaseCallback

from plr_dspy.labels.outputs import Array, LabelOutput
from plr_dspy.programs.calls import Metric, as_score, metric_caller, own_copy

LONGEST_CALL = 0.05
"""Seconds: a metric that takes longer asks a model or a service in a way that nobody else sees."""


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
    reasons: list[str] = []

    def stop(reason: str) -> None:
        reasons.append(reason)
        raise _Stop(reason)

    values = list(output.labels.values())
    if output.kind is not None:  # Without a confidence, so that a metric that looks at it is seen to.
        values = [output.kind.model_construct(value=value) for value in values]
    scores = np.zeros((len(examples), len(values)))
    durations: list[float] = []
    try:
        ask = metric_caller(metric)
        with dspy.context(callbacks=[_NoCalls(stop)], trace=[]):
            for cell in np.ndindex(*scores.shape):
                prediction = _LabelAlone(stop, output.name, values[cell[1]])
                began = time.perf_counter()
                scores[cell] = as_score(ask(own_copy(examples[cell[0]]), prediction))
                durations.append(time.perf_counter() - began)
                if reasons:  # The metric has caught the exception, and gone on.
                    return reasons[0]
                if len(durations) == 2 and min(durations) > LONGEST_CALL:  # The first may load something.
                    return "the metric takes too long to be asked for every label"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = (
            f"the metric raises {type(error).__name__} for a prediction that holds {output.name!r} alone"
        )
        return reasons[0] if reasons else failure
    if (scores == scores[:, :1]).all():
        return "the metric gives every label the same score"
    return scores


class _Stop(BaseException):
    """Ends a metric; no metric means to catch it."""


class _NoCalls(BaseCallback):  # type: ignore[misc]
    """Stops a metric before it calls a language model: DSPy swallows but an `Exception` of a callback."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._stop("the metric calls a language model")


class _LabelAlone(dspy.Prediction):
    """A prediction that holds one field, and stops a metric that looks at anything else.

    All other methods of a prediction use its attributes, and stop there.
    """

    def __init__(self, stop: Callable[[str], None], name: str, value: Any) -> None:
        def read(key: Any) -> Any:
            if key != name:
                stop(f"the metric looks at more of the prediction than {name!r}")
            return value

        object.__setattr__(self, "_read", read)

    def __getattribute__(self, key: str) -> Any:
        if key in ("__class__", "get"):
            return object.__getattribute__(self, key)
        # A field that is called like a method is not what an attribute of this name is.
        return object.__getattribute__(self, "_read")("" if hasattr(dspy.Prediction, key) else key)

    def __getitem__(self, key: Any) -> Any:
        return object.__getattribute__(self, "_read")(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the label."""
        return self[key]

    def __contains__(self, key: Any) -> bool:
        self.get(key)
        return True

    def __bool__(self) -> bool:
        return True
