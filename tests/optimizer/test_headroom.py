"""The function `headroom`, with fake LMs for which the helpful levers are known."""

import itertools

import dspy
import pytest
from fakes import (
    CopyingEngine,
    digest,
    engine_for,
    exact_match,
    failure,
    interrupt,
    questions,
    student,
    two_predictors,
    using,
)
from label_world import EXAMPLES, Engine, exact, labeled
from label_world import student as classifier

from plr_dspy import F1, headroom

QUESTION = dspy.Predict("question -> answer")


class DemoEngine(CopyingEngine):
    """An engine that answers most questions correctly if the prompt shows demos.

    If the instruction contains `instructed`, the engine answers all questions correctly.
    """

    def __init__(self, examples, *, share=0.8, without=0.2, instructed="", **options):
        super().__init__(like=lambda demo, asked: False, **options)
        self.answers = {example.question: example.answer for example in examples}
        self.share = share
        self.without = without
        self.instructed = instructed

    def answer(self, system, texts):
        asked = super().answer(system, texts)
        question = texts[-1].split("[[ ## question ## ]]\n")[1].split("\n")[0]
        share = self.share if len(texts) > 1 else self.without
        if self.instructed and self.instructed in system:
            share = 1.0
        right = digest(f"{question} {len(texts) > 1}") < share
        return self.formatted(system, texts, self.answers[question]) if right else asked


def measured(engine, program=QUESTION, examples=None, metric=exact_match, **options):
    options = {"display_progress": False, "num_threads": 1, **options}
    with using(engine):
        return headroom(program, metric, examples or questions(100), **options)


def lever(result, name):
    return next(lever for lever in result.levers if lever.name == name)


def names(result):
    return [lever.name for lever in result.levers]


def demos(number=5):
    return [dspy.Example(question=f"demo {i}", answer=f"answer {i % 3}") for i in range(number)]


class TestLevers:
    def test_demos_that_help_are_the_simplest_lever(self):
        engine = DemoEngine(questions(100))
        result = measured(engine)
        assert names(result) == ["random demos", "nearest demos", "other orders", "other sets"]
        assert result.program_calls == engine.num_calls == 8 * 37
        assert result.num_examples == 37
        assert engine.copied == 0  # No scored example is its own demo.
        assert {len(shown) for shown in engine.shown} == {0, 8}
        gain = lever(result, "random demos")
        assert gain.interval[0] > 0.2
        assert gain.score == pytest.approx(result.score + gain.gain)
        assert gain.num_calls == 4 * 37
        assert "'random demos'" in result.advice
        assert "dspy.LabeledFewShot" in result.advice

    def test_removing_the_demos_can_be_the_simplest_lever(self):
        program = student(demos())
        before = program.dump_state()
        engine = DemoEngine(questions(100), share=0.3, without=0.9)
        result = measured(engine, program)
        assert program.dump_state() == before
        assert engine.num_calls == 300 == 10 * result.num_examples
        assert names(result)[0] == "no demos"
        assert lever(result, "no demos").interval[0] > 0
        assert result.advice.endswith("remove the demos.")

    def test_a_model_that_ignores_the_prompt_has_no_lever(self):
        engine = DemoEngine(questions(100), share=0.5, without=0.5)
        engine.answers = dict.fromkeys(engine.answers, "wrong")
        result = measured(engine, metric=lambda example, prediction: digest(example.question) < 0.6)
        assert {lever.gain for lever in result.levers} == {0.0}
        assert result.noise_shares == {}
        assert result.advice.startswith("No gain beyond noise, but +0.")
        assert "Keep the program" in result.advice

    def test_the_programs_own_demos_are_reordered(self):
        examples = questions(100)
        engine = engine_for(examples)
        result = measured(engine, student(demos(3)), examples, max_metric_calls=400)
        prompts = [texts[:-1] for texts in engine.requests if len(texts) == 7]
        own = {texts for texts in prompts if all("demo " in text for text in texts[::2])}
        assert len(own) == 4
        assert result.noise_shares.keys() == {"other orders", "other sets"}

    def test_nearest_demos_are_advised_if_they_help(self):
        """For each question, there are three similar questions with the same answer."""
        examples = []
        for kind, number in itertools.product(range(30), range(4)):
            example = dspy.Example(question=f"topic{kind} text{kind}a {number}", answer=f"answer {kind}")
            examples.append(example.with_inputs("question"))
        engine = CopyingEngine(like=lambda demo, asked: demo.split()[0] == asked.split()[0])
        result = measured(engine, examples=examples)
        assert lever(result, "nearest demos").score > 0.85
        assert result.advice.endswith("PLFewShot(demos='retrieved').")
        assert engine.copied == 0

    def test_instructions_are_tried_with_the_same_demos(self):
        engine = DemoEngine(questions(100), share=0.4, instructed="Think")
        result = measured(engine, instructions=["Think of it.", "Hurry."])
        assert names(result)[1:3] == ["instruction 1", "instruction 2"]
        assert lever(result, "instruction 1").score > 0.85
        assert lever(result, "instruction 2").gain == pytest.approx(
            lever(result, "random demos").gain, abs=0.1
        )
        assert result.advice.startswith("The largest lever is 'instruction 1'")
        assert result.advice.endswith("random demos and this instruction: run PLFewShot(instructions=[...]).")
        assert engine.num_calls == 300
        assert QUESTION.signature.instructions == dspy.Signature("question -> answer").instructions

    def test_more_calls_score_more_sets_and_orders(self):
        engine = DemoEngine(questions(40))
        result = measured(engine, examples=questions(40), max_metric_calls=500)
        assert result.num_examples == 30
        assert engine.num_calls == result.program_calls == 16 * 30
        assert lever(result, "other sets").num_calls == 8 * 30
        assert lever(result, "other orders").num_calls == 7 * 30

    def test_a_program_may_have_several_predictors(self):
        result = measured(engine_for(questions(100)), two_predictors())
        assert result.program_calls <= 300
        assert "other sets" in names(result)

    def test_the_table_is_aligned_and_one_sentence_follows(self):
        result = measured(DemoEngine(questions(100)))
        *table, advice = str(result).splitlines()
        assert advice == result.advice
        assert {line.index("[") for line in table[2:]} == {table[0].index("[")}
        assert len({line.index(" calls") for line in table[2:]}) == 1
        assert table[-1].endswith("of the variance between sets is noise")


