import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ORDERINGS, TablePayer, table

from plr_dspy.scoring.objectives import CommonExamples
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.scoring.staged_objective import MIN_TRIES, RacingExamples


def racing(payer, **options):
    shape = {"num_train": payer.table.shape[1], "num_first": 4, "num_more": 6, **options}
    return RacingExamples(CellScorer(payer), **shape)


def common(payer, num_examples=8):
    return CommonExamples(CellScorer(payer), num_examples=num_examples, num_train=payer.table.shape[1])


def examples_of(trial):
    return [example for example, _ in trial.scores]


class TestRacingExamples:
    def test_first_few_examples_then_further_ones(self):
        payer = TablePayer(table())
        objective, seen = racing(payer), []
        for count in (4, 10, 16, 22, 28, 34, 40, 40):
            (trial,) = objective(ORDERINGS[:1])
            assert trial.num_examples == len(trial.scores) == objective.num_asked(ORDERINGS[0]) == count
            assert examples_of(trial)[: len(seen)] == seen
            assert dict(trial.scores) == {e: payer.table[0, e] for e in examples_of(trial)}
            assert trial.score == pytest.approx(np.mean([score for _, score in trial.scores]))
            seen = examples_of(trial)
        assert len(payer.paid) == len(set(payer.paid)) == 40

    @settings(deadline=None, max_examples=30)
    @given(st.lists(st.lists(st.integers(0, 7), max_size=6), max_size=5), st.integers(1, 12))
    def test_cost_is_the_calls_then_made(self, batches, num_first):
        payer = TablePayer(table(num_examples=15))
        objective = racing(payer, num_first=min(num_first, 15))
        for batch in batches:
            cost, before = objective.cost([ORDERINGS[i] for i in batch]), len(payer.paid)
            trials = objective([ORDERINGS[i] for i in batch])
            assert [ORDERINGS.index(trial.ordering) for trial in trials] == list(dict.fromkeys(batch))
            assert cost == len(payer.paid) - before
            assert objective.program_calls == len(payer.paid) == len(set(payer.paid))

    def test_the_split_is_used_evenly(self):
        objective = racing(TablePayer(table(num_examples=10)))
        trials = [*objective(ORDERINGS[:3]), *objective(ORDERINGS[3:15])]
        assert [examples_of(trial) for trial in trials[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
        used = np.bincount([example for trial in trials for example in examples_of(trial)])
        assert set(used) == {6}

    @pytest.mark.parametrize("num_examples", [6, 8, 9])
    def test_shifted_no_group_of_orderings_meets_examples_of_its_own(self, num_examples):
        """From each example to each other one by orderings that met two of them."""
        objective = racing(TablePayer(table(num_examples=num_examples)), num_first=2, shifted=True)
        met = [set(examples_of(trial)) for trial in objective(ORDERINGS[:10])]
        reached = met[0]
        for _ in met:
            reached = reached.union(*(pair for pair in met if pair & reached))
        assert reached == set(range(num_examples))
        used = np.bincount([example for pair in met for example in pair])
        assert max(used) - min(used) <= 2

    def test_it_is_so_where_a_round_has_old_and_new_orderings(self):
        objective = racing(TablePayer(table()))
        objective(ORDERINGS[:2])
        trials = objective([ORDERINGS[0], ORDERINGS[2], ORDERINGS[1], ORDERINGS[3]])
        assert [examples_of(trials[i]) for i in (1, 3)] == [[8, 9, 10, 11], [12, 13, 14, 15]]

    def test_extend_scores_on_so_many_examples_in_all(self):
        payer = TablePayer(table())
        objective = racing(payer)
        objective(ORDERINGS[:3])
        objective(ORDERINGS[:1])
        trials = objective.extend(ORDERINGS[:4], 9)
        assert [trial.num_examples for trial in trials] == [10, 9, 9, 9]
        assert objective.extend(ORDERINGS[:1], 99)[0].num_examples == 40
        assert len(payer.paid) == 40 + 3 * 9

    def test_extend_stops_at_the_limit_of_calls(self):
        payer = TablePayer(table())
        objective = racing(payer)
        objective(ORDERINGS[:3])
        objective.max_program_calls = 12 + 2 * 16 + 15
        assert [trial.num_examples for trial in objective.extend(ORDERINGS[:3], 20)] == [20, 20]
        assert [objective.num_asked(ordering) for ordering in ORDERINGS[:3]] == [20, 20, 4]
        assert len(payer.paid) == 44

    def test_scores_are_all_that_is_known_and_cost_nothing(self):
        payer = TablePayer(table())
        objective = racing(payer)
        trials = {trial.ordering: dict(trial.scores) for trial in objective(ORDERINGS[:3])}
        assert objective.scores() == trials
        assert len(payer.paid) == 12

    def test_an_example_that_always_fails_is_given_up(self, caplog):
        payer = TablePayer(table(num_examples=10, broken=[5]))
        objective = racing(payer, num_first=6)
        first = objective(ORDERINGS[:5])
        assert "1 of 10 train examples ran for no order" in caplog.text
        assert [trial.num_examples for trial in first] == [5, 6, 5, 6, 5]
        assert objective.extend(ORDERINGS[5:8], 10)[0].num_examples == 9
        assert payer.paid.count((5, 5)) == 0
        assert [example for _, example in payer.paid].count(5) == MIN_TRIES

    def test_a_call_that_fails_now_and_then_counts_as_the_worst(self):
        scores = np.full((len(ORDERINGS), 8), 0.5)
        scores[0, 2], scores[1, 5] = np.nan, -1.0
        first, second = racing(TablePayer(scores), num_first=8)(ORDERINGS[:2])
        assert dict(first.scores)[2] == -1.0
        assert (first.score, second.score) == (2.5 / 8, 2.5 / 8)

    @pytest.mark.parametrize("kind", [racing, common])
    def test_more_than_half_failing_at_first_ends_the_search(self, kind):
        with pytest.raises(RuntimeError, match="only 3 of 8 train examples ran for any order: mend"):
            kind(TablePayer(table(num_examples=8, broken=range(3, 8))))(ORDERINGS[:4])
        assert kind(TablePayer(table(num_examples=8, broken=range(4, 8))))(ORDERINGS[:4])

    @pytest.mark.parametrize(("seconds", "count"), [(0, 0), (3, 0), (4, 1), (11, 2), (12, 3), (99, 5)])
    def test_fewer_trials_when_the_time_is_up(self, seconds, count):
        objective = racing(TablePayer(table()))
        objective.deadline = seconds
        assert [trial.ordering for trial in objective(ORDERINGS[:5])] == ORDERINGS[:count]
        assert [objective.num_asked(ordering) for ordering in ORDERINGS[:5]] == [4] * count + [0] * (
            5 - count
        )

    def test_goes_on_from_a_saved_state(self):
        payer = TablePayer(table(num_examples=12, broken=[3]))
        objective, resumed = racing(payer), racing(payer)
        objective(ORDERINGS[:9])
        objective(ORDERINGS[2:5])
        resumed.load_state_dict(json.loads(json.dumps(objective.state_dict())))
        assert resumed.scores() == objective.scores()
        assert resumed(ORDERINGS[4:12]) == objective(ORDERINGS[4:12])
        assert resumed.state_dict() == objective.state_dict()


class TestCommonExamples:
    def test_scores_all_on_the_same_and_says_what_that_costs(self):
        payer = TablePayer(table())
        objective = common(payer)
        assert objective.cost(ORDERINGS[:3]) == 24
        for trial, row in zip(objective(ORDERINGS[:3]), payer.table, strict=False):
            assert (trial.score, trial.num_examples) == (row[:8].mean(), 8)
        assert objective.cost(ORDERINGS[1:5]) == 16
        assert objective.program_calls == len(payer.paid) == 24

    def test_calls_on_other_examples_are_not_the_searchs(self):
        payer = TablePayer(table())
        scorer = CellScorer(payer)
        scorer.score(ORDERINGS[:2], range(30, 40))
        for objective in (
            CommonExamples(scorer, num_examples=8, num_train=30),
            RacingExamples(scorer, num_train=30, num_first=8, num_more=8),
        ):
            assert objective.program_calls == 0

    def test_examples_that_never_ran_leave_it_for_good(self):
        payer = TablePayer(table(broken=[2, 5]))
        objective, resumed = common(payer), common(payer)
        assert {trial.num_examples for trial in objective(ORDERINGS[:3])} == {6}
        assert objective.cost(ORDERINGS[3:5]) == 2 * 6
        resumed.load_state_dict(json.loads(json.dumps(objective.state_dict())))
        assert resumed.cost(ORDERINGS[3:5]) == 2 * 6
        assert resumed(ORDERINGS[3:5]) == objective(ORDERINGS[3:5])

    @pytest.mark.parametrize("kind", [racing, common])
    def test_what_an_interrupted_round_scored_whole_is_found(self, kind):
        class Interrupted(TablePayer):
            def pay(self, keys, orderings, *, deadline):
                super().pay(keys, orderings, deadline=19)
                raise KeyboardInterrupt

        payer = Interrupted(table())
        objective = kind(payer)
        with pytest.raises(KeyboardInterrupt):
            objective(ORDERINGS[:6])
        trials = objective.salvage()
        count = 4 if kind is racing else 8
        assert [trial.ordering for trial in trials] == ORDERINGS[: 19 // count]
        for trial in trials:
            paid = [example for row, example in payer.paid if ORDERINGS[row] == trial.ordering]
            assert trial.num_examples == len(paid) == count
            assert trial.score == payer.table[ORDERINGS.index(trial.ordering), paid].mean()

    @pytest.mark.parametrize(("seconds", "count"), [(0, 0), (7, 0), (8, 1), (99, 4)])
    def test_fewer_trials_when_the_time_is_up(self, seconds, count):
        objective = common(TablePayer(table()))
        objective.deadline = seconds
        assert [trial.ordering for trial in objective(ORDERINGS[:4])] == ORDERINGS[:count]


class TestTables:
    def test_a_favoured_ordering_that_the_time_left_out(self):
        scorer = CellScorer(TablePayer(table()))
        examples, rows = scorer.table(ORDERINGS[:3], range(6), favoured=2, deadline=8)
        assert (examples, len(rows)) == (list(range(6)), 1)


class TestWhatIsDown:
    def scores(self, *broken):
        scores = table()
        scores[list(broken)] = np.nan
        return scores

    @pytest.mark.parametrize("paid", [0, 1, 2])
    def test_an_ordering_that_always_fails_ends_nothing_wherever_a_kill_came(self, paid):
        payer = TablePayer(self.scores(2))
        racing(payer, num_first=10)(ORDERINGS[:paid]) if paid else None
        trials = racing(payer, num_first=10)(ORDERINGS[:3])
        assert [trial.score for trial in trials][2] == 0.0

    def test_nor_does_it_in_a_round_of_its_own(self):
        objective = racing(TablePayer(self.scores(2)), num_first=10)
        objective(ORDERINGS[:1])
        assert objective(ORDERINGS[2:3])[0].score == 0.0

    def test_a_round_of_several_without_an_answer_does(self):
        objective = racing(TablePayer(self.scores(1, 2)), num_first=10)
        objective(ORDERINGS[:1])
        with pytest.raises(RuntimeError, match="no call ended with an answer, for 2 orderings"):
            objective(ORDERINGS[1:3])


class TestSalvaged:
    """What is known of a round that an interrupt has ended."""

    @pytest.mark.parametrize("objective", [racing, common])
    def test_a_failed_call_is_as_bad_as_the_worst_score(self, objective):
        """With scores below 0 a failure that counts as 0 would win."""
        scores = table() - 2.0
        scores[1, :8] = np.nan
        payer = TablePayer(scores)
        scored = objective(payer)
        scored.deadline = 16 + 8 * (objective is common)
        scored(ORDERINGS[:5])
        by_ordering = {trial.ordering: trial.score for trial in scored.salvage()}
        assert by_ordering.keys() >= set(ORDERINGS[:3])
        if objective is common:
            assert by_ordering[ORDERINGS[1]] == -2.0

    def test_nothing_is_known_where_all_calls_failed(self):
        scored = common(TablePayer(np.full((24, 8), np.nan)))
        scored.deadline = 16
        with pytest.raises(RuntimeError):
            scored(ORDERINGS[:3])
        assert scored.salvage() == []
