"""The argument `min_per_class` of PLFewShot: how many demos of each class prompts show."""

import random
import re
from collections import Counter
from typing import Literal

import dspy
import pytest
from fakes import FIELD, OrderSensitiveEngine, Program, exact_match, failure, using

from plr_dspy import PLFewShot, Report
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.optimizer.demo_classes import DemoClasses

NAMES = [f"class {i:02d}" for i in range(41)]


def examples_of(labels):
    return [
        dspy.Example(question=f"question {i}", answer=label).with_inputs("question")
        for i, label in enumerate(labels)
    ]


def imbalanced(names, number):
    """Return one example of each class, and further examples, mostly of the first classes."""
    rng = random.Random(0)
    rest = [names[int(len(names) * rng.random() ** 3)] for _ in range(number - len(names))]
    return examples_of([*names, *rest])


EXAMPLES = imbalanced(NAMES[:4], 90)
MANY = imbalanced(NAMES, 200)


def typed(names=NAMES[:4], fields="question -> answer"):
    signature = dspy.Signature(fields)
    return dspy.Predict(signature.with_updated_fields("answer", type_=Literal[tuple(names)]))


def engine_of(examples, **options):
    return OrderSensitiveEngine({example.question: example.answer for example in examples}, **options)


@pytest.fixture
def engine():
    with using(engine_of(EXAMPLES)) as engine:
        yield engine


def optimizer(**options):
    limits = {"max_metric_calls": 80, "max_demos": 8, "num_threads": 1, "display_progress": False}
    return PLFewShot(exact_match, **{**limits, **options})


def compiled(program=None, trainset=EXAMPLES, rivals=None, **options):
    chooser = optimizer(**options)
    return chooser.compile(program or typed(), trainset=trainset, programs=rivals), chooser


def counts_of(demos):
    return Counter(demo["answer"] for demo in demos)


def prompts(engine, field="answer"):
    """Count the demos of each class in each prompt that shows demos."""
    counts = []
    for texts in engine.requests:
        answers = [dict(FIELD.findall(reply)).get(field, "").strip() for reply in texts[1:-1:2]]
        if answers:
            counts.append(Counter(answers))
    return counts


def show_each(counts, names, minimum):
    return all(all(count[name] >= minimum for name in names) for count in counts)


class TestChoice:
    @pytest.mark.parametrize(("minimum", "max_demos"), [(1, 8), (2, 8), (2, 12)])
    def test_every_prompt_with_demos_shows_each_class(self, engine, minimum, max_demos):
        _, chooser = compiled(min_per_class=minimum, max_demos=max_demos)
        shown = prompts(engine)
        assert len(shown) > 50
        assert show_each(shown, NAMES[:4], minimum)
        assert {count.total() for count in shown} <= set(range(4 * minimum, max_demos + 1))
        assert not chooser.report.scarce_classes
        assert "fewer demos" not in str(chooser.report)
        # The student is also a candidate, although it shows no demos.
        assert chooser.report.candidates[0].ordering == {"self": []}
        for number in {entry.num_demos for entry in chooser.report.best_by_number} - {0}:
            assert show_each([counts_of(chooser.program_with(number).demos)], NAMES[:4], minimum)

    def test_without_a_minimum_prompts_lack_classes(self, engine):
        compiled()
        assert not show_each(prompts(engine), NAMES[:4], 1)

    def test_41_classes_and_50_demos(self):
        with using(engine_of(MANY)) as engine:
            _, chooser = compiled(typed(NAMES), MANY, min_per_class=1, max_demos=50, max_metric_calls=120)
        shown = prompts(engine)
        assert len(shown) > 50
        assert show_each(shown, NAMES, 1)
        assert len({count.total() for count in shown}) > 3
        assert chooser.report.random.name == "50 random demos"

    def test_a_class_is_also_a_value_of_an_untyped_single_output(self, engine):
        compiled(dspy.Predict("question -> answer"), candidates="labeled", min_per_class=1)
        assert show_each(prompts(engine), NAMES[:4], 1)

    def test_a_list_of_candidates(self, engine):
        demos = [{"question": f"other {i}", "answer": NAMES[i % 3]} for i in range(7)]
        compiled(candidates=demos, min_per_class=1)
        assert show_each(prompts(engine), NAMES[:3], 1)

    def test_bootstrapped_demos_count(self, engine):
        reasoned = dspy.ChainOfThought(typed().signature)
        _, chooser = compiled(reasoned, min_per_class=2, max_demos=9, max_bootstrapped=4)
        (slot,) = chooser.report.slots
        assert any(origin.startswith("bootstrapped") for origin in slot.origins)
        searched = [candidate.ordering[slot.predictor] for candidate in chooser.report.candidates[1:]]
        for ordering in searched:
            assert show_each([counts_of(slot.demos[item] for item in ordering)], NAMES[:4], 2)

    def test_the_minimum_does_not_apply_to_the_student_and_other_programs(self, engine):
        student = typed()
        student.demos = EXAMPLES[:2]
        rival = typed()
        rival.demos = EXAMPLES[1:2]
        _, chooser = compiled(student, rivals={"rival": rival}, min_per_class=1)
        assert chooser.report.candidates[0].ordering == {"self": [0, 1]}
        assert [program.num_demos for program in chooser.report.programs] == [1]
        assert Counter(count.total() < 4 for count in prompts(engine)).keys() == {True, False}

    def test_the_shortest_prompt_within_a_token_limit_has_all_classes(self, engine):
        with pytest.raises(
            ValueError,
            match=r"min_per_class have this many tokens; got 30: increase .* reduce min_per_class$",
        ) as error:
            compiled(min_per_class=2, max_demo_tokens=30)
        least = int(str(error.value).split("at least ")[1].split(",")[0])
        assert engine.num_calls == 0
        compiled(min_per_class=2, max_demo_tokens=least)
        assert show_each(prompts(engine), NAMES[:4], 2)


