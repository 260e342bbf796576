"""`CalibratedProgram`: answers, calls, saved state, and use in DSPy's modules."""

import asyncio
import copy
from typing import Literal

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import LabelEngine, Program
from label_engines import LABELS, REFUSAL, Classifier, around, ask
from label_engines import classifier as student

from plr_dspy import CalibratedProgram, Calibration, PlainTextAdapter
from plr_dspy.labels.reader import NoProbabilities

TOWARDS_NEGATIVE = Calibration(tuple(LABELS), (5.0, -5.0))
"""A calibration that makes every answer negative."""
REVERSED = Literal["positive", "negative"]


def positive(text="good"):
    return Classifier(lambda text: {"negative": 0.2, "positive": 0.8})


class TestAnswers:
    def test_the_answer_has_the_largest_calibrated_probability(self):
        """Without a calibration, predictions still have probabilities, but the answers stay unchanged."""
        prediction = ask(positive(), CalibratedProgram(student(), TOWARDS_NEGATIVE))
        assert prediction.label == "negative"
        odds = 0.2 / 0.8 * 2.718281828**10
        expected = {"negative": odds / (1 + odds), "positive": 1 / (1 + odds)}
        assert prediction.probabilities == pytest.approx(expected)
        assert list(prediction.probabilities) == ["negative", "positive"]
        prediction = ask(positive(), CalibratedProgram(student()))
        assert prediction.label == "positive"
        assert prediction.probabilities == pytest.approx({"negative": 0.2, "positive": 0.8})

    def test_a_label_that_is_not_among_the_likeliest_tokens_is_never_the_answer(self):
        engine = Classifier(lambda text: {"negative": 0.0, "positive": 0.9})
        prediction = ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE))
        assert prediction.label == "positive"
        assert prediction.probabilities["positive"] > 0.5

    def test_a_certain_label_needs_no_alternatives(self):
        engine = LabelEngine(LABELS, lambda demos, text: [0.0, 1.0])
        prediction = ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE))
        assert prediction.label == "positive"
        assert prediction.probabilities == pytest.approx({"negative": 0.0, "positive": 1.0}, abs=1e-6)
        engine = LabelEngine(LABELS, lambda demos, text: [0.0, 0.9])
        with pytest.raises(NoProbabilities, match="fake/x returns no log-probabilities"):
            ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE))

    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter(), PlainTextAdapter()])
    def test_unparsable_replies(self, adapter):
        engine = positive()
        engine.unreadable = lambda text: True
        prediction = ask(engine, CalibratedProgram(student(), TOWARDS_NEGATIVE), adapter)
        assert prediction.toDict().keys() == {"label", "probabilities"}
        assert prediction.label == "negative"
        assert engine.asked == [20]

    def test_unparsable_replies_with_several_outputs_are_errors(self):
        """Calibration does not prevent ChatAdapter from retrying the call."""
        engine = positive()
        bare = positive()
        engine.unreadable = bare.unreadable = lambda text: True
        program = student(module=dspy.ChainOfThought)
        with pytest.raises(AdapterParseError):
            ask(bare, program)
        with pytest.raises(AdapterParseError):
            ask(engine, CalibratedProgram(program, TOWARDS_NEGATIVE))
        assert len(engine.asked) == len(bare.asked) == 2

    def test_converted_labels_and_several_completions(self):
        def answer(classify, text):
            label = classify(text=text).label
            return label if text == "bare" else dspy.Prediction(label=label.upper())

        program = CalibratedProgram(around(answer), TOWARDS_NEGATIVE)
        assert ask(positive(), program, text="bare") == "negative"
        prediction = ask(positive(), program)
        assert prediction.label == "NEGATIVE"
        assert prediction.probabilities["negative"] > 0.9
        program = CalibratedProgram(student(n=3), TOWARDS_NEGATIVE)
        prediction = ask(positive(), program)
        labels = [prediction.completions[i].label for i in range(3)]
        assert labels == ["negative"] * 3
        assert prediction.probabilities["negative"] > 0.9

    @pytest.mark.parametrize(("second", "expected"), [(0.3, 0.9), (0.7, 0.7)])
    def test_probabilities_come_from_the_last_call_with_the_answers_label(self, second, expected):
        def first(classify, text):
            taken = classify(text=f"{text} first")
            classify(text=f"{text} second")
            return taken

        def probabilities(text):
            negative = 0.9 if "first" in text else second
            return {"negative": negative, "positive": 1 - negative}

        engine = Classifier(probabilities)
        program = CalibratedProgram(around(first), Calibration.none(LABELS))
        prediction = ask(engine, program)
        assert prediction.label == "negative"
        assert prediction.probabilities["negative"] == pytest.approx(expected)
        assert len(engine.asked) == 2

    def test_positional_inputs_and_majority_votes(self):
        positional = Program(lambda self, text: self.inner(text=text), inner=student())
        program = CalibratedProgram(positional, TOWARDS_NEGATIVE)
        ensemble = dspy.Ensemble(reduce_fn=dspy.majority).compile([program, program])
        with dspy.context(lm=positive().lm(), adapter=dspy.ChatAdapter()):
            assert ensemble("good").label == "negative"
            assert asyncio.run(program.acall("good")).label == "negative"

    def test_modules_that_copy_the_program_at_each_call(self):
        engine = positive()
        options = {"reward_fn": lambda inputs, prediction: 0.0, "threshold": 1.0}
        program = dspy.BestOfN(student(), N=2, **options)
        prediction = ask(engine, CalibratedProgram(program, TOWARDS_NEGATIVE))
        assert prediction.label == "negative"
        assert prediction.probabilities["negative"] > 0.9
        assert engine.asked == [20, 20]

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_one_of_several_predictors(self, name):
        def both(self, text):
            first = self.first(text=text)
            second = self.second(text=text)
            return dspy.Prediction(first=first.label, second=second.label)

        engine = positive()
        program = Program(both, first=student(), second=student())
        program = CalibratedProgram(program, TOWARDS_NEGATIVE, predictor=name)
        prediction = ask(engine, program).toDict()
        assert prediction[name] == "negative"
        (other,) = {"first", "second"} - {name}
        assert prediction[other] == "positive"
        assert sorted(engine.asked, key=str) == [20, None]


