"""Outputs with few possible values, and how frequent their labels are."""

import logging
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType

import dspy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from plr_dspy.dspy_compat import Score, decision_adapter, evidence_type, get_annotation_name
from plr_dspy.errors import UserError
from plr_dspy.lm.plain_text_adapter import Annotation, Value, decided, labels_of, without_none
from plr_dspy.programs.splits import are_classes
from plr_dspy.statistics.calibration import Array, is_uneven

logger = logging.getLogger(__name__)

LABEL_TYPES = "a Literal, an enum or a bool"  # in messages; a Choice or a Noul is one, too
REANCHOR = "dspy.experimental.ReAnchor"  # messages that name it need no other cure
CONTENT_FREE = ("[N/A]", "", "[MASK]")  # inputs that reveal the label bias of a prompt
MIN_ONE_SIDED = 3  # demos of one label to warn of


@dataclass(frozen=True, slots=True)
class LabelOutput:
    """An output with few possible values."""

    predictor: str
    name: str
    labels: Mapping[str, Value]  # by their texts in demos
    annotation: Annotation  # of the field in calls, without None
    decision: Annotation = None  # type of a decision whose probabilities replies state
    # Factors of stated probabilities, of which DSPy takes the largest product, [L].
    weights: tuple[float, ...] = ()
    held: bool = False  # whether predictions hold the decision, not the label
    optional: bool = False  # whether the answer may be None, too

    def stated(self, evidence: Value) -> Array:
        """Return the weighted probabilities in a reply, ``[L]``, unnormalised."""
        fields = _as_dict(evidence)
        if "noul" in fields:
            probabilities = [fields["noul"], 1.0 - fields["noul"]]
        else:
            probabilities = [fields["probabilities"][name] for name in self.decision.criteria()]
        return np.array(probabilities) * self.weights

    def evidence(self, evidence: Value, probabilities: Array) -> dict[str, Value]:
        """Return what a reply would state with these weighted probabilities, ``[L]``."""
        fields = _as_dict(evidence)
        weights = np.array(self.weights)
        stated = np.divide(probabilities, weights, out=np.zeros(len(weights)), where=weights > 0)
        shares = (stated / stated.sum()).tolist()
        if "noul" in fields:
            return {**fields, "noul": shares[0]}
        return {**fields, "probabilities": dict(zip(self.decision.criteria(), shares, strict=True))}

    def label_of(self, fields: Value) -> str | None:
        """Return the text of the label in an answer, example or demo, if any."""
        if not isinstance(fields, (Mapping, dspy.Example)):
            return None
        value = decided(fields.get(self.name))
        for text, label in self.labels.items():
            if type(label) is type(value) and label == value:
                return text
        return None

    def numbers(self, examples: Sequence[Value]) -> NDArray[np.int64]:
        """Return the label numbers of examples or demos, ``[N]``; -1 for none."""
        positions = {text: number for number, text in enumerate(self.labels)}
        label_numbers = []
        for example in examples:
            # Data may hold the text of an enum's member.
            text = self.label_of(example) or example.get(self.name)
            number = -1
            if isinstance(text, str):
                number = positions.get(text, -1)
            label_numbers.append(number)
        return np.array(label_numbers, dtype=np.int64)

    def strange(self, examples: Sequence[Value], *, texts: bool = True) -> str:
        """Describe examples without a label; with `texts`, "True" is none for True."""
        if not any(self.name in example for example in examples):
            return ""
        values = []
        for example, number in zip(examples, self.numbers(examples), strict=True):
            value = example.get(self.name)
            is_none = self.optional and value is None
            is_text = texts and self._is_text_of_other(value)
            if (number < 0 and not is_none) or (number >= 0 and is_text):
                values.append(value)
        labels = [text if isinstance(value, Enum) else value for text, value in self.labels.items()]
        return _warning(values, len(examples), f"none of the labels {labels} at {self.name!r}")

    def _is_text_of_other(self, value: Value) -> bool:
        return type(value) is str and type(self.labels.get(value, "")) in (bool, int, float, NoneType)

    def num_none(self, examples: Sequence[Value]) -> int:
        """Count the examples or demos with None, if that is an answer, too."""
        return sum(self.optional and self.name in example and example[self.name] is None for example in examples)

    def counts(self, examples: Sequence[Value]) -> Array:
        """Count the examples with each label, ``[L]``."""
        label_numbers = self.numbers(examples)
        known = label_numbers[label_numbers >= 0]
        return np.bincount(known, minlength=len(self.labels)).astype(np.float64)


def _as_dict(evidence: Value) -> dict[str, Value]:
    return evidence.model_dump(by_alias=True) if isinstance(evidence, BaseModel) else dict(evidence)