class TestScarceClasses:
    def test_all_demos_of_a_scarce_class_are_shown_and_the_report_names_it(self, engine, tmp_path):
        names = NAMES[:6]
        trainset = [*EXAMPLES[:60], *examples_of([NAMES[4]])]
        trainset[-1] = trainset[-1].copy(question="rare")
        _, chooser = compiled(typed(names), trainset, min_per_class=2, max_demos=12)
        scarce = {"self": {NAMES[4]: 1, NAMES[5]: 0}}
        number_in_pool = Counter(demo["answer"] for demo in chooser.report.slots[0].demos)
        assert chooser.report.scarce_classes == scarce
        assert number_in_pool[NAMES[4]] == 1
        assert show_each(prompts(engine), NAMES[:4], 2)
        assert show_each(prompts(engine), NAMES[4:5], 1)
        line = "predictor 'self' has fewer than min_per_class=2 candidate demos for 'class 04' (1), 'class 05' (0)"
        assert line in str(chooser.report)
        chooser.report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json").scarce_classes == scarce

    def test_the_pool_is_extended_to_meet_the_minimum(self, engine):
        trainset = imbalanced(NAMES[:20], 60)
        _, chooser = compiled(typed(NAMES[:20]), trainset, min_per_class=1, max_demos=20)
        assert len(chooser.report.slots[0].demos) == 20 > 60 / 4
        assert not chooser.report.scarce_classes


class Teaching(OrderSensitiveEngine):
    """An engine that answers all questions correctly, except those of the classes in `unknown`."""

    def __init__(self, examples, unknown=()):
        super().__init__({example.question: example.answer for example in examples})
        self.unknown = unknown

    def answer(self, system, texts):
        ((_, question), *_) = FIELD.findall(texts[-1])
        label = self.answers.get(question.strip(), NAMES[0])
        return self.formatted(system, texts, NAMES[0] if label in self.unknown else label)


class TestBootstrappedDemosOfEachClass:
    NAMES = NAMES[:12]
    TRAINSET = imbalanced(NAMES, 120)

    def bootstrapped(self, max_bootstrapped, trainset=TRAINSET, **options):
        """Return the number of scarce classes, and the report's advice on these classes."""
        limits = {"candidates": "bootstrapped", "min_per_class": 1, "max_demos": 12}
        with using(Teaching(trainset, **options)):
            _, chooser = compiled(
                typed(self.NAMES), trainset, max_bootstrapped=max_bootstrapped, max_metric_calls=150, **limits
            )
        advice = "".join(re.findall("candidate demos for .*: (.*)", str(chooser.report)))
        return len(chooser.report.scarce_classes.get("self", ())), advice

    def test_a_warning_says_how_many_demos_are_needed_before_any_call(self, engine, caplog):
        limits = {"candidates": "bootstrapped", "min_per_class": 1, "max_demos": 12}
        program = typed(self.NAMES)
        program.demos = [{"question": "own", "answer": self.NAMES[0]}]
        optimizer(max_bootstrapped=8, **limits).estimate(program, trainset=self.TRAINSET)
        assert "at most 8 demos are bootstrapped, but min_per_class needs 11" in caplog.text
        caplog.clear()
        optimizer(max_bootstrapped=11, **limits).estimate(program, trainset=self.TRAINSET)
        assert "min_per_class needs" not in caplog.text

    def test_the_advised_number_helps_if_too_few_demos_were_bootstrapped(self):
        num_scarce, advice = self.bootstrapped(4)
        assert num_scarce == 8
        assert advice == "increase max_bootstrapped, for example to 12"
        # More examples without more bootstrapped demos do not help.
        assert self.bootstrapped(4, imbalanced(self.NAMES, 200))[0] == 8
        assert self.bootstrapped(12) == (0, "")

    def test_more_examples_are_advised_if_the_teacher_has_tried_all(self):
        num_scarce, advice = self.bootstrapped(40, unknown=self.NAMES[5:7])
        assert num_scarce == 2
        assert advice == "pass more examples of these classes, or a teacher that answers them correctly"
        assert self.bootstrapped(80, unknown=self.NAMES[5:7]) == (num_scarce, advice)


