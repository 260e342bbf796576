"""Checks that examples have the labels that a metric needs. They run before any program call."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

import dspy

from plr_dspy.dspy_compat import decision_adapter
from plr_dspy.errors import MetricError, ScoreError, UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import MOST_SHOWN, LabelOutput, is_empty, label_output, label_outputs
from plr_dspy.labels.trials import as_answer, fails, output_types, scorer, tried
from plr_dspy.labels.work import ALL_ALIKE, label_scores
from plr_dspy.lm.plain_text_adapter import Annotation, Value, labels_of, without_none
from plr_dspy.metrics.by_example import Metric
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_copy
from plr_dspy.metrics.fields import check_field, columns_of
from plr_dspy.programs.checks import is_single_step, unwrapped
from plr_dspy.programs.copying import language_models
from plr_dspy.report.formats import listed
from plr_dspy.retrieval.predict import RetrievingPredict

logger = logging.getLogger(__name__)

# A label field probably holds free text if the ratio of distinct values to examples exceeds
# MAX_DISTINCT. With fewer than MIN_REPEATING examples, this cannot be judged.
MAX_DISTINCT = 0.5
MIN_REPEATING = 10
# Maximum number of the first examples to score before any call, and of the first examples with values
# for all outputs.
NUM_SCORED = 3
NUM_TRIED = 3  # maximum number of incomplete examples on which a metric is tried before any call
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
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], *, name: str, program_name: str
) -> None:
    """Raise a ValueError if no answer of the program can be correct.

    This is the case if examples have values of the output, none of these values is a label, and
    the metric gives every label the same score. Programs that may convert the label are not checked.

    Args:
        name: The examples' name in messages.
        program_name: The program's name in messages.
    """
    output = label_output(program)
    if not isinstance(output, LabelOutput) or not _returns_outputs(unwrapped(program)):
        return
    values = [example[output.name] for example in examples if output.name in example]
    has_answer = any(output.label_of(example) for example in examples) or (
        output.optional and None in values
    )
    if not values or has_answer:
        return
    scores = label_scores(metric, examples, output)
    if isinstance(scores, str) and scores == ALL_ALIKE:
        fix = "Give each example a label of the output's type, or change this type"
        if are_whole_numbers(values):
            fix += f"; {NAMES_OF_CLASSES}"
        raise UserError(
            f"{name}: no example has one of the labels {list(output.labels)} of {program_name} in the field "
            f"{output.name!r}; the first value is {values[0]!r}. Since {ALL_ALIKE}, no answer can be correct. {fix}."
        )


def check_labels(program: dspy.Module, metric: Metric, **datasets: Sequence[dspy.Example]) -> None:
    """Check that examples have the labels that the metric needs, and that the metric returns scores.

    A metric over a set needs a label in every example. Other metrics, such as judges, may work
    without labels. If it is unclear whether labels are needed, log a warning. Also log a warning
    if label fields hold values that are not labels, unless the metric accepts these values.

    Args:
        datasets: Lists of examples. Messages refer to each list by its keyword, such as
            "trainset".

    Raises:
        ValueError: If labels that the metric needs are missing, if no answer to any example in a
            list can be correct, or if the metric reads a field that no example in a list has.
        TypeError, ValueError: If a metric that scores single examples returns something other than a
            finite number.
    """
    all_examples = list(chain.from_iterable(datasets.values()))
    checked_columns: set[str] = set()
    for name, examples in datasets.items():
        if not examples:
            continue
        if isinstance(metric, SetMetric):
            _check_labels_of_set(program, metric, examples, name)
        else:
            columns = set(columns_of(examples))
            # Skip this check if a list with the same columns or fewer passed: the metric finds the
            # same fields here.
            if not checked_columns or not checked_columns <= columns:
                _check_first_scores(program, metric, examples, name)
                checked_columns = columns
            if is_single_step(program):
                _check_outputs(program, metric, examples, name)
        _check_values(program, metric, examples, name, all_examples=all_examples)


def warn_of_labels_without_examples(program: dspy.Module, examples: Sequence[dspy.Example]) -> None:
    """Log a warning if the examples have some of the program's labels, but not all of them."""
    output = label_output(program)
    if not isinstance(output, LabelOutput):
        return
    counts = output.counts(examples)
    missing = [label for label, number in zip(output.labels, counts, strict=True) if not number]
    if not missing or not counts.any():
        return
    logger.warning(
        "no example is labeled %s in %r, so scores do not show how well the program recognizes such inputs: add "
        "examples with the missing labels, or remove these labels from the output's type",
        listed(map(repr, missing), MOST_SHOWN),
        output.name,
    )


