"""Errors and warnings about labels and demos that appear before any call is made."""

import math
import re
from typing import Literal

import dspy
import fakes
import pytest
from every_function import RUNS
from fakes import engine_for, exact_match, questions, using

from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.labels.reader import NoProbabilities

EXAMPLES = questions(60)
CALLING = ["PLReorder", "PLFewShot", "evaluate_programs", "headroom"]
LABEL = Literal["yes", "no"]


def program_of(kind):
    return dspy.Predict(dspy.Signature("question -> answer").with_updated_fields("answer", type_=kind))


def rows(value):
    return [dspy.Example(question=f"question {i}", answer=value).with_inputs("question") for i in range(60)]


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize(
    ("kind", "value"), [(LABEL, math.nan), (LABEL, None), (LABEL, "Yes"), (bool, "True")]
)
def test_examples_without_a_possible_label_are_an_error_before_any_call(name, kind, value):
    program = program_of(kind)
    program.demos = [dspy.Example(question=f"demo {i}", answer="yes") for i in range(4)]
    message = r"no example has one of the labels.*Give each example a label"
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=message):
        RUNS[name](program, exact_match, rows(value))
    assert not engine.num_calls


def columns(**values):
    """Return 60 examples whose columns repeat these lists of values."""
    examples = []
    for i in range(60):
        row = {name: distinct[i % len(distinct)] for name, distinct in values.items()}
        examples.append(dspy.Example(question=f"question {i}", **row).with_inputs("question"))
    return examples


def judge(example, prediction, trace=None):
    return float(len(prediction.answer) > 2)


ABSENT = object()
NAMED_OTHERWISE = columns(label=["yes", "no"])
PARTLY_EMPTY = columns(answer=["yes", "no", ""])
WITHOUT_SOME = [
    row if i % 3 != 1 else row.without("answer") for i, row in enumerate(columns(answer=["yes", "no"]))
]


def run_with_small_budget(name, program, metric, rows):
    """Run a function with a budget that is too small, if it has a budget."""
    budget = {} if name == "evaluate_programs" else {"max_metric_calls": 1}
    RUNS[name](program, metric, rows, **budget)


@pytest.mark.parametrize("name", ["PLReorder", "evaluate_programs", "headroom"])
@pytest.mark.parametrize(
    ("metric", "rows", "message"),
    [
        (exact_match, NAMED_OTHERWISE, r"the columns are \['question', 'label'\].*rename .* to 'answer'$"),
        (F1("yes"), NAMED_OTHERWISE, r"compares the field 'label' .*outputs are \['answer'\].*rename"),
        (
            F1("yes", field="answer"),
            NAMED_OTHERWISE,
            r"no example has a label in 'answer'.*'label'.*rename",
        ),
        (
            F1("yes"),
            PARTLY_EMPTY,
            r"20 of 60 examples have no label in 'answer'.*\w+\[2\]: drop these rows",
        ),
        (F1("yes"), columns(answer=["yes", "no", math.nan]), "20 of 60 examples have no label"),
        (F1("yes"), columns(answer=["yes", "no"], note=["a"]), "exactly one non-input field"),
        (
            exact_match,
            WITHOUT_SOME,
            r"20 of 60 .* have no value .* on \w+\[1\], because .* no value in 'answer' \(AttributeError: .*: drop",
        ),
        (exact_match, columns(answer=[0, 1]), r"no answer can be correct.*as_examples\(dataset, program\)"),
    ],
)
def test_missing_labels_are_reported_before_the_budget_is_checked(name, metric, rows, message):
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=message):
        run_with_small_budget(name, program_of(LABEL), metric, rows)
    assert not engine.num_calls


def lower_case(example, prediction, trace=None):
    return example.answer.lower() == prediction.answer.lower()


def by_answer_or_points(example, prediction, trace=None):
    if example.get("answer"):
        return example.answer == prediction.answer
    return example.points[prediction.answer] > 0


def of_both(example, prediction, trace=None):
    return example.answer == prediction.answer and example.reason == prediction.reason


def of_either(example, prediction, trace=None):
    if example.get("answer"):
        return example.answer == prediction.answer
    return len(example.reason) == len(prediction.reason)


def number_without_id(example, prediction, trace=None):
    return int(prediction.id) > 0 if example.get("id") is None else example.id == prediction.id


BOTH = "question -> answer, reason"


