"""CalibratedProgram in use: what it answers, pays for and saves, with whatever DSPy does with programs."""

import asyncio
import copy
from typing import Literal

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import Program
from label_engines import LABELS, REFUSAL, Classifier, around, ask
from label_engines import classifier as student

from plr_dspy import CalibratedProgram, Calibration, PlainTextAdapter
from plr_dspy.labels.reader import NoProbabilities

TOWARDS_NEGATIVE = Calibration("batch", tuple(LABELS), (5.0, -5.0), (1.0, 1.0), 30)
"""Strong enough to turn every answer."""
TURNED = Literal["positive", "negative"]


def positive(text="good"):
    return Classifier(lambda text: {"negative": 0.2, "positive": 0.8})


class TestAnswers:
    def test_the_likeliest_label_by_calibrated_probabilities(self):
        """Without a calibration it tells the probabilities, and decides nothing."""
        prediction = ask(positive(), CalibratedProgram(student(), TOWARDS_NEGATIVE))
        assert prediction.label == "negative"
        odds = 0.2 / 0.8 * 2.718281828**10
        assert [*prediction.probabilities.values()] == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
        prediction = ask(positive(), CalibratedProgram(student()))
        assert prediction.label == "positive"
        assert prediction.probabilities == pytest.approx({"negative": 0.2, "positive": 0.8})

    def test_a_label_that_is_not_among_the_likeliest_tokens_is_never_the_answer(self):
        engine = Classifier(lambda text: {"negative": 0.0, "positive": 0.9})
        prediction = ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE))
        assert prediction.label == "positive"
        assert prediction.probabilities["positive"] > 0.5

    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter(), PlainTextAdapter()])
    def test_replies_that_cannot_be_read(self, adapter):
        engine = positive()
        engine.unreadable = lambda text: True
        prediction = ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE), adapter)
        assert prediction.toDict().keys() == {"label", "probabilities"}
        assert prediction.label == "negative"
        assert engine.asked == [20]

    def test_with_other_outputs_the_error_stays(self):
        """And so does the second call that ChatAdapter makes for it."""
        engine = positive()
        bare = positive()
        engine.unreadable = bare.unreadable = lambda text: True
        with pytest.raises(AdapterParseError):
            ask(bare, student(module=dspy.ChainOfThought))
        with pytest.raises(AdapterParseError):
            ask(engine, CalibratedProgram(student(module=dspy.ChainOfThought), TOWARDS_NEGATIVE))
        assert len(engine.asked) == len(bare.asked) == 2

    def test_what_the_program_makes_of_the_label_and_of_several_completions(self):
        def answer(classify, text):
            label = classify(text=text).label
            return label if text == "bare" else dspy.Prediction(label=label.upper())

        program = CalibratedProgram(around(answer), TOWARDS_NEGATIVE)
        assert ask(positive(), program, text="bare") == "negative"
        prediction = ask(positive(), program)
        assert prediction.label == "NEGATIVE"
        assert prediction.probabilities["negative"] > 0.9
        prediction = ask(positive(), CalibratedProgram(student(n=3), TOWARDS_NEGATIVE))
        assert [each.label for each in map(prediction.completions.__getitem__, range(3))] == ["negative"] * 3
        assert prediction.probabilities["negative"] > 0.9

    @pytest.mark.parametrize(("second", "told"), [(0.3, 0.9), (0.7, 0.7)])
    def test_the_probabilities_are_those_of_the_last_call_whose_label_was_taken(self, second, told):
        def first(classify, text):
            taken, _ = (classify(text=f"{text} {each}") for each in ("first", "second"))
            return taken

        shares = {True: {"negative": 0.9, "positive": 0.1}, False: {"negative": second, "positive": 1 - second}}
        engine = Classifier(lambda text: shares["first" in text])
        prediction = ask(engine, CalibratedProgram(around(first), Calibration.none(LABELS)))
        assert prediction.label == "negative"
        assert prediction.probabilities["negative"] == pytest.approx(told)
        assert len(engine.asked) == 2

    def test_inputs_by_position_and_a_vote(self):
        """As of the program itself, whose last field is the label."""
        positional = Program(lambda self, text: self.inner(text=text), inner=student())
        program = CalibratedProgram(positional, TOWARDS_NEGATIVE)
        with dspy.context(lm=positive().lm(), adapter=dspy.ChatAdapter()):
            voted = dspy.Ensemble(reduce_fn=dspy.majority).compile([program, program])("good")
            assert (voted.label, asyncio.run(program.acall("good")).label) == ("negative", "negative")

    def test_modules_that_copy_the_program_at_each_call(self):
        engine = positive()
        program = dspy.BestOfN(student(), N=2, reward_fn=lambda inputs, prediction: 0.0, threshold=1.0)
        prediction = ask(engine, CalibratedProgram(program, TOWARDS_NEGATIVE))
        assert prediction.label == "negative"
        assert prediction.probabilities["negative"] > 0.9
        assert engine.asked == [20, 20]

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_one_of_several_predictors(self, name):
        def both(self, text):
            return dspy.Prediction(first=self.first(text=text).label, second=self.second(text=text).label)

        engine = positive()
        program = Program(both, first=student(), second=student())
        prediction = ask(engine, CalibratedProgram(program, TOWARDS_NEGATIVE, predictor=name))
        assert (prediction.first, prediction.second) == (
            ("negative", "positive") if name == "first" else ("positive", "negative")
        )
        assert sorted(engine.asked, key=str) == [20, None]


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: CalibratedProgram("text -> label"), TypeError, r"program must be a dspy\.Module"),
        (lambda: CalibratedProgram(CalibratedProgram(student())), TypeError, "calibrated already"),
        (lambda: CalibratedProgram(student(), {}), TypeError, "calibration must be a Calibration"),
        (lambda: CalibratedProgram(student(TURNED), TOWARDS_NEGATIVE), ValueError, "the calibration is of the labels"),
        (lambda: Calibration("batch", tuple(LABELS), (1.0,)), ValueError, "finite offset and scale"),
        (lambda: Calibration("batch", tuple(LABELS), (1.0, float("nan"))), ValueError, "finite offset"),
    ],
)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("endpoint", [{"logprobs": False}, {"refusal": REFUSAL}])
def test_without_log_probabilities_an_error_for_each_prediction_and_one_call(endpoint):
    engine = Classifier(positive().probabilities, **endpoint)
    program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
    for _ in range(2):
        with pytest.raises(NoProbabilities, match=r"fake/x (gives no|refuses)"):
            ask(engine, program)
    assert engine.asked == [20, 20]