class TestCalibration:
    def test_calibration_is_advised_for_a_biased_classifier(self):
        engine = Engine(
            probabilities=lambda demos, text: [0.7, 0.3] if int(text.split()[-1]) % 2 else [0.9, 0.1]
        )
        examples = [labeled(f"text {i}", ["negative", "positive"][i % 2]) for i in range(100)]
        result = measured(engine, classifier(demos=[]), examples, exact)
        assert engine.requests == result.program_calls == 296
        assert lever(result, "calibrated answers").score > 0.85
        assert "'calibrated answers'" in result.advice
        assert "BatchCalibration" in result.advice

    @pytest.mark.parametrize("metric", [exact, F1("positive")])
    def test_calibration_needs_log_probabilities(self, metric):
        with_them, without = (
            measured(Engine(logprobs=logprobs), classifier(), EXAMPLES, metric) for logprobs in (True, False)
        )
        assert names(with_them)[2:4] == ["calibrated answers", "calibrated random demos"]
        assert not any("calibrated" in name for name in names(without))
        assert all(0 <= lever.score <= 1 for lever in with_them.levers)

    def test_failed_calls_do_not_affect_the_gain_of_calibration(self):
        """Calibration changes no answer of this model, so only failed calls could cause a gain."""
        engine = Engine(
            probabilities=lambda demos, text: [0.1, 0.9] if int(text.split()[-1]) % 2 else [0.9, 0.1]
        )
        engine.at = dict.fromkeys(range(30, 290, 7), failure)
        examples = [labeled(f"text {i}", ["negative", "positive"][i % 2]) for i in range(100)]
        result = measured(engine, classifier(demos=[]), examples, F1("positive"), max_errors=100)
        assert lever(result, "calibrated answers").gain == pytest.approx(0.0)


class TestCallsAndErrors:
    @pytest.mark.parametrize("metric", [exact, F1("positive")])
    def test_a_measurement_resumes_without_repeating_calls(self, tmp_path, metric):
        engine = Engine()

        def go(engine=engine, **options):
            return measured(engine, classifier(), EXAMPLES, metric, instructions=["Judge."], **options)

        for further in (0, 20, 90):
            engine.at = {engine.requests + further: interrupt}
            with pytest.raises(KeyboardInterrupt):
                go(log_dir=tmp_path)
        result = go(log_dir=tmp_path)
        assert result == go(log_dir=tmp_path) == go(Engine(), num_threads=8)
        assert engine.requests == result.program_calls + 3 <= 303
        with pytest.raises(ValueError, match=r"metric changed.*accept_changes=True"):
            measured(engine, classifier(), EXAMPLES, lambda example, prediction: 1.0, log_dir=tmp_path)
        assert engine.requests == result.program_calls + 3

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (
                {"max_metric_calls": 79},
                "max_metric_calls must be at least 80 for 8 programs on 10 examples; got 79",
            ),
            ({"max_metric_calls": None}, "max_metric_calls"),
            ({"max_metric_calls": True}, "max_metric_calls"),
            ({"max_demos": 0}, "max_demos"),
            ({"instructions": [""]}, "instructions"),
            ({"instructions": []}, "instructions must have at least 1 item"),
            (
                {"instructions": ["x"], "program": two_predictors()},
                "exactly one predictor if the argument instructions is passed; got 2 predictors",
            ),
            ({"examples": questions(12)}, "at least 10 examples .* got 9 such examples among 12"),
            ({"examples": questions(2)}, "trainset"),
            ({"examples": questions(1)}, "trainset .* got 1 such input in 1 example: add"),
            (
                {"program": dspy.Predict("question -> reason"), "metric": lambda example, prediction: 1.0},
                "the program has no demos, .* pass examples with values for all of the signature's fields",
            ),
            ({"program": dspy.Predict}, "^program must be a dspy.Module"),
            ({"display_progress": "no"}, "display_progress"),
        ],
    )
    def test_bad_arguments_are_rejected_before_any_call(self, wrong, message):
        engine = engine_for(questions(100))
        with pytest.raises((TypeError, ValueError), match=message):
            measured(engine, **wrong)
        assert engine.num_calls == 0

    def test_unparsable_replies_end_the_measurement(self):
        engine = engine_for(questions(100), mumbles=lambda texts: True)
        with pytest.raises(RuntimeError, match=r"24 of 24 .*Well, let me see"):
            measured(engine)

    def test_many_failures_end_the_measurement_and_few_are_ignored(self):
        with pytest.raises(Exception, match="down"):
            measured(DemoEngine(questions(100), at=dict.fromkeys(range(300), failure)), max_errors=3)
        result = measured(DemoEngine(questions(100), at=dict.fromkeys((50, 120), failure)))
        assert result.program_calls == 296
        assert lever(result, "random demos").interval[0] > 0
