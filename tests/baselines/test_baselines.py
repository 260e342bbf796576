"""TopKOrder on a program whose accuracy depends on the order of its demos."""

import pytest
from fakes import exact_match, questions, student
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import PLReorder
from plr_dspy.baselines import TopKOrder
from plr_dspy.compiling.plan import MIN_EXAMPLES, ProblemSize

EXAMPLES = questions(120)


def test_another_method_reuses_calls_from_a_folder_and_returns_the_same_program(engine, tmp_path):
    """A call that both methods need is made only once."""

    def compiled(kind, **options):
        before = engine.num_calls
        optimizer = kind(exact_match, **options)
        program = optimizer.compile(student(4), trainset=EXAMPLES[:60])
        return program.demos, engine.num_calls - before

    expected, cost = compiled(TopKOrder, num_candidates=8)
    compiled(PLReorder, max_metric_calls=250, log_dir=tmp_path)
    resumed, more = compiled(TopKOrder, num_candidates=8, log_dir=tmp_path)
    assert resumed == expected
    assert more < 0.8 * cost


class TestTopKOrder:
    def test_chooses_the_best_of_its_random_orders(self, engine):
        optimizer = TopKOrder(exact_match, num_candidates=40, num_finalists=3)
        data = {"trainset": EXAMPLES[:26], "valset": EXAMPLES[50:80]}
        optimizer.compile(student(), **data)
        report = optimizer.report
        assert report.candidates[0].ordering == {"self": list(range(len(student().demos)))}
        scores = [candidate.score for candidate in report.candidates]
        assert report.comparison.chosen == max(scores)
        assert report.comparison.gain > 0
        assert sum(round_.num_new for round_ in report.history) == 40
        assert report.program_calls["total"] == 40 * 20 + len(report.candidates) * 30

    @pytest.mark.parametrize("seed", range(6))
    def test_another_order_is_compared_even_if_the_original_scored_best(self, engine, seed):
        optimizer = TopKOrder(
            exact_match, num_candidates=6, num_finalists=1, seed=seed, num_threads=1, display_progress=False
        )
        optimizer.compile(student(), trainset=EXAMPLES)
        assert optimizer.report.comparison is not None

    def test_defaults_are_those_of_the_paper(self, engine):
        estimate = TopKOrder(exact_match).estimate(student(8), trainset=EXAMPLES[:108])
        assert "search 18,000, final comparison 220" in str(estimate)
        assert estimate.program_calls == 225 * 80 + 11 * 20

    def test_a_budget_for_fewer_than_two_orders_is_rejected_before_any_call(self, engine):
        optimizer = TopKOrder(exact_match, max_metric_calls=185)
        message = r"max_metric_calls must be at least 186.*PLReorder"
        with pytest.raises(ValueError, match=message):
            optimizer.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == 0
        optimizer = TopKOrder(exact_match, max_metric_calls=186)
        optimizer.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls <= 186

    @settings(deadline=None)
    @given(st.integers(0, 5_000), st.integers(1, 100), st.integers(2, 50), st.integers(1, 20))
    def test_search_and_comparison_stay_within_the_budget(
        self, more, num_train, num_selection, num_finalists
    ):
        """The original order is part of the final comparison even if it is not among the best orders."""
        budget = 2 * num_train + 2 * MIN_EXAMPLES + more
        options = {"num_finalists": num_finalists, "max_metric_calls": budget}
        optimizer = TopKOrder(exact_match, **options)
        plan = optimizer.plan(ProblemSize(num_train, num_selection, num_distinct=720))
        assert plan.num_initial >= 2
        assert plan.num_finalists >= 2
        assert plan.num_selection_examples >= MIN_EXAMPLES
        search = plan.num_initial * num_train
        comparison = plan.num_finalists * plan.num_selection_examples
        assert search + comparison <= budget
