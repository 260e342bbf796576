"""The race of the best orderings, and whole compile runs, on known scores."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ORDERINGS, TablePayer, table

from plr_dspy import OrderingSpace, ThompsonSearch
from plr_dspy.compiling.plan import Plan, ProblemSize, make_plan
from plr_dspy.compiling.race import first_of_each_kind, run_race
from plr_dspy.compiling.run import CompileRun
from plr_dspy.scoring.evaluator import Evaluator, NothingRan
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.search.space import WholeProgram


class Raced:
    """A race of orderings, some of which were scored before.

    Args:
        payer: The payer that makes all calls.
        searched: Orderings that were scored before the race.
        original: The ordering that the winners are compared with. It is always scored.
    """

    def __init__(self, payer, searched, *, num_first=4, original=ORDERINGS[-1], original_share=0.0):
        self.evaluator = Evaluator(payer)
        self.estimate = self.means
        num_train = payer.table.shape[1]
        sizes = {"num_train_examples": num_train, "num_first_examples": num_first, "num_more_examples": 8}
        self.plan = Plan(original_share=original_share, **sizes)
        fit = lambda scores: SimpleNamespace(estimates=self.estimates(scores))  # noqa: E731
        model = SimpleNamespace(calibrating=False, fit=fit)
        self.search = SimpleNamespace(model=model)
        self.original = original
        self.observations = Observations(self.evaluator.effective_scores, favored=original)
        self.schedule = ExampleSchedule([range(num_train)], num_first, self.plan.num_more_examples)
        self.score([*searched, original])
        self.heats = []

    def estimates(self, scores):
        return lambda: self.estimate(scores).items()

    def score(self, orderings, num_examples=None):
        self.observe(self.schedule.examples_for(orderings, self.observations, num_examples))

    def observe(self, wanted):
        records = self.evaluator.evaluate(self.evaluator.affordable(wanted))
        self.observations.add(records)
        return records

    def means(self, scores):
        counts = map(self.observations.count, ORDERINGS)
        self.heats.append(dict(zip(ORDERINGS, counts, strict=True)))
        return {ordering: sum(row.values()) / len(row) for ordering, row in scores.items()}

    def run(self, entrants, *, num_calls=300, num_winners=2, reserved=0):
        self.evaluator.begin_phase("race", reserved=reserved)
        return run_race(
            entrants,
            original=self.original,
            observations=self.observations,
            schedule=self.schedule,
            score=self.observe,
            estimate=lambda: dict(self.search.model.fit(self.observations.scores()).estimates()),
            plan=replace(self.plan, num_best_seen=num_winners),
            num_calls=num_calls,
        )


def test_the_best_user_program_takes_part_to_the_end():
    retrieved = WholeProgram(1, "nearest last")
    own = WholeProgram(0, "theirs")
    ranked = [*ORDERINGS[:3], retrieved, own]
    assert first_of_each_kind(ranked, 2) == [ORDERINGS[0], retrieved]
    assert first_of_each_kind(ranked, 2, [own]) == [ORDERINGS[0], own]
    assert first_of_each_kind(ranked, 3, [own]) == [ORDERINGS[0], own, ORDERINGS[1]]


class TestRace:
    def test_finds_the_best_of_twenty(self):
        found = []
        for seed in range(10):
            payer = TablePayer(table(seed=seed))
            entrants = [ORDERINGS[i] for i in np.random.default_rng(seed).permutation(20)]
            winners = Raced(payer, entrants).run(entrants)
            found.append(ORDERINGS.index(winners[0]))
            assert len(payer.paid) <= 84 + 300
        assert np.mean(found) > 16
        assert min(found) >= 12

    @settings(deadline=None, max_examples=40)
    @given(
        st.integers(0, 500), st.integers(1, 23), st.integers(0, 22), st.integers(1, 5), st.integers(1, 40)
    )
    def test_never_exceeds_the_maximum_number_of_calls(
        self, num_calls, num_known, num_new, num_winners, num_first
    ):
        payer = TablePayer(table())
        entrants = ORDERINGS[:-1][: num_known + num_new]
        raced = Raced(payer, entrants[:num_known], num_first=num_first)
        before = len(payer.paid)
        winners = raced.run(entrants, num_calls=num_calls, num_winners=num_winners)
        assert len(payer.paid) - before <= num_calls
        assert len(winners) == len(set(winners)) >= min(num_winners, num_known)
        assert set(winners) <= set(entrants)
        known = raced.means(raced.observations.scores())
        assert [known[w] for w in winners] == sorted((known[w] for w in winners), reverse=True)

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 500), st.integers(2, 12), st.integers(0, 12), st.integers(0, 200), st.booleans())
    def test_a_resumed_race_makes_the_same_calls(self, num_calls, num_known, num_new, paid, failing):
        scores = table()
        entrants = ORDERINGS[: num_known + num_new]
        # Let only calls on later examples fail, because a compile ends if half of the first calls fail.
        some = scores[:, 20:]
        some[np.random.default_rng(paid).random(some.shape) < 0.4 * failing] = np.nan
        payer = TablePayer(scores)
        whole = TablePayer(scores)
        stopped = Raced(payer, entrants[:num_known])
        payer.most = len(payer.paid) + paid
        stopped.run(entrants, num_calls=num_calls)
        payer.most = 10_000
        again = Raced(payer, entrants[:num_known]).run(entrants, num_calls=num_calls)
        assert again == Raced(whole, entrants[:num_known]).run(entrants, num_calls=num_calls)
        assert sorted(payer.paid) == sorted(whole.paid)

    @pytest.mark.parametrize(("num_calls", "joining"), [(0, 0), (7, 0), (8, 1), (40, 5), (200, 10)])
    def test_new_entrants_join_if_half_of_the_calls_suffice_for_them(self, num_calls, joining):
        raced = Raced(TablePayer(table()), ORDERINGS[:5])
        raced.score(ORDERINGS[:2], 12)
        raced.run(ORDERINGS[:15], num_calls=num_calls)
        counts = [raced.observations.count(ordering) for ordering in ORDERINGS[:15]]
        assert all(count >= 4 for count in counts[: 5 + joining])
        assert counts[5 + joining :] == [0] * (10 - joining)

    def test_the_estimates_decide(self):
        """The estimates contradict the scores."""
        seen = []

        def estimate(scores):
            seen.append(scores)
            return {ordering: -ORDERINGS.index(ordering) for ordering in scores}

        raced = Raced(TablePayer(table()), ORDERINGS[:20])
        raced.estimate = estimate
        assert raced.run(ORDERINGS[:20]) == ORDERINGS[:2]
        assert seen[-1] == raced.observations.scores()

    @pytest.mark.parametrize(("num_calls", "most"), [(0, 10_000), (300, 90)])
    def test_without_calls_or_time_earlier_scores_decide(self, num_calls, most):
        payer = TablePayer(table())
        raced = Raced(payer, ORDERINGS[:20])
        payer.most = most
        winners = raced.run(ORDERINGS[:20], num_calls=num_calls)
        means = raced.means(raced.observations.scores())
        assert winners == sorted(ORDERINGS[:20], key=lambda ordering: -means[ordering])[:2]
        assert len(payer.paid) == min(most, 84 + num_calls)
        assert raced.run([]) == []

    def test_reserves_calls_for_the_final_comparison(self):
        payer = TablePayer(table())
        payer.budget.max_calls = 200
        raced = Raced(payer, ORDERINGS[:20])
        raced.run(ORDERINGS[:20], num_calls=300, reserved=50)
        assert 130 < len(payer.paid) <= 150

    def test_the_original_is_scored_as_often_as_the_winners_but_cannot_win(self):
        payer = TablePayer(table(seed=2))
        best, *entrants = sorted(ORDERINGS[:20], key=lambda o: -payer.table[ORDERINGS.index(o)].mean())
        raced = Raced(payer, entrants, original=best, original_share=0.25)
        winners = raced.run(entrants, num_calls=200)
        assert best not in winners
        assert len(raced.heats) > 1
        assert raced.heats[0][best] == 40
        assert raced.observations.count(best) >= raced.observations.count(winners[0]) > 8
        assert len(payer.paid) <= 80 + 200


class TestCompilation:
    """Compile runs with 30 train examples and 10 examples for the final comparison."""

    def ended(self, scores, *, original=ORDERINGS[0], num_calls=500, most=10_000):
        payer = TablePayer(scores)
        payer.most = most
        scorer = Evaluator(payer)
        payer.budget.max_calls = num_calls
        plan = make_plan(
            "light",
            ProblemSize(num_train=30, num_selection=10, num_distinct=24),
            max_metric_calls=num_calls,
        )
        options = {"num_examples": 30, "num_samples": 6, "num_initial": 20, "seed": 0}
        search = ThompsonSearch(OrderingSpace.of_sizes(4), **options)
        options = {"plan": plan, "num_train": 30, "original": original}
        outcome = CompileRun(search, scorer, **options).run()
        scored = {}
        for row, example in payer.paid:
            scored.setdefault(ORDERINGS[row], set()).add(example)
        assert len(payer.paid) == len(set(payer.paid)) == outcome.program_calls["total"] <= num_calls
        return outcome, scored

    def test_all_scores_are_evidence_except_failed_calls_of_the_original(self):
        outcome, scored = self.ended(table(seed=1))
        decision = outcome.decision
        assert decision.candidate != ORDERINGS[0]
        assert decision.evidence.num_met == 40
        assert decision.evidence.num_compared == len(scored[ORDERINGS[0]] & scored[decision.candidate]) > 10
        scores = np.ones((24, 40))
        scores[:, :30] = table(seed=1)[:, :30]
        scores[0, 30:35] = np.nan
        outcome, _ = self.ended(scores)
        decision = outcome.decision
        assert decision.results[0].score == 1.0

    def test_an_original_that_is_kept_is_compared_with_the_most_promising_order(self):
        outcome, scored = self.ended(table(seed=1)[::-1], num_calls=260)
        decision = outcome.decision
        assert decision.candidate == ORDERINGS[0]
        assert decision.comparison.gain == 0
        assert decision.comparison.expected_gain == 0
        assert decision.comparison.interval == (0, 0)
        orderings = [result.candidate for result in decision.results]
        assert orderings[0] == ORDERINGS[0]
        assert len(set(orderings)) == len(orderings) == 3
        other = max(decision.results[1:], key=lambda result: result.gain.probability).candidate
        assert decision.evidence.num_compared == len(scored[ORDERINGS[0]] & scored[other])
        assert decision.evidence.num_compared < len(scored[ORDERINGS[0]])

    @pytest.mark.parametrize("most", [0, 60, 300])
    def test_a_compile_that_runs_out_of_time_keeps_the_original(self, most):
        outcome, _ = self.ended(table(seed=1), most=most)
        decision = outcome.decision
        assert outcome.program_calls["total"] == most
        assert decision.comparison is None
        assert decision.candidate == ORDERINGS[0]

    def test_a_round_whose_calls_all_fail_ends_the_compile(self):
        """The cause is probably an outage of a service that the program calls."""
        scores = table(seed=1)
        scores[:, :30] = np.nan
        with pytest.raises(NothingRan, match="calls failed"):
            self.ended(scores)