@pytest.mark.parametrize(
    ("metric", "signature", "changes", "is_rejected"),
    [
        (exact_match, "question -> answer", [{"answer": ABSENT}], True),
        (exact_match, "question -> answer: Optional[str]", [{"answer": ABSENT}], True),
        (lower_case, "question -> answer: Optional[str]", [{"answer": None}], True),
        (lower_case, "question -> answer", [{"answer": math.nan}], True),
        (exact_match, "question -> answer", [{"answer": math.nan}], False),
        (of_both, BOTH, [{"answer": ABSENT, "reason": ABSENT}], True),
        (of_both, BOTH, [{"reason": ABSENT}], True),
        (lower_case, BOTH, [*4 * [{"reason": None}], {"answer": None}], True),
        (lower_case, BOTH, [*30 * [{"reason": None}], *30 * [{"answer": None}]], True),
        (of_either, BOTH, [{"answer": ABSENT}], False),
        (by_answer_or_points, "question -> answer", [{"answer": ABSENT}], False),
        (number_without_id, "question -> id", [{"id": None}], False),
    ],
)
def test_rows_without_values_are_rejected_only_if_the_metric_needs_them(
    metric, signature, changes, is_rejected
):
    """The metric `by_answer_or_points` fails on the answers of other rows."""
    rows = columns(answer=["yes", "no"], reason=["so"], id=["A1"])
    for i, row in enumerate(rows):
        row["points"] = {f"answer {i}": 1.0}
    for i, change in enumerate(changes):
        rows[i] = rows[i].without(*change)
        for name, value in change.items():
            if value is not ABSENT:
                rows[i][name] = value
    with using(engine_for(EXAMPLES)), pytest.raises(ValueError) as raised:
        PLReorder(metric, max_metric_calls=1).compile(with_demos(signature), trainset=rows)
    assert ("drop these rows, or add the values" in str(raised.value)) == is_rejected
    assert ("max_metric_calls must be at least" in str(raised.value)) != is_rejected


def with_demos(signature):
    """Return a program with four demos."""
    program = dspy.Predict(signature)
    program.demos = [dspy.Example(question=f"demo {i}", answer="a", reason="so", id="A2") for i in range(4)]
    return program


def warnings_of(caplog, metric, kind, rows):
    """Return the warnings about answers. The run then ends, because its budget is too small."""
    program = program_of(kind)
    program.demos = [dspy.Example(question=f"demo {i}", answer="a") for i in range(4)]
    with using(engine_for(EXAMPLES)), pytest.raises(ValueError, match="max_metric_calls must be at least"):
        PLReorder(metric, max_metric_calls=1).compile(program, trainset=rows)
    return [message for message in caplog.messages if "answer" in message]


@pytest.mark.parametrize(
    ("metric", "kind", "rows", "words"),
    [
        (judge, LABEL, NAMED_OTHERWISE, "rename the column that holds the labels"),
        (exact_match, LABEL, PARTLY_EMPTY, "trainset: 20 of 60 examples have no value in 'answer'"),
        (
            exact_match,
            str,
            columns(answer=[3, 4]),
            "Every answer will be scored as wrong, unless the metric converts the numbers or the answers",
        ),
    ],
)
def test_a_single_warning_names_missing_labels_that_a_metric_may_need(caplog, metric, kind, rows, words):
    (warning,) = warnings_of(caplog, metric, kind, rows)
    assert words in warning


def test_a_metric_over_a_set_warns_of_free_text(caplog):
    rows = columns(answer=[f"text {i}" for i in range(40)])
    (warning,) = warnings_of(caplog, F1(), str, rows)
    assert "40 different values in 60 examples, and F1(" in warning


@pytest.mark.parametrize(
    ("metric", "kind", "rows"),
    [
        (F1(), str, columns(answer=[f"text {i}" for i in range(30)])),
        (F1(), int, columns(answer=[1, 2])),
        (judge, LABEL, columns()),
        (judge, str, columns()),
        (F1(), Literal["yes", "no"] | None, columns(answer=["yes", "no", None])),
        (F1(), Literal["yes", ""], columns(answer=["yes", ""])),
        (exact_match, str | None, columns(answer=["yes", None])),
        (exact_match, int, columns(answer=[3, 4])),
    ],
)
def test_labels_that_no_metric_needs_or_that_the_type_allows_cause_no_warning(caplog, metric, kind, rows):
    assert not warnings_of(caplog, metric, kind, rows)


def by_answer(example, prediction, trace=None):
    return example.answer == prediction.answer