def check_evaluation(
    programs: Mapping[str, dspy.Module], metric: Metric, devset: Sequence[dspy.Example]
) -> None:
    """Raise an error if a metric cannot score the programs passed to `evaluate_programs`."""
    first_name, first = next(iter(programs.items()))
    for name, program in programs.items():
        check_answers(program, metric, devset, name="devset", program_name=f"programs[{name!r}]")
    check_labels(first, metric, devset=devset)
    for name, program in programs.items():
        check_needed_outputs(
            program, first, metric, devset, name=f"programs[{name!r}]", first_name=first_name
        )
    if isinstance(metric, SetMetric):
        metric.check(devset)
        labels: list[str] = []
        for program in programs.values():
            labels += metric.output_labels(program, devset)
        metric.check_value(devset, labels)


def check_needed_outputs(
    program: dspy.Module,
    first: dspy.Module,
    metric: Metric,
    examples: Sequence[dspy.Example],
    *,
    name: str,
    first_name: str,
) -> None:
    """Raise a ValueError if a program lacks an output that the first program has and the metric needs.

    To find out what the metric needs, score correct answers to a few examples. Do nothing unless
    both programs are a `dspy.Predict` or `dspy.ChainOfThought`, because other programs do not
    declare their outputs.

    Args:
        name: The program's name in messages.
        first_name: The first program's name in messages.
    """
    if not (_returns_outputs(unwrapped(program)) and _returns_outputs(unwrapped(first))):
        return
    outputs = output_types(program)
    first_outputs = output_types(first)
    missing = first_outputs.keys() - outputs.keys()
    if not missing:
        return
    for example in examples[:NUM_SCORED]:
        fails_anyway = fails(metric, example, as_answer(example, first_outputs))
        if not fails_anyway and fails(metric, example, as_answer(example, outputs)):
            raise UserError(
                f"{name} must have the outputs of {first_name!r}, because the metric fails without {sorted(missing)}; "
                f"got {sorted(outputs)}: rename the outputs, or omit this program"
            )


