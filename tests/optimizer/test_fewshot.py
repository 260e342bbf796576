"""PLFewShot: the demos that it chooses, their number and their order."""

import math
from typing import Literal

import dspy
import fakes
import pytest
from fakes import exact_match, questions, student, using
from label_engines import LABELS, classifier, exact
from label_world import EXAMPLES as LABELED

from plr_dspy import PLFewShot

EXAMPLES = questions(90)


def optimizer(**options):
    limits = {"max_metric_calls": 90, "max_demos": 4, "max_bootstrapped": 4}
    defaults = {**limits, "display_progress": False}
    return PLFewShot(exact_match, **{**defaults, **options})


def predict():
    return dspy.Predict("question -> answer")


def chosen(program=None, trainset=EXAMPLES, **options):
    chooser = optimizer(**options)
    return chooser.compile(program or predict(), trainset=trainset), chooser


def shown(program):
    return [list(map(dict, predictor.demos)) for predictor in program.predictors()]


class TestChoice:
    def test_finds_demos_that_are_better_than_none(self, engine):
        program, chooser = chosen(candidates="labeled", max_metric_calls=250)
        assert chooser.report.comparison.chosen > chooser.report.comparison.original
        assert 2 <= len(program.demos) <= 4
        assert program._compiled
        assert chooser.report.candidates[0].ordering == {"self": []}
        assert chooser.best_program is program

    def test_the_students_own_demos_are_the_baseline(self, engine):
        """The baseline includes a demo that the student shows twice."""
        _, chooser = chosen(student([*EXAMPLES[:2], EXAMPLES[0]]), candidates="labeled")
        (slot,) = chooser.report.slots
        assert chooser.report.candidates[0].ordering == {"self": [0, 1, 2]}
        assert slot.original == [0, 1, 2]
        assert slot.origins[:4] == ["student"] * 3 + [slot.origins[3]]
        assert slot.origins[3].startswith("trainset[")

    @pytest.mark.parametrize("missing", [None, math.nan])
    def test_no_demo_shows_a_missing_answer(self, engine, missing):
        rows = [dspy.Example(example, answer=missing).with_inputs("question") for example in EXAMPLES]
        rows[::2] = EXAMPLES[::2]
        _, chooser = chosen(trainset=rows, candidates="labeled")
        (slot,) = chooser.report.slots
        assert slot.demos
        assert not {"None", "nan"} & {demo["answer"] for demo in slot.demos}

    @pytest.mark.parametrize("limits", [{"max_demos": 2}, {"min_demos": 4}, {"max_demo_tokens": 40}])
    def test_a_student_outside_the_limits_is_still_a_finalist(self, engine, limits):
        _, chooser = chosen(student(3), candidates="labeled", **limits)
        first, *others = chooser.report.candidates
        assert first.ordering == {"self": [0, 1, 2]}
        assert others
        assert all(len(other.ordering["self"]) != 3 or "max_demo_tokens" in limits for other in others)

    def test_programs_can_be_built_with_each_scored_number_of_demos(self, engine):
        program, chooser = chosen(candidates="labeled", min_demos=2, max_demos=3)
        best = {entry.num_demos: entry for entry in chooser.report.best_by_number}
        assert set(best) <= {0, 2, 3}
        assert {2, 3} <= set(best)
        for number, entry in best.items():
            shown_then = chooser.program_with(num_demos=number).demos
            assert len(shown_then) == number == len(entry.ordering["self"])
            assert (entry.tokens > 0) == (number > 0)
        assert len(program.demos) in best
        assert shown(chooser.program_with(len(program.demos))) == shown(program)
        message = r"num_demos must be the number of fixed demos in a scored prompt; got .*: pass .*2 or 3"
        with pytest.raises(ValueError, match=message):
            chooser.program_with(num_demos=7)

    def test_each_predictor_has_its_own_pool(self, engine):
        program, chooser = chosen(fakes.two_predictors(), max_metric_calls=200)
        hint, answer = chooser.report.slots
        assert hint.predictor == "hint"
        assert answer.predictor == "answer.predict"
        # Examples have no field "hint", so only bootstrapped demos can show a hint.
        assert all(origin.startswith("bootstrapped") for origin in hint.origins)
        assert any(origin.startswith("trainset") for origin in answer.origins)
        assert chooser.report.program_calls["bootstrap"] > 0
        assert len(program.predictors()) == 2

    def test_nothing_is_bootstrapped_if_all_outputs_are_labels(self, engine):
        labels = Literal[tuple(sorted({example.answer for example in EXAMPLES}))]
        signature = dspy.Signature("question -> answer").with_updated_fields("answer", type_=labels)
        reasoned = dspy.ChainOfThought(signature)
        for program, calls in [(dspy.Predict(signature), 0), (reasoned, 8), (predict(), 8)]:
            assert optimizer().estimate(program, trainset=EXAMPLES).bootstrap_calls == calls
        asked = optimizer(candidates="bootstrapped")
        assert asked.estimate(dspy.Predict(signature), trainset=EXAMPLES).bootstrap_calls == 8
        _, chooser = chosen(dspy.Predict(signature))
        assert not chooser.report.program_calls["bootstrap"]

    def test_demos_can_be_chosen_from_a_list(self, engine):
        demos = [{"question": f"other {i}", "answer": f"answer {i % 3}"} for i in range(3)]
        _, chooser = chosen(candidates=demos, max_metric_calls=400)
        (slot,) = chooser.report.slots
        assert slot.origins == ["candidates[0]", "candidates[1]", "candidates[2]"]
        assert not chooser.report.program_calls["bootstrap"]


