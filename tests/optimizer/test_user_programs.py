"""Compiles with the user's programs as further candidates."""

import itertools

import dspy
import pytest
from choices import LEANING
from fakes import Program, digest, using
from label_engines import LABELS
from label_world import DEMOS, EXAMPLES, Engine, comparable, exact, student

from plr_dspy import F1, PLFewShot, PLReorder, Report
from plr_dspy.baselines import TopKOrder


def report_with_fair(optimizer, forward):
    """Return the report of a compile with a user program "fair" that answers with `forward`."""
    fair = Program(forward, inner=student(demos=[]))
    with using(Engine(), "fake/x"):
        optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs={"fair": fair})
    return optimizer.report


class TestUserPrograms:
    @pytest.mark.parametrize(
        ("kind", "signal", "metric"),
        [
            (PLFewShot, "auto", exact),
            (PLFewShot, "score", F1("positive")),
            (PLReorder, "score", exact),
            (PLReorder, "auto", F1("positive")),
        ],
    )
    def test_a_good_program_wins_and_the_report_names_it(self, kind, signal, metric):
        """The good program answers correctly without a model."""
        right = {example.text: example.label for example in EXAMPLES}
        good = Program(lambda self, text: dspy.Prediction(label=right[text]), inner=student(demos=[]))
        others = {"good": good, "fewer": student(demos=DEMOS[1:3])}
        optimizer = kind(metric, max_metric_calls=150, signal=signal, display_progress=False)
        with using(Engine(), "fake/x"):
            program = optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs=others)
        assert optimizer.report.returned.name == "good"
        assert [way.name for way in optimizer.report.programs] == ["good", "fewer"]
        assert isinstance(program, Program)
        assert "returned program 'good'" in str(optimizer.report)

    @pytest.mark.parametrize("metric", [exact, F1("positive")])
    def test_a_result_of_the_search_is_also_compared_with_the_best_user_program(self, metric, tmp_path):
        """The program "fair" is correct on two thirds of the examples."""
        right = {example.text: example.label for example in EXAMPLES}

        def forward(self, text):
            return dspy.Prediction(label="positive" if int(text.split()[-1]) % 3 else right[text])

        optimizer = PLFewShot(metric, max_metric_calls=600, signal="score", display_progress=False)
        report = report_with_fair(optimizer, forward)
        assert report.returned.name == ""
        assert report.over_best_own.name == "fair"
        assert report.over_best_own.chosen == pytest.approx(report.comparison.chosen)
        assert report.over_best_own.probability > 3 * report.over_best_own.probability_worse
        assert "gain over 'fair'" in str(report)
        (fair,) = report.programs
        gain = report.comparison.expected_chosen[0] - fair.score
        assert gain == pytest.approx(report.over_best_own.expected_gain, abs=1e-6)
        assert fair.interval[0] <= fair.score <= fair.interval[1]
        report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == report

    def test_the_report_mentions_an_uncertain_result_of_the_search(self):
        """The program "fair" is correct on about four fifths of the examples."""
        labels = {example.text: example.label for example in EXAMPLES}

        def forward(self, text):
            is_right = digest(text) > 0.2
            label = next(label for label in LABELS if (label == labels[text]) == is_right)
            return dspy.Prediction(label=label)

        options = {"max_metric_calls": 150, "signal": "score", "num_threads": 1, "seed": 3}
        optimizer = PLFewShot(exact, display_progress=False, **options)
        report = report_with_fair(optimizer, forward)
        best = max(report.candidates, key=lambda candidate: candidate.expected_gain)
        more = best.expected_gain - report.comparison.expected_gain
        assert report.returned.name == "fair"
        assert best.name == ""
        assert more > 0
        assert f"expected to score {more:.3f} more than the returned program, but this is" in str(report)

    def test_a_predictors_own_attribute_may_be_named_retrieval(self):
        other = student(demos=DEMOS[1:3])
        other.retrieval = "bm25"
        optimizer = PLReorder(exact, max_metric_calls=80, display_progress=False)
        with using(Engine(), "fake/x"):
            optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs={"other": other})
        assert optimizer.report.programs[0].score is not None

    def test_as_many_programs_are_scored_as_the_budget_allows(self):
        """The budget is too small for a first round with every program."""
        programs = [student(demos=pair) for pair in itertools.permutations(DEMOS, 2)]
        optimizer = PLReorder(exact, max_metric_calls=40, signal="score", display_progress=False)
        with using(Engine(), "fake/x"):
            optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs=programs)
        assert 30 <= optimizer.report.program_calls["total"] <= 40
        assert optimizer.report.comparison is not None

    @pytest.mark.parametrize("kind", [PLFewShot, PLReorder, TopKOrder])
    def test_an_empty_list_of_programs_changes_nothing(self, kind):
        reports = []
        for programs in (None, []):
            optimizer = kind(exact, max_metric_calls=150, display_progress=False)
            with using(Engine(), "fake/x"):
                optimizer.compile(student(demos=LEANING), trainset=EXAMPLES, programs=programs)
            reports.append(optimizer.report)
        assert comparable(reports[0]) == comparable(reports[1])
