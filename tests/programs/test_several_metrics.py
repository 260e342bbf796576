"""Several metrics that score the same program calls."""

import dspy
import pytest
from fakes import LabelEngine, Program, lm_of
from label_engines import exact

from plr_dspy import F1, Evaluation, Evaluations, MatthewsCorrelation, evaluate_programs

LABELS = ["no", "yes"]


def examples(count=20, num_yes=5):
    rows = [{"number": n, "tags": ["as given"], "label": LABELS[n < num_yes]} for n in range(count)]
    return [dspy.Example(row).with_inputs("number", "tags") for row in rows]


class Counting:
    """A program that answers "yes" to the numbers in `yes` and stores the number of each call."""

    def __init__(self, yes, *, failing=()):
        self.asked = []
        self.yes = set(yes)
        self.failing = set(failing)
        self.program = Program(lambda _, number, tags: self(number))

    def __call__(self, number):
        self.asked.append(number)
        if number in self.failing:
            raise ConnectionError("no route")
        return dspy.Prediction(label=LABELS[number in self.yes], words=["as answered"])


def longer(example, prediction):
    return len(prediction.label) / 4


def failing_on(*numbers, error=KeyError):
    def metric(example, prediction):
        if example.number in numbers:
            raise error("no verdict")
        return exact(example, prediction)

    return metric


@pytest.fixture(autouse=True)
def quiet():
    with dspy.context(lm=lm_of(LabelEngine(LABELS, lambda demos, text: [0.5, 0.5])), num_threads=1):
        yield


def evaluated(programs, metric, devset=None, **options):
    modules = {name: counting.program for name, counting in programs.items()}
    return evaluate_programs(modules, metric, devset or examples(), display_progress=False, **options)


METRICS = {"exact": exact, "F1": F1("yes"), "MCC": MatthewsCorrelation(), "length": longer}


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_result_of_each_metric_is_the_same_as_alone_with_one_set_of_calls(num_threads):
    programs = {"some": Counting(range(3, 8)), "never": Counting([])}
    evaluations = evaluated(programs, METRICS, num_threads=num_threads)
    for program in programs.values():
        assert sorted(program.asked) == list(range(20))
    assert isinstance(evaluations, Evaluations)
    assert list(evaluations) == list(METRICS)
    for name, metric in METRICS.items():
        alone = evaluated(programs, metric)
        assert isinstance(alone, Evaluation)
        assert evaluations[name] == alone
        assert f"{name}: {alone}" in str(evaluations)
    assert len(str(evaluations).splitlines()) == 3 * len(METRICS)


def test_a_dict_with_one_metric_gives_a_table_with_its_name():
    evaluations = evaluated({"some": Counting(range(3, 8))}, {"exact": exact})
    assert list(evaluations) == ["exact"]
    assert str(evaluations).startswith("exact: 20 examples\n  some  0.700")


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
    devset = examples()
    if not first:
        metrics = dict(reversed(metrics.items()))
    evaluations = evaluated({"a": Counting(range(5))}, metrics, devset)
    assert seen == [(["as given"], ["as answered"])] * 20
    assert evaluations["reading"].programs["a"].score == 1.0
    assert [example.toDict() for example in devset] == [example.toDict() for example in examples()]


@pytest.mark.parametrize("order", [["exact", "picky"], ["picky", "exact"]])
def test_an_example_on_which_a_metric_fails_is_omitted(order, caplog):
    metrics = {"exact": exact, "picky": failing_on(3, 4)}
    programs = {"a": Counting(range(5), failing=[7]), "b": Counting([])}
    evaluations = evaluated(programs, {name: metrics[name] for name in order})
    left = [example for example in examples() if example.number not in (3, 4, 7)]
    alone = evaluated({name: Counting(programs[name].yes) for name in "ab"}, exact, left)
    for evaluation in evaluations.values():
        assert (evaluation.num_examples, evaluation.num_failed) == (17, 3)
        assert evaluation.programs == alone.programs
    assert (
        "calls on 3 of 20 examples failed, the first with KeyError: in the metric: 'no verdict'"
        in caplog.text
    )


def test_a_failed_call_of_a_program_is_reported_once(caplog):
    evaluations = evaluated({"a": Counting(range(5), failing=[7])}, METRICS)
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
    program = Counting(range(5))
    with pytest.raises(error) as caught:
        evaluated({"a": program}, {"exact": exact, "broken": broken}, max_errors=3)
    assert len(program.asked) == calls
    assert "in the metric" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("metric", "error", "words"),
    [
        ({}, TypeError, "metric must be a metric or a non-empty dict"),
        ({"a": exact, "b": 3}, TypeError, "metric must be callable"),
        ({"a": exact, "b": F1}, TypeError, "metric must be callable"),
        ({"a": exact, "b": F1("maybe")}, ValueError, "at least one example must have the label 'maybe'"),
    ],
)
def test_bad_metrics_are_rejected_before_any_call(metric, error, words):
    program = Counting([])
    with pytest.raises(error, match=words):
        evaluated({"a": program}, metric)
    assert not program.asked