class TestCombinations:
    def test_instructions(self, engine):
        texts = ["Name the class.", "Think of the number."]
        _, chooser = compiled(instructions=texts, min_per_class=1)
        assert show_each(prompts(engine), NAMES[:4], 1)
        assert len(chooser.report.instructions[0].alternatives) == 3

    def test_of_several_predictors_only_those_with_labels_have_classes(self, engine):
        def in_turn(self, question):
            hint = self.hint(question=question).hint
            return self.answer(question=question, hint=hint)

        answer = typed(fields="question, hint -> answer")
        program = Program(in_turn, hint=dspy.Predict("question -> hint"), answer=answer)
        _, chooser = compiled(program, min_per_class=1, max_bootstrapped=4, max_metric_calls=120)
        hint, answer = chooser.report.slots
        assert len(chooser.report.candidates) > 1
        for candidate in chooser.report.candidates[1:]:
            shown = counts_of(answer.demos[item] for item in candidate.ordering["answer"])
            assert show_each([shown], NAMES[:4], 1)
        assert min(map(len, (entry.ordering["hint"] for entry in chooser.report.front))) < 4
        assert hint.demos

    def test_equal_seeds_give_equal_results(self):
        reports = []
        for seed in (1, 1, 2):
            with using(engine_of(EXAMPLES)):
                reports.append(compiled(min_per_class=1, seed=seed)[1].report)
        first, again, other = ([candidate.ordering for candidate in report.candidates] for report in reports)
        assert first == again != other
        assert reports[0].slots == reports[1].slots

    def test_a_run_that_failed_resumes(self, tmp_path):
        options = {"min_per_class": 1, "log_dir": tmp_path}
        with (
            using(engine_of(EXAMPLES, at={60: failure, 61: failure})),
            pytest.raises(Exception, match="down"),
        ):
            compiled(max_errors=1, **options)
        with using(engine_of(EXAMPLES)) as engine:
            _, chooser = compiled(**options)
        calls = chooser.report.program_calls
        assert calls["resumed"] >= 60
        assert engine.num_calls == calls["total"] - calls["resumed"]
        with using(engine_of(EXAMPLES)):
            whole = compiled(min_per_class=1)[1].report
        assert whole.candidates == chooser.report.candidates


BAD = [
    ({"min_per_class": 0}, typed(), "min_per_class must be greater than or equal to 1; got 0"),
    ({"min_per_class": 1.5}, typed(), "min_per_class must be a valid integer; got 1.5"),
    (
        {"demos": "auto"},
        typed(),
        "min_per_class needs demos='fixed', because retrieved demos may lack a class; got demos='auto': pass",
    ),
    (
        {"max_demos": 400, "min_per_class": 90},
        typed(),
        r"got 90 examples \(0 usable\).*: pass more examples, or reduce or omit min_per_class=90, for which 90 "
        "examples become demos",
    ),
    (
        {"max_demos": 7, "min_per_class": 2},
        typed(),
        "max_demos must be at least 8 for min_per_class=2, because the demos for 'self' have 4 different values of "
        "'answer'; got 7: increase max_demos",
    ),
    (
        {},
        dspy.Predict("question -> reasoning, answer"),
        "min_per_class=1 needs a predictor that has only one output, or exactly one output that is a ",
    ),
    (
        {},
        dspy.Predict("question -> label"),
        "needs demos with a value in the field 'label'; got none: pass examples with a value in this field",
    ),
]


class TestBadInput:
    @pytest.mark.parametrize(("options", "program", "message"), BAD)
    def test_errors_come_before_any_call(self, engine, options, program, message):
        for method in ("compile", "estimate"):
            with pytest.raises(ValueError, match=message):
                getattr(optimizer(**{"min_per_class": 1, **options}), method)(program, trainset=EXAMPLES)
        assert engine.num_calls == 0

    def test_a_warning_names_the_minimum_if_few_examples_are_left(self, engine, caplog):
        compiled(trainset=EXAMPLES[:40], max_demos=40, min_per_class=10, max_metric_calls=60)
        assert re.search(
            r"only \d+ of 40 .*, or reduce or omit min_per_class=10, for which \d+ ex", caplog.text
        )

    def test_the_fixes_work(self, engine):
        compiled(max_demos=8, min_per_class=2)
        assert show_each(prompts(engine), NAMES[:4], 2)


def test_labels_with_enough_demos_are_not_scarce_even_if_only_bootstrapped():
    """A label without demos before the first call has no minimum, but may get demos from a teacher."""
    output = LabelOutput("self", "answer", {"a": "a", "b": "b", "c": "c"}, str)
    classes = DemoClasses(output, known=frozenset([0]), minimum=1)
    assert classes.scarce([{"answer": "a"}, {"answer": "b"}]) == {"c": 0}
