"""The function `headroom`, with fake LMs for which the helpful levers are known."""

import itertools
import math
import re

import dspy
import pytest
from fakes import (
    CopyingEngine,
    Program,
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

from plr_dspy import F1, ConfusionMetric, headroom

QUESTION = dspy.Predict("question -> answer")


def demo_engine(*, share=0.8, without=0.2, instructed="", examples=None, **options):
    """Return an engine that answers most questions correctly if the prompt shows demos.

    If the instruction contains `instructed`, the engine answers all questions correctly.
    """

    def share_of(system, demos, asked):
        if instructed and instructed in system:
            return 1.0
        return share if demos else without

    return engine_for(examples or questions(100), share=share_of, **options)


def shows_the_question(texts):
    """Return whether one of the demos in a prompt has the same question as the input."""
    return any(texts[-1].startswith(f"{demo}\n") for demo in texts[:-1:2])


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
        engine = demo_engine()
        result = measured(engine)
        assert names(result) == ["random demos", "nearest demos", "other orders", "other sets"]
        assert result.program_calls == engine.num_calls == 8 * 37
        assert result.num_examples == 37
        assert not any(map(shows_the_question, engine.requests))
        assert {len(texts[:-1:2]) for texts in engine.requests} == {0, 8}
        gain = lever(result, "random demos")
        assert gain.interval[0] > 0.2
        assert gain.score == pytest.approx(result.score + gain.gain)
        assert gain.num_calls == 4 * 37
        assert "'random demos'" in result.advice
        assert "dspy.LabeledFewShot" in result.advice
        assert "parsed" not in str(result)

    def test_removing_the_demos_can_be_the_simplest_lever(self):
        program = student(demos())
        before = program.dump_state()
        engine = demo_engine(share=0.3, without=0.9)
        result = measured(engine, program)
        assert program.dump_state() == before
        assert engine.num_calls == 300 == 10 * result.num_examples
        assert names(result)[0] == "no demos"
        assert lever(result, "no demos").interval[0] > 0
        assert result.advice.endswith("remove the demos.")

    def test_a_model_that_ignores_the_prompt_has_no_lever(self):
        engine = demo_engine(share=0.5, without=0.5)
        engine.answers = dict.fromkeys(engine.answers, "wrong")
        result = measured(engine, metric=lambda example, prediction: digest(example.question) < 0.6)
        assert {lever.gain for lever in result.levers} == {0.0}
        assert result.noise_shares == {}
        assert result.program_calls == 8 * 36
        assert result.advice.startswith("No score differed between two prompts in 252 comparisons")
        assert "keep the program" in result.advice

    def test_the_programs_own_demos_are_reordered(self):
        examples = questions(100)
        engine = engine_for(examples)
        result = measured(engine, student(demos(3)), examples, max_metric_calls=400)
        prompts = [texts[:-1] for texts in engine.requests if len(texts) == 7]
        own = {texts for texts in prompts if all("demo " in text for text in texts[::2])}
        assert len(own) == 4
        assert result.noise_shares.keys() == {"other orders", "other sets"}
        assert f"{result.noise_shares['other sets']:.0%} of the variance between sets is noise" in str(
            result
        )

    def test_nearest_demos_are_advised_if_they_help(self):
        """Each question has three similar questions with the same answer."""
        examples = []
        for kind, number in itertools.product(range(30), range(4)):
            example = dspy.Example(question=f"topic{kind} text{kind}a {number}", answer=f"answer {kind}")
            examples.append(example.with_inputs("question"))
        engine = CopyingEngine(like=lambda demo, asked: demo.split()[0] == asked.split()[0])
        result = measured(engine, examples=examples)
        assert lever(result, "nearest demos").score > 0.85
        assert result.advice.endswith("PLFewShot(demos='retrieved').")
        assert not any(map(shows_the_question, engine.requests))

    def test_instructions_are_tried_with_the_same_demos(self):
        engine = demo_engine(share=0.4, instructed="Think")
        result = measured(engine, instructions=["Think of it.", "Hurry."])
        assert names(result)[1:3] == ["instructions[0]", "instructions[1]"]
        assert lever(result, "instructions[0]").score > 0.85
        assert lever(result, "instructions[1]").gain == pytest.approx(
            lever(result, "random demos").gain, abs=0.1
        )
        assert result.advice.startswith("The largest proven gain is that of 'instructions[0]'")
        assert result.advice.endswith(
            "random demos and this instruction: run PLFewShot(instructions=[...])."
        )
        assert engine.num_calls == 300
        assert QUESTION.signature.instructions == dspy.Signature("question -> answer").instructions

    def test_more_calls_score_more_sets_and_orders(self):
        engine = demo_engine(examples=questions(40))
        result = measured(engine, examples=questions(40), max_metric_calls=500)
        assert result.num_examples == 30
        assert engine.num_calls == result.program_calls == 16 * 30
        assert lever(result, "other sets").num_calls == 8 * 30
        assert lever(result, "other orders").num_calls == 7 * 30

    def test_a_program_may_have_several_predictors(self):
        result = measured(engine_for(questions(100)), two_predictors())
        assert result.program_calls <= 300
        assert "other sets" in names(result)

    @pytest.mark.parametrize("num_examples", [10, 20, 40])
    def test_gains_and_intervals_stay_within_the_scores(self, num_examples):
        """Without demos, all answers are wrong. With demos, nearly all answers are right."""
        engine = demo_engine(share=0.9, without=0.0)
        result = measured(engine, max_metric_calls=8 * num_examples)
        assert result.num_examples == num_examples
        assert result.score == 0.0
        assert result.interval[0] == pytest.approx(0.0, abs=0.01)
        for changed in result.levers:
            low, high = changed.interval
            assert -result.interval[1] <= low < high <= 1.0 - result.interval[0]
            assert 0 <= changed.score <= 1

    def test_each_column_has_one_meaning(self):
        result = measured(demo_engine(share=0.9, without=0.5), student(demos()))
        heading, *rows, shared, score, advice = str(result).splitlines()
        assert shared == f"Some levers share calls: there were {result.program_calls} calls in total."
        assert heading.split("  ")[-1] == "how to apply it"
        assert advice == result.advice
        assert score == (
            "On new examples, your program probably scores {:.2f} to {:.2f} (95% interval); gains are "
            "relative to this score.".format(*result.interval)
        )
        assert rows[0].split() == ["your", "program", f"{result.score:.2f}", "30"]
        assert {line.index("[") for line in rows[1:]} == {heading.index("[")}
        end_of_calls = heading.index("  how to apply it")
        end_of_scores = heading.index("  expected gain")
        for line, changed in zip(rows[1:], result.levers, strict=True):
            assert line[:end_of_calls].endswith(f" {changed.num_calls}")
            assert line[:end_of_scores].endswith(f" {changed.mean_score:.2f}")
            assert f"  {round(changed.gain, 2) + 0.0:+.2f} " in line  # without "-0.00"
            assert changed.note in line
        # The table shows the mean score. The expected score is shrunk towards the program's score.
        assert lever(result, "no demos").mean_score != pytest.approx(lever(result, "no demos").score)
        assert rows[-1].endswith(
            "run PLFewShot, but this would probably add nothing, because all sets scored the same"
        )

    @pytest.mark.parametrize(
        ("num_examples", "shares"), [(10, (0.7, 0.3)), (20, (0.8, 0.2)), (40, (0.6, 0.4)), (10, (0.8, 0.2))]
    )
    def test_all_figures_in_the_advice_are_in_the_table(self, num_examples, shares):
        engine = demo_engine(share=shares[0], without=shares[1])
        result = measured(engine, student(demos()), max_metric_calls=10 * num_examples)
        *table, advice = str(result).splitlines()
        figures = re.findall(r"[+-]\d\.\d\d \[.*?\]", advice)
        assert figures
        for figure in figures:
            assert any(" ".join(line.split()).find(figure) > 0 for line in table)


class TestNothingToLearn:
    @pytest.mark.parametrize(("max_calls", "num_programs"), [(80, 8), (100, 8), (300, 8), (1_000, 13)])
    @pytest.mark.parametrize("score", [0.0, 1.0])
    def test_equal_scores_end_the_measurement_early(self, caplog, max_calls, num_programs, score):
        engine = engine_for(questions(100))
        result = measured(engine, metric=lambda example, prediction: score, max_metric_calls=max_calls)
        assert engine.num_calls == result.program_calls == num_programs * 10
        start = f"Every score was {score:g} in {num_programs * 10} calls, so no gain can be measured: keep"
        assert result.advice.startswith(start)
        assert result.no_difference in result.advice.lower()
        assert str(result).splitlines() == [
            f"your program: mean score {score:.2f} on 10 examples",
            result.advice,
        ]
        warnings = [record.getMessage() for record in caplog.records if "One answer" in record.getMessage()]
        (warning,) = warnings
        assert warning.startswith(f"{result.no_difference}, so more calls would be wasted.")
        assert "One answer: Prediction( answer='answer " in warning

    def test_one_other_score_continues_the_measurement(self):
        engine = engine_for(questions(100))
        numbers = itertools.count()
        result = measured(engine, metric=lambda example, prediction: next(numbers) != 40)
        assert result.program_calls == 296
        assert not result.no_difference

    def test_calibrated_answers_that_differ_continue_the_measurement(self):
        """Every answer scores 0, but half of the calibrated answers score 1."""
        engine = Engine(
            probabilities=lambda demos, text: [0.55, 0.45] if int(text.split()[-1]) % 2 else [0.95, 0.05]
        )
        examples = [labeled(f"text {i}", ["negative", "positive"][i % 2]) for i in range(100)]
        metric = lambda example, prediction: prediction.label == example.label == "positive"  # noqa: E731
        result = measured(engine, classifier(demos=[]), examples, metric)
        assert result.score == 0.0
        assert result.program_calls == 296
        assert lever(result, "calibrated answers").mean_score == pytest.approx(0.5, abs=0.1)


class TestUnreadReplies:
    def test_replies_that_cannot_be_parsed_are_reported(self):
        engine = demo_engine(share=0.8)
        engine.mumbles = lambda texts: len(texts) == 1
        result = measured(engine)
        assert result.num_unread == result.num_examples == 37
        assert {changed.num_unread for changed in result.levers} == {0}
        line = "37 of 37 replies of your program could not be parsed and count as wrong. To fix this, "
        assert (
            str(result).splitlines()[-2].startswith(line + "try another adapter, show demos, or increase")
        )

    def test_they_are_reported_for_each_lever(self):
        engine = demo_engine(share=0.8, mumbles=lambda texts: len(texts) == 1)
        result = measured(engine, student(demos()))
        assert lever(result, "no demos").num_unread == 30
        line = "30 of 30 replies of 'no demos' could not be parsed and count as wrong."
        assert str(result).splitlines()[-2] == line


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
            measured(Engine(logprobs=logprobs), classifier(), EXAMPLES, metric, max_metric_calls=100)
            for logprobs in (True, False)
        )
        assert names(with_them)[2:4] == ["calibrated answers", "calibrated random demos"]
        assert not any("calibrated" in name for name in names(without))
        assert all(0 <= lever.score <= 1 for lever in with_them.levers)

    @pytest.mark.parametrize("bounds", [(-math.inf, math.inf), (0.0, math.inf), (-math.inf, 1.0)])
    def test_a_metric_over_a_set_may_have_unknown_bounds(self, bounds):
        def softened_recall(counts, labels):
            number = labels.index("positive")
            return 0.2 + 0.6 * counts[number, number] / counts[number].sum()

        known, unknown = (
            measured(Engine(), classifier(), EXAMPLES, ConfusionMetric(softened_recall, bounds=values))
            for values in ((0.0, 1.0), bounds)
        )
        assert unknown == known

    @pytest.mark.parametrize(
        ("value", "bounds"),
        [
            (0.0, (-math.inf, 0.0)),
            (1.0, (1.0, math.inf)),
            (-7.0, (-math.inf, math.inf)),
            (7.0, (0.0, math.inf)),
        ],
    )
    def test_a_metric_over_a_set_may_always_have_a_value_at_a_bound(self, value, bounds):
        metric = ConfusionMetric(lambda counts, labels: value, bounds=bounds)
        result = measured(Engine(), classifier(), EXAMPLES, metric)
        low, high = result.interval
        assert -math.inf < low - 1e-3 < value < high + 1e-3 < math.inf
        assert all(math.isfinite(end) for lever in result.levers for end in lever.interval)

    def test_failed_calls_do_not_affect_the_gain_of_calibration(self):
        """Calibration changes none of this model's answers, so only failed calls could cause a gain."""
        engine = Engine(
            probabilities=lambda demos, text: [0.1, 0.9] if int(text.split()[-1]) % 2 else [0.9, 0.1]
        )
        engine.at = dict.fromkeys(range(30, 290, 7), failure)
        examples = [labeled(f"text {i}", ["negative", "positive"][i % 2]) for i in range(100)]
        result = measured(engine, classifier(demos=[]), examples, F1("positive"), max_errors=100)
        assert lever(result, "calibrated answers").gain == pytest.approx(0.0)

    @pytest.mark.parametrize("max_calls", [100, 200])
    def test_advice_that_keeps_the_program_says_what_it_rests_on(self, max_calls):
        """A small gain from calibration is unproven. The advice gives the number of examples and a next step."""
        engine = Engine(
            probabilities=lambda demos, text: [0.6, 0.4] if int(text.split()[-1]) % 10 else [0.4, 0.6]
        )
        examples = [labeled(f"text {i}", ["negative", "positive"][i % 10 < 2]) for i in range(100)]
        result = measured(engine, classifier(), examples, exact, max_metric_calls=max_calls)
        assert result.advice.startswith(f"No gain is proven on {max_calls // 10} examples. ")
        num_calls = min(75, 4 * result.num_examples) * 10
        assert f", or measure with max_metric_calls={num_calls} to find out." in result.advice