def lenient(example, prediction, trace=None):
    return example.answer.strip().lower() == prediction.answer.lower()


def by_reasoning(example, prediction, trace=None):
    return example.answer in prediction.reasoning


TYPING_ERRORS = columns(answer=["yes", "no", "yes ", "Yes"])
BOTH = r"'yes ' \(15 examples; nearest label: 'yes'\), 'Yes' \(15 examples; nearest label: 'yes'\)"


@pytest.mark.parametrize(
    ("metric", "kind", "rows", "words"),
    [
        (
            by_answer,
            LABEL,
            TYPING_ERRORS,
            f"30 of 60 examples .*{BOTH}. These examples have no correct answer: replace",
        ),
        (
            F1(),
            LABEL,
            TYPING_ERRORS,
            "15 of 60 examples have values in 'answer'.*: 'Yes' .*nearest label: 'yes'",
        ),
        (
            by_reasoning,
            LABEL,
            TYPING_ERRORS,
            f"30 of 60 .*{BOTH}. Unless the metric or the program converts them",
        ),
        (
            by_answer,
            Literal[1, 2],
            columns(answer=[1, 2, "2"]),
            r"20 of 60 .*'2' \(20 examples; nearest label: 2\)",
        ),
        (
            by_answer,
            LABEL,
            columns(answer=["yes", "no", "perhaps"]),
            r"'perhaps' \(20 examples\). These examples",
        ),
        (
            by_answer,
            Literal["yes", "no", ""],
            columns(answer=["yes", "", "Yes"]),
            "20 of 60.*Unless the metric",
        ),
    ],
)
def test_values_that_are_not_labels_are_reported_with_the_nearest_label(caplog, metric, kind, rows, words):
    (warning,) = warnings_of(caplog, metric, kind, rows)
    assert re.search(words, warning)


def test_values_that_the_metric_accepts_or_that_it_ignores_are_not_reported(caplog):
    assert not warnings_of(caplog, lenient, LABEL, TYPING_ERRORS)
    assert not warnings_of(caplog, F1(), LABEL, columns(answer=["yes", "no", "yes "]))
    assert not warnings_of(caplog, lambda example, prediction: 1.0, LABEL, TYPING_ERRORS)


def test_a_valset_without_any_label_is_an_error_before_any_call():
    program = program_of(LABEL)
    program.demos = [dspy.Example(question=f"demo {i}", answer="yes") for i in range(4)]
    valset = [dspy.Example(question=f"new {i}", answer="Yes").with_inputs("question") for i in range(9)]
    message = "valset: 9 of 9 examples .* that are not labels .*These examples have no correct answer"
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=message):
        PLReorder(by_answer).compile(program, trainset=columns(answer=["yes", "no"]), valset=valset)
    assert not engine.num_calls


def test_a_set_metric_says_how_to_declare_that_empty_text_is_a_label():
    rows = columns(answer=["yes", "no", ""])
    message = "If '' is a valid label, declare 'answer' as a Literal that contains '' and the other labels$"
    with using(engine_for(EXAMPLES)), pytest.raises(ValueError, match=message):
        PLReorder(F1("yes")).compile(program_of(str), trainset=rows)
    empty = fakes.Program(
        lambda self, question: dspy.Prediction(answer=""), inner=program_of(Literal["yes", "no", ""])
    )
    with using(engine_for(EXAMPLES)):
        assert (
            evaluate_programs({"a": empty}, F1(""), rows, display_progress=False).programs["a"].score == 0.5
        )


def no_score(example, prediction, trace=None):
    by_answer(example, prediction)


def not_a_number(example, prediction, trace=None):
    return math.nan


@pytest.mark.parametrize(
    ("metric", "kind", "message"),
    [
        (no_score, TypeError, "metric must return a number.*got NoneType"),
        (not_a_number, ValueError, "metric must return a finite number.*got nan"),
    ],
)
@pytest.mark.parametrize("name", CALLING)
def test_a_metric_that_returns_no_score_is_rejected_before_any_call(name, metric, kind, message):
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(kind, match=message):
        RUNS[name](program_of(LABEL), metric, columns(answer=["yes", "no"]))
    assert not engine.num_calls


