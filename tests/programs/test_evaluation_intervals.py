"""Intervals of the scores and differences of `evaluate_programs`."""

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import Program
from label_engines import exact
from yes_or_no import Answering, evaluated, evaluated_alone, examples, minus

from plr_dspy import F1, BalancedAccuracy, MatthewsCorrelation, evaluate_programs

pytestmark = pytest.mark.usefixtures("quiet")


def test_intervals_of_a_metric_without_positive_values():
    program = Answering(range(20))
    devset = examples(20, range(18))
    counted = evaluated_alone(program, exact, devset)
    lost = evaluated_alone(program, minus, devset)
    assert lost.interval == pytest.approx([end - 1.0 for end in counted.interval])


def test_intervals_extend_beyond_the_highest_score_on_an_unknown_scale():
    """A judge that gives 3 of 5 points to all answers may give more points to other answers."""
    judged = evaluated_alone(Answering([]), lambda example, prediction: 3.0, examples(10, []))
    assert judged.score == 3.0
    assert judged.interval[0] < 3.0 < judged.interval[1]


def test_intervals_of_differences_cover_the_range_of_scores():
    devset = examples(20, range(18))

    def marks(example, prediction):
        return 5.0 * exact(example, prediction)

    programs = {"good": Answering(range(18)), "bad": Answering(range(18, 20))}
    low, high = evaluated(programs, marks, devset).programs["bad"].difference_interval
    assert low < -4.0 < high


@pytest.mark.parametrize(("recall", "alarms"), [(0.7, 0.3), (0.1, 0.02)])
def test_intervals_of_a_metric_over_a_set_have_the_stated_coverage(recall, alarms):
    """Some of the programs find no positive example, and each draw of examples has different labels."""
    rng = np.random.default_rng(0)
    inside = np.zeros(2)
    worlds = 60
    truth = 2 * recall * 0.15 / (0.15 + recall * 0.15 + alarms * 0.85)

    def program(is_yes):
        rates = np.where(is_yes, recall, alarms)
        return Answering(np.flatnonzero(rng.random(40) < rates).tolist())

    for _ in range(worlds):
        is_yes = rng.random(40) < 0.15
        programs = {"one": program(is_yes), "other": program(is_yes)}
        devset = examples(40, np.flatnonzero(is_yes).tolist())
        one, other = evaluated(programs, F1("yes"), devset).programs.values()
        low, high = one.interval
        inside[0] += low < truth < high
        low, high = other.difference_interval
        inside[1] += low < 0 < high
    assert (inside >= 0.94 * worlds).all(), inside


@pytest.mark.parametrize("metric", [F1("yes"), F1(), MatthewsCorrelation(), BalancedAccuracy()])
@pytest.mark.parametrize("right", [0.95, 0.9])
def test_intervals_have_the_stated_coverage_if_all_answers_may_be_correct(metric, right):
    rng = np.random.default_rng(0)
    inside = 0
    truth = 2 * right - 1 if isinstance(metric, MatthewsCorrelation) else right
    for _ in range(30):
        wrong = {n for n in range(20) if rng.random() > right}
        program = Answering(wrong ^ {*range(0, 20, 2)})
        devset = examples(20, range(0, 20, 2))
        low, high = evaluated_alone(program, metric, devset).interval
        assert low < high
        inside += low < truth <= high
    assert inside >= 25


@pytest.mark.parametrize("recall", [0.05, 0.1, 0.2])
def test_intervals_of_differences_have_the_stated_coverage_if_both_programs_rarely_answer_yes(recall):
    """Sometimes neither program finds a positive example, so all observed differences have little influence."""
    devset = examples(100, range(10))
    true_f1 = 2 * recall * 0.1 / (0.1 + recall * 0.1 + 0.05 * 0.9)
    num_covered = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        yes = [n for n in range(100) if rng.random() < (recall if n < 10 else 0.05)]
        programs = {"never": Answering([]), "rarely": Answering(yes)}
        low, high = evaluated(programs, F1("yes"), devset).programs["rarely"].difference_interval
        num_covered += low <= true_f1 <= high
    assert num_covered >= 9


@pytest.mark.parametrize("metric", [BalancedAccuracy(), F1("yes")])
def test_the_interval_is_wide_after_a_perfect_recall_of_five_examples(metric):
    """Two false positives do not make this recall more certain."""
    yes = set(range(5))
    programs = {"right": Answering(yes), "alarms": Answering({*yes, 50, 51})}
    evaluation = evaluated(programs, metric, examples(100, yes))
    for result in evaluation.programs.values():
        low, high = result.interval
        assert 0.3 < low < 0.9
        assert high > 0.8


@pytest.mark.parametrize("metric", [F1(), MatthewsCorrelation(), BalancedAccuracy()])
def test_equal_answers_to_few_examples_leave_a_small_difference_possible(metric):
    """The other program corrects the answers to 3% of new examples. In most draws, no answer differs."""
    rng = np.random.default_rng(0)
    yes = range(0, 20, 2)
    true_difference = 0.06 if isinstance(metric, MatthewsCorrelation) else 0.03
    num_covered = 0
    for _ in range(30):
        wrong = {n for n in range(20) if rng.random() < 0.2}
        corrected = {n for n in wrong if rng.random() < 0.15}
        programs = {"one": Answering(wrong ^ {*yes}), "other": Answering((wrong - corrected) ^ {*yes})}
        low, high = evaluated(programs, metric, examples(20, yes)).programs["other"].difference_interval
        num_covered += low <= true_difference <= high
    assert num_covered >= 28


@pytest.mark.parametrize("metric", [exact, F1("yes"), BalancedAccuracy()])
def test_the_difference_between_identical_answers_has_an_interval(metric):
    programs = {"one": Answering([1, 2]), "other": Answering([1, 2])}
    evaluation = evaluated(programs, metric, examples(20, range(5)))
    low, high = evaluation.programs["other"].difference_interval
    assert low < -0.05 < 0.05 < high


@pytest.mark.parametrize("metric", [F1("a"), F1(), BalancedAccuracy()])
@pytest.mark.parametrize("better", ["always b", "correct"])
def test_the_interval_for_a_difference_includes_it_if_no_reply_could_be_parsed(metric, better):
    """If no reply has a label, the linear approximation of a metric over a set is poor."""
    labels = ["a" if i % 5 == 0 else "b" for i in range(40)]
    devset = [
        dspy.Example(question=str(i), answer=label).with_inputs("question")
        for i, label in enumerate(labels)
    ]

    def unreadable(self, question):
        raise AdapterParseError(adapter_name="any", signature=self.inner.signature, lm_response="?")

    def answering(self, question):
        return dspy.Prediction(answer="b" if better == "always b" else labels[int(question)])

    inner = dspy.Predict("question -> answer: Literal['a', 'b']")
    programs = {"unreadable": Program(unreadable, inner=inner), "better": Program(answering, inner=inner)}
    score = evaluate_programs(programs, metric, devset, num_threads=1).programs["better"]
    least, most = score.difference_interval
    assert least <= score.difference <= most
