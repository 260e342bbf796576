import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ORDERINGS, TablePayer, table

from plr_dspy import OrderingSpace
from plr_dspy.compilation.budget import make_plan
from plr_dspy.compilation.engine import Compilation
from plr_dspy.compilation.sequential_halving import adjusted_scores, race
from plr_dspy.runtime.progress_bar import ProgressBar
from plr_dspy.scoring.checkpoint import Checkpoint
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.staged_objective import RacingExamples
from plr_dspy.search.thompson import ThompsonSearch


def started(payer, entrants, *, num_first=4):
    """An objective that has scored the entrants."""
    objective = RacingExamples(
        CellScorer(payer), num_train=payer.table.shape[1], num_first=num_first, num_more=8
    )
    objective(entrants)
    return objective


def run(objective, entrants, *, num_calls=300, num_winners=2, **options):
    return race(objective, entrants, num_examples=40, num_calls=num_calls, num_winners=num_winners, **options)


class TestRace:
    def test_finds_the_best_of_twenty(self):
        found = []
        for seed in range(10):
            payer = TablePayer(table(seed=seed))
            entrants = [ORDERINGS[i] for i in np.random.default_rng(seed).permutation(20)]
            winners = run(started(payer, entrants), entrants)
            found.append(ORDERINGS.index(winners[0]))
            assert len(payer.paid) <= 80 + 300
        assert np.mean(found) > 16.5
        assert min(found) >= 14

    def test_with_calls_for_all_the_winners_are_the_best_means(self):
        payer = TablePayer(table(seed=1))
        winners = run(started(payer, ORDERINGS[:20]), ORDERINGS[:20], num_calls=3 * 800, num_winners=3)
        means = payer.table[:20].mean(axis=1)
        best = sorted(range(20), key=lambda i: -means[i])[:8]
        assert {ORDERINGS.index(winner) for winner in winners} <= set(best)
        assert ORDERINGS.index(winners[0]) == best[0]

    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 500), st.integers(1, 24), st.integers(0, 23), st.integers(1, 5), st.integers(1, 40))
    def test_never_exceeds_its_calls(self, num_calls, num_known, num_new, num_winners, num_first):
        payer, entrants = TablePayer(table()), ORDERINGS[: num_known + num_new]
        objective = started(payer, entrants[:num_known], num_first=num_first)
        before = len(payer.paid)
        winners = run(objective, entrants, num_calls=num_calls, num_winners=num_winners)
        assert len(payer.paid) - before <= num_calls
        assert len(winners) == len(set(winners)) >= min(num_winners, num_known)
        assert set(winners) <= set(entrants)
        known = adjusted_scores(objective.scores())
        assert [known[w] for w in winners] == sorted((known[w] for w in winners), reverse=True)

    @settings(deadline=None, max_examples=30)
    @given(st.integers(0, 500), st.integers(2, 12), st.integers(0, 12), st.integers(0, 200))
    def test_takes_the_same_course_when_run_again(self, num_calls, num_known, num_new, paid):
        """A race that was stopped after some calls comes to what it would have come to."""
        entrants = ORDERINGS[: num_known + num_new]
        payer, whole = TablePayer(table()), TablePayer(table())
        objective = started(payer, entrants[:num_known])
        state = json.loads(json.dumps(objective.state_dict()))
        objective.deadline = len(payer.paid) + paid
        run(objective, entrants, num_calls=num_calls)
        again = started(payer, entrants[:num_known])
        again.load_state_dict(state)
        expected = run(started(whole, entrants[:num_known]), entrants, num_calls=num_calls)
        assert run(again, entrants, num_calls=num_calls) == expected
        assert sorted(payer.paid) == sorted(whole.paid)

    @pytest.mark.parametrize(("num_calls", "joining"), [(0, 0), (7, 0), (8, 1), (40, 5), (200, 10)])
    def test_new_entrants_join_where_half_of_the_calls_pay_for_them(self, num_calls, joining):
        objective = started(TablePayer(table()), ORDERINGS[:5])
        objective.extend(ORDERINGS[:2], 12)
        run(objective, ORDERINGS[:15], num_calls=num_calls)
        counts = [objective.num_asked(ordering) for ordering in ORDERINGS[:15]]
        assert all(count >= 4 for count in counts[: 5 + joining])
        assert counts[5 + joining :] == [0] * (10 - joining)

    def test_takes_the_same_course_where_calls_fail(self):
        """Calls that the first run made later on say nothing about what had run before."""
        for seed in range(30):
            scores = table(seed=seed, num_examples=30)
            scores[np.random.default_rng(seed).random(scores.shape) < 0.2] = np.nan
            payer = TablePayer(scores)
            objective = started(payer, ORDERINGS[:8])
            state = json.loads(json.dumps(objective.state_dict()))
            winners = run(objective, ORDERINGS[:8], num_calls=100)
            paid = len(payer.paid)
            again = RacingExamples(CellScorer(payer), num_train=30, num_first=4, num_more=8)
            again.load_state_dict(state)
            assert run(again, ORDERINGS[:8], num_calls=100) == winners
            assert len(payer.paid) == paid

    def test_new_entrants_alone_are_scored_as_the_search_would(self):
        payer = TablePayer(table())
        objective = RacingExamples(CellScorer(payer), num_train=40, num_first=4, num_more=8)
        assert run(objective, [ORDERINGS[20], ORDERINGS[2]]) == [ORDERINGS[20], ORDERINGS[2]]
        assert objective.num_asked(ORDERINGS[2]) == 40

    def test_ever_fewer_orderings_on_ever_more_examples(self):
        objective, heats = started(TablePayer(table()), ORDERINGS[:20]), []

        def on_heat():
            heats.append(sorted(objective.num_asked(ordering) for ordering in ORDERINGS[:20]))

        run(objective, ORDERINGS[:20], on_heat=on_heat)
        assert [heat.count(heat[-1]) for heat in heats] == [20, 8, 4]
        assert heats[0][-1] < heats[1][-1] < heats[2][-1]

    def test_no_calls_leave_what_is_known(self):
        payer = TablePayer(table())
        objective = started(payer, ORDERINGS[:10])
        known = adjusted_scores(objective.scores())
        winners = run(objective, ORDERINGS[:10], num_calls=0)
        assert winners == sorted(known, key=lambda ordering: -known[ordering])[:2]
        assert len(payer.paid) == 40

    def test_goes_by_the_estimates(self):
        """The worst of the orderings, by those who have a say in it; the best has no estimate and is out."""
        told = []

        def estimate(scores):
            told.append(scores)
            return {ordering: -ORDERINGS.index(ordering) for ordering in scores if ordering != ORDERINGS[0]}

        objective = started(TablePayer(table()), ORDERINGS[:20])
        assert run(objective, ORDERINGS[:20], estimate=estimate) == ORDERINGS[1:3]
        assert told[-1] == objective.scores()

    def test_no_entrants(self):
        objective = started(TablePayer(table()), ORDERINGS[:3])
        assert run(objective, []) == []

    def test_when_the_time_is_up_what_is_known_decides(self):
        heats, payer = [], TablePayer(table())
        objective = started(payer, ORDERINGS[:20])
        objective.deadline = 90
        winners = run(objective, ORDERINGS[:20], on_heat=lambda: heats.append(1))
        known = adjusted_scores(objective.scores())
        assert winners == sorted(known, key=lambda ordering: -known[ordering])[:2]
        assert (len(payer.paid), heats) == (90, [])


