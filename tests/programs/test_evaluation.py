"""Programs scored side by side on examples that no optimizer has seen."""

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import LabelEngine, Program, lm_of
from label_engines import exact

import plr_dspy
from plr_dspy import F1, CalibratedProgram, Calibration, MatthewsCorrelation, evaluate_programs

LABELS = ["no", "yes"]


class Answering(dspy.Module):
    """Answers "yes" to the numbers given, and "no" to others; to some it says nothing, or fails."""

    def __init__(self, yes, *, unread=(), failing=()):
        super().__init__()
        self.step = dspy.Predict("number -> label: Literal['no', 'yes']")
        self.yes = set(yes)
        self.unread = set(unread)
        self.failing = set(failing)

    def forward(self, number):
        if number in self.failing:
            raise ConnectionError("no route")
        if number in self.unread:
            raise AdapterParseError("Fake", self.step.signature, "gibberish")
        return dspy.Prediction(label="yes" if number in self.yes else "no")


def examples(count, yes):
    return [dspy.Example(number=n, label="yes" if n in yes else "no").with_inputs("number") for n in range(count)]


@pytest.fixture(autouse=True)
def quiet():
    with dspy.context(lm=lm_of(LabelEngine(LABELS, lambda demos, text: [0.5, 0.5])), num_threads=1):
        yield


def evaluated(programs, metric, devset):
    return evaluate_programs(programs, metric, devset, display_progress=False)


def test_accuracy_and_difference():
    devset = examples(20, range(5))
    half = Answering(range(2, 8), unread=[19])
    found = evaluated({"never": Answering([]), "half": half}, exact, devset)
    never, half = found.programs.values()
    assert (never.score, half.score) == (0.75, 14 / 20)
    assert half.difference == pytest.approx(-0.05)
    assert half.num_unread == 1
    assert never.difference is None
    for low, high, value in ((*half.interval, half.score), (*half.difference_interval, half.difference)):
        assert low < value < high
    assert "half         0.700 [" in str(found)
    assert (found.constant.label, found.constant.score) == ("no", 0.75)
    assert "\n  always 'no'  0.750, without any call" in str(found)
    assert "1 of the replies could not be read" in str(found)


def test_the_constant_answer_is_the_best_one_by_the_metric():
    devset = examples(20, range(5))
    calls = []

    def judged(example, prediction):
        calls.append(prediction)
        dspy.Predict("label -> verdict")(label=prediction.label)
        return exact(example, prediction)

    found = evaluated({"never": Answering([])}, {"F1": F1("yes"), "judged": judged}, devset)
    assert (found["F1"].constant.label, found["F1"].constant.score) == ("yes", pytest.approx(0.4))
    assert found["judged"].constant is None
    assert len(calls) == len(devset) + 1


def test_a_metric_that_is_never_above_0():
    metrics = (exact, lambda e, p: exact(e, p) - 1.0)
    answering = Answering(range(20))
    counted, lost = [evaluated({"": answering}, each, examples(20, range(18))).programs[""] for each in metrics]
    assert lost.interval == pytest.approx([end - 1.0 for end in counted.interval])


def test_a_reply_that_cannot_be_read_counts_as_the_worst_score():
    """Of any program: no program is the better for answering nothing."""

    def minus(example, prediction):
        return exact(example, prediction) - 1.0

    programs = {"wrong": Answering([0, 1]), "unread": Answering([], unread=[0, 1])}
    wrong, unread = evaluated(programs, minus, examples(4, [3])).programs.values()
    assert (wrong.score, unread.score, unread.difference) == (-0.75, -0.75, 0.0)
    low, high = unread.difference_interval
    assert low < 0.0 < high


def test_a_metric_over_a_set_and_a_calibrated_program():
    devset = examples(20, range(5))
    found = evaluated({"never": Answering([]), "some": Answering(range(3, 8))}, F1("yes"), devset)
    assert found.programs["never"].score == 0.0
    assert found.programs["some"].score == pytest.approx(2 * 2 / (5 + 5))
    assert found.programs["some"].difference == pytest.approx(0.4)
    devset = [dspy.Example(text=str(n), label="yes").with_inputs("text") for n in range(4)]
    calibration = Calibration("batch", ("no", "yes"), (0.0, float(np.log(3.0))))
    program = CalibratedProgram(dspy.Predict("text -> label: Literal['no', 'yes']"), calibration)
    (found,) = evaluated({"calibrated": program}, exact, devset).programs.values()
    assert found.score == 1.0


@pytest.mark.parametrize(("recall", "alarms"), [(0.7, 0.3), (0.1, 0.02)])
def test_intervals_of_a_metric_over_a_set_hold(recall, alarms):
    """Also where some programs find nothing; new examples have other labels, too."""
    rng = np.random.default_rng(0)
    inside = np.zeros(2)
    worlds = 100
    truth = 2 * recall * 0.15 / (0.15 + recall * 0.15 + alarms * 0.85)

    def program():
        return Answering([n for n in range(40) if rng.random() < (recall if n in yes else alarms)])

    for _ in range(worlds):
        yes = set(np.flatnonzero(rng.random(40) < 0.15).tolist())
        found = evaluated({"one": program(), "other": program()}, F1("yes"), examples(40, yes))
        one, other = found.programs.values()
        inside += [
            one.interval[0] < truth < one.interval[1],
            other.difference_interval[0] < 0 < other.difference_interval[1],
        ]
    assert (inside >= 0.94 * worlds).all(), inside


