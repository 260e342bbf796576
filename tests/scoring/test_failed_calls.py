"""Failed calls in a run log: which of them the next run repeats, and what happens if a limit prevents this."""

import itertools

import pytest
from worlds import ORDERINGS, TablePayer, table

from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, CallRecord, RunLog

ANSWER = CallRecord(1.0)
FAILURE = CallRecord(None, FAILED, "ConnectionError", "down")


def reopened(path, *batches):
    """Log batches of calls as earlier runs would, and return the log as the next run opens it."""
    log = RunLog(path)
    for batch in batches:
        log.begin_batch()
        for name, record in batch:
            log.add((name, 0), record, {})
    log.close()
    return RunLog(path)


@pytest.mark.parametrize("first", list(itertools.permutations([("a", ANSWER), ("b", FAILURE)])))
@pytest.mark.parametrize("second", list(itertools.permutations([("c", ANSWER), ("d", FAILURE)])))
def test_only_failures_of_the_last_batch_are_repeated_in_whatever_order_its_calls_ended(
    first, second, tmp_path
):
    log = reopened(tmp_path / "calls.jsonl", first, second)
    recalled = {name for name in "abcd" if log.recall((name, 0))}
    assert recalled == {"a", "b", "c"}
    log.close()


@pytest.mark.parametrize("first", list(itertools.permutations([("a", ANSWER), ("b", FAILURE)])))
def test_all_failures_since_the_last_batch_with_an_answer_are_repeated(first, tmp_path):
    log = reopened(tmp_path / "calls.jsonl", first, [("c", FAILURE)], [("d", FAILURE)])
    recalled = {name for name in "abcd" if log.recall((name, 0))}
    assert recalled == {"a"}
    log.close()


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_failed_call_that_no_limit_allows_to_repeat_counts_as_failed(most, tmp_path):
    path = tmp_path / "calls.jsonl"
    earlier = Evaluator(TablePayer(table(broken=[1, 2]), RunLog(path)))
    earlier.evaluate({ORDERINGS[0]: range(4)})
    earlier.log.close()
    payer = TablePayer(table(), RunLog(path))
    payer.most = most
    (records,) = Evaluator(payer).evaluate({ORDERINGS[0]: range(4)}).values()
    assert len(payer.paid) == most
    assert [records[example].outcome for example in (0, 3)] == ["", ""]
    assert sum(record.outcome == FAILED for record in records.values()) == 2 - most
    payer.log.close()
