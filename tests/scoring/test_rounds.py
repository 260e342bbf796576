"""The examples on which orderings are scored, and the scores if calls fail or the budget runs out."""

from itertools import chain

import numpy as np
import pytest
from worlds import ORDERINGS, TablePayer, table

from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.observations import ExampleSchedule, Observations
from plr_dspy.scoring.run_log import CallRecord, RunLog
from plr_dspy.search.space import WholeProgram


class Rounds:
    """Rounds of scoring, as in a search."""

    def __init__(self, payer, *, favored=None, num_first=4, num_more=6, shifted=False):
        self.evaluator = Evaluator(payer)
        self.observations = Observations(self.evaluator.effective_scores, favored=favored)
        strata = [range(payer.table.shape[1])]
        options = {"num_first": num_first, "num_more": num_more, "shifted": shifted}
        self.schedule = ExampleSchedule(strata, **options)

    def wanted(self, orderings, num_examples=None):
        return self.schedule.examples_for(orderings, self.observations, num_examples)

    def score(self, wanted):
        records = self.evaluator.evaluate(wanted)
        self.observations.add(records)
        return list(records)

    def count(self, ordering):
        return self.observations.count(ordering)

    def scores(self):
        return self.observations.scores()


def scores_of_round(rounds, orderings, num_examples=None):
    """Score orderings in a round, and return each complete ordering's scores by example."""
    scored = rounds.score(rounds.wanted(orderings, num_examples))
    rows = rounds.scores()
    return [rows[ordering] for ordering in orderings if ordering in scored]


def mean(row):
    return sum(row.values()) / len(row)


class TestExamples:
    def test_each_round_adds_examples(self):
        payer = TablePayer(table())
        scores = Rounds(payer)
        seen = []
        for count in (4, 10, 16, 22, 28, 34, 40, 40):
            (row,) = scores_of_round(scores, ORDERINGS[:1])
            assert len(row) == scores.count(ORDERINGS[0]) == count
            assert list(row)[: len(seen)] == seen
            assert row == {e: payer.table[0, e] for e in row}
            seen = list(row)
        assert len(payer.paid) == len(set(payer.paid)) == 40
        assert scores.scores() == {ORDERINGS[0]: row}

    def test_retired_examples_are_not_added(self):
        scores = Rounds(TablePayer(table()))
        first, other = ORDERINGS[:2]
        scores_of_round(scores, [first])
        known = list(scores.observations.records[first])
        scores.schedule.retired.update([known[0], 20, 30])
        wanted = scores.wanted([first, other], 40)
        assert wanted[first][:4] == known
        assert set(range(40)) - set(wanted[first]) == {20, 30}
        assert set(range(40)) - set(wanted[other]) == {known[0], 20, 30}

    def test_a_new_program_gets_more_examples_than_a_new_order(self):
        """Two examples suffice for an order, but not for a program."""
        scores = Rounds(TablePayer(table()), num_first=2)
        program = WholeProgram(0, "nearest last")
        wanted = scores.wanted([ORDERINGS[0], program])
        assert list(map(len, wanted.values())) == [2, 4]
        assert len(scores.wanted([program], 1)[program]) == 4
        assert len(scores.wanted([program], 9)[program]) == 9

    def test_paired_candidates_start_at_the_same_example_with_more_examples(self):
        rounds = Rounds(TablePayer(table()))
        rounds.schedule.paired = [ORDERINGS[1], ORDERINGS[3]]
        rounds.schedule.num_paired = 9
        wanted = rounds.wanted(ORDERINGS[:4])
        assert list(map(len, wanted.values())) == [4, 9, 4, 9]
        assert wanted[ORDERINGS[1]] == wanted[ORDERINGS[3]] == list(range(9))
        rounds.score(wanted)
        assert len(rounds.wanted([ORDERINGS[1]])[ORDERINGS[1]]) == 9 + 6

    def test_programs_with_equal_prompts_share_a_call(self):
        """Two programs produce the same prompt for some examples."""
        first = WholeProgram(0, "nearest last")
        second = WholeProgram(1, "nearest first")
        prompts = dict(zip([(first, i) for i in range(3)], "abc", strict=True))
        prompts |= {(second, 0): "d", (second, 1): "a"}

        class Payer(TablePayer):
            def fingerprint(self, ordering, example):
                return prompts.get((ordering, example), "c")

            def pay(self, cells):
                asked.update(cells)
                for key in cells:
                    self.log.add(key, CallRecord(1.0), {})

        asked = {}
        payer = Payer(table())
        cells = Evaluator(payer).evaluate({first: [0, 1, 2], second: [0, 1, 2]})
        assert [len(row) for row in cells.values()] == [3, 3]
        assert len(payer.log.records) == 5
        assert asked[("a", 0)] == first
        assert asked[("a", 1)] == second

    def test_new_orderings_use_all_examples_equally_often(self):
        scores = Rounds(TablePayer(table(num_examples=10)))
        first, second, *others = scores_of_round(scores, ORDERINGS[:3])
        examples = list(map(list, (first, second, *others)))
        assert examples == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
        rows = scores_of_round(scores, [ORDERINGS[0], ORDERINGS[3], ORDERINGS[1], *ORDERINGS[4:15]])
        assert [len(rows[i]) for i in (0, 2)] == [10, 10]
        new = [first, second, *others, rows[1], *rows[3:]]
        assert set(np.bincount(list(chain.from_iterable(new)))) == {6}

    @pytest.mark.parametrize("num_examples", [6, 8, 9])
    def test_a_shifted_schedule_connects_all_examples(self, num_examples):
        """Orderings that share examples link each example, directly or indirectly, to all other examples."""
        scores = Rounds(TablePayer(table(num_examples=num_examples)), num_first=2, shifted=True)
        met = [set(row) for row in scores_of_round(scores, ORDERINGS[:10])]
        reached = met[0]
        for _ in met:
            reached = reached.union(*(pair for pair in met if pair & reached))
        assert reached == set(range(num_examples))
        used = np.bincount(list(chain.from_iterable(met)))
        assert max(used) - min(used) <= 2

    @pytest.mark.parametrize(("calls", "count"), [(0, 0), (3, 0), (4, 1), (11, 2), (12, 3), (99, 5)])
    def test_only_complete_orderings_count_when_the_budget_runs_out(self, calls, count):
        """Only the orderings before the first incomplete ordering have scores."""
        payer = TablePayer(table())
        payer.pay([("4", example) for example in range(16, 20)])
        payer.most = 4 + calls
        scores = Rounds(payer)
        assert len(scores_of_round(scores, ORDERINGS[:5])) == count
        for number, ordering in enumerate(ORDERINGS[:5]):
            assert scores.count(ordering) == (4 if number < count else 0)


