"""Comparisons of programs by `evaluate_programs`: scores, differences, and failed calls."""

import enum
from typing import Literal

import dspy
import numpy as np
import pytest
from every_function import RUNS
from fakes import LabelEngine, Program, engine_for, exact_match, questions, student, using
from label_engines import exact
from yes_or_no import LABELS, YES_OR_NO, Answering, evaluated, evaluated_alone, examples, minus

from plr_dspy import F1, CalibratedProgram, Calibration, ConfusionMetric, evaluate_programs

pytestmark = pytest.mark.usefixtures("quiet")


def test_accuracy_and_difference():
    devset = examples(20, range(5))
    half = Answering(range(2, 8), unread=[19])
    evaluation = evaluated({"never": Answering([]), "half": half}, exact, devset)
    never, half = evaluation.programs.values()
    assert never.score == 0.75
    assert half.score == 14 / 20
    assert half.difference == pytest.approx(-0.05)
    assert half.num_unread == 1
    assert never.difference is None
    low, high = half.interval
    assert low < half.score < high
    low, high = half.difference_interval
    assert low < half.difference < high
    text = str(evaluation)
    assert "half         0.700 [" in text
    assert evaluation.constant.label == "no"
    assert evaluation.constant.score == 0.75
    assert "\n  always 'no'  0.750, without any calls" in text
    assert "replies that could not be parsed: 1" in text


def test_programs_in_a_list_are_numbered():
    evaluation = evaluated([Answering([1]), Answering([2])], exact, examples(4, [1]))
    assert list(evaluation.programs) == ["program 1", "program 2"]


def test_the_constant_answer_has_the_best_score_of_all_labels():
    devset = examples(20, range(5))
    calls = []

    def judged(example, prediction):
        calls.append(prediction)
        dspy.Predict("label -> verdict")(label=prediction.label)
        return exact(example, prediction)

    metrics = {"F1": F1("yes"), "judged": judged}
    evaluations = evaluated({"never": Answering([])}, metrics, devset)
    constant = evaluations["F1"].constant
    assert constant.label == "yes"
    assert constant.score == pytest.approx(0.4)
    assert evaluations["judged"].constant is None
    assert len(calls) == len(devset) + 1


def test_the_constant_answer_for_a_metric_over_a_set_may_be_a_rare_label():
    program = dspy.Predict("text -> label: Literal['a', 'b', 'c']")
    engine = LabelEngine(["a", "b", "c"], lambda demos, text: [0.4, 0.3, 0.3])
    devset = []
    for number, label in enumerate("aaaaabbbcc"):
        devset.append(dspy.Example(text=f"text {number}", label=label).with_inputs("text"))
    with using(engine):
        constant = evaluate_programs([program], F1("c"), devset, display_progress=False).constant
    assert constant.label == "c"
    assert constant.score == pytest.approx(1 / 3)


def test_the_constant_answer_may_belong_to_an_earlier_predictor():
    program = Program(
        lambda self, text: dspy.Prediction(label="a"),
        classify=dspy.Predict("text -> label: Literal['a', 'b']"),
        explain=dspy.Predict("text, label -> reason"),
    )
    devset = [dspy.Example(text=f"text {i}", label="aab"[i % 3]).with_inputs("text") for i in range(9)]
    assert evaluated([program], exact, devset).constant.score == pytest.approx(2 / 3)


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@pytest.mark.parametrize(
    ("annotation", "answer", "labels", "metric"),
    [
        (Literal["a", "b"], "a", ["a", "b"], exact),
        (Literal[1, 2], 1, ["1", "2"], lambda example, prediction: int(example.label) == prediction.label),
        (
            Size,
            Size.SMALL,
            ["small", "large"],
            lambda example, prediction: example.label == prediction.label.value,
        ),
    ],
)
def test_the_constant_answer_has_the_outputs_type_and_ignores_other_columns(
    annotation, answer, labels, metric
):
    program = Program(
        lambda self, text: dspy.Prediction(label=answer),
        classify=dspy.Predict(
            dspy.Signature("text -> label").with_updated_fields("label", type_=annotation)
        ),
    )
    devset = []
    for number, label in enumerate([labels[0], *labels, labels[0]]):
        example = dspy.Example(text=f"text {number}", label=label, user=f"user {number}")
        devset.append(example.with_inputs("text"))
    assert evaluated([program], metric, devset).constant.score == 0.75


