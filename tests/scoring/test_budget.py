"""Calls, money and time are set aside before a call, so that no limit is passed whatever is under way."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from plr_dspy.scoring.budget import CALL_LIMIT, COST_LIMIT, MARGIN, TIME_LIMIT, Budget
from plr_dspy.scoring.ledger import Cell, Ledger


def tokens(dollars):
    return {"model": {"prompt_tokens": dollars}}


@pytest.fixture(autouse=True)
def price(monkeypatch):
    def cost_of(counts):
        return sum(kinds["prompt_tokens"] for kinds in counts.values())

    monkeypatch.setattr("plr_dspy.scoring.budget.cost_of", cost_of)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: now[0])
    return now


def begun(budget):
    return sum(budget.begin() for _ in range(30))


def made(ledger, *dollars):
    for number, each in enumerate(dollars):
        ledger.add((f"order {len(ledger.paid)}", number), Cell(1.0), tokens(each))


@pytest.fixture
def resumed(tmp_path):
    """Make a ledger that has paid for calls at these prices in an earlier part."""
    ledgers = []

    def resume(*dollars):
        for _ in range(2):
            ledgers.append(Ledger(tmp_path / "cells.jsonl"))
            made(ledgers[-1], *(dollars if len(ledgers) == 1 else ()))
        ledgers[0].close()
        return ledgers[-1]

    yield resume
    for ledger in ledgers:
        ledger.close()


class TestMoney:
    def test_of_calls_under_way_is_set_aside(self):
        budget = Budget(max_cost=10, expected=1)
        assert (begun(budget), budget.refused) == (10, COST_LIMIT)
        budget.end({})  # not made after all
        assert budget.needs_one
        for _ in range(9):
            budget.end(tokens(0))  # free, as from a cache
        assert (begun(budget), budget.needs_one) == (10, False)
        budget.end({})
        assert begun(budget) == 1

    def test_a_call_may_cost_what_the_dearest_did(self):
        budget = Budget(max_cost=101)
        for dollars in (50, 1, 1):
            assert budget.begin()
            budget.end(tokens(dollars))
        assert budget.cost == 52
        assert not budget.begin()
        assert budget.calls_left == 0

    def test_is_never_passed_by_threads(self):
        budget, waiting = Budget(max_cost=97, expected=3), threading.Event()

        def work():
            while budget.begin():
                waiting.wait(0.0005)
                budget.end(tokens(3))

        with ThreadPoolExecutor(16) as pool:
            for worker in [pool.submit(work) for _ in range(16)]:
                worker.result()
        assert budget.cost == 96

    @pytest.mark.parametrize("earlier", [[5], [5, 5, 5], [1, 9, 4], [0, 0, 7]])
    def test_earlier_calls_count_and_tell_what_those_to_come_cost(self, resumed, earlier):
        budget = Budget(resumed(*earlier), max_cost=1000, expected=3)
        paid = [dollars for dollars in earlier if dollars]
        assert (len(budget.ledger.paid), budget.cost, budget.dearest) == (len(earlier), sum(paid), max(paid))
        mean = sum(paid) / len(paid)
        assert budget.calls_left == int((1000 - sum(paid) - max(paid)) / (MARGIN * mean))

    def test_a_model_without_a_price_lets_no_further_call_begin(self, monkeypatch):
        monkeypatch.setattr("plr_dspy.scoring.budget.cost_of", lambda _: None)
        budget = Budget(max_cost=1.0)
        assert (budget.begin(), budget.unpriced) == (True, "")
        budget.end(tokens(1))
        assert (budget.begin(), budget.unpriced) == (False, "a price for model")

    def test_the_first_call_that_is_paid_for_says_more_than_what_was_expected(self):
        budget = Budget(max_cost=10, expected=5)
        assert budget.begin()
        budget.end(tokens(1))
        assert (budget.dearest, begun(budget)) == (1, 9)


class TestTimeAndCalls:
    def test_the_pace_is_that_of_the_calls_of_this_part(self, clock, resumed):
        """What an earlier part paid for took none of this one's time."""
        budget = Budget(ledger := resumed(*[0] * 500), max_seconds=1000)
        made(ledger, *[0] * 10)
        clock[0] = 30.0
        assert budget.calls_left == int(970 / 3 / MARGIN)
        budget.expect(None)  # Now others come, as the student's after a teacher's.
        made(ledger, 0)
        clock[0] = 40.0
        assert budget.calls_left == int(960 / 10 / MARGIN)

    @pytest.mark.parametrize(("kept", "seconds"), [(10, 100 * MARGIN), (1_000, 600)])
    def test_a_phase_leaves_time_to_calls_that_have_become_slow(self, clock, kept, seconds):
        """But not most of it."""
        budget, number = Budget(ledger := Ledger(), max_seconds=1000), 0
        budget.allow(1.0, kept=kept)
        while budget.begin():
            clock[0] += 1 if number < 100 else 10
            made(ledger, 0)
            budget.end(tokens(0))
            number += 1
        assert (number, budget.refused) == (100 + math.ceil((900 - seconds) / 10), TIME_LIMIT)
        assert budget.calls_left == int((1000 - clock[0]) / (10 * MARGIN))

    @pytest.mark.parametrize("slow", [0, 50])
    def test_one_call_that_stalls_says_nothing_of_those_to_come(self, clock, slow):
        budget, number = Budget(ledger := Ledger(), max_seconds=300), 0
        budget.allow(1.0, kept=24)
        while budget.begin():
            clock[0] += 130 if number == slow else 1
            made(ledger, 0)
            budget.end(tokens(0))
            number += 1
        assert number == 1 + math.ceil(300 - 130 - 24 * MARGIN)

    def test_a_phase_may_use_a_share_of_money_and_time(self, clock):
        budget = Budget(max_cost=10, max_seconds=10, expected=1)
        budget.allow(0.5)
        assert (begun(budget), budget.refused) == (5, COST_LIMIT)
        budget.allow(0.8)
        assert budget.refused == ""
        clock[0] = 8.0
        assert (begun(budget), budget.refused) == (0, TIME_LIMIT)
        budget.allow(1.0)
        assert begun(budget) == 5

    def test_those_left_are_of_the_scarcest_limit(self, clock):
        ledger = Ledger()
        budget = Budget(ledger, expected=1, max_calls=100, max_cost=400, max_seconds=1000)
        assert budget.calls_left == 100
        for _ in range(10):
            assert budget.begin()
            budget.end(tokens(5))
        made(ledger, *[0] * 10)
        clock[0] = 20.0
        assert budget.calls_left == int(345 / 5 / MARGIN) == 60
        clock[0] = 500.0
        assert budget.calls_left == int(500 / 50 / MARGIN) == 8
        made(ledger, *[0] * 88)
        clock[0] = 600.0
        assert budget.calls_left == 2

    def test_calls_under_way_count_and_without_a_limit_all_begin(self):
        budget = Budget(max_calls=7)
        assert (begun(budget), budget.refused) == (7, CALL_LIMIT)
        assert begun(Budget()) == 30
        assert Budget().calls_left == Budget().max_calls > 10**9
