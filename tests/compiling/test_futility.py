"""Compile runs that make few calls, because no improvement can be found or the search ends early."""

import itertools
import re
from dataclasses import replace

import dspy
import pytest
from fakes import Program, digest, engine_for, exact_match, order_share, questions, student, using
from worlds import TablePayer

from plr_dspy import PLReorder
from plr_dspy.compiling.futility import FutilityCheck
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord

EXAMPLES = questions(120)


def compile_with(engine, metric=exact_match, program=None, **options):
    optimizer = PLReorder(metric, num_threads=4, display_progress=False, **options)
    with using(engine):
        return optimizer, optimizer.compile(program or student(), trainset=EXAMPLES)


def engine(share=0.0):
    """Return a model that gives unparsable replies to a fraction `share` of the questions."""
    return engine_for(EXAMPLES, mumbles=lambda texts: digest(texts[-1]) < share)


def test_a_warning_is_logged_if_most_answers_cannot_be_parsed(caplog):
    _, compiled = compile_with(engine(share=0.7), max_metric_calls=300)
    assert "Well, let me see" in caplog.text
    assert caplog.text.count("answers could not be parsed") == 1
    assert compiled.reorder_report["program_calls"]["total"] > 200


class TestEnoughCalls:
    """The number of calls that the futility check needs to reach a conclusion."""

    def said(self, cells, *, num_train=1_000, **options):
        payer = TablePayer(None)
        for key, score in cells.items():
            record = score if isinstance(score, CallRecord) else CallRecord(score)
            payer.log.add(key, record, {})
        evaluator = Evaluator(payer, bootstrapped=cells)
        return FutilityCheck(evaluator, num_train, **options).check()

    @pytest.mark.parametrize(("number", "said"), [(59, ""), (60, "every score was 1 in 60 calls")])
    def test_enough_equal_scores_stop_the_search(self, number, said):
        # Failed calls are ignored, because they have no score.
        failed = {("order", number): CallRecord(None, FAILED)}
        assert self.said({("order", example): 1.0 for example in range(number)} | failed) == said

    def test_the_reason_mentions_several_failed_calls(self):
        cells = {("order", example): 1.0 for example in range(60)}
        failed = {
            ("order", 60 + number): CallRecord(None, FAILED, "MetricError", "got None")
            for number in range(5)
        }
        expected = "every score was 1 in 60 calls, and 5 calls failed (MetricError: got None)"
        assert self.said(cells | failed) == expected

    @pytest.mark.parametrize(
        ("number", "said"), [(124, ""), (125, "no score differed between two prompts")]
    )
    def test_enough_equal_pairs_stop_the_search(self, number, said):
        """On each example, all three orders have the same score."""
        cells = {}
        for ordering in ("order 0", "order 1", "order 2"):
            cells |= {(ordering, example): example % 2 for example in range(number)}
        reason = self.said(cells)
        assert reason.startswith(said)
        assert bool(reason) == bool(said)
        cells["order 0", 0] = 1
        assert not self.said(cells)

    def test_unparsable_answers_raise_an_error(self):
        """One parsable answer may be chance, but a second one of the same order lets the run continue."""
        orderings = ["order 0", "order 1", "order 2", "order 3"]
        cells = itertools.product(orderings, range(10))
        unread = dict.fromkeys(cells, CallRecord(None, WRONG))
        message = "40 of 41 answers could not be parsed"
        with pytest.raises(RuntimeError, match=message):
            self.said({**unread, ("good", 0): 1.0})
        assert self.said({**unread, ("good", 0): 1.0, ("good", 1): 0.0}) == ""
        by_labels = replace(CallRecord(None, WRONG), label_logprobs=(-1.0, -0.5))
        assert self.said(dict.fromkeys(unread, by_labels)) == ""

    def test_calls_on_the_selection_split_are_ignored(self):
        assert self.said({("order", example): 1.0 for example in range(80)}, num_train=59) == ""


class TestNothingToFind:
    @pytest.mark.parametrize("seed", range(2))
    def test_the_original_order_is_kept_if_no_score_differs(self, seed):
        by_question = lambda example, prediction: digest(example.question)  # noqa: E731
        optimizer, compiled = compile_with(engine(), by_question, seed=seed, max_metric_calls=200)
        assert compiled.demos == student().demos
        assert "is kept" in str(optimizer.report)

    def test_a_program_that_ignores_its_demos_stops_early(self, caplog):
        def answer(self, question):
            return dspy.Prediction(answer=f"answer {int(question[-1]) % 2}")

        deaf = Program(answer, predict=student())
        optimizer, _ = compile_with(engine(), program=deaf)
        assert optimizer.report.program_calls["total"] < 500
        assert "no score differed between two prompts" in caplog.text
        assert optimizer.report.evidence.num_differing == 0


@pytest.fixture(scope="module")
def whole():
    return compile_with(engine(), max_metric_calls=500)[0].report


@pytest.mark.parametrize(
    ("options", "stopped"),
    [
        ({"patience": 1}, "patience=1: no better order"),
        ({"stop_at_score": 0.0}, "stop_at_score=0 reached"),
        ({"num_iterations": 1}, "all iterations done"),
    ],
)
def test_race_and_comparison_shrink_if_the_search_ends_early(whole, options, stopped):
    ended, _ = compile_with(engine(), max_metric_calls=500, **options)
    assert ended.report.stopped == stopped
    before = whole.program_calls
    after = ended.report.program_calls
    assert before["total"] > 475
    assert after["total"] < 0.75 * before["total"]
    share = after["search"] / before["search"]
    for phase in ("race", "final"):
        assert after[phase] <= share * before[phase] + 20


@pytest.mark.parametrize("without", [True, False])
def test_a_student_without_demos_gets_demos_only_if_they_help(without):

    def share(system, demos, asked):
        """Return 1 if the prompt has the preferred kind, which has demos or none."""
        return order_share(system, demos, asked) if bool(demos) == without else 1.0

    model = engine_for(EXAMPLES, share=share)
    program = dspy.Predict("question -> answer")
    optimizer, compiled = compile_with(model, program=program, max_metric_calls=200)
    report = optimizer.report
    assert len(compiled.demos) == (0 if without else 8)
    assert (report.comparison.original == 1.0) == without
    assert report.candidates[0].ordering == {"self": []}
    for text in (str(report), repr(report)):
        assert ("your program is kept" in text) == without
    shown = re.findall(r"  demo (\d): ", report.details())
    # The details list the demos in the chosen order.
    assert list(map(int, shown)) == report.slots[0].ordering
    assert len(shown) == len(compiled.demos)
    assert f"{len(shown) or 'none'} of 8 demos" in report.details()
    report.plot()
    assert not program.demos