def with_offsets(*offsets):
    return Calibration(tuple(LABELS), offsets)


def with_reversed_labels():
    return CalibratedProgram(student(REVERSED), TOWARDS_NEGATIVE)


BAD_INPUT = [
    (lambda: CalibratedProgram("text -> label"), TypeError, r"program must be a dspy\.Module"),
    (lambda: CalibratedProgram(CalibratedProgram(student())), TypeError, "calibrated already"),
    (lambda: CalibratedProgram(student(), {}), TypeError, "calibration must be a Calibration"),
    (with_reversed_labels, ValueError, "calibration must have the program.s labels"),
    (lambda: with_offsets(1.0), ValueError, "finite offset"),
    (lambda: with_offsets(1.0, float("nan")), ValueError, "finite offset"),
]


@pytest.mark.parametrize(("make", "error", "match"), BAD_INPUT)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("endpoint", [{"logprobs": False}, {"refusal": REFUSAL}])
def test_each_prediction_fails_after_one_call_without_log_probabilities(endpoint):
    engine = Classifier(positive().probabilities, **endpoint)
    program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
    for _ in range(2):
        with pytest.raises(NoProbabilities, match=r"fake/x (returns no|rejects)"):
            ask(engine, program)
    assert engine.asked == [20, 20]


def test_a_later_reply_without_log_probabilities_keeps_the_programs_own_answer():
    engine = positive()
    program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
    assert ask(engine, program).label == "negative"
    engine.logprobs = False
    prediction = ask(engine, program)
    assert prediction.label == "positive"
    assert prediction.probabilities is None


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

    def test_a_compiled_student_is_saved_completely(self):
        program = student()
        program._compiled = True
        assert "program" in CalibratedProgram(program, TOWARDS_NEGATIVE).dump_state()

    def test_loading_an_incompatible_state_changes_nothing(self):
        program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
        program.program.demos = [{"text": "a", "label": "positive"}]
        before = program.dump_state()
        of_others = CalibratedProgram(student(Literal["a", "b"]), Calibration.none("ab"))
        with pytest.raises(ValueError, match="must have the program's labels"):
            program.load_state(of_others.dump_state())
        assert program.dump_state() == before


class TestWithDspy:
    @pytest.mark.parametrize("native", [True, False])
    def test_async(self, native):
        inner = student()
        if not native:
            inner = around(lambda classify, text: classify(text=text))
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
        """The reply is not streamed, because calibration may change the label."""
        engine = positive()
        listener = dspy.streaming.StreamListener("label")
        program = CalibratedProgram(student(), TOWARDS_NEGATIVE)
        options = {"is_async_program": asynchronous, "stream_listeners": [listener]}
        stream = dspy.streamify(program, **options)

        async def values():
            with dspy.context(lm=engine.lm(), adapter=dspy.ChatAdapter()):
                return [value async for value in stream(text="good")]

        (prediction,) = asyncio.run(values())
        assert (prediction.label, len(engine.asked)) == ("negative", 1)
        assert prediction.probabilities["negative"] > 0.9