def label_outputs(predictor_name: str, predictor: dspy.Predict) -> list[LabelOutput]:
    """Find all outputs of a predictor that have few possible values."""
    decisions = decision_adapter(predictor)
    outputs = []
    for name, field in predictor.signature.output_fields.items():
        decision = None if decisions is None else decisions.state.types.get(name)
        annotation = without_none(field.annotation)
        if decision is not None:
            annotation = decision.model_fields["value"].annotation
        labels = labels_of(annotation)
        if labels is None:
            continue
        if decisions is None or decision is None:
            optional = annotation != field.annotation
            output = LabelOutput(predictor_name, name, labels, annotation, optional=optional)
        else:
            weights = _weights(decisions.state.fields[name], decision)
            held = field.annotation is decision
            output = LabelOutput(predictor_name, name, labels, evidence_type(decision), decision, weights, held)
        outputs.append(output)
    return outputs


def _weights(settings: Mapping[str, Value], decision: Annotation) -> tuple[float, ...]:
    threshold = settings.get("threshold")
    if threshold is not None:
        return (1.0 - threshold, threshold)
    return tuple(settings["weights"].get(label, 1.0) for label in decision.criteria())


def label_output(program: dspy.Module, *, only: str | None = None) -> LabelOutput | str:
    """Find the one output with few possible values, or return why there is none.

    Search only one predictor if `only` names it.
    """
    predictors = dict(program.named_predictors())
    if only is not None:
        predictors = {only: predictors[only]}
    outputs: list[LabelOutput] = []
    for name, predictor in predictors.items():
        outputs += label_outputs(name, predictor)
    if len(outputs) != 1:
        return _why_not_one(outputs, list(predictors.values()))
    output = outputs[0]
    if len(output.labels) < 2 or "" in output.labels:
        return f"the output {output.name!r} does not have two labels with a text"
    predictor = predictors[output.predictor]
    decisions = decision_adapter(predictor)
    if decisions is not None and decisions.system_one:
        client = type(predictor.lm or dspy.settings.lm).__name__
        return f"the client {client} answers decision requests itself ({REANCHOR} can fit the weights of its labels)"
    return output


def _why_not_one(outputs: Sequence[LabelOutput], predictors: Sequence[dspy.Predict]) -> str:
    num_predictors = len({output.predictor for output in outputs})
    if num_predictors > 1:
        return f"{num_predictors} predictors have an output that is {LABEL_TYPES}"
    if outputs:
        return f"{len(outputs)} outputs are {LABEL_TYPES}"
    for predictor in predictors:
        for field in predictor.signature.output_fields.values():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Score):
                return f"an output is a Score (make it a Choice of the levels, or let {REANCHOR} fit its cuts)"
    return f"no output is {LABEL_TYPES}"


def needed_output(program: dspy.Module, purpose: str, *, only: str | None = None, cure: str) -> LabelOutput:
    """Return the `label_output`, or raise a ValueError with the purpose and the cure."""
    output = label_output(program, only=only)
    if isinstance(output, LabelOutput):
        return output
    if REANCHOR in output:
        raise UserError(f"{purpose} is not possible: {output}")
    types = []
    for predictor_name, predictor in program.named_predictors():
        if only in (None, predictor_name):
            for name, field in predictor.signature.output_fields.items():
                types.append(f"{name}: {get_annotation_name(field.annotation)}")
    raise UserError(
        f"{purpose} needs an output with few possible values: {output} ({', '.join(types)}). Give exactly one output "
        f"such a type{cure}"
    )


def strange_answers(program: dspy.Module, examples: Sequence[Value]) -> list[str]:
    """Return a warning for each output with impossible answers in examples."""
    warnings: dict[str, str] = {}
    for predictor_name, predictor in program.named_predictors():
        with_labels = {output.name: output for output in label_outputs(predictor_name, predictor)}
        for name, field in predictor.signature.output_fields.items():
            answered = [example for example in examples if name not in example.inputs()]
            if name in with_labels:
                warning = with_labels[name].strange(answered)
            else:
                warning = _of_another_type(name, field.annotation, answered)
            if warning:
                warnings.setdefault(name, warning)
    return list(warnings.values())


def _of_another_type(name: str, annotation: Annotation, examples: Sequence[Value]) -> str:
    kind = without_none(annotation)
    if kind not in (str, int, float) or not any(name in example for example in examples):
        return ""
    allows_none = kind is not annotation
    values = []
    for example in examples:
        value = example.get(name)
        if not _is_a(value, kind) and not (allows_none and value is None):
            values.append(value)
    return _warning(values, len(examples), f"no {kind.__name__} at {name!r}")


