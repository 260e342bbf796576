"""Instructions as one more choice of PLFewShot."""

import re
from collections import Counter

import dspy
import fakes
import pytest
from dspy.utils.exceptions import LMUnexpectedError
from fakes import OrderSensitiveEngine, digest, exact_match, failure, interrupt, questions, student, using
from label_world import EXAMPLES as LABELLED
from label_world import Engine, exact
from label_world import student as classifier

from plr_dspy import F1, PlackettLuce, PLFewShot, Report, load_program

EXAMPLES = questions(90)
GOOD = "Think of the number."
BAD = "Answer like a pirate."
IDLE = "Give the answer."
SHARES = {GOOD: 0.9, BAD: 0.1, IDLE: 0.5}


class InstructedEngine(OrderSensitiveEngine):
    """Answers by its instruction, with some more or less right answers for the demos shown."""

    def answer(self, system, texts):
        (asked,) = re.findall(r"## question ## \]\]\n(.*?)\n", texts[-1] + "\n")
        share = next((share for text, share in SHARES.items() if text in system), 0.5)
        demos = [digest(text) for text in texts[:-1:2]]
        share += 0.2 * (sum(demos) / len(demos) - 0.5) if demos else 0.0
        is_right = digest(f"{asked} is hard") < share
        return self.formatted(system, texts, self.answers[asked.strip()] if is_right else "wrong")


def new_engine(**options):
    return InstructedEngine({example.question: example.answer for example in EXAMPLES}, **options)


@pytest.fixture
def instructed():
    with using(new_engine()) as engine:
        yield engine


def compiled(*texts, program=None, trainset=EXAMPLES, **options):
    limits = {"max_metric_calls": 200, "max_demos": 3, "candidates": "labeled", "num_threads": 1}
    given = {"instructions": list(texts), **limits, "display_progress": False, **options}
    optimizer = PLFewShot(exact_match, **given)
    return optimizer.compile(program or dspy.Predict("question -> answer"), trainset=trainset), optimizer


def found(report):
    """Return a report without what another run may change."""
    data = report.to_dict()
    for name in ("seconds", "stopped", "program_calls", "settings", "tokens"):
        del data[name]
    return data


