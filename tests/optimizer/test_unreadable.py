"""Models whose replies cannot be parsed: when a run ends, and what its error and report say."""

import re

import dspy
import pytest
from fakes import engine_for, exact_match, questions, student, using

from plr_dspy import PLFewShot, choose_program, evaluate_programs

EXAMPLES = questions(120)


def model(mumbles):
    return engine_for(EXAMPLES, mumbles=mumbles)


def without_demos(texts):
    return len(texts) == 1


def instructed():
    """Return a program without demos that has its own instruction."""
    return dspy.Predict(dspy.Signature("question -> answer", "Answer the question."))


def optimizer(**options):
    return PLFewShot(
        exact_match,
        candidates="labeled",
        max_demos=4,
        max_metric_calls=150,
        display_progress=False,
        **options,
    )


def choose(engine, programs):
    with using(engine):
        return choose_program(
            programs, exact_match, EXAMPLES, max_metric_calls=100, num_threads=1, display_progress=False
        )


class TestSearch:
    @pytest.mark.parametrize("programs", [None, {"instructed": instructed()}])
    def test_demos_are_tried_if_no_program_without_demos_can_be_parsed(self, programs, caplog):
        """A warning would be misleading, because the search already shows demos."""
        chooser = optimizer()
        engine = model(without_demos)
        with using(engine):
            compiled = chooser.compile(
                dspy.Predict("question -> answer"), trainset=EXAMPLES, programs=programs
            )
        assert compiled.demos
        assert chooser.report.comparison.original == 0.0 < chooser.report.comparison.chosen
        assert chooser.report.program_calls["total"] > 100
        assert "answers could not be parsed" not in caplog.text
        (entry,) = (entry for entry in chooser.report.front if entry.kind == "original")
        assert entry.num_unread == chooser.report.original.num_unread > 0
        assert f"replies that could not be parsed: {entry.num_unread}" in chooser.report.details()

    def test_a_search_ends_early_if_demos_do_not_help(self):
        chooser = optimizer(num_threads=1)
        engine = model(lambda texts: True)
        with using(engine), pytest.raises(RuntimeError, match=r"could not be parsed.*max_tokens") as caught:
            chooser.compile(
                dspy.Predict("question -> answer"), trainset=EXAMPLES, programs={"instructed": instructed()}
            )
        assert "show demos" not in str(caught.value)
        assert chooser.report.program_calls["total"] <= 40
        assert "almost no reply could be parsed" in str(chooser.report)
        details = chooser.report.details()
        assert "so nothing was returned; optimizer.best_program is your program" in details
        assert "self: no instruction was chosen;" in details
        for word in ("compile again", "add demos", "to resume", "is kept", "(returned)"):
            assert word not in details


class TestRaceOfPrograms:
    def test_an_unreadable_program_does_not_end_the_race(self, caplog):
        programs = {
            "plain": dspy.Predict("question -> answer"),
            "instructed": instructed(),
            "demos": student(),
        }
        choice = choose(model(without_demos), programs)
        assert choice.name == "demos"
        assert re.search(r"(\d+) of \1 answers could not be parsed \('plain', 'instructed'\)", caplog.text)

    def test_the_report_counts_the_replies_that_could_not_be_parsed(self):
        """The list shows expected scores. They may be above 0 even if every reply was unparsable."""
        engine = model(without_demos)
        programs = {"plain": dspy.Predict("question -> answer"), "demos": student()}
        report = choose(engine, programs).report
        entry = next(program for program in report.programs if program.name == "plain")
        assert entry.num_unread == entry.num_examples == report.original.num_unread
        text = str(report)
        assert "programs, best expected score first:" in text
        assert (
            f"on {entry.num_examples} examples; replies that could not be parsed: {entry.num_unread}"
            in text
        )
        with using(engine):
            evaluation = evaluate_programs(programs, exact_match, EXAMPLES[-20:], display_progress=False)
        assert evaluation.programs["plain"].score == 0.0
        assert evaluation.programs["plain"].num_unread == 20

    def test_the_error_advises_demos_if_no_program_has_any(self):
        engine = model(without_demos)
        programs = {"plain": dspy.Predict("question -> answer"), "instructed": instructed()}
        with pytest.raises(RuntimeError, match=r"could not be parsed \('plain', 'instructed'\)") as caught:
            choose(engine, programs)
        assert all(
            fix in str(caught.value)
            for fix in ("give each program demos", "LabeledFewShot", "ChatAdapter", "max_tokens")
        )

    def test_many_programs_get_several_calls_each_before_the_race_ends(self):
        """On the first example of the race, no reply can be parsed."""
        first = []

        def mumbles(texts):
            first.append(texts[-1])
            return texts[-1] == first[0]

        programs = {f"program {number}": student(demos=EXAMPLES[:number]) for number in range(10)}
        assert choose(model(mumbles), programs).report.program_calls["total"] > 90
