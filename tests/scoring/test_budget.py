"""Limits on calls, cost and time, which are checked before each call."""

import pytest

from plr_dspy.report.stop import StopReason
from plr_dspy.scoring.budget import MARGIN, Budget
from plr_dspy.scoring.run_log import CallRecord, RunLog


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


def make(budget, *dollars):
    """Make calls at these prices while the budget allows it, and return the number of calls made."""
    for num_made, cost in enumerate(dollars):
        if not budget.begin():
            return num_made
        budget.log.add((f"order {budget.log.num_calls}", 0), CallRecord(1.0), tokens(cost))
        budget.end(tokens(cost))
    return len(dollars)


@pytest.fixture
def resumed(tmp_path):
    """Yield a function that makes calls at given prices and returns a log that can recall these calls."""
    logs = []

    def resume(*dollars):
        logs.append(RunLog(tmp_path / "calls.jsonl"))
        make(Budget(logs[-1]), *dollars)
        logs[-1].close()
        logs.append(RunLog(tmp_path / "calls.jsonl"))
        return logs[-1]

    yield resume
    for log in logs:
        log.close()


class TestCost:
    def test_running_calls_are_reserved(self):
        budget = Budget(max_cost=10, expected_cost=1)
        assert begun(budget) == 10
        assert budget.limit_reached == StopReason.COST
        budget.end({})  # The model was not called.
        assert budget.needs_one
        for _ in range(9):
            budget.end(tokens(0))  # Like a cached reply, this call costs nothing.
        assert (begun(budget), budget.needs_one) == (10, False)
        budget.end({})
        assert begun(budget) == 1

    def test_the_largest_cost_so_far_is_reserved_for_each_call(self):
        budget = Budget(max_cost=101)
        assert make(budget, 50, 1, 1, 1) == 3
        assert budget.cost == 52
        assert budget.estimated_calls_left == 0

    def test_more_is_reserved_for_long_examples_only(self):
        budget = Budget(max_cost=10, expected_cost=1, extra_costs={7: 4})
        assert budget.begin(7)
        assert begun(budget) == 5
        for _ in range(5):
            budget.end(tokens(0))
        budget.end(tokens(5), 7)
        assert (budget.cost, budget.largest_cost) == (5, 1)
        assert budget.begin(7)
        assert not budget.begin()

    @pytest.mark.parametrize("earlier", [[5], [5, 5, 5], [1, 9, 4], [0, 0, 7]])
    def test_recalled_calls_count_and_predict_later_costs(self, resumed, earlier):
        budget = Budget(resumed(*earlier), max_cost=1000, expected_cost=3)
        for number in range(len(earlier)):
            assert budget.recall((f"order {number}", 0))
            assert not budget.recall((f"order {number}", 0))
        paid = [dollars for dollars in earlier if dollars]
        assert budget.log.num_calls == len(earlier)
        assert budget.cost == sum(paid)
        assert budget.largest_cost == max(paid)
        mean = sum(paid) / len(paid)
        assert budget.estimated_calls_left == int((1000 - sum(paid) - max(paid)) / (MARGIN * mean))

    def test_the_limit_includes_the_cost_of_earlier_runs(self, resumed):
        budget = Budget(resumed(*[10] * 7), max_cost=100, expected_cost=10)
        assert make(budget, *[10] * 9) == 3
        assert budget.cost == 30
        assert budget.limit_reached == StopReason.COST

    @pytest.mark.parametrize(("expected", "largest", "number"), [(None, 1, 9), (3, 3, 3)])
    def test_later_calls_may_cost_more_than_a_cheap_first_call(self, expected, largest, number):
        """Without an expected cost, later calls are assumed to cost as much as the first call."""
        budget = Budget(max_cost=10, expected_cost=expected)
        make(budget, 1)
        assert (budget.largest_cost, begun(budget)) == (largest, number)