class TestAdjustedScores:
    def test_hand_worked(self):
        """Two orderings that differ by one half on the examples that both have."""
        scores = {ORDERINGS[0]: {3: 1.0, 7: 0.5}, ORDERINGS[1]: {7: 0.0, 3: 0.5}}
        assert adjusted_scores(scores) == pytest.approx({ORDERINGS[0]: 0.25, ORDERINGS[1]: -0.25})

    def test_nothing_known(self):
        assert adjusted_scores({}) == {}


class TestGuest:
    def test_is_scored_as_often_as_the_winners_and_does_not_win(self):
        payer = TablePayer(table(seed=2))
        best, *entrants = sorted(ORDERINGS[:20], key=lambda o: -payer.table[ORDERINGS.index(o)].mean())
        objective = started(payer, [best, *entrants])
        winners = run(objective, entrants, num_calls=200, guest=best)
        assert best not in winners
        assert objective.num_asked(best) == objective.num_asked(winners[0]) > 8
        assert len(payer.paid) <= 80 + 200

    def test_waits_for_the_last_heat(self):
        guest, *entrants = ORDERINGS[:20]
        objective, counts = started(TablePayer(table(seed=2)), entrants), []
        run(
            objective,
            entrants,
            num_calls=200,
            guest=guest,
            on_heat=lambda: counts.append(objective.num_asked(guest)),
        )
        assert len(counts) > 1
        assert not any(counts[:-1])
        assert counts[-1] > 8


class TestEnding:
    """The race and the final comparison after a search of 30 train examples; the other 10 compare."""

    def ended(self, scores, *, original=ORDERINGS[0], num_calls=500):
        payer = TablePayer(scores)
        scorer, space = CellScorer(payer), OrderingSpace.of_sizes(4)
        plan = make_plan("light", max_metric_calls=num_calls, num_train=30, num_selection=10, num_distinct=24)
        search = ThompsonSearch(space, num_examples=30, num_samples=6, num_initial=20, seed=0)
        objective = RacingExamples(scorer, num_train=30, num_first=4, num_more=8, favoured=original)
        with Checkpoint(None, dict) as checkpoint, ProgressBar(num_calls, display=False) as bar:
            found = Compilation(
                search,
                objective,
                scorer,
                plan=plan,
                num_train=30,
                original=original,
                stoppers=[],
                max_seconds=None,
                checkpoint=checkpoint,
                bar=bar,
            ).run()
        scored = {}
        for row, example in payer.paid:
            scored.setdefault(ORDERINGS[row], set()).add(example)
        return found, scored

    def test_all_scores_are_evidence(self):
        found, scored = self.ended(table(seed=1))
        assert found.ordering != ORDERINGS[0]
        assert found.evidence.num_met == 40
        assert found.evidence.num_compared == len(scored[ORDERINGS[0]] & scored[found.ordering]) > 10

    def test_an_original_that_stays_is_held_against_the_most_promising_other(self):
        found, scored = self.ended(table(seed=1)[::-1], num_calls=230)
        assert found.ordering == ORDERINGS[0]
        other = max(found.candidates[1:], key=lambda result: result.gain.probability).finalist.ordering
        assert found.evidence.num_compared == len(scored[ORDERINGS[0]] & scored[other])
        assert found.evidence.num_compared < len(scored[ORDERINGS[0]])

    def test_the_original_is_a_finalist_once(self):
        found, _ = self.ended(table(seed=1)[::-1])
        orderings = [result.finalist.ordering for result in found.candidates]
        assert orderings[0] == ORDERINGS[0]
        assert len(set(orderings)) == len(orderings) == 3

    def test_failures_of_the_original_count_for_nothing(self):
        scores = np.ones((24, 40))
        scores[:, :30] = table(seed=1)[:, :30]
        scores[0, 30:35] = np.nan
        found, _ = self.ended(scores)
        assert found.candidates[0].score == 1.0