class TestChoice:
    def test_finds_the_instruction_that_helps(self, instructed, tmp_path):
        program, optimizer = compiled(BAD, GOOD, IDLE)
        assert program.signature.instructions == GOOD
        report = optimizer.report
        (entry,) = report.instructions
        assert (entry.predictor, entry.chosen) == ("self", 2)
        own = dspy.Predict("question -> answer").signature.instructions
        assert [choice.text for choice in entry.alternatives] == [own, BAD, GOOD, IDLE]
        assert [choice.origin for choice in entry.alternatives] == [
            "student",
            *(f"instructions[{i}]" for i in range(3)),
        ]
        scores = [choice.score for choice in entry.alternatives if choice.score is not None]
        assert max(scores) == entry.alternatives[2].score
        assert PlackettLuce.from_state(entry.distribution).num_items == 4
        assert not report.original_stays
        assert report.comparison.probability > 0.9
        assert f"instruction of self (instructions[1]): {GOOD}" in str(report)
        assert f"not scored (instructions[0]): {BAD}" in report.details() or f": {BAD}" in report.details()
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report
        assert report.candidates[0].instructions == {"self": 0}
        assert 2 in [candidate.instructions["self"] for candidate in report.candidates]

    def test_the_program_keeps_it_when_saved(self, instructed, tmp_path):
        program, _ = compiled(GOOD)
        program.save(tmp_path / "program.json")
        loaded = load_program(dspy.Predict("question -> answer"), tmp_path / "program.json")
        assert loaded.signature.instructions == GOOD
        assert loaded.dump_state() == program.dump_state()

    def test_the_students_own_stays_where_others_hurt(self, instructed):
        program = dspy.Predict("question -> answer")
        _, optimizer = compiled(BAD, program=program, candidates=[{"note": "not shown"}])
        assert optimizer.report.original_stays
        assert not optimizer.report.instructions[0].chosen
        assert optimizer.best_program.signature.equals(program.signature)
        assert "no other prompt is expected to do better" in str(optimizer.report)

    def test_instructions_alone_where_there_are_no_demos(self, instructed):
        program, optimizer = compiled(BAD, GOOD, candidates=[{"note": "not shown"}])
        assert program.signature.instructions == GOOD
        assert program.demos == []
        assert optimizer.report.slots == []
        assert optimizer.report.returned.num_demos == 0

    def test_numbers_of_demos_are_those_of_demos(self, instructed):
        program, optimizer = compiled(GOOD, IDLE, program=student(2))
        for entry in optimizer.report.best_by_number:
            other = optimizer.program_with(entry.num_demos)
            assert len(other.demos) == len(entry.ordering["self"]) == entry.num_demos <= 3
            texts = [choice.text for choice in optimizer.report.instructions[0].alternatives]
            assert other.signature.instructions == texts[entry.instructions["self"]]
        assert optimizer.report.chosen_of_number.num_demos == len(program.demos)
        assert optimizer.report.original.num_demos == 2

    def test_copies_and_blanks_are_dropped(self, instructed):
        own = "Given the fields `question`, produce the fields `answer`."
        _, optimizer = compiled(GOOD, " ", f"\n{GOOD}\n", own)
        (entry,) = optimizer.report.instructions
        assert [choice.text for choice in entry.alternatives] == [own, GOOD]
        assert [unused.reason for unused in entry.dropped] == [
            "empty",
            "the prompt is the same as with instructions[0]",
            "the prompt is the same as with student",
        ]
        assert "not used (instructions[1]): empty" in optimizer.report.details()
        _, without = compiled(own)
        assert not without.report.instructions[0].alternatives
        assert without.report.original_stays == (without.report.comparison.probability == 0)

    def test_limits_on_tokens_are_for_demos(self, instructed):
        program, optimizer = compiled(GOOD, "Give the number. " * 50, max_demo_tokens=60)
        assert program.signature.instructions == GOOD
        assert all(entry.tokens <= 60 for entry in optimizer.report.best_by_number)


