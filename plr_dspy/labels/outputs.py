"""The output of a program that has few possible values, and how frequent its labels are."""

import logging
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from plr_dspy.dspy_compat import Score, decision_adapter, evidence_type, get_annotation_name
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import decided, labels_of, without_none
from plr_dspy.programs.splits import are_classes
from plr_dspy.statistics.calibration import Array, is_uneven

logger = logging.getLogger(__name__)

LABEL_TYPES = "a Literal, an enum or a bool"  # as messages say it; a Choice or a Noul is one, too
REANCHOR = "dspy.experimental.ReAnchor"  # fits decisions without labels to calibrate; reasons with it say what to do
CONTENT_FREE = ("[N/A]", "", "[MASK]")  # inputs without content, which show how far a prompt leans by itself
ONE_SIDED = 3  # demos that are all of one label, from which on that is told


@dataclass(frozen=True, slots=True)
class LabelOutput:
    """An output that has few possible values: its predictor, its field, its labels by what demos call them."""

    predictor: str
    name: str
    labels: Mapping[str, Any]
    annotation: Any  # of the field in the signatures of calls, without None
    decision: Any = None  # its type where replies state its probabilities; None where log-probabilities tell them
    # What DSPy multiplies stated probabilities by before it takes the largest, [L]. A threshold t of a `Noul` is the
    # weights 1 - t of True and t of False.
    weights: tuple[float, ...] = ()
    held: bool = False  # whether predictions hold the decision, and not the label itself
    optional: bool = False  # whether the answer may be None, too

    def stated(self, evidence: Any) -> Array:
        """Return the weighted probabilities ``[L]``, up to a factor, of what a reply states."""
        told = _as_dict(evidence)
        if "noul" in told:
            return np.array([told["noul"], 1.0 - told["noul"]]) * self.weights
        return np.array([told["probabilities"][name] for name in self.decision.criteria()]) * self.weights

    def evidence(self, evidence: Any, probabilities: Array) -> dict[str, Any]:
        """Return what a reply would have stated, had its weighted probabilities been these, ``[L]``."""
        told, weights = _as_dict(evidence), np.array(self.weights)
        stated = np.divide(probabilities, weights, out=np.zeros(len(weights)), where=weights > 0)
        shares = (stated / stated.sum()).tolist()
        if "noul" in told:
            return {**told, "noul": shares[0]}
        return {**told, "probabilities": dict(zip(self.decision.criteria(), shares, strict=True))}

    def label_of(self, fields: Any) -> str | None:
        """Return the label that an answer, an example or a demo holds, as demos call it; None where it holds none."""
        value = decided(fields.get(self.name)) if isinstance(fields, (Mapping, dspy.Example)) else None
        return next((text for text, each in self.labels.items() if type(each) is type(value) and each == value), None)

    def numbers(self, examples: Sequence[Any]) -> NDArray[np.int64]:
        """Return the numbers of the labels that examples or demos have, ``[N]``; -1 for none."""
        places = {text: number for number, text in enumerate(self.labels)}
        # Data may hold what demos call an enum's member.
        texts = [self.label_of(each) or each.get(self.name) for each in examples]
        return np.array([places.get(text, -1) if isinstance(text, str) else -1 for text in texts], dtype=np.int64)

    def strange(self, examples: Sequence[Any], *, texts: bool = True) -> str:
        """Say how many examples have none of the labels; empty if all have one, or none has such a field.

        The text of a label that is no text itself is none, such as "True" for True, unless `texts` count.
        """
        if not any(self.name in example for example in examples):
            return ""
        missing = [
            example.get(self.name)
            for example, number in zip(examples, self.numbers(examples), strict=True)
            if (number < 0 and not (self.optional and example.get(self.name) is None))
            or (texts and number >= 0 and self._is_text_of_other(example.get(self.name)))
        ]
        if not missing:
            return ""
        labels = [text if isinstance(value, Enum) else value for text, value in self.labels.items()]
        told = f"{len(missing)} of {len(examples)} examples have none of the labels {labels} at {self.name!r}"
        return told + _one_of(missing)

    def _is_text_of_other(self, value: Any) -> bool:
        """Return whether a value is the text of a label that is no text, as files have it, and no enum's member."""
        return type(value) is str and type(self.labels.get(value, "")) in (bool, int, float, NoneType)

    def num_none(self, examples: Sequence[Any]) -> int:
        """Return how many examples or demos have None, where that is an answer, too."""
        return sum(self.optional and self.name in each and each[self.name] is None for each in examples)

    def counts(self, examples: Sequence[Any]) -> Array:
        """Return how many of the examples have each label, ``[L]``."""
        known = self.numbers(examples)
        return np.bincount(known[known >= 0], minlength=len(self.labels)).astype(np.float64)