class TestLeaks:
    @pytest.mark.parametrize("candidates", ["labeled", "both"])
    def test_no_example_is_scored_with_its_own_answer_in_the_prompt(self, candidates):
        doubled = EXAMPLES[:60] + [example.copy() for example in EXAMPLES[:60]]
        with using(fakes.CopyingEngine()) as engine:
            optimizer(candidates=candidates).compile(predict(), trainset=doubled, valset=doubled[50:70])
        assert engine.num_calls > 60
        assert engine.copied == 0

    def test_demos_of_the_student_and_of_a_list_leak_no_answers(self):
        with using(fakes.CopyingEngine()) as engine:
            chosen(student(3), candidates=[dict(example) for example in EXAMPLES[10:20]])
        assert engine.copied == 0

    def test_duplicates_are_either_demos_or_scored(self, engine):
        _, chooser = chosen(trainset=EXAMPLES[:40] * 2, candidates="labeled")
        pooled = {slot["question"] for slot in chooser.report.slots[0].demos}
        assert len(pooled) == len(chooser.report.slots[0].demos) == 10
        settings = chooser.report.settings
        assert settings["num_train"] + settings["num_selection"] == 30

    def test_valset_examples_are_not_used_as_demos(self, engine):
        chooser = optimizer(candidates="labeled")
        chooser.compile(predict(), trainset=EXAMPLES, valset=EXAMPLES[20:])
        pooled = {demo["question"] for demo in chooser.report.slots[0].demos}
        assert pooled <= {example.question for example in EXAMPLES[:20]}


