"""The limits of a compile run: calls, time and rounds."""

import dspy
import pytest
from fakes import engine_for, exact_match, lm_of, questions, student

from plr_dspy import PLReorder
from plr_dspy.compiling.run import MIN_EXAMPLES_IF_SHORTENED

EXAMPLES = questions(60)


@pytest.fixture
def clock(monkeypatch):
    """Yield an engine, and patch the clock so that each call takes one second."""
    engine = engine_for(EXAMPLES)
    monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(engine.num_calls))
    with dspy.context(lm=lm_of(engine)):
        yield engine


@pytest.mark.parametrize("num_samples", [4, 50])
def test_all_orders_are_scored_if_the_budget_allows_it_with_rounds_of_any_size(engine, num_samples):
    reorder = PLReorder(exact_match, num_samples=num_samples)
    reorder.compile(student(3), trainset=EXAMPLES[:33])
    report = reorder.report
    assert report.history[0].num_samples == min(num_samples, 6)
    assert report.program_calls["search"] == 6 * report.settings["num_train"] == 6 * 24
    assert report.stopped == "no new orders left"
    assert report.comparison.num_examples == 6
    estimated = reorder.estimate(student(3), trainset=EXAMPLES[:33]).program_calls
    assert report.program_calls["total"] <= estimated == 6 * 24 + 3 * 6


class TestTime:
    @pytest.mark.parametrize("seconds", [250, 450])
    def test_the_final_comparison_gets_its_share(self, clock, seconds):
        reorder = PLReorder(exact_match, max_seconds=seconds, num_threads=1)
        reorder.compile(student(), trainset=EXAMPLES)
        report = reorder.report
        plan = reorder.estimate(student(), trainset=EXAMPLES).plan
        calls = report.program_calls
        share = seconds / plan.program_calls
        assert calls["total"] == clock.num_calls <= seconds
        assert report.stopped == "time limit"
        assert report.comparison.num_candidates == plan.num_finalists
        expected = max(MIN_EXAMPLES_IF_SHORTENED, share * plan.num_selection_examples)
        assert report.comparison.num_examples == pytest.approx(expected, abs=1)
        assert calls["final"] == plan.num_finalists * report.comparison.num_examples
        assert 0 < calls["race"] <= share * plan.race_calls
        assert calls["search"] > 0.75 * share * plan.search_calls
        best = max(report.candidates, key=lambda candidate: candidate.expected_gain)
        assert best.ordering["self"] == report.slots[0].ordering
        orderings = [candidate.ordering["self"] for candidate in report.candidates]
        assert orderings.count(best.ordering["self"]) == 1

    @pytest.mark.parametrize(("limit", "slow", "times"), [(400, 350, 2), (300, 272, 3), (300, 272, 4)])
    def test_slower_calls_shorten_the_final_comparison(
        self, clock, monkeypatch, caplog, limit, slow, times
    ):
        def now():
            num_slow = max(0, clock.num_calls - slow)
            return float(clock.num_calls + (times - 1) * num_slow)

        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", now)
        reorder = PLReorder(exact_match, max_seconds=limit, num_threads=1)
        reorder.compile(student(), trainset=EXAMPLES)
        compared = reorder.report.comparison
        assert now() < limit + times
        assert compared.num_candidates in (2, 3)
        assert 2 <= compared.num_examples <= 10
        warned = " of 3 finalists were scored on all examples" in caplog.text
        assert warned == (compared.num_candidates == 2)

    def test_several_short_runs_find_as_good_an_order_as_one_long_run(self, tmp_path, clock):
        """A compile run with a time limit is resumed several times from the same `log_dir`."""
        whole = PLReorder(exact_match, max_metric_calls=400)
        whole.compile(student(), trainset=EXAMPLES)
        options = {"max_metric_calls": 400, "max_seconds": 120}
        reorder = PLReorder(exact_match, **options, num_threads=1, log_dir=tmp_path)
        parts = []
        while len(parts) < 6 and (not parts or parts[-1].stopped.startswith("time limit")):
            before = clock.num_calls
            reorder.compile(student(), trainset=EXAMPLES)
            parts.append(reorder.report)
            calls = parts[-1].program_calls
            assert clock.num_calls - before == calls["total"] - calls["resumed"] <= 120
        assert len(parts) > 2
        last = parts[-1]
        assert last.comparison.num_candidates == len(last.candidates) == 3
        assert last.comparison.chosen >= whole.report.comparison.original
        assert last.program_calls["total"] <= 400
        # The search had fewer calls, because each part also made a final comparison.
        assert len(last.history) >= 0.7 * len(whole.report.history)


@pytest.mark.parametrize("budget", [60, 1_000])
def test_nothing_is_compared_if_only_the_original_was_scored(engine, budget):
    options = {"num_iterations": 1, "num_samples": 1, "max_metric_calls": budget}
    reorder = PLReorder(exact_match, **options)
    reorder.compile(student(), trainset=EXAMPLES)
    assert engine.num_calls == reorder.report.program_calls["search"] == 4
    assert reorder.report.stopped == "all iterations done"
    assert "no other program was scored on enough examples" in str(reorder.report)