class TestSeveralPredictors:
    def test_each_has_instructions_of_its_own(self):
        class Hinted(InstructedEngine):
            def answer(self, system, texts):
                outputs = system.split("Your output fields are:")[-1].split("All interactions")[0]
                if "hint" in outputs:
                    return self.formatted(system, texts, "good hint" if GOOD in system else "poor hint")
                (asked,) = re.findall(r"## question ## \]\]\n(.*?)\n", texts[-1] + "\n")
                is_right = digest(asked) < (0.9 if "good hint" in texts[-1] else 0.3)
                return self.formatted(system, texts, self.answers[asked.strip()] if is_right else "wrong")

        answers = {example.question: example.answer for example in EXAMPLES}
        with using(Hinted(answers)):
            texts = {"hint": [BAD, GOOD], "answer.predict": [IDLE]}
            program, optimizer = compiled(program=fakes.two_predictors(), instructions=texts)
        assert program.hint.signature.instructions == GOOD
        first, second = optimizer.report.instructions
        assert (first.predictor, second.predictor) == ("hint", "answer.predict")
        assert second.alternatives[1].origin == "instructions['answer.predict'][0]"

    @pytest.mark.parametrize(
        ("instructions", "message"),
        [
            ([GOOD], "instructions must name the predictor of each text, because the student has 2"),
            ({"hints": [GOOD]}, r"predictors of the student, \['hint', 'answer.predict'\]; got \['hints'\]"),
        ],
    )
    def test_names_must_be_known(self, instructed, instructions, message):
        optimizer = PLFewShot(exact_match, instructions=instructions, display_progress=False)
        for method in (optimizer.compile, optimizer.estimate):
            with pytest.raises(ValueError, match=message):
                method(fakes.two_predictors(), trainset=EXAMPLES)
        assert instructed.num_calls == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instructions": []}, "instructions"),
        ({"instructions": {}}, "instructions"),
        ({"instructions": {"self": []}}, "instructions"),
        ({"instructions": GOOD}, "instructions"),
        ({"instructions": [3]}, "instructions"),
        ({"instructions": [GOOD], "max_metric_calls": 0, "demos": "retrieved"}, "max_metric_calls=0 makes no call"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        PLFewShot(exact_match, **options)
    assert "\n" not in str(caught.value)


class TestCalls:
    def test_are_the_same_at_any_number_of_threads_and_never_past_the_budget(self):
        reports = []
        for num_threads in (1, 8):
            with using(new_engine()) as engine:
                _, optimizer = compiled(BAD, GOOD, num_threads=num_threads, max_metric_calls=120)
            assert engine.num_calls == optimizer.report.program_calls["total"] <= 120
            reports.append(found(optimizer.report))
        assert reports[0] == reports[1]

    @pytest.mark.parametrize("stop", [failure, interrupt])
    def test_a_stopped_compile_goes_on(self, tmp_path, stop):
        with using(new_engine()) as whole:
            _, optimizer = compiled(BAD, GOOD)
        engine = new_engine(at={77: stop})
        with using(engine):
            with pytest.raises((LMUnexpectedError, KeyboardInterrupt)):
                compiled(BAD, GOOD, log_dir=tmp_path, max_errors=1)
            _, resumed = compiled(BAD, GOOD, log_dir=tmp_path)
        assert found(resumed.report) == found(optimizer.report)
        assert engine.num_calls == whole.num_calls + 1

    def test_calls_with_the_students_own_instruction_serve_both_ways(self, tmp_path):
        with using(new_engine()) as engine:
            compiled(log_dir=tmp_path, instructions=None)
            before = engine.num_calls
            _, optimizer = compiled(GOOD, log_dir=tmp_path)
            assert engine.num_calls - before < optimizer.report.program_calls["total"]
            asked = Counter(engine.requests)
            compiled(log_dir=tmp_path, instructions=None)
        assert engine.requests == asked


class InstructedLabels(Engine):
    """Answers by the right label twice as surely if the instruction says so."""

    def complete(self, request):
        self.is_good = GOOD in str(request.system)
        return super().complete(request)


class TestWithEverythingElse:
    @pytest.mark.parametrize("options", [{}, {"calibrate": True}, {"signal": "score"}])
    def test_log_probabilities_and_calibration(self, options):
        with using(InstructedLabels(), "fake/x"):
            optimizer = PLFewShot(
                exact,
                instructions=[GOOD, BAD],
                candidates="labeled",
                max_demos=3,
                max_metric_calls=150,
                display_progress=False,
                **options,
            )
            program = optimizer.compile(classifier(), trainset=LABELLED)
            (predictor,) = program.predictors()
            (entry,) = optimizer.report.instructions
            assert predictor.signature.instructions == entry.alternatives[entry.chosen].text
            assert program(text=LABELLED[0].text).label

    def test_a_metric_over_a_set(self):
        with using(InstructedLabels(), "fake/x"):
            optimizer = PLFewShot(F1("positive"), instructions=[GOOD], max_metric_calls=120, display_progress=False)
            optimizer.compile(classifier(), trainset=LABELLED)
        assert optimizer.report.instructions[0].alternatives

    @pytest.mark.parametrize("demos", ["auto", "retrieved"])
    def test_found_demos_come_with_the_students_own_instruction(self, instructed, demos):
        _, optimizer = compiled(GOOD, BAD, demos=demos)
        report = optimizer.report
        assert len(report.instructions[0].alternatives) == 3
        if report.retrieves:
            assert not report.other_instructions
        variations = [c for c in report.candidates if not any(c.ordering.values()) and c.origin != "original"]
        assert variations or demos == "auto"

    def test_the_estimate_makes_no_call(self, instructed):
        optimizer = PLFewShot(exact_match, instructions=[GOOD], max_metric_calls=200)
        assert optimizer.estimate(dspy.Predict("question -> answer"), trainset=EXAMPLES).program_calls
        assert instructed.num_calls == 0
