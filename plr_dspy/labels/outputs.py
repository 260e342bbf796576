"""Outputs with few possible values, and the labels of examples."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import dspy
import numpy as np
from numpy.typing import NDArray

from plr_dspy.dspy_compat import allows_none, decision_adapter
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import Annotation, Value, labels_of, without_none
from plr_dspy.metrics.by_example import SHOWN
from plr_dspy.report.formats import count, shorten
from plr_dspy.statistics.arrays import Array

MOST_SHOWN = 5  # maximum number of values that a message lists


@dataclass(frozen=True, slots=True)
class LabelOutput:
    """An output with few possible values, such as a Literal, an enum or a bool.

    The possible values are called labels. Shapes: N examples, L labels.
    """

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

    def text_of(self, fields: Value) -> str | None:
        """Return the same as `label_of()`, but also accept a label's text, such as the value of an enum member."""
        label = self.label_of(fields)
        if label is None and isinstance(fields, (Mapping, dspy.Example)):
            text = fields.get(self.name)
            if isinstance(text, str) and text in self.labels:
                return text
        return label

    def numbers(self, examples: Sequence[Value]) -> NDArray[np.int64]:
        """Return the label index of each example or demo, ``[N]``, or -1 for examples without a label."""
        index_of: dict[str | None, int] = {text: index for index, text in enumerate(self.labels)}
        return np.array([index_of.get(self.text_of(example), -1) for example in examples], dtype=np.int64)

    def num_none(self, examples: Sequence[Value]) -> int:
        """Return the number of examples with the answer None, or 0 if the output must have a label."""
        if not self.optional:
            return 0
        return sum(self.name in example and example[self.name] is None for example in examples)

    def counts(self, examples: Sequence[Value]) -> Array:
        """Return how many examples have each label, ``[L]``."""
        indices = self.numbers(examples)
        known = indices[indices >= 0]
        return np.bincount(known, minlength=len(self.labels)).astype(np.float64)

    def other_values(self, examples: Sequence[Value]) -> dict[str, list[int]]:
        """Return the indices of the examples with each value that is not a label, keyed by the value's repr.

        Missing values are ignored.
        """
        indices: dict[str, list[int]] = {}
        for index, example in enumerate(examples):
            value = example.get(self.name)
            if self.label_of(example) is None and not _is_missing(value):
                indices.setdefault(repr(value), []).append(index)
        return indices

    def describe(self, values: Mapping[str, Sequence[int]], examples: Sequence[Value]) -> str:
        """Return a string that lists the first values from `other_values`.

        Each value is followed by its number of examples and the most similar label, if any.
        """
        texts = []
        for text, indices in list(values.items())[:MOST_SHOWN]:
            nearest = self._nearest_label(examples[indices[0]][self.name])
            note = count(len(indices), "example")
            if nearest:
                note += f"; nearest label: {nearest}"
            texts.append(f"{shorten(text, SHOWN)} ({note})")
        num_more = len(values) - len(texts)
        if num_more:
            texts.append(f"and {num_more} more")
        return ", ".join(texts)

    def _nearest_label(self, value: Value) -> str:
        """Return the label whose text is most similar to a value, or an empty string if none is similar."""
        if isinstance(value, Enum):
            value = value.value
        label_of_text = {_simplified(text): label for text, label in self.labels.items()}
        matches = difflib.get_close_matches(_simplified(str(value)), label_of_text, n=1)
        if not matches:
            return ""
        label = label_of_text[matches[0]]
        return str(label) if isinstance(label, Enum) else repr(label)


def _is_missing(value: Value) -> bool:
    """Return whether a value is None, blank or NaN."""
    is_blank = isinstance(value, str) and not value.strip()
    return value is None or is_blank or (isinstance(value, float) and math.isnan(value))


def _simplified(text: str) -> str:
    """Return `text` in lowercase, with single spaces between words."""
    return " ".join(text.casefold().split())


def label_outputs(predictor_name: str, predictor: dspy.Predict) -> list[LabelOutput]:
    """Return the label outputs of a predictor: those with only a few possible values."""
    outputs = []
    for name, field in predictor.signature.output_fields.items():
        annotation = without_none(field.annotation)
        labels = labels_of(annotation)
        if labels is not None:
            optional = annotation != field.annotation
            outputs.append(LabelOutput(predictor_name, name, labels, annotation, optional))
    return outputs


def label_output(program: dspy.Module, *, only: str | None = None) -> LabelOutput | str:
    """Return the program's only usable label output, or the reason if there is not exactly one.

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
    if not outputs:
        return "no output is a Literal, an enum or a bool"
    if len(outputs) > 1:
        return f"there are {len(outputs)} outputs of type Literal, enum or bool"
    output = outputs[0]
    if len(output.labels) < 2 or "" in output.labels:
        return f"the output {output.name!r} has an empty label, or fewer than two labels"
    return output


def needed_output(
    program: dspy.Module, purpose: str, *, only: str | None = None, fix: str = ""
) -> LabelOutput:
    """Return the program's only usable label output, or raise a ValueError.

    The message says that `purpose` needs the output, and ends with `fix`.
    """
    output = label_output(program, only=only)
    if isinstance(output, LabelOutput):
        return output
    raise UserError(
        f"{purpose} needs exactly one output with few possible values, but {output}. Change the signature{fix}."
    )


def prior_shares(
    prior: Mapping[Value, float], labels: Mapping[str, Value], *, name: str = "prior"
) -> Array:
    """Return the label shares in a prior as an array, ``[L]``. The prior's keys are labels or their texts."""
    shares = [prior.get(value, prior.get(text)) for text, value in labels.items()]
    if len(prior) != len(shares) or not all(share is not None and share > 0 for share in shares):
        raise UserError(
            f"{name} must have a share above 0 for each of the labels {list(labels)}; got {dict(prior)}: pass a "
            "positive share for each of these labels, and no other shares"
        )
    values = np.array(shares, dtype=np.float64)
    if abs(values.sum() - 1.0) > 1e-3:
        raise UserError(
            f"{name} must have shares that sum to 1; got {dict(prior)}, with the sum {values.sum():g}: divide each "
            "share by this sum"
        )
    return np.asarray(values / values.sum())


def is_empty(value: Value, annotation: Annotation) -> bool:
    """Return whether a value is NaN, or is None or blank and not allowed by the output's type."""
    if value is None:
        return not allows_none(annotation)
    if isinstance(value, str) and not value.strip():
        return "" not in (labels_of(without_none(annotation)) or {})
    return isinstance(value, float) and math.isnan(value)
