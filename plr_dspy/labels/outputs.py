"""Outputs with few possible values, and the labels of examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dspy
import numpy as np
from numpy.typing import NDArray

from plr_dspy.dspy_compat import decision_adapter
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import Annotation, Value, labels_of, without_none
from plr_dspy.statistics.arrays import Array


@dataclass(frozen=True, slots=True)
class LabelOutput:
    """An output with few possible values, called labels, such as an output of type Literal, enum or bool."""

    predictor: str
    name: str
    labels: Mapping[str, Value]  # maps each label's text in demos to the label's value
    annotation: Annotation  # the field's type, without None
    optional: bool = False  # whether the answer may be None

    def label_of(self, fields: Value) -> str | None:
        """Return the label of an answer, example or demo as text, or None if the field holds no label."""
        if not isinstance(fields, (Mapping, dspy.Example)):
            return None
        value = fields.get(self.name)
        for text, label in self.labels.items():
            if type(label) is type(value) and label == value:
                return text
        return None

    def numbers(self, examples: Sequence[Value]) -> NDArray[np.int64]:
        """Return the label index of each example or demo, ``[N]``. If there is no label, the index is -1."""
        index_of = {text: index for index, text in enumerate(self.labels)}
        indices = []
        for example in examples:
            # Data may contain enum members as text, so also accept a label's text.
            text = self.label_of(example) or example.get(self.name)
            index = -1
            if isinstance(text, str):
                index = index_of.get(text, -1)
            indices.append(index)
        return np.array(indices, dtype=np.int64)

    def counts(self, examples: Sequence[Value]) -> Array:
        """Count the examples with each label, ``[L]``."""
        indices = self.numbers(examples)
        known = indices[indices >= 0]
        return np.bincount(known, minlength=len(self.labels)).astype(np.float64)


def label_outputs(predictor_name: str, predictor: dspy.Predict) -> list[LabelOutput]:
    """Return all outputs of a predictor that have few possible values."""
    outputs = []
    for name, field in predictor.signature.output_fields.items():
        annotation = without_none(field.annotation)
        labels = labels_of(annotation)
        if labels is not None:
            optional = annotation != field.annotation
            outputs.append(LabelOutput(predictor_name, name, labels, annotation, optional))
    return outputs


def label_output(program: dspy.Module, *, only: str | None = None) -> LabelOutput | str:
    """Return the program's label output, or the reason why there is not exactly one.

    If `only` is passed, consider only the outputs of the predictor with that name.
    """
    predictors = dict(program.named_predictors())
    if only is not None:
        predictors = {only: predictors[only]}
    outputs: list[LabelOutput] = []
    for name, predictor in predictors.items():
        if decision_adapter(predictor) is not None:
            return (
                f"replies of predictor {name!r} already contain probabilities, which dspy.experimental.ReAnchor can "
                "calibrate"
            )
        outputs += label_outputs(name, predictor)
    if len(outputs) != 1:
        return f"there are {len(outputs)} outputs of type Literal, enum or bool"
    output = outputs[0]
    if len(output.labels) < 2 or "" in output.labels:
        return f"the output {output.name!r} has an empty label, or fewer than two labels"
    return output


def needed_output(
    program: dspy.Module, purpose: str, *, only: str | None = None, fix: str = ""
) -> LabelOutput:
    """Return the program's label output. Raise a ValueError unless there is exactly one.

    The error's message names `purpose` and `fix`.
    """
    output = label_output(program, only=only)
    if isinstance(output, LabelOutput):
        return output
    raise UserError(
        f"{purpose} needs exactly one output with few possible values, but {output}. Change the signature{fix}."
    )


def prior_shares(prior: Mapping[Value, float], labels: Mapping[str, Value], *, name: str = "prior") -> Array:
    """Return a prior as an array of label shares, ``[L]``. The prior's keys are labels or their texts."""
    shares = [prior.get(value, prior.get(text)) for text, value in labels.items()]
    if len(prior) != len(shares) or not all(share is not None and share > 0 for share in shares):
        raise UserError(
            f"{name} must have a share above 0 for each of the labels {list(labels)}; got {dict(prior)}: pass a share "
            "for each of these labels, and no other shares"
        )
    values = np.array(shares, dtype=np.float64)
    if abs(values.sum() - 1.0) > 1e-3:
        raise UserError(
            f"{name} must have shares that sum to 1; got {dict(prior)}, with the sum {values.sum():g}: divide each "
            "share by this sum"
        )
    return np.asarray(values / values.sum())