def _warning(values: Sequence[Value], num_examples: int, what: str) -> str:
    """Describe wrong values and quote one; return an empty string if there are none."""
    if not values:
        return ""
    text = f"{len(values)} of {num_examples} examples have {what}"
    for value in values:
        if value is not None:
            return f"{text} (one has {value!r})"
    return text


def _is_a(value: Value, kind: type) -> bool:
    """Return whether a value may equal an answer of a type; texts may come in lists."""
    if kind is str:
        return value is not None and not isinstance(value, (numbers.Number, np.generic))
    return isinstance(value, numbers.Number) and value == value  # nan is not


def prior_shares(prior: Mapping[Value, float], labels: Mapping[str, Value], *, name: str = "prior") -> Array:
    """Return the shares of labels, ``[L]``, from shares by value or by text."""
    shares = [prior.get(value, prior.get(text)) for text, value in labels.items()]
    if len(prior) != len(shares) or not all(share is not None and share > 0 for share in shares):
        wanted = f"a share for each of the labels {list(labels)}, a share above 0"
        raise UserError(f"{name} must have {wanted}; got {dict(prior)}")
    values = np.array(shares, dtype=np.float64)
    if abs(values.sum() - 1.0) > 1e-3:
        raise UserError(f"{name} must sum to 1; {dict(prior)} sums to {values.sum():g}: divide by that")
    return np.asarray(values / values.sum())


@dataclass(frozen=True)
class LabelCounts:
    """The number of examples with each label."""

    counts: Array  # [L]
    examples: str  # in messages, such as "140 examples of trainset"
    num_none: int = 0  # examples with None, if that is an answer, too

    @classmethod
    def of(cls, output: LabelOutput, examples: Sequence[Value], *, name: str = "trainset") -> "LabelCounts":
        """Count the labels of examples with a name."""
        counts = output.counts(examples)
        num_none = output.num_none(examples)
        num_labelled = int(counts.sum()) + num_none
        kind = "labelled examples" if num_labelled < len(examples) else "examples"
        return cls(counts, f"{num_labelled} {kind} of {name}", num_none)


def warn_of_labels(program: dspy.Module, output: LabelOutput, labels: LabelCounts, *, by_accuracy: bool = True) -> None:
    """Warn if all demos have one label, or the labels of examples are far from even."""
    names = [*map(repr, output.labels), "None"]
    counts = np.append(labels.counts, labels.num_none)
    demos = dict(program.named_predictors())[output.predictor].demos
    demo_labels = output.numbers(demos)
    if output.num_none(demos) == len(demos):
        demo_labels[:] = len(output.labels)
    is_one_sided = len(demos) >= MIN_ONE_SIDED and len(set(demo_labels)) == 1 and demo_labels[0] >= 0
    if is_one_sided and (counts > 0).sum() > 1:
        logger.warning(
            f"all {len(demos)} demos have the label {names[demo_labels[0]]}, so the model may answer it too often: "
            "give demos of several labels"
        )
    most = int(counts.argmax())
    # A few examples with None leave the labels as even as they are.
    compared = counts if most == len(labels.counts) else labels.counts
    if by_accuracy and is_uneven(compared, far=True):
        logger.warning(
            f"{100 * counts[most] / counts.sum():.0f} % of the {labels.examples} have {names[most]}: a program that "
            "always answers it has that accuracy, so compare with it"
        )


def only_labels(predictor: dspy.Predict, demos: Sequence[Value], examples: Sequence[Value]) -> dict[str, str]:
    """Return the label of all demos by output, if examples have others.

    Any output has labels if examples have few different values there.
    """
    if len(demos) < 2:
        return {}
    with_labels = {output.name: output for output in label_outputs("", predictor)}
    labels = {}
    for name in predictor.signature.output_fields:
        output = with_labels.get(name)
        label, *others = {_label(output, name, demo) for demo in demos}
        if others or label is None:
            continue
        example_labels = [_label(output, name, example) for example in examples]
        has_others = bool(set(example_labels) - {label, None})
        if has_others and (output is not None or are_classes(example_labels)):
            labels[name] = label
    return labels


def _label(output: LabelOutput | None, name: str, fields: Value) -> str | None:
    if output is not None:
        return output.label_of(fields)
    value = fields.get(name)
    return None if value is None else str(decided(value))


def check_text_inputs(purpose: str, inputs: Mapping[str, Value], *, cure: str) -> None:
    """Raise a ValueError for the first input that is not a text."""
    for name, value in inputs.items():
        if not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(
                f"{purpose} makes inputs of its own, which must be text; input {name!r} is a {kind}: {cure}"
            )