@pytest.mark.parametrize("metric", [F1("yes"), F1(), MatthewsCorrelation(), plr_dspy.BalancedAccuracy()])
@pytest.mark.parametrize("right", [0.95, 0.9])
def test_intervals_hold_where_all_answers_may_be_right(metric, right):
    rng = np.random.default_rng(0)
    inside = 0
    truth = 2 * right - 1 if isinstance(metric, MatthewsCorrelation) else right
    for _ in range(40):
        wrong = {n for n in range(20) if rng.random() > right}
        program = Answering({n for n in range(20) if (n % 2 == 0) != (n in wrong)})
        (found,) = evaluated({"one": program}, metric, examples(20, range(0, 20, 2))).programs.values()
        assert found.interval[0] < found.interval[1]
        inside += found.interval[0] < truth <= found.interval[1]
    assert inside >= 33


@pytest.mark.parametrize("metric", [plr_dspy.BalancedAccuracy(), F1("yes")])
def test_a_rare_label_that_was_always_found_is_not_certain(metric):
    """Of five examples; two false alarms do not make it surer."""
    yes = set(range(5))
    found = evaluated({"right": Answering(yes), "alarms": Answering({*yes, 50, 51})}, metric, examples(100, yes))
    for each in found.programs.values():
        assert 0.3 < each.interval[0] < 0.9 and each.interval[1] > 0.8


def test_whatever_runs_can_be_evaluated():
    """Programs that nobody could order, and answers under another name."""

    rule = Program(lambda self, number: dspy.Prediction(label="yes"))
    rename = lambda self, number: dspy.Prediction(answer=self.inner(number=number).label)  # noqa: E731
    programs = {"rule": rule, "ensemble": dspy.Ensemble(reduce_fn=lambda answers: answers[0]).compile([rule])}
    for each in evaluated(programs, exact, examples(20, range(5))).programs.values():
        assert each.score == 0.25
    metric = lambda example, answer: example.label == answer.answer  # noqa: E731
    renaming = Program(rename, inner=Answering(range(5)))
    (found,) = evaluated({"renaming": renaming}, metric, examples(20, range(5))).programs.values()
    assert found.score == 1.0


@pytest.mark.parametrize("metric", [exact, F1("yes"), plr_dspy.BalancedAccuracy()])
def test_programs_that_answer_alike_may_differ_on_other_examples(metric):
    found = evaluated({"one": Answering([1, 2]), "other": Answering([1, 2])}, metric, examples(20, range(5)))
    low, high = found.programs["other"].difference_interval
    assert low < -0.05 < 0.05 < high


@pytest.mark.parametrize("metric", [exact, F1("yes")])
def test_a_failed_call_is_no_wrong_answer(metric, caplog):
    """Its example is left out for all programs, and what the others cost is not lost."""
    programs = {"fine": Answering(range(6)), "failing": Answering(range(7), failing=[3, 19])}
    found = evaluated(programs, metric, examples(20, range(5)))
    devset = examples(20, range(5))
    assert (found.num_examples, found.num_failed) == (18, 2)
    assert "18 examples, without 2 on which a call failed\n" in str(found)
    assert "calls on 2 of 20 examples failed, the first by ConnectionError: no route" in caplog.text
    left = {"fine": Answering(range(6)), "failing": Answering(range(7))}
    assert found.programs == evaluated(left, metric, [e for e in devset if e.number not in (3, 19)]).programs
    with pytest.raises(RuntimeError, match=r"calls on 2 of 3 examples failed, the first by ConnectionError: no route"):
        evaluated({"failing": Answering([], failing=[1, 2])}, exact, examples(3, [0, 1]))
    with pytest.raises(ConnectionError, match="no route"):
        evaluated({"failing": Answering([], failing=range(20))}, exact, examples(20, range(5)))
    with pytest.raises(AttributeError, match="nothing"):
        evaluated({"fine": Answering([])}, lambda e, p: p.nothing, examples(20, range(5)))


@pytest.mark.parametrize(
    ("programs", "devset", "error", "words"),
    [
        ({}, examples(3, [1]), TypeError, "programs must be a dict from names to programs"),
        (Answering([]), examples(3, [1]), TypeError, "programs must be a dict"),
        ({"a": 3}, examples(3, [1]), TypeError, r"programs\['a'\] must be a"),
        ({"a": Answering([])}, examples(1, [0]), ValueError, "devset must contain at least 2 examples; got 1"),
        ({"a": Answering([])}, [{"number": 1}] * 2, TypeError, r"devset\[0\] must be a dspy.Example"),
    ],
)
def test_bad_arguments_are_refused(programs, devset, error, words):
    with pytest.raises(error, match=words):
        evaluated(programs, exact, devset)
    with pytest.raises(ValueError, match="num_threads must be greater than or equal to 1; got 0"):
        evaluate_programs({"a": Answering([])}, exact, examples(3, [1]), num_threads=0)


def test_a_metric_over_a_set_counts_replies_that_cannot_be_read_as_wrong():
    """However many they are; and no difference is larger than the metric can tell apart."""
    devset = examples(40, {1, 2, 3, 4})
    better = Answering({1, 2, 3, 4})
    unread = Answering({1}, unread=range(10, 40))
    # One is right, three of "yes" are missed, and each reply that cannot be read is a false positive.
    f1 = evaluated({"unread": unread}, F1("yes"), devset).programs["unread"].score
    assert f1 == pytest.approx(2 / (2 + 3 + 30))
    found = evaluate_programs({"none": Answering(()), "all": better}, F1("yes"), devset, display_progress=False)
    assert found.programs["all"].difference == 1.0 == found.programs["all"].difference_interval[1]