class TestCallsAndErrors:
    @pytest.mark.parametrize("metric", [exact, F1("positive")])
    def test_a_measurement_resumes_without_repeating_calls(self, tmp_path, metric):
        engine = Engine()

        def go(engine=engine, **options):
            return measured(
                engine,
                classifier(),
                EXAMPLES,
                metric,
                instructions=["Judge."],
                max_metric_calls=120,
                **options,
            )

        for further in (20, 90):
            engine.at = {engine.requests + further: interrupt}
            with pytest.raises(KeyboardInterrupt):
                go(log_dir=tmp_path)
        result = go(log_dir=tmp_path)
        assert result == go(log_dir=tmp_path) == go(Engine(), num_threads=8)
        assert engine.requests == result.program_calls + 2 <= 122
        with pytest.raises(ValueError, match=r"metric changed.*accept_changes=True"):
            measured(engine, classifier(), EXAMPLES, lambda example, prediction: 1.0, log_dir=tmp_path)
        assert engine.requests == result.program_calls + 2

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
        with pytest.raises(RuntimeError, match=r"40 of 40 .*Well, let me see"):
            measured(engine)

    def test_failed_calls_are_counted(self):
        """Without demos, the program fails on one of ten questions."""

        def forward(self, question):
            if not self.step.demos and question.endswith("0"):
                raise RuntimeError("tool crashed")
            return self.step(question=question)

        result = measured(demo_engine(), Program(forward, step=student(demos(3))))
        num_failed = lever(result, "no demos").num_failed
        assert 0 < num_failed < 10
        assert result.num_failed == lever(result, "random demos").num_failed == 0
        assert f"{num_failed} of {result.num_examples} calls of 'no demos'" in str(result)
        assert " failed. They get the mean score of the other programs" in str(result)

    def test_many_failures_end_the_measurement_and_few_are_ignored(self):
        with pytest.raises(Exception, match="down"):
            measured(demo_engine(at=dict.fromkeys(range(300), failure)), max_errors=3)
        result = measured(demo_engine(at=dict.fromkeys((50, 120), failure)))
        assert result.program_calls == 296
        assert lever(result, "random demos").interval[0] > 0
