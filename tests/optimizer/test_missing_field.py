"""Errors about metrics that read a field that no example has, raised before or after the first call."""

import dspy
import pytest
from every_function import RUNS
from fakes import Program, engine_for, questions, student, using

from plr_dspy import PLFewShot, PLReorder, estimate, headroom
from plr_dspy.errors import MetricError

EXAMPLES = questions(60)
MESSAGE = (
    r"the metric reads the field 'gold', which no example has; the columns are \['question', 'answer'\]"
)


def reads_gold_first(example, prediction, trace=None):
    return example.gold == prediction.answer


def reads_gold_last(example, prediction, trace=None):
    return prediction.said == example["gold"]


def in_two_steps():
    """Return a program whose answers have a field that no signature declares."""
    return Program(
        lambda self, question: dspy.Prediction(said=self.inner(question=question).answer), inner=student()
    )


def estimate_compile(program, metric, rows):
    return PLFewShot(metric).estimate(program, trainset=rows)


def estimate_headroom(program, metric, rows):
    return estimate(headroom, program, metric, rows)


CALLING = ["PLReorder", "PLFewShot", "evaluate_programs", "headroom"]
RUNNING = {name: RUNS[name] for name in [*CALLING, "choose_program"]}
ESTIMATING = {"estimate": estimate_compile, "estimate of headroom": estimate_headroom}


@pytest.mark.parametrize("run", [*RUNNING.values(), *ESTIMATING.values()], ids=[*RUNNING, *ESTIMATING])
def test_of_a_single_predictor_is_an_error_before_any_call(run):
    engine = engine_for(EXAMPLES)
    with using(engine), pytest.raises(ValueError, match=MESSAGE):
        run(student(), reads_gold_first, EXAMPLES)
    assert engine.num_calls == 0


def test_of_a_valset_only_is_an_error_before_any_call():
    rows = [example.copy(gold=example.answer) for example in EXAMPLES[:40]]
    engine = engine_for(EXAMPLES)
    with using(engine), pytest.raises(ValueError, match=f"valset: {MESSAGE}"):
        PLReorder(reads_gold_first).compile(student(), trainset=rows, valset=EXAMPLES[40:])
    assert engine.num_calls == 0


def test_an_estimate_scores_a_single_answer():
    calls = []

    def metric(example, prediction, trace=None):
        calls.append(prediction)
        return float(example.answer == prediction.answer)

    rows = [example.copy(answer="yes" if i % 2 else "no") for i, example in enumerate(EXAMPLES)]
    program = student(4, "question -> answer: Literal['no', 'yes']")
    with using(engine_for(EXAMPLES)):
        PLReorder(metric).estimate(program, trainset=rows[:40], valset=rows[40:])
        assert len(calls) == 1
        estimate(headroom, program, metric, rows)
        assert len(calls) == 2


def test_a_metric_without_a_score_is_rejected_although_the_first_examples_have_no_answer():
    rows = [example.copy(answer="") for example in EXAMPLES[:3]] + EXAMPLES[3:]
    engine = engine_for(EXAMPLES)
    with using(engine), pytest.raises(MetricError, match="metric must return a number"):
        PLReorder(lambda example, prediction, trace=None: None).compile(student(), trainset=rows)
    assert engine.num_calls == 0


@pytest.mark.parametrize("name", CALLING)
def test_of_another_program_is_an_error_after_the_first_call(name):
    engine = engine_for(EXAMPLES)
    with using(engine), pytest.raises(ValueError, match=MESSAGE) as caught:
        RUNS[name](in_two_steps(), reads_gold_last, EXAMPLES)
    assert engine.num_calls == 1
    assert "teacher" not in " ".join(caught.value.__notes__)


def test_the_error_names_a_similar_column():
    rows = [{"question": f"question {i}", "answers": "yes"} for i in range(60)]

    def metric(example, prediction, trace=None):
        return example.answer == prediction.answer

    with using(engine_for(EXAMPLES)), pytest.raises(ValueError, match=r"rename 'answers' to 'answer'$"):
        PLFewShot(metric).compile(dspy.Predict("question -> answer"), trainset=rows)


def test_a_failed_lookup_elsewhere_is_not_taken_for_a_missing_column():
    """The failed lookup is in the metric's own dict, in a value of an example, or in an answer."""
    values = {}
    rows = [example.copy(meta=dspy.Example(size=1)) for example in EXAMPLES]

    def reads_dict(example, prediction, trace=None):
        return values[prediction.answer]

    def reads_prediction(example, prediction, trace=None):
        return prediction.gold

    def reads_value(example, prediction, trace=None):
        return example.meta["weight"]

    plain = Program(
        lambda self, question: dspy.Example(said=self.inner(question=question).answer), inner=student()
    )
    runs = [
        (reads_dict, KeyError, student()),
        (reads_value, KeyError, student()),
        (reads_prediction, AttributeError, student()),
        (reads_prediction, AttributeError, plain),
    ]
    for metric, error, program in runs:
        with using(engine_for(EXAMPLES)), pytest.raises(error) as caught:
            PLReorder(metric, max_errors=3).compile(program, trainset=rows)
        assert "max_errors=3" in " ".join(caught.value.__notes__)
