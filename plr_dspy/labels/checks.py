"""Checks that examples have the labels that a metric needs. The checks run before any program call."""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import chain

import dspy

from plr_dspy.dspy_compat import annotation_allows_none
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import LabelOutput, label_output
from plr_dspy.labels.work import ALL_ALIKE, NoCalls, label_scores
from plr_dspy.lm.plain_text_adapter import Annotation, Value, labels_of, without_none
from plr_dspy.metrics.by_example import Metric, as_score, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy
from plr_dspy.programs.checks import is_single_step
from plr_dspy.programs.copying import language_models

logger = logging.getLogger(__name__)

NAMES_OF_CLASSES = (
    "to get class names from a ClassLabel column, pass the data set itself or as_examples(dataset, program)"
)


def check_answers_itself(program: dspy.Module, *, name: str) -> None:
    """Raise a ValueError if the program is calibrated."""
    if isinstance(program, CalibratedProgram):
        raise UserError(
            f"{name} must not be calibrated, because a changed prompt needs a new calibration; got a "
            f"{type(program).__name__}: pass {name}.program, and calibrate the result"
        )


def check_answers(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], *, name: str
) -> None:
    """Raise a ValueError if no answer of the program can be correct.

    No answer can be correct if no example has one of the output's labels, and the metric gives
    every label the same score.
    """
    output = label_output(program)
    if not isinstance(output, LabelOutput):
        return
    values = [example[output.name] for example in examples if output.name in example]
    has_answer = any(output.label_of(example) for example in examples) or (output.optional and None in values)
    if not values or has_answer:
        return
    scores = label_scores(metric, examples, output)
    if isinstance(scores, str) and scores == ALL_ALIKE:
        fix = "Give each example a label of the output's type"
        if _are_whole_numbers(values):
            fix += f"; {NAMES_OF_CLASSES}"
        raise UserError(
            f"{name}: no example has one of the labels {list(output.labels)} in the field {output.name!r}; the "
            f"first value is {values[0]!r}. Since {ALL_ALIKE}, no answer can be correct. {fix}."
        )


def check_labels(program: dspy.Module, metric: Metric, **datasets: Sequence[dspy.Example]) -> None:
    """Raise a ValueError if the metric needs labels that examples do not have.

    A metric over a set needs a label in every example. Other metrics, such as judges, may work
    without labels. For such a metric, missing labels are an error only if the metric fails on
    examples without labels. If it is unclear whether labels are needed, a warning is logged.

    Args:
        datasets: Lists of examples, each passed as a keyword argument. Messages refer to a list
            by the keyword, such as "trainset".
    """
    for name, examples in datasets.items():
        if not examples:
            continue
        if isinstance(metric, SetMetric):
            _check_labels_of_set(program, metric, examples, name)
        elif is_single_step(program):
            _check_outputs(program, metric, examples, name)