def _check_first_scores(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Raise an error if the metric returns no finite score for any of the first correct answers.

    If the metric reads a field that no example has, the error names the field. If examples have
    outputs, check only a `dspy.Predict` or `dspy.ChainOfThought`, because the fields of other
    programs' answers are unknown.
    """
    outputs = output_types(program)
    has_output = any(name in example for example in examples for name in outputs)
    if has_output and not _returns_outputs(program):
        return
    score_errors: list[BaseException] = []
    complete = [example for example in examples if _is_complete(example, outputs)]
    for example in [*examples[:NUM_SCORED], *complete[:NUM_SCORED]]:
        trial = tried(scorer(metric), example, as_answer(example, outputs))
        if trial.error is None:
            return
        check_field(trial.error, trial.example, examples, dataset=dataset)
        # A metric may return no score if an output is missing, so check only complete answers.
        if _is_complete(example, outputs):
            if not isinstance(trial.error, (MetricError, ScoreError)):
                return
            score_errors.append(trial.error)
    if score_errors and _returns_outputs(program):
        raise score_errors[0]


def _is_complete(example: dspy.Example, outputs: Mapping[str, Annotation]) -> bool:
    """Return whether an example has a value for every output."""
    return not any(is_empty(example.get(name), annotation) for name, annotation in outputs.items())


def _check_labels_of_set(
    program: dspy.Module, metric: SetMetric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Raise a ValueError unless each example has the label that a metric over a set needs."""
    field = metric.field
    if field is None:
        names = list(dict.fromkeys(chain.from_iterable(example.labels().keys() for example in examples)))
        if len(names) != 1:
            # This call raises an error if an example does not have exactly one label.
            metric.right_labels(examples)
            return
        (field,) = names
    annotations = output_types(program)
    if _returns_outputs(program) and field not in annotations:
        fix = "rename the column or the output so that both have the same name"
        if metric.field is not None:
            fix += ", and pass that name to the metric as the argument field"
        raise UserError(
            f"{metric!r} compares the field {field!r} of each answer with the same field of the example, but the "
            f"program's outputs are {list(annotations)}, and the columns of {dataset} are {columns_of(examples)}: {fix}"
        )
    annotation = annotations.get(field, str)
    _warn_of_free_text(
        metric, examples, field, dataset, is_label=labels_of(without_none(annotation)) is not None
    )
    missing = []
    for index, example in enumerate(examples):
        if field not in example or is_empty(example[field], annotation):
            missing.append(index)
    if len(missing) == len(examples):
        raise UserError(
            f"{dataset}: no example has a label in {field!r}, but {metric!r} needs labels. The columns are "
            f"{columns_of(examples)}: add the labels, or rename the column that holds the labels to {field!r}"
        )
    if missing:
        fix = "drop these rows, or add their labels"
        if annotation is str and all(isinstance(examples[index].get(field), str) for index in missing):
            fix += f". If '' is a valid label, declare {field!r} as a Literal that contains '' and the other labels"
        raise UserError(
            f"{dataset}: {len(missing)} of {len(examples)} examples have no label in {field!r}, but {metric!r} "
            f"needs one in each; the first such example is {dataset}[{missing[0]}]: {fix}"
        )


def _warn_of_free_text(
    metric: SetMetric, examples: Sequence[dspy.Example], field: str, dataset: str, *, is_label: bool
) -> None:
    """Log a warning if the label field of a metric over a set seems to hold free text.

    `is_label` means that the type of the program's output has few possible values.
    """
    num_values = len({repr(example[field]) for example in examples if field in example})
    if is_label or len(examples) < MIN_REPEATING or num_values <= MAX_DISTINCT * len(examples):
        return
    logger.warning(
        "%s: the field %r has %d different values in %d examples, and %r treats each value as a label. If the field "
        "holds free text, pass a metric that scores single examples.",
        dataset,
        field,
        num_values,
        len(examples),
        metric,
    )


def _check_outputs(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Log warnings about missing values of the program's outputs, and about integers in text outputs.

    Raise a ValueError if the metric fails because a value is missing.
    """
    missing: dict[str, list[int]] = {}
    annotations = output_types(program)
    for name, annotation in annotations.items():
        missing[name] = [i for i, example in enumerate(examples) if is_empty(example.get(name), annotation)]
    filled = [name for name, indices in missing.items() if len(indices) < len(examples)]
    if not filled:
        _check_metric_without_labels(program, metric, examples, dataset)
    _check_metric_on_incomplete_rows(metric, examples, annotations, filled, dataset)
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
        if without_none(annotations[name]) is str and are_whole_numbers(values):
            logger.warning(
                "%s: the field %r holds only whole numbers, such as %r, but the program answers with text. Every "
                "answer will be scored as wrong, unless the metric converts the numbers or the answers: %s",
                dataset,
                name,
                values[0],
                NAMES_OF_CLASSES,
            )


def _check_metric_on_incomplete_rows(
    metric: Metric,
    examples: Sequence[dspy.Example],
    annotations: Mapping[str, Annotation],
    filled: Collection[str],
    dataset: str,
) -> None:
    """Raise a ValueError if the metric fails on a row because the row has no value for an output.

    The metric is tried on a few incomplete rows, first as they are and then with values from other
    rows. The answer always contains the values of the completed row.

    Args:
        annotations: The outputs' types.
        filled: The outputs that have a value in at least one row.
    """
    values: dict[str, Value] = {}
    incomplete: dict[int, list[str]] = {}
    for index, example in enumerate(examples):
        for name in filled:
            # The output's type may allow None, but the metric may fail on None.
            if example.get(name) is None or is_empty(example[name], annotations[name]):
                incomplete.setdefault(index, []).append(name)
            else:
                values.setdefault(name, example[name])
    # Try only one of the rows that lack the same outputs.
    first_rows: dict[tuple[str, ...], int] = {}
    for index, names in incomplete.items():
        first_rows.setdefault(tuple(names), index)
    for lacking, index in islice(first_rows.items(), NUM_TRIED):
        example = examples[index]
        completed = own_copy(example)
        for name in values.keys() & set(lacking):
            completed[name] = values[name]
        answer = as_answer(completed, annotations)
        error = tried(scorer(metric), example, answer).error
        is_about_values = error is not None and _is_about_missing_values(error, example, lacking)
        if is_about_values and not fails(metric, completed, answer):
            raise UserError(
                f"{dataset}: {len(incomplete)} of {len(examples)} examples have no value for an output. The metric "
                f"fails on {dataset}[{index}], because the row has no value in {', '.join(map(repr, lacking))} "
                f"({type(error).__name__}: {error}): drop these rows, or add the values"
            )


def _is_about_missing_values(error: BaseException, example: dspy.Example, names: Iterable[str]) -> bool:
    """Return whether a metric's error seems to be caused by missing values.

    The message must mention a field without a value, the empty value or its type, unless the score
    is not finite. Other errors may be caused by parts of the answer that come from other examples.
    """
    signs = []
    for name in names:
        value = example.get(name)
        if value is None:
            signs += ["NoneType", f"'{name}'"]
        elif isinstance(value, float):
            signs.append("float")
        else:
            signs.append("''")
    # A metric that computes a score from a NaN returns NaN. This score raises a ScoreError.
    return isinstance(error, ScoreError) or any(sign in str(error) for sign in signs)


def _check_values(
    program: dspy.Module,
    metric: Metric,
    examples: Sequence[dspy.Example],
    dataset: str,
    *,
    all_examples: Sequence[dspy.Example],
) -> None:
    """Log a warning if label fields hold values that are not labels, unless the metric accepts them.

    Raise a ValueError if such values leave no example with a correct answer.
    """
    only_output = label_output(program)
    outputs: list[LabelOutput] = []
    if isinstance(only_output, LabelOutput):
        outputs = [only_output]
    elif is_single_step(program) and decision_adapter(program.predictors()[0]) is None:
        outputs = label_outputs("", program.predictors()[0])
    for output in outputs:
        values = output.other_values(examples)
        is_certain = False
        if values and output is only_output:
            labeled = [example for example in all_examples if output.label_of(example) is not None]
            unaccepted = None
            # If there are too many values to list in a message, score none, because metrics may be slow.
            if len(values) <= MOST_SHOWN:
                firsts = {text: examples[indices[0]] for text, indices in values.items()}
                unaccepted = _unaccepted(firsts, metric, labeled[:1], output)
            is_certain = unaccepted is not None
            if unaccepted is not None:
                values = {text: values[text] for text in unaccepted}
        if not values:
            continue
        num_examples = sum(map(len, values.values()))
        message = (
            f"{dataset}: {num_examples} of {len(examples)} examples have values in {output.name!r} that are not "
            f"labels of the program: {output.describe(values, examples)}. "
        )
        fix = "replace these values with labels, or drop these rows"
        if not is_certain or not _returns_outputs(program):
            message += f"Unless the metric or the program converts them, these examples have no correct answer: {fix}"
        else:
            message += f"These examples have no correct answer: {fix}"
            if num_examples == len(examples):
                raise UserError(message)
        logger.warning("%s", message)


def _unaccepted(
    examples: Mapping[str, dspy.Example],
    metric: Metric,
    labeled: Sequence[dspy.Example],
    output: LabelOutput,
) -> list[str] | None:
    """Return the values that the metric does not accept, or None if they cannot be determined.

    The metric does not accept a value if all labels get the same score on the value's example,
    and this score is lower than the highest score on any example.

    Args:
        examples: One example for each value that is not a label, keyed by the value's repr.
        labeled: At most one example with a label, for comparison.
    """
    scores = label_scores(metric, [*labeled, *examples.values()], output)
    if isinstance(scores, str):
        if scores == ALL_ALIKE and labeled:  # The metric ignores labels.
            return []
        return None
    best = scores.max()
    unaccepted = []
    for text, row in zip(examples, scores[len(labeled) :], strict=True):
        if row.max() == row.min() < best:
            unaccepted.append(text)
    return unaccepted


def _check_metric_without_labels(
    program: dspy.Module, metric: Metric, examples: Sequence[dspy.Example], dataset: str
) -> None:
    """Raise a ValueError if the metric fails because no example has a value for the program's outputs.

    Otherwise, log a warning if another column may hold the labels.
    """
    columns = columns_of(examples)
    problem = (
        f"{dataset}: no example has a value for the program's outputs {list(output_types(program))}; the columns are "
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
    """Return whether a metric fails for every answer to an example, but not once the example has a label."""
    labels = list(output.labels.values())
    labeled = own_copy(example)
    labeled[output.name] = labels[0]
    fails_without = all(fails(metric, example, {output.name: label}) for label in labels)
    return fails_without and not fails(metric, labeled, {output.name: labels[0]})


def _returns_outputs(program: dspy.Module) -> bool:
    """Return whether a program is a single predictor that returns exactly its signature's outputs.

    A subclass that overrides `forward` may return other fields.
    """
    forward = getattr(type(program), "forward", None)
    usual = (dspy.Predict.forward, dspy.ChainOfThought.forward, RetrievingPredict.forward)
    return is_single_step(program) and forward in usual


def are_whole_numbers(values: Sequence[Value]) -> bool:
    """Return whether the values, apart from None, are integers, like the indices in a ClassLabel column."""
    kinds = {type(value) for value in values if value is not None}
    return kinds == {int}