class TestTimeAndCalls:
    def test_the_time_per_call_is_measured_on_new_calls(self, clock, resumed):
        """Recalled calls take no time, so they must not affect the measured time."""
        budget = Budget(resumed(*[0] * 500), max_seconds=1000)
        for number in range(500):
            budget.recall((f"order {number}", 0))
        assert make(budget, *[0] * 10) == 10
        clock[0] = 30.0
        assert budget.estimated_calls_left == int(970 / 3 / MARGIN)
        # Reset the estimates, as between a teacher's calls and the student's calls.
        budget.expect(None)
        make(budget, 0)
        clock[0] = 40.0
        assert budget.estimated_calls_left == int(960 / 10 / MARGIN)

    def test_the_first_of_parallel_calls_to_end_does_not_end_the_search(self, clock, resumed):
        """A call takes 15 seconds, and two run at a time, so this run has time for 40 calls."""
        budget = Budget(resumed(*[0] * 50), max_seconds=300)
        for number in range(50):
            budget.recall((f"order {number}", 0))
        budget.reserve(54, planned=200)
        assert budget.begin()
        assert budget.begin()
        clock[0] = 15.0
        budget.end({})
        assert budget.begin()
        assert budget.estimated_calls_left == int(285 / (15 / (1 + 2 * 0.5)) / MARGIN)

    @pytest.mark.parametrize(
        ("reserved", "planned", "num_made"),
        [
            (100, 0, 1000 - int(100 * MARGIN)),
            (250, 2_000, 859),  # An eighth of the affordable calls is reserved: 250 / 2,000.
        ],
    )
    def test_a_search_leaves_time_for_later_calls(self, clock, reserved, planned, num_made):
        budget = Budget(max_seconds=1000)
        budget.reserve(reserved, planned=planned)
        number = 0
        while make(budget, 0):
            clock[0] += 1.0
            number += 1
        assert number == pytest.approx(num_made, abs=3)
        assert budget.limit_reached == StopReason.TIME
        budget.reserve(0)
        assert budget.limit_reached is None
        assert begun(budget) == 30

    def test_a_search_leaves_money_for_later_calls(self):
        budget = Budget(max_cost=100, expected_cost=1)
        budget.reserve(20)
        number = make(budget, *[1] * 100)
        assert number == pytest.approx(100 - 20 * MARGIN, abs=2)
        assert budget.limit_reached == StopReason.COST
        budget.reserve(0)
        assert make(budget, *[1] * 100) == 100 - number

    def test_a_phase_may_use_a_share_of_the_cost_and_time_limits(self, clock):
        budget = Budget(max_cost=10, max_seconds=10, expected_cost=1)
        budget.share = 0.5
        assert begun(budget) == 5
        assert budget.limit_reached == StopReason.COST
        budget.share = 0.8
        clock[0] = 7.0
        assert begun(budget) == 3
        clock[0] = 8.0
        budget.share = 1.0
        assert begun(budget) == 2
        budget = Budget(max_seconds=10, started=0.0)
        budget.share = 0.8
        assert begun(budget) == 0
        assert budget.limit_reached == StopReason.TIME

    def test_another_model_has_its_own_price_and_share(self, clock):
        budget = Budget(max_cost=100, max_seconds=100, expected_cost=1)
        make(budget, *[1] * 20)
        clock[0] = 10.0
        budget.reserve(50)
        left = budget.estimated_calls_left
        with budget.other_model(share=0.1):
            budget.expect(5)
            assert make(budget, 5, 5, 5) == 2
            assert budget.limit_reached == StopReason.COST
            clock[0] = 20.0
        assert budget.limit_reached is None
        assert budget.cost == 30
        assert budget.largest_cost == 1
        assert left > budget.estimated_calls_left == int((100 - 31) / MARGIN)
        with budget.other_model(share=0.1):
            budget.expect(0)
            clock[0] = 61.0
            assert begun(budget) == 0
            assert budget.limit_reached == StopReason.TIME
        assert begun(budget) > 0

    def test_calls_left_depend_on_the_tightest_limit(self, clock):
        budget = Budget(expected_cost=1, max_calls=100, max_cost=400, max_seconds=1000)
        assert budget.estimated_calls_left == 100
        make(budget, *[5] * 10)
        clock[0] = 20.0
        assert budget.estimated_calls_left == int(345 / 5 / MARGIN) == 60
        clock[0] = 500.0
        assert budget.estimated_calls_left == int(500 / 50 / MARGIN) == 8
        make(budget, *[0] * 88)
        clock[0] = 600.0
        assert budget.estimated_calls_left == 2

    def test_running_calls_count_towards_the_maximum(self):
        budget = Budget(max_calls=7)
        assert begun(budget) == 7
        assert budget.limit_reached == StopReason.BUDGET
        assert begun(Budget()) == 30
        assert Budget().estimated_calls_left == Budget().max_calls > 10**9