def _check_labels_of_set(
    program: dspy.Module, metric: SetMetric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Raise a ValueError unless each example has the label that a metric over a set needs."""
    field = metric.field
    if field is None:
        names = list(dict.fromkeys(chain.from_iterable(example.labels().keys() for example in examples)))
        if len(names) != 1:
            # Raise an error for the first example that does not have exactly one label.
            metric.right_labels(examples)
            return
        (field,) = names
    annotations = _output_types(program)
    if _returns_outputs(program) and field not in annotations:
        fix = "rename the column or the output so that both have the same name"
        if metric.field is not None:
            fix += ", and pass that name to the metric as the argument field"
        raise UserError(
            f"metric: {metric!r} compares the field {field!r} of examples and answers, but the program's outputs are "
            f"{list(annotations)}, and the columns of {dataset} are {_columns(examples)}: {fix}"
        )
    missing = []
    for index, example in enumerate(examples):
        if field not in example or _is_empty(example[field], annotations.get(field, str)):
            missing.append(index)
    if len(missing) == len(examples):
        raise UserError(
            f"{dataset}: no example has a label in {field!r}, which {metric!r} needs; the columns are "
            f"{_columns(examples)}: add the labels, or rename the column that holds the labels to {field!r}"
        )
    if missing:
        raise UserError(
            f"{dataset}: {len(missing)} of {len(examples)} examples have no label in {field!r}, which {metric!r} "
            f"needs; the first is {dataset}[{missing[0]}]: drop these rows, or add their labels"
        )


def _check_outputs(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Warn if examples have no values for the program's outputs.

    Raise a ValueError if no example has such a value and the metric fails for this reason.
    """
    missing: dict[str, list[int]] = {}
    annotations = _output_types(program)
    for name, annotation in annotations.items():
        missing[name] = [i for i, example in enumerate(examples) if _is_empty(example.get(name), annotation)]
    filled = [name for name, indices in missing.items() if len(indices) < len(examples)]
    if not filled:
        _check_metric_without_labels(program, metric, examples, dataset)
    for name in filled:
        indices = missing[name]
        if indices:
            logger.warning(
                "%s: %d of %d examples have no value in %r; the first is %s[%d]: drop these rows, unless the metric "
                "works without this value",
                dataset,
                len(indices),
                len(examples),
                name,
                dataset,
                indices[0],
            )
        values = [example[name] for example in examples if name in example]
        if without_none(annotations[name]) is str and _are_whole_numbers(values):
            logger.warning(
                "%s: the field %r holds only whole numbers, such as %r, but the program answers with text. Unless the "
                "metric converts the numbers or the answers, no answer is correct: %s",
                dataset,
                name,
                values[0],
                NAMES_OF_CLASSES,
            )


def _check_metric_without_labels(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Check a metric on examples without any values for the program's outputs.

    Raise a ValueError if the metric fails without labels. Otherwise, log a warning if another
    column may hold the labels.
    """
    columns = _columns(examples)
    problem = (
        f"{dataset}: no example has a value for the program's outputs {list(_output_types(program))}; the columns are "
        f"{columns}"
    )
    output = label_output(program)
    if isinstance(output, LabelOutput) and _needs_label(metric, examples[0], output):
        raise UserError(
            f"{problem}. The metric fails without a value in {output.name!r}: rename the column that holds the labels "
            f"to {output.name!r}"
        )
    has_others = bool(set(columns) - set(examples[0].inputs().keys()))
    if has_others and not language_models(metric):
        logger.warning(
            "%s: if the metric needs labels, rename the column that holds the labels to the output's name",
            problem,
        )


def _needs_label(metric: Metric, example: dspy.Example, output: LabelOutput) -> bool:
    """Return whether a metric fails for every answer to an example unless the example has a label."""
    labels = list(output.labels.values())
    labeled = own_copy(example)
    labeled[output.name] = labels[0]
    fails_without = all(_fails(metric, example, output.name, label) for label in labels)
    return fails_without and not _fails(metric, labeled, output.name, labels[0])


def _fails(metric: Metric, example: dspy.Example, name: str, label: Value) -> bool:
    """Return whether a metric raises an error when it scores an answer.

    If the metric calls a language model, stop the metric before that call and return False.
    """
    calls = NoCalls()
    call_metric = metric_caller(metric)
    try:
        with dspy.context(callbacks=[calls], trace=[]):
            as_score(call_metric(own_copy(example), dspy.Prediction({name: label})))
    except (Exception, SystemExit):
        return not calls.stopped
    return False


def _output_types(program: dspy.Module) -> Mapping[str, Annotation]:
    """Return the types of all predictors' outputs, keyed by output name."""
    types: dict[str, Annotation] = {}
    for predictor in program.predictors():
        for name, field in predictor.signature.output_fields.items():
            types[name] = field.annotation
    return types


def _returns_outputs(program: dspy.Module) -> bool:
    """Return whether a program is a single predictor that returns exactly its signature's outputs.

    A subclass with a `forward` of its own may return other fields.
    """
    forward = getattr(type(program), "forward", None)
    return is_single_step(program) and forward in (dspy.Predict.forward, dspy.ChainOfThought.forward)


def _is_empty(value: Value, annotation: Annotation) -> bool:
    """Return whether a label is missing.

    NaN always counts as missing. None and blank text count as missing unless the output's type
    allows them.
    """
    if value is None:
        return not annotation_allows_none(annotation)
    if isinstance(value, str) and not value.strip():
        return "" not in (labels_of(without_none(annotation)) or {})
    return isinstance(value, float) and math.isnan(value)


def _are_whole_numbers(values: Sequence[Value]) -> bool:
    """Return whether all values except None are integers, like the class indices in a ClassLabel column."""
    kinds = {type(value) for value in values if value is not None}
    return kinds == {int}


def _columns(examples: Sequence[dspy.Example]) -> list[str]:
    """Return the names of all fields in the examples."""
    return list(dict.fromkeys(chain.from_iterable(example.keys() for example in examples)))