class TestTokens:
    def test_no_call_exceeds_max_demo_tokens(self, engine):
        """All demos have the same number of tokens."""
        four = list(map(dict, EXAMPLES[:4]))

        def numbers(limit):
            engine.requests.clear()
            options = {"candidates": four, "max_demos": 3, "max_demo_tokens": limit}
            _, chooser = chosen(trainset=EXAMPLES[4:], **options)
            most = chooser.report.best_by_number[-1].num_demos
            assert max(len(texts) // 2 for texts in engine.requests) == most
            return {best.num_demos: best.tokens for best in chooser.report.best_by_number}

        tokens = numbers(None)
        assert tokens == {number: number * tokens[1] for number in range(4)}
        assert list(numbers(2 * tokens[1])) == [0, 1, 2]
        assert list(numbers(2 * tokens[1] - 1)) == list(numbers(tokens[1])) == [0, 1]
        # The search ends early, so the comparison gets all calls that were planned for it.
        limits = {"max_demo_tokens": tokens[1], "max_metric_calls": 600}
        few = optimizer(candidates=four, **limits)
        few.compile(predict(), trainset=EXAMPLES[4:16], valset=EXAMPLES[16:])
        assert few.report.stopped == "no new orders left"
        num_examples = few.report.comparison.num_examples
        assert num_examples == few.report.settings["num_selection_examples"] > 16

    def test_only_the_students_own_demos_may_exceed_the_limit(self, engine):
        long = {"question": "long " * 50, "answer": "answer 1"}
        program = student([dspy.Example(long, question="longer " * 50), EXAMPLES[5]])
        candidates = [long, *map(dict, EXAMPLES[:4])]
        _, chooser = chosen(program, candidates=candidates, max_demo_tokens=70)
        (slot,) = chooser.report.slots
        assert slot.origins == ["student", "student", *(f"candidates[{i}]" for i in (1, 2, 3, 4))]
        assert chooser.report.candidates[0].ordering == {"self": [0, 1]}
        for candidate in chooser.report.candidates[1:]:
            assert 0 not in candidate.ordering["self"]

    def test_a_limit_below_the_shortest_demo_is_rejected(self, engine):
        message = r"max_demo_tokens must be at least \d\d, because the shortest"
        with pytest.raises(ValueError, match=message):
            optimizer(max_demo_tokens=3).compile(predict(), trainset=EXAMPLES)
        message = (
            "with min_demos=4 have this many tokens; got 70: increase max_demo_tokens, or reduce min_demos"
        )
        with pytest.raises(ValueError, match=message) as error:
            optimizer(max_demo_tokens=70, min_demos=4).compile(predict(), trainset=EXAMPLES)
        assert engine.num_calls == 0
        least = int(str(error.value).split("at least ")[1].split(",")[0])
        optimizer(max_demo_tokens=least, min_demos=4).estimate(predict(), trainset=EXAMPLES)


@pytest.mark.parametrize(("least", "limit", "most"), [(0, None, 5), (5, None, 5), (2, 70, 2)])
def test_log_probabilities_are_used_if_replies_need_demos_to_have_them(least, limit, most):
    """Replies contain a label only if the prompt shows at least `least` demos."""
    options = {"max_metric_calls": 80, "max_demos": 5, "max_demo_tokens": limit, "candidates": "labeled"}
    chooser = PLFewShot(exact, display_progress=False, **options)

    def probabilities(demos, text):
        return (0.6, 0.4) if len(demos) > 1 else (0.3, 0.7)

    engine = fakes.LabelEngine(LABELS, probabilities)
    engine.mumbles = lambda demos, text: len(demos) < least
    with using(engine, "openai/fake"):
        chooser.compile(classifier(), trainset=LABELED)
    assert chooser.report.signal.used == "logprobs"
    assert max(len(prompt) // 2 for prompt in engine.prompts) == most


def test_only_another_teacher_needs_new_calls(engine, tmp_path):
    teacher = student(4)
    counts = []
    for options in ({"teacher": teacher}, {"teacher": teacher}, {}):
        chooser = optimizer(log_dir=tmp_path, max_metric_calls=180 if not options else 90)
        chooser.compile(predict(), trainset=EXAMPLES, **options)
        counts.append(engine.num_calls)
    calls = chooser.report.program_calls
    assert counts[0] == counts[1] <= 90
    assert counts[2] - counts[1] == calls["total"] - calls["resumed"]
    assert 0 < calls["resumed"] < calls["total"] <= 180


class TestBadInput:
    def test_a_warning_says_how_many_of_few_examples_are_scored(self, engine, caplog):
        optimizer().estimate(predict(), trainset=EXAMPLES[:36])
        assert "only 27 of 36 examples can be used for scoring" in caplog.text
        assert "too few to find small gains: pass at least 100 examples" in caplog.text

    def test_errors_come_before_any_call(self, engine):
        for options, compiled, message in (
            (
                {"max_metric_calls": 12},
                {},
                "at least 32 for a search and a final comparison, and for 8 calls that bootstrap demos",
            ),
            ({}, {"teacher": "gpt"}, "teacher must be a dspy.Module"),
            ({}, {"teacher": fakes.two_predictors()}, "teacher must have the student's predictors"),
            (
                {},
                {"teacher": dspy.Predict("text -> answer", "Answer briefly.")},
                "same instructions and fields as the student's; got differences in self: build the teacher",
            ),
            ({"candidates": [{"other": "x"}]}, {}, "no demos to choose from"),
            ({"candidates": EXAMPLES}, {}, "pass more examples, or fewer demos"),
            ({}, {"trainset": EXAMPLES[:1]}, "trainset must have enough distinct inputs"),
            (
                {},
                {"trainset": EXAMPLES[:1] * 30},
                "distinct inputs .* got 1 such input in 30 examples: add",
            ),
            ({}, {"trainset": EXAMPLES[:2]}, "trainset must have enough distinct inputs"),
        ):
            with pytest.raises((ValueError, TypeError), match=message):
                optimizer(**options).compile(predict(), **{"trainset": EXAMPLES, **compiled})
        with pytest.raises(ValueError, match="call compile first"):
            optimizer().program_with(2)
        assert engine.num_calls == 0
        reason = "no demos to choose from, because a quarter of max_seconds or max_cost"
        with pytest.raises(RuntimeError, match=reason):
            chooser = optimizer(max_seconds=1e-9, candidates="bootstrapped")
            chooser.compile(predict(), trainset=EXAMPLES)
        assert engine.num_calls == 0