def test_the_constant_answer_may_come_from_a_column_with_another_name():
    """The column "source", which is the same in all rows, is no answer."""
    program = Program(
        lambda self, text: dspy.Prediction(label="a"),
        classify=dspy.Predict("text -> label: Literal['a', 'b']"),
    )
    devset = []
    for number in range(9):
        example = dspy.Example(text=f"text {number}", gold="aab"[number % 3], source="web")
        devset.append(example.with_inputs("text"))
    evaluation = evaluated(
        [program], lambda example, prediction: example.gold == prediction.get("label"), devset
    )
    assert evaluation.constant.score == pytest.approx(2 / 3)


def test_there_is_no_constant_answer_without_a_column_that_varies():
    program = Program(
        lambda self, text: dspy.Prediction(label="a"),
        classify=dspy.Predict("text -> label: Literal['a', 'b']"),
    )
    devset = []
    for number in range(3):
        devset.append(dspy.Example(text=f"text {number}", gold="a").with_inputs("text"))
    evaluation = evaluated(
        [program], lambda example, prediction: example.gold == prediction.get("label"), devset
    )
    assert evaluation.constant is None


def test_an_unparsable_reply_gets_the_worst_score():
    """Otherwise, a program could improve its score by not answering."""
    programs = {"wrong": Answering([0, 1]), "unread": Answering([], unread=[0, 1])}
    wrong, unread = evaluated(programs, minus, examples(4, [3])).programs.values()
    assert wrong.score == unread.score == -0.75
    assert unread.difference == 0.0
    low, high = unread.difference_interval
    assert low < 0.0 < high


def test_a_metric_over_a_set_and_a_calibrated_program():
    devset = examples(20, range(5))
    programs = {"never": Answering([]), "some": Answering(range(3, 8))}
    never, some = evaluated(programs, F1("yes"), devset).programs.values()
    assert never.score == 0.0
    assert some.score == pytest.approx(2 * 2 / (5 + 5))
    assert some.difference == pytest.approx(0.4)
    devset = [dspy.Example(text=text, label="yes").with_inputs("text") for text in "0123"]
    calibration = Calibration(("no", "yes"), (0.0, float(np.log(3.0))))
    classifier = dspy.Predict("text -> label: Literal['no', 'yes']")
    program = CalibratedProgram(classifier, calibration)
    assert evaluated_alone(program, exact, devset).score == 1.0


def test_programs_without_demos_and_with_renamed_answers_are_evaluated():
    devset = examples(20, range(5))
    rule = Program(lambda self, number: dspy.Prediction(label="yes"))
    ensemble = dspy.Ensemble(reduce_fn=lambda answers: answers[0]).compile([rule])
    for program in (rule, ensemble):
        assert evaluated_alone(program, exact, devset).score == 0.25

    def renamed(self, number):
        return dspy.Prediction(answer=self.inner(number=number).label)

    def metric(example, prediction):
        return example.label == prediction.answer

    renaming = Program(renamed, inner=Answering(range(5)))
    assert evaluated_alone(renaming, metric, devset).score == 1.0


def test_calls_of_identical_programs_are_not_repeated(caplog):
    devset = questions(20)
    engine = engine_for(devset)
    with using(engine):
        programs = {"one": student(4), "other": student(4)}
        evaluation = evaluate_programs(programs, exact_match, devset, display_progress=False)
    assert engine.num_calls == 20
    assert evaluation.programs["other"].difference == 0
    assert "programs['other'] is the same program as programs['one']" in caplog.text


def test_examples_that_a_program_shows_as_demos_are_reported(caplog):
    devset = questions(20)
    programs = {"none": student(0), "some": student(devset[:3])}
    with using(engine_for(devset)):
        evaluate_programs(programs, exact_match, devset, display_progress=False)
    lines = [line for line in caplog.messages if "as demos" in line]
    assert len(lines) == 1
    assert "programs['some'] may show 3 of the 20 examples in devset as demos" in lines[0]