def test_the_labels_of_a_module_may_have_other_names_than_its_predictors_outputs(caplog):
    program = fakes.Program(
        lambda self, question: dspy.Prediction(label=self.inner(question=question).answer),
        inner=program_of(LABEL),
    )
    with using(engine_for(EXAMPLES)):
        evaluate_programs({"a": program}, F1(), NAMED_OTHERWISE)
    assert not [message for message in caplog.messages if "column" in message]


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        (rows(math.nan), "; all labels are assumed to be equally frequent: add labels to these examples"),
        (
            rows("Yes"),
            ", but 'Yes' (60 examples; nearest label: 'yes'); all labels are assumed to be equally frequent: replace",
        ),
        (
            NAMED_OTHERWISE,
            "; the columns are ['question', 'label']; all labels are assumed to be equally frequent: if one of these "
            "columns holds the labels, rename it to 'answer'",
        ),
        (
            columns(answer=[0, 1]),
            "replace these values with labels; to get class names from a ClassLabel column",
        ),
    ],
)
def test_calibration_warns_of_examples_without_a_usable_label(caplog, examples, words):
    with using(engine_for(EXAMPLES)), pytest.raises(NoProbabilities):
        BatchCalibration(display_progress=False).compile(program_of(LABEL), trainset=examples)
    (warning,) = [message for message in caplog.messages if "have none of the labels" in message]
    assert warning.startswith("60 of 60 examples have none of the labels ['yes', 'no'] in field 'answer'")
    assert words in warning


def test_calibration_needs_no_labels(caplog):
    unlabeled = [example.without("answer").with_inputs("question") for example in EXAMPLES]
    for options in ({}, {"prior": {"yes": 0.5, "no": 0.5}}):
        trainset = rows("Yes") if options else unlabeled
        with using(engine_for(EXAMPLES)), pytest.raises(NoProbabilities):
            BatchCalibration(display_progress=False, **options).compile(
                program_of(LABEL), trainset=trainset
            )
    assert "label" not in caplog.text


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        (NAMED_OTHERWISE, "the columns are .*rename it to 'answer', or omit metric"),
        (
            rows("Yes"),
            "got 0, but 'Yes' .*nearest label: 'yes'.*: replace these values with labels, or omit metric",
        ),
    ],
)
def test_calibration_by_a_metric_needs_labels(examples, words):
    with using(engine_for(EXAMPLES)) as engine, pytest.raises(ValueError, match=words):
        BatchCalibration(metric=F1()).compile(program_of(LABEL), trainset=examples)
    assert not engine.num_calls


def test_a_warning_names_chosen_demos_that_json_cannot_store(caplog):
    demos = [dspy.Example(question=f"demo {i}", answer="a", note=complex(i, 1)) for i in range(4)]
    optimizer = PLFewShot(exact_match, candidates=demos, demos="fixed", min_demos=1, max_metric_calls=60)
    with using(engine_for(EXAMPLES)):
        program = optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert program.demos
    assert "has a value of type complex in field 'note'" in caplog.text
    assert "save_program=True" in caplog.text


class NoResponseInHistory(dspy.BaseLM):
    """An LM that overrides `__call__` and stores no responses in its history. DSPy allows such LMs."""

    def __init__(self):
        super().__init__("own/model", cache=False)

    def __call__(self, prompt=None, messages=None, **kwargs):
        outputs = ["[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"]
        self.update_history({"messages": messages, "kwargs": kwargs, "outputs": outputs, "cost": 0})
        return outputs


def test_lms_whose_history_has_no_responses_can_be_scored():
    with dspy.context(lm=NoResponseInHistory()):
        evaluation = evaluate_programs({"a": program_of(LABEL)}, exact_match, columns(answer=["yes", "no"]))
    assert evaluation.programs["a"].score == 0.5
    assert not evaluation.num_failed


class Renaming(dspy.ChainOfThought):
    def forward(self, **inputs):
        return dspy.Prediction(label=super().forward(**inputs).answer)


def test_subclasses_that_rename_outputs_work_with_metrics_over_a_set():
    with using(engine_for(EXAMPLES)):
        evaluate_programs({"a": Renaming("question -> answer")}, F1("yes"), NAMED_OTHERWISE)


def test_modules_need_labels_that_are_not_none():
    program = fakes.Program(
        lambda self, question: dspy.Prediction(label=self.inner(question=question).answer),
        inner=program_of(LABEL),
    )
    with using(engine_for(EXAMPLES)), pytest.raises(ValueError, match="20 of 60 examples have no label"):
        evaluate_programs({"a": program}, F1("yes"), columns(label=["yes", "no", None]))