def _as_dict(evidence: Any) -> dict[str, Any]:
    """Return what a reply states as a dict, its labels by their names."""
    return evidence.model_dump(by_alias=True) if isinstance(evidence, BaseModel) else dict(evidence)


def label_outputs(predictor_name: str, predictor: dspy.Predict) -> list[LabelOutput]:
    """Find all outputs of a predictor that have few possible values."""
    decisions, found = decision_adapter(predictor), []
    for name, field in predictor.signature.output_fields.items():
        kind = None if decisions is None else decisions.state.types.get(name)
        annotation = without_none(field.annotation) if kind is None else kind.model_fields["value"].annotation
        if (labels := labels_of(annotation)) is None:
            continue
        output = LabelOutput(predictor_name, name, labels, annotation, optional=annotation != field.annotation)
        if decisions is not None and kind is not None:
            settings, held = decisions.state.fields[name], field.annotation is kind
            if (threshold := settings.get("threshold")) is not None:
                weights = (1.0 - threshold, threshold)
            else:
                weights = tuple(settings["weights"].get(label, 1.0) for label in kind.criteria())
            output = LabelOutput(predictor_name, name, labels, evidence_type(kind), kind, weights, held)
        found.append(output)
    return found


def label_output(program: dspy.Module, *, only: str | None = None) -> LabelOutput | str:
    """Find the only output with few possible values, of the predictor `only` or all; a text says why there is none."""
    predictors = {name: each for name, each in program.named_predictors() if only in (None, name)}
    found = [output for name, predictor in predictors.items() for output in label_outputs(name, predictor)]
    if not found:
        fields = [field for each in predictors.values() for field in each.signature.output_fields.values()]
        if any(isinstance(each.annotation, type) and issubclass(each.annotation, Score) for each in fields):
            return (
                "an output is a Score, whose value lies between its levels (make it a Choice of the levels, or let "
                f"{REANCHOR} fit its cuts)"
            )
        return f"no output is {LABEL_TYPES}"
    if (several := len({output.predictor for output in found})) > 1:
        return f"{several} predictors have an output that is {LABEL_TYPES}"
    if len(found) > 1:
        return f"{len(found)} outputs are {LABEL_TYPES}"
    (output,) = found
    if len(output.labels) < 2 or "" in output.labels:
        return f"the output {output.name!r} does not have two labels with a text"
    predictor = predictors[output.predictor]
    if (decisions := decision_adapter(predictor)) is not None and decisions.system_one:
        client = type(predictor.lm or dspy.settings.lm).__name__
        return (
            f"the client {client} answers decision requests itself, past every adapter ({REANCHOR} can fit the weights "
            "of its labels)"
        )
    return output


def strange_answers(program: dspy.Module, examples: Sequence[Any]) -> list[str]:
    """Say of each output how many examples hold what it can never be; of fields that no example has, nothing."""
    told: dict[str, str] = {}
    for name, predictor in program.named_predictors():
        of_labels = {output.name: output for output in label_outputs(name, predictor)}
        for field, info in predictor.signature.output_fields.items():
            answered = [example for example in examples if field not in example.inputs()]
            if field in of_labels:
                said = of_labels[field].strange(answered)
            else:
                said = _of_another_type(field, info.annotation, answered)
            if said:
                told.setdefault(field, said)
    return list(told.values())


def _of_another_type(field: str, annotation: Any, examples: Sequence[Any]) -> str:
    """Say how many examples hold no text, or no number, where an output is one; empty if all do, or none has any."""
    kind = without_none(annotation)
    if kind not in (str, int, float) or not any(field in example for example in examples):
        return ""
    allows_none = kind is not annotation
    values = [example.get(field) for example in examples]
    others = [value for value in values if not (_is_a(value, kind) or (allows_none and value is None))]
    if not others:
        return ""
    return f"{len(others)} of {len(examples)} examples have no {kind.__name__} at {field!r}{_one_of(others)}"


def _one_of(values: Sequence[Any]) -> str:
    """Return one of the values in parentheses; nothing if all are None."""
    return next((f" (one has {value!r})" for value in values if value is not None), "")


def _is_a(value: Any, kind: type) -> bool:
    """Return whether a value may equal an answer that is a text or a number; lists of answers may hold it."""
    if kind is str:
        return value is not None and not isinstance(value, (numbers.Number, np.generic))
    return isinstance(value, numbers.Number) and value == value  # nan is not


