"""Several metrics that score the same program calls."""

import dspy
import pytest
from fakes import Program
from label_engines import exact
from yes_or_no import LABELS, Answering, evaluated, examples

from plr_dspy import F1, Evaluation, Evaluations, MatthewsCorrelation

pytestmark = pytest.mark.usefixtures("quiet")
DEVSET = examples(20, range(5))


def counting(yes):
    """Return a program, and a list to which it adds the number of each call."""
    asked = []

    def forward(self, number):
        asked.append(number)
        return self.inner(number=number)

    return Program(forward, inner=Answering(yes)), asked


def longer(example, prediction):
    return len(prediction.label) / 4


def failing_on(*numbers):
    def metric(example, prediction):
        if example.number in numbers:
            raise KeyError("no verdict")
        return exact(example, prediction)

    return metric


METRICS = {"exact": exact, "F1": F1("yes"), "MCC": MatthewsCorrelation(), "length": longer}


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_result_of_each_metric_is_the_same_as_alone_with_one_set_of_calls(num_threads):
    some, asked_of_some = counting(range(3, 8))
    never, asked_of_never = counting([])
    programs = {"some": some, "never": never}
    evaluations = evaluated(programs, METRICS, DEVSET, num_threads=num_threads)
    assert sorted(asked_of_some) == sorted(asked_of_never) == list(range(20))
    assert isinstance(evaluations, Evaluations)
    assert list(evaluations) == list(METRICS)
    for name, metric in METRICS.items():
        alone = evaluated(programs, metric, DEVSET)
        assert isinstance(alone, Evaluation)
        assert evaluations[name] == alone
        assert f"{name}: {alone}" in str(evaluations)
    assert len(str(evaluations).splitlines()) == 4 * len(METRICS)


def test_a_dict_with_one_metric_gives_a_table_with_its_name():
    evaluations = evaluated({"some": Answering(range(3, 8))}, {"exact": exact}, DEVSET)
    assert list(evaluations) == ["exact"]
    assert str(evaluations).startswith("exact: 20 examples\n  some         0.700")


@pytest.mark.parametrize("first", [True, False])
def test_changes_by_one_metric_do_not_reach_other_metrics(first):
    seen = []

    def writing(example, prediction):
        example.label = prediction.label = "spoilt"
        example.tags.append("spoilt")
        prediction.words.append("spoilt")
        return 1.0

    def reading(example, prediction):
        seen.append((example.tags, prediction.words))
        return exact(example, prediction)

    metrics = {"writing": writing, "reading": reading}
    if not first:
        metrics = dict(reversed(metrics.items()))
    devset = [example.copy(tags=["as given"]) for example in DEVSET]
    before = [example.toDict() for example in devset]
    program = Program(lambda self, number: dspy.Prediction(label=LABELS[number < 5], words=["as answered"]))
    evaluations = evaluated({"a": program}, metrics, devset)
    assert seen == [(["as given"], ["as answered"])] * 20
    assert evaluations["reading"].programs["a"].score == 1.0
    assert [example.toDict() for example in devset] == before


@pytest.mark.parametrize("order", [["exact", "picky"], ["picky", "exact"]])
def test_an_example_on_which_a_metric_fails_is_omitted(order, caplog):
    metrics = {"exact": exact, "picky": failing_on(3, 4)}
    programs = {"a": Answering(range(5), failing=[7]), "b": Answering([])}
    evaluations = evaluated(programs, {name: metrics[name] for name in order}, DEVSET)
    left = [example for example in DEVSET if example.number not in (3, 4, 7)]
    alone = evaluated({"a": Answering(range(5)), "b": Answering([])}, exact, left)
    for evaluation in evaluations.values():
        assert (evaluation.num_examples, evaluation.num_failed) == (17, 3)
        assert evaluation.programs == alone.programs
    assert (
        "calls on 3 of 20 examples failed (the first with KeyError: in the metric: 'no verdict')"
        in caplog.text
    )


def test_a_failed_call_of_a_program_is_reported_once(caplog):
    evaluations = evaluated({"a": Answering(range(5), failing=[7])}, METRICS, DEVSET)
    assert {evaluation.num_failed for evaluation in evaluations.values()} == {1}
    assert caplog.text.count("these examples are omitted") == 1


@pytest.mark.parametrize(
    ("broken", "error", "calls"),
    [
        (lambda example, prediction: "high", TypeError, 3),
        (lambda example, prediction: prediction.nothing, AttributeError, 3),
        (lambda example, prediction: float("nan"), ValueError, 3),
    ],
)
def test_a_metric_that_always_fails_ends_the_calls(broken, error, calls):
    program, asked = counting(range(5))
    with pytest.raises(error) as caught:
        evaluated({"a": program}, {"exact": exact, "broken": broken}, DEVSET, max_errors=3)
    assert len(asked) == calls
    assert "in the metric" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("metric", "error", "words"),
    [
        ({}, TypeError, "metric must be a metric or a non-empty dict"),
        ({1: exact}, TypeError, "metric must be a dict with non-empty strings as names; got 1: rename"),
        ({"a": exact, "b": 3}, TypeError, "metric must be callable"),
        ({"a": exact, "b": F1}, TypeError, "metric must be callable"),
        ({"a": exact, "b": F1("maybe")}, ValueError, "at least one example must have the label 'maybe'"),
    ],
)
def test_bad_metrics_are_rejected_before_any_call(metric, error, words):
    program, asked = counting([])
    with pytest.raises(error, match=words):
        evaluated({"a": program}, metric, DEVSET)
    assert not asked
