"""Conversion of data sets and dicts to examples: inputs, class names, and errors for invalid rows."""

import dspy
import pytest
from brief import Sentiment, accuracy, brief_reviews
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from every_function import RUNS
from fakes import PlainLabels, Program, Wrapped, lm_of

from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data.examples import as_examples

REVIEWS = brief_reviews("train", 60)
FEATURES = Features({"review": Value("string"), "sentiment": ClassLabel(names=["negative", "positive"])})
ROWS = [{"review": e.review, "sentiment": ["negative", "positive"].index(e.sentiment)} for e in REVIEWS]
REVIEW_DATASET = Dataset.from_list(ROWS, features=FEATURES)


def with_demos(number=3):
    student = dspy.Predict(Sentiment)
    student.demos = brief_reviews("test", number)
    return student


OPTIONS = {
    "PLReorder": {"max_metric_calls": 40},
    "PLFewShot": {"max_metric_calls": 40, "max_demos": 2},
    "TopKOrder": {"max_metric_calls": 100},
    "BatchCalibration": {"num_inputs": 8},
    "choose_program": {"max_metric_calls": 40},
    "headroom": {"max_metric_calls": 200},
    "evaluate_programs": {},
}


def record_calls(name, rows, **options):
    """Return the prompts of all model calls, and the arguments of all metric calls."""
    scored = []

    def metric(example, prediction, trace=None):
        scored.append((example.toDict(), prediction.sentiment))
        return accuracy(example, prediction)

    engine = PlainLabels(lean=0.5)
    with dspy.context(lm=lm_of(engine), adapter=PlainTextAdapter()):
        RUNS[name](with_demos(), metric, rows, **OPTIONS[name], **options)
    return engine.prompts, scored


@pytest.mark.parametrize("name", OPTIONS)
def test_every_function_accepts_data_sets_and_dicts(name):
    expected = record_calls(name, REVIEWS)
    assert record_calls(name, REVIEW_DATASET) == expected
    assert record_calls(name, [example.toDict() for example in REVIEWS], inputs=["review"]) == expected


def test_a_valset_may_be_a_data_set():
    expected = record_calls("PLReorder", REVIEWS[:40], valset=REVIEWS[40:])
    rows = REVIEW_DATASET.select(range(40))
    valset = REVIEW_DATASET.select(range(40, 60))
    assert record_calls("PLReorder", rows, valset=valset) == expected


def test_estimates_accept_data_sets():
    optimizer = PLReorder(accuracy, max_metric_calls=40)
    with dspy.context(lm=lm_of(PlainLabels())):
        expected = optimizer.estimate(with_demos(), trainset=REVIEWS)
        assert optimizer.estimate(with_demos(), trainset=REVIEW_DATASET, inputs=["review"]) == expected


def test_class_names_replace_class_indices():
    rows = Dataset.from_dict(
        {"review": ["a", "b", "c", "d"], "sentiment": [1, 0, -1, None]}, features=FEATURES
    )
    examples = as_examples(rows.with_format("numpy"), with_demos(), name="trainset")
    assert [example.toDict() for example in examples] == [
        {"review": "a", "sentiment": "positive"},
        {"review": "b", "sentiment": "negative"},
        {"review": "c"},
        {"review": "d"},
    ]


def inputs_of(program, *columns, **options):
    (example,) = as_examples([dict.fromkeys(columns, "x")], program, name="trainset", **options)
    return set(example.inputs().keys())


class WithOptionalContext(dspy.Module):
    def forward(self, question, context=None):
        return dspy.Prediction()


def test_inferred_inputs():
    assert inputs_of(dspy.Predict("question -> answer"), "answer", "question", "id") == {"question"}
    optional = dspy.Predict(dspy.Signature("question, context: str | None -> answer"))
    assert inputs_of(optional, "question", "answer") == {"question"}
    assert inputs_of(optional, "question", "context", "answer") == {"question", "context"}
    rows = [{"question": "q", "answer": "a"}, {"question": "q", "context": "c", "answer": "a"}]
    for sparse in (rows, rows[::-1]):
        examples = as_examples(sparse, optional)
        assert [dict(example.inputs()) for example in examples] == [
            {name: value for name, value in row.items() if name != "answer"} for row in sparse
        ]
    assert inputs_of(Wrapped(), "question", "answer") == {"question"}
    any_inputs = Program(answer=dspy.Predict("question -> answer"))
    assert inputs_of(any_inputs, "question", "answer") == {"question"}, (
        "must be the first predictor's inputs"
    )
    assert inputs_of(WithOptionalContext(), "question", "answer") == {"question"}
    assert inputs_of(WithOptionalContext(), "question", "context", inputs=["question", "context"]) == {
        "question",
        "context",
    }


def test_examples_keep_the_inputs_that_they_declare():
    declared = dspy.Example(review="a", sentiment="positive").with_inputs("review", "sentiment")
    rows = [declared, {"review": "b", "sentiment": "negative"}, declared]
    first, second, third = as_examples(rows, with_demos(), name="trainset")
    assert first is third is declared
    assert second.inputs().keys() == ["review"]


@pytest.mark.parametrize(
    ("rows", "program", "error", "words"),
    [
        (
            [{"question": "q", "context": "c"}],
            WithOptionalContext(),
            ValueError,
            r"trainset has the columns \['context'\], .* pass inputs=\['question', 'context'\], or omit",
        ),
        (
            [{"text": "t"}],
            Program(),
            ValueError,
            r"inputs of the program, \[\]; got the columns \['text'\]: .* inputs=",
        ),
        ([{"review": "a"}, {"text": "b"}], with_demos(), ValueError, r"trainset\[1\] must have the inputs"),
        (
            DatasetDict({"test": REVIEW_DATASET}),
            with_demos(),
            TypeError,
            r"pass one of its splits, .* trainset\['test'\]",
        ),
        (REVIEW_DATASET.to_iterable_dataset(), with_demos(), TypeError, r"from_list\(list\(trainset\)\)"),
        (
            REVIEW_DATASET.rename_column("review", "text"),
            with_demos(),
            ValueError,
            r"\['review'\]; got the columns \['text'",
        ),
    ],
)
def test_invalid_rows_are_rejected(rows, program, error, words):
    with pytest.raises(error, match=words):
        as_examples(rows, program, name="trainset")