@pytest.mark.parametrize("metric", [exact, F1("yes")])
def test_an_example_with_a_failed_call_is_omitted_for_all_programs(metric, caplog):
    devset = examples(20, range(5))
    cause = "the first with ConnectionError: no route"
    failing = Answering(range(7), failing=[3, 19])
    evaluation = evaluated({"fine": Answering(range(6)), "failing": failing}, metric, devset)
    assert evaluation.num_examples == 18
    assert evaluation.num_failed == 2
    assert "18 examples (omitted because of failed calls: 2)\n" in str(evaluation)
    assert f"calls on 2 of 20 examples failed ({cause})" in caplog.text
    left = [example for example in devset if example.number not in (3, 19)]
    programs = {"fine": Answering(range(6)), "failing": Answering(range(7))}
    assert evaluation.programs == evaluated(programs, metric, left).programs
    failing = Answering([], failing=[1, 2])
    with pytest.raises(RuntimeError, match=rf"calls on 2 of 3 examples failed \({cause}\)"):
        evaluated_alone(failing, exact, examples(3, [0, 1]))
    with pytest.raises(ConnectionError, match="no route"):
        evaluated_alone(Answering([], failing=range(20)), exact, devset)
    with pytest.raises(AttributeError, match="nothing"):
        evaluated_alone(Answering([]), lambda e, p: p.nothing, devset)


def test_calls_of_other_programs_allow_no_more_failures():
    numbers = []

    def fail(self, number):
        numbers.append(number)
        raise ConnectionError("no route")

    programs = {"fine": Answering([]), "failing": Program(fail)}
    with dspy.context(max_errors=2), pytest.raises(ConnectionError):
        evaluated(programs, exact, examples(100, [1]))
    assert len(numbers) == 2


def test_bad_arguments_are_rejected():
    program = Answering([])
    with pytest.raises(TypeError, match=r"devset\[0\] must be a dspy.Example"):
        evaluated_alone(program, exact, [1, 2])
    with pytest.raises(ValueError, match="devset must contain at least 2 examples; got 1"):
        evaluated_alone(program, exact, examples(1, [0]))
    with pytest.raises(ValueError, match="num_threads must be greater than or equal to 1; got 0"):
        evaluate_programs([program], exact, examples(3, [1]), num_threads=0)


def precision(counts, labels):
    """Return the precision of "yes", which is undefined if no answer is "yes"."""
    place = labels.index("yes")
    return counts[place, place] / counts[:, place].sum()


@pytest.mark.parametrize("name", ["evaluate_programs", "BatchCalibration", "PLFewShot"])
def test_a_set_metric_that_fails_for_a_constant_answer_is_rejected_before_any_call(name):
    devset = examples(20, range(5))
    metric = ConfusionMetric(precision)
    message = r"always answers 'no' .*got nan.*return a finite number for every confusion matrix"
    options = {"metric": metric} if name == "BatchCalibration" else {}
    engine = LabelEngine(LABELS, lambda demos, text: [0.5, 0.5])
    with using(engine), np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
        RUNS[name](dspy.Predict(YES_OR_NO), metric, devset, **options)
    assert engine.requests == 0


def test_a_set_metric_that_always_raises_is_rejected_before_any_call():
    def broken(counts, labels):
        raise LookupError("no such table")

    def of_errors(counts, labels):
        if np.trace(counts) == counts.sum():
            raise ZeroDivisionError
        return 0.5

    calls = []
    program = Program(lambda self, number: calls.append(number) or dspy.Prediction(label="no"))
    with pytest.raises(LookupError, match="no such table"):
        evaluated_alone(program, ConfusionMetric(broken), examples(3, [1]))
    assert not calls
    assert evaluated_alone(Answering([0]), ConfusionMetric(of_errors), examples(3, [1])).score == 0.5

    def of_yes(counts, labels):
        return float(counts[labels.index("yes")].sum() == 0)

    # The output's type allows "yes", so `labels` includes it even if no example has this label.
    assert evaluated_alone(Answering([]), ConfusionMetric(of_yes), examples(3, [])).score == 1.0
    with pytest.raises(TypeError, match=r"got \[.*pass a metric, or a dict such as"):
        evaluated({"a": program}, [exact, F1()], examples(3, [1]))


def test_a_metric_over_a_set_counts_unparsable_replies_as_incorrect():
    """The interval of a difference ends at the largest possible difference."""
    devset = examples(40, {1, 2, 3, 4})
    better = Answering({1, 2, 3, 4})
    unread = Answering({1}, unread=range(10, 40))
    # There is one true positive, three false negatives, and a false positive for each unparsable reply.
    f1 = evaluated_alone(unread, F1("yes"), devset).score
    assert f1 == pytest.approx(2 / (2 + 3 + 30))
    programs = {"none": Answering(()), "all": better}
    result = evaluated(programs, F1("yes"), devset).programs["all"]
    assert result.difference == 1.0 == result.difference_interval[1]