def needed_output(program: dspy.Module, purpose: str, *, only: str | None = None, cure: str) -> LabelOutput:
    """Find what `label_output` does, or raise a ValueError that says what needs it, and what else can be done."""
    output = label_output(program, only=only)
    if isinstance(output, LabelOutput):
        return output
    if REANCHOR in output:
        raise UserError(f"{purpose} is not possible: {output}")
    kinds = ", ".join(
        f"{name}: {get_annotation_name(field.annotation)}"
        for predictor, each in program.named_predictors()
        if only in (None, predictor)
        for name, field in each.signature.output_fields.items()
    )
    raise UserError(
        f"{purpose} needs an output with few possible values: {output} ({kinds}). Give exactly one output such a "
        f"type{cure}"
    )


def prior_shares(prior: Mapping[Any, float], labels: Mapping[str, Any], *, name: str = "prior") -> Array:
    """Return the shares ``[L]`` of labels from those by value, or by what demos call it; a ValueError for no shares."""
    given = [prior.get(value, prior.get(text)) for text, value in labels.items()]
    if len(prior) != len(given) or not all(share is not None and share > 0 for share in given):
        told = f"{name} must have a share for each of the labels {list(labels)}, a share above 0"
        raise UserError(f"{told}; got {dict(prior)}")
    shares = np.array(given, dtype=np.float64)
    if abs(shares.sum() - 1.0) > 1e-3:
        raise UserError(f"{name} must sum to 1; {dict(prior)} sums to {shares.sum():g}: divide by that")
    return np.asarray(shares / shares.sum())


@dataclass(frozen=True)
class LabelCounts:
    """How many examples have each label, and which examples these are."""

    counts: Array  # [L]
    examples: str  # such as "140 examples of trainset"
    num_none: int = 0  # examples that have None, where that is an answer, too

    @classmethod
    def of(cls, output: LabelOutput, examples: Sequence[Any], *, name: str = "trainset") -> "LabelCounts":
        """Count the labels of the examples that the user knows by this name."""
        counts = output.counts(examples)
        num_none = output.num_none(examples)
        num_labelled = int(counts.sum()) + num_none
        labelled = "labelled " if num_labelled < len(examples) else ""
        return cls(counts, f"{num_labelled} {labelled}examples of {name}", num_none)


def warn_of_labels(program: dspy.Module, output: LabelOutput, labels: LabelCounts, *, by_accuracy: bool = True) -> None:
    """Warn if demos are all of one label, or labels of the examples, None included, are far from even."""
    names = [*map(repr, output.labels), "None"]
    counts_with_none = np.append(labels.counts, labels.num_none)
    most = int(counts_with_none.argmax())
    demos = dict(program.named_predictors())[output.predictor].demos
    numbers = output.numbers(demos)
    if demos and output.num_none(demos) == len(demos):
        numbers[:] = len(output.labels)
    if len(demos) >= ONE_SIDED and len(set(numbers)) == 1 and numbers[0] >= 0 and (counts_with_none > 0).sum() > 1:
        logger.warning(
            f"all {len(demos)} demos have the label {names[numbers[0]]}, so the model may answer it too often: give "
            "demos of several labels, as PLFewShot chooses them"
        )
    # Some examples with None leave labels as even as they are.
    watched = counts_with_none if most == len(labels.counts) else labels.counts
    if by_accuracy and is_uneven(watched, far=True):
        logger.warning(
            f"{100 * counts_with_none[most] / counts_with_none.sum():.0f} % of the {labels.examples} have "
            f"{names[most]}: a program that always answers it has that accuracy, so compare with it"
        )


def only_labels(predictor: dspy.Predict, demos: Sequence[Any], examples: Sequence[Any]) -> dict[str, str]:
    """Return the label that all of several demos have, by output, where the examples have others, too.

    An output of any type has labels if the examples have few different values there.
    """
    if len(demos) < 2:
        return {}
    few_values = {output.name: output for output in label_outputs("", predictor)}
    found = {}
    for name in predictor.signature.output_fields:
        labels = [_label(few_values.get(name), name, demo) for demo in demos]
        others = [_label(few_values.get(name), name, example) for example in examples]
        label = labels[0]
        has_others = bool({*others} - {label, None})
        if label is not None and set(labels) == {label} and has_others and (name in few_values or are_classes(others)):
            found[name] = label
    return found


def _label(output: LabelOutput | None, name: str, fields: Any) -> str | None:
    """Return the label of a demo or an example at an output; None where it has none."""
    if output is not None:
        return output.label_of(fields)
    value = fields.get(name)
    return None if value is None else str(decided(value))


def check_text_inputs(purpose: str, inputs: Mapping[str, Any], *, cure: str) -> None:
    """Raise a ValueError that names the first input that is no text, which something makes inputs in place of."""
    for name, value in inputs.items():
        if not isinstance(value, str):
            kind = f"input {name!r} is a {type(value).__name__}"
            raise UserError(f"{purpose} makes inputs of its own, which must be text; {kind}: {cure}")