class TestFailures:
    def test_a_failed_call_gets_the_worst_score_except_for_the_favored_ordering(self):
        values = np.full((len(ORDERINGS), 8), 0.5)
        values[0, 2] = np.nan
        values[1, 5] = -1.0
        first, second = scores_of_round(Rounds(TablePayer(values), num_first=8), ORDERINGS[:2])
        assert first[2] == -1.0
        assert mean(first) == mean(second) == 2.5 / 8
        favoring = Rounds(TablePayer(values), num_first=8, favored=ORDERINGS[0])
        first, _ = scores_of_round(favoring, ORDERINGS[:2])
        assert first == {e: 0.5 for e in range(8) if e != 2}

    def test_an_ordering_that_always_fails_gets_the_worst_score(self):
        values = table()
        values[[1, 2]] = np.nan
        scores = Rounds(TablePayer(values), num_first=10)
        scores_of_round(scores, ORDERINGS[:1])
        assert mean(scores_of_round(scores, ORDERINGS[2:3])[0]) == 0.0


class TestBudgets:
    """Budgets of calls. Recalled calls use up a budget like new calls."""

    def scorer(self, *, max_calls, log=None):
        payer = TablePayer(table(), log)
        payer.budget.max_calls = max_calls
        return Evaluator(payer)

    @pytest.mark.parametrize(
        ("max_calls", "reserved", "count"),
        [(7, 0, 0), (8, 0, 1), (8, 1, 0), (17, 1, 2), (23, 0, 2), (24, 0, 3)],
    )
    def test_affordable_candidates_leave_the_reserved_calls(self, max_calls, reserved, count):
        wanted = {ordering: list(range(8)) for ordering in ORDERINGS[:3]}
        scorer = self.scorer(max_calls=max_calls)
        scorer.begin_phase("search", reserved=reserved)
        assert list(scorer.affordable(wanted)) == ORDERINGS[:count]
        assert len(scorer.evaluate(scorer.affordable(wanted))) == count

    def test_unscored_calls_count(self):
        scorer = self.scorer(max_calls=12)
        scorer.evaluate({ORDERINGS[0]: range(4)})
        other = TablePayer(table(), scorer.log)
        key, _ = scorer.key(ORDERINGS[1], 0)
        assert len(scorer.call_unscored(other, {(key, 7): ORDERINGS[1]})) == 1
        assert scorer.num_calls() == scorer.num_calls("search") == 5
        assert len(scorer.records_asked()) == 4

    def test_recalled_calls_count_for_the_phase_that_requests_them(self, tmp_path):
        """In a resumed run, each phase ends after the same calls as in an uninterrupted run."""
        log = RunLog(tmp_path / "calls.jsonl")
        TablePayer(table(), log).pay([("0", example) for example in range(8)])
        log.close()
        scorer = self.scorer(max_calls=12, log=RunLog(tmp_path / "calls.jsonl"))
        assert scorer.num_calls() == 0
        assert scorer.log.num_calls == 0
        scorer.begin_phase("search", reserved=4)
        assert not scorer.affordable({ORDERINGS[0]: range(9)})
        assert scorer.affordable({ORDERINGS[0]: range(8)})
        scorer.begin_phase("search", reserved=5)
        assert not scorer.affordable({ORDERINGS[0]: range(8)})
        scorer.evaluate({ORDERINGS[0]: range(8)})
        scorer.begin_phase("race")
        scorer.evaluate({ORDERINGS[0]: range(10)})
        assert scorer.num_calls("search") == 8
        assert scorer.num_calls("race") == 2
        assert scorer.log.num_recalled == 8
        assert scorer.payer.paid == [(0, 8), (0, 9)]
        assert scorer.affordable({ORDERINGS[0]: range(12)})
        assert not scorer.affordable({ORDERINGS[0]: range(13)})
        wanted = {ORDERINGS[0]: range(10, 12), ORDERINGS[1]: range(1)}
        assert ORDERINGS[1] not in scorer.affordable(wanted)
        scorer.log.close()