class TestSaving:
    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda program: program.deepcopy()])
    def test_copies(self, copied):
        engine = positive()
        program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
        duplicate = copied(program)
        assert duplicate.dump_state() == program.dump_state()
        assert ask(engine, duplicate) == ask(engine, program)
        duplicate.program.demos = [{"text": "a", "label": "positive"}]
        assert not program.program.demos

    def test_a_frozen_student_is_saved_whole(self):
        program = student()
        program._compiled = True
        assert "program" in CalibratedProgram(program, TOWARDS_NEGATIVE).dump_state()

    def test_a_state_that_does_not_fit_changes_nothing(self):
        program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
        program.program.demos = [{"text": "a", "label": "positive"}]
        before = program.dump_state()
        with pytest.raises(ValueError, match="of the labels"):
            program.load_state(CalibratedProgram(student(Literal["a", "b"]), Calibration.none("ab")).dump_state())
        assert program.dump_state() == before


class TestWithDspy:
    @pytest.mark.parametrize("native", [True, False])
    def test_async(self, native):
        inner = student() if native else around(lambda classify, text: classify(text=text))
        engine = positive()
        program = CalibratedProgram(inner, TOWARDS_NEGATIVE)

        async def both():
            with dspy.context(lm=engine.lm(), adapter=dspy.ChatAdapter()):
                return await asyncio.gather(program.acall(text="a"), program.acall(text="b"))

        for prediction in asyncio.run(both()):
            assert prediction.label == "negative"
            assert prediction.probabilities["negative"] > 0.9
        assert engine.asked == [20, 20]

    @pytest.mark.parametrize("asynchronous", [True, False])
    def test_streamify(self, asynchronous):
        """What the LM says is not streamed: the label may be another in the end."""
        engine = positive()
        listener = dspy.streaming.StreamListener("label")
        program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
        stream = dspy.streamify(program, is_async_program=asynchronous, stream_listeners=[listener])

        async def values():
            with dspy.context(lm=engine.lm(), adapter=dspy.ChatAdapter()):
                return [value async for value in stream(text="good")]

        (prediction,) = asyncio.run(values())
        assert (prediction.label, len(engine.asked)) == ("negative", 1)
        assert prediction.probabilities["negative"] > 0.9
