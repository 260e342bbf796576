"""Calls, money and time are set aside before a call, so that no limit is passed whatever is under way."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from plr_dspy.scoring.budget import COST_LIMIT, MARGIN, TIME_LIMIT, Budget
from plr_dspy.scoring.cells import Cell
from plr_dspy.scoring.ledger import Ledger


def tokens(dollars):
    return {"model": {"prompt_tokens": dollars}}


def price(counts):
    return sum(kinds["prompt_tokens"] for kinds in counts.values())


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: now[0])
    return now


def made(ledger, count):
    """Note so many calls."""
    for number in range(count):
        ledger.add((f"order {ledger.calls}", number), Cell(1.0), {})


class TestMoney:
    def test_of_calls_under_way_is_set_aside(self):
        budget = Budget(max_cost=10, price=price, expected=1)
        assert sum(budget.begin() for _ in range(30)) == 10
        assert budget.refused == COST_LIMIT
        for _ in range(10):
            budget.end(tokens(0))  # free, as from a cache
        assert sum(budget.begin() for _ in range(30)) == 10

    def test_a_call_may_cost_what_the_dearest_did(self):
        budget = Budget(max_cost=101, price=price)
        for dollars in (50, 1, 1):
            assert budget.begin()
            budget.end(tokens(dollars))
        assert budget.cost == 52
        assert not budget.begin()
        assert budget.calls_left == 0

    def test_a_call_that_was_not_made_gives_its_money_back(self):
        budget = Budget(max_cost=1.5, price=price, expected=1)
        assert budget.begin()
        assert not budget.begin()
        budget.cancel()
        assert budget.begin()

    @pytest.mark.parametrize("num_threads", [1, 4, 16])
    def test_is_never_passed_at_any_number_of_threads(self, num_threads):
        budget, waiting = Budget(max_cost=97, price=price, expected=3), threading.Event()

        def work():
            while budget.begin():
                waiting.wait(0.0005)
                budget.end(tokens(3))

        with ThreadPoolExecutor(num_threads) as pool:
            for worker in [pool.submit(work) for _ in range(num_threads)]:
                worker.result()
        assert budget.cost == 96

    def test_that_a_ledger_has_spent_counts(self, tmp_path):
        ledger = Ledger(tmp_path / "cells.jsonl")
        for example in range(3):
            ledger.add(("order", example), Cell(1.0), tokens(4))
        ledger.close()
        again = Ledger(tmp_path / "cells.jsonl")
        budget = Budget(again, max_cost=14, price=price)
        assert (budget.cost, budget.calls) == (12, 3)
        assert not budget.begin()
        again.close()

    def test_free_calls_never_end_it(self):
        budget = Budget(max_cost=1.0, price=lambda _: 0.0, expected=0.0)
        for _ in range(1000):
            assert budget.begin()
            budget.end(tokens(1))

    def test_a_model_without_a_price_lets_no_further_call_begin(self):
        budget = Budget(max_cost=1.0, price=lambda _: None)
        assert budget.begin()
        budget.check()
        budget.end(tokens(1))
        assert not budget.begin()
        with pytest.raises(ValueError, match="max_cost needs a price for model"):
            budget.check()


class TestTime:
    def test_no_call_begins_when_it_is_up(self, clock):
        budget = Budget(max_seconds=10)
        clock[0] = 9.9
        assert budget.begin()
        clock[0] = 10.0
        assert not budget.begin()
        assert budget.refused == TIME_LIMIT

    def test_the_pace_is_that_of_the_calls_of_this_part(self, clock, tmp_path):
        """What an earlier part paid for took none of this one's time."""
        ledger = Ledger(tmp_path / "cells.jsonl")
        made(ledger, 500)
        ledger.close()
        again = Ledger(tmp_path / "cells.jsonl")
        budget = Budget(again, max_seconds=1000)
        made(again, 10)
        clock[0] = 30.0
        assert budget.calls_left == int(970 / 3 / MARGIN)
        again.close()


class TestPhases:
    def test_may_use_a_share_of_money_and_time(self, clock):
        budget = Budget(max_cost=10, max_seconds=10, price=price, expected=1)
        budget.allow(0.5)
        assert sum(budget.begin() for _ in range(30)) == 5
        assert budget.refused == COST_LIMIT
        budget.allow(0.8)
        assert budget.refused == ""
        clock[0] = 8.0
        assert not budget.begin()
        assert budget.refused == TIME_LIMIT
        budget.allow(0.8, seconds=1.0)
        assert sum(budget.begin() for _ in range(30)) == 3


class TestCalls:
    def test_those_left_are_of_the_scarcest_limit(self, clock):
        ledger = Ledger()
        limits = {"max_calls": 100, "max_cost": 400, "max_seconds": 1000}
        budget = Budget(ledger, price=price, expected=1, **limits)
        assert budget.calls_left == 100
        for _ in range(10):
            assert budget.begin()
            budget.end(tokens(5))
        made(ledger, 10)
        clock[0] = 20.0
        assert budget.calls == 10
        assert budget.calls_left == int(345 / 5 / MARGIN) == 60
        clock[0] = 500.0
        assert budget.calls_left == int(500 / 50 / MARGIN) == 8
        made(ledger, 88)
        clock[0] = 600.0
        assert budget.calls_left == 2

    def test_without_a_limit_all_begin(self):
        budget = Budget()
        assert all(budget.begin() for _ in range(1000))
        assert budget.calls_left == budget.limit > 10**9
