"""Program calls and their scores: paid calls, errors, and the values that a metric may return."""

import asyncio
import itertools
import logging
import threading
from contextlib import nullcontext

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import AdapterParseError
from fakes import (
    OrderSensitiveEngine,
    Program,
    chat_response,
    exact_match,
    questions,
    scored,
    student,
    using,
)

from plr_dspy import evaluate_programs
from plr_dspy.metrics.by_example import as_score
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import RunLog, error_counts

EXAMPLES = questions(40)
NAMES = [f"example {i}" for i in range(40)]
IDENTITY = ((0, 1, 2),)
REVERSED = ((2, 1, 0),)


def scorer(program=None, *, metric=exact_match, **options):
    """Return a scorer for "question 10" and all later questions. By default, the program has three demos."""
    program = program or student(3)
    work = MetricWork(metric, EXAMPLES[10:])
    options = {"num_threads": 4, **options}
    if "log" in options:
        options["log"].number_examples(NAMES)
    return Evaluator(ProgramEvaluator(ProgramSlots(program), work, names=NAMES, **options))


def errors_of(cells):
    return error_counts(cells.log.records.items(), NAMES)


class TestCells:
    def test_scores_equal_those_of_dspy_evaluate(self, engine):
        (score,) = scored(scorer(), [REVERSED], range(30))
        options = {"metric": exact_match, "display_progress": False}
        evaluate = dspy.Evaluate(devset=EXAMPLES[10:], **options)
        reversed_student = student(student(3).demos[::-1])
        assert round(100 * score, 2) == evaluate(reversed_student).score < 100

    def test_the_program_stays_unchanged_and_the_settings_of_the_caller_reach_the_workers(self, engine):
        def ask(self, question):
            seen.append(dspy.settings.get("tenant"))
            return self.predict(question=question)

        seen = []
        program = Program(ask, predict=student(3))
        with dspy.context(trace=[], tenant="a"):
            scored(scorer(program), [REVERSED], range(5))
            assert dspy.settings.trace == []
        assert program.predict.demos == student(3).demos
        assert seen == ["a"] * 5

    def test_calls_run_concurrently_or_in_the_main_thread_if_num_threads_is_one(self, engine):
        """Calls with one thread stay in the caller's thread: a database connection may work only there."""
        meeting = threading.Barrier(4)

        def meets(example, prediction):
            return meeting.wait(10) >= 0

        def is_in_main_thread(example, prediction):
            return threading.current_thread() is threading.main_thread()

        cells = scorer(metric=meets, num_threads=4)
        assert scored(cells, [IDENTITY], range(8)) == [1.0]
        cells = scorer(metric=is_in_main_thread, num_threads=1)
        assert scored(cells, [IDENTITY], range(3)) == [1.0]


def failing(errors):
    """Return a metric that raises these errors. Their keys are the numbers in the questions."""

    def metric(example, prediction):
        if error := errors.get(int(example.question.split()[1])):
            raise error
        return True

    return metric


class TestErrors:
    def test_a_failed_call_lowers_the_score_of_its_ordering(self, engine):
        """Otherwise, an order that fails on hard examples would score better than an order that answers them."""

        def metric(example, prediction):
            calls.append(example.question)
            if example.question == "question 12" and calls.count("question 12") == 1:
                raise TimeoutError("late")
            return True

        calls = []
        cells = scorer(metric=metric, num_threads=1)
        assert scored(cells, [IDENTITY, REVERSED], range(6)) == [5 / 6, 1.0]
        assert cells.records_of(IDENTITY)[2].score is None
        (error,) = errors_of(cells)
        assert error.type == "TimeoutError"
        assert error.outcome == "not scored"
        assert error.count == 1
        assert error.examples == ["example 2"]
        assert len(cells.log.tokens) == 12

    def test_an_unparsable_answer_gets_the_worst_score_among_the_scored_examples(self):
        """Scores from the final comparison must not change the scores of the search."""

        def metric(example, prediction):
            return -5.0 if example.question == "question 20" else 1.0

        engine = OrderSensitiveEngine({}, mumbles=lambda texts: "question 10" in texts[-1])
        with using(engine):
            cells = scorer(metric=metric)
            assert scored(cells, [IDENTITY], [10]) == [-5.0]
            assert scored(cells, [IDENTITY], range(4)) == [3 / 4]
            assert scored(cells, [IDENTITY], [0, 10]) == [-5.0]

    def test_an_example_that_always_fails_is_one_failure_and_is_omitted_for_all_orderings(self, engine):
        """An example that fails for every order is counted only once, so that it does not end the run."""
        orderings = [IDENTITY, REVERSED, ((1, 0, 2),), ((1, 2, 0),)]
        metric = failing(dict.fromkeys((12, 15), ZeroDivisionError("boom")))
        cells = scorer(metric=metric, max_errors=3, num_threads=1)
        examples, rows = cells.table(orderings, range(10))
        assert examples == [0, 1, 3, 4, 6, 7, 8, 9]
        assert [len(row) for row in rows] == [8] * 4
        assert errors_of(cells)[0].count == 8

    @pytest.mark.parametrize(("of_so_many", "num_calls"), [(25, 720), (14, 140)])
    def test_one_call_in_twenty_may_fail_if_this_exceeds_the_limit_of_dspy(
        self, engine, of_so_many, num_calls
    ):
        """A run with 1,000 calls must not end at its tenth failure."""
        calls = itertools.count(1)

        def metric(example, prediction):
            return 1 / (next(calls) % of_so_many > 0)

        cells = scorer(student(4), metric=metric, num_threads=1)
        orderings = [(order,) for order in itertools.permutations(range(4))]
        ends = nullcontext() if num_calls == 720 else pytest.raises(ZeroDivisionError)
        with ends:
            cells.table(orderings, range(30))
        assert engine.num_calls == num_calls

    @pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit])
    def test_exceptions_that_would_end_the_process_are_failures_of_a_call(self, engine, error):
        metric = failing({12: error("bye")})
        cells = scorer(metric=metric, max_errors=2)
        examples, _ = cells.table([IDENTITY], range(6))
        assert examples == [0, 1, 3, 4, 5]
        assert errors_of(cells)[0].type == error.__name__
        cells = scorer(metric=metric, max_errors=1)
        message = f"raised {error.__name__}: in the metric: bye"
        with pytest.raises(RuntimeError, match=message):
            scored(cells, [IDENTITY], range(6))

    def test_an_unparsable_answer_is_wrong_but_an_unparsable_verdict_of_a_judge_is_a_failure(self):
        with using(OrderSensitiveEngine({}, mumbles=lambda texts: True)):
            cells = scorer(max_errors=1)
            examples, rows = cells.table([IDENTITY], range(5))
        assert examples == list(range(5))
        assert rows == [[0.0] * 5]
        (error,) = errors_of(cells)
        assert error.type == "AdapterParseError"
        assert error.outcome == "counted as wrong"
        assert error.count == 5

        error = AdapterParseError("Judge", dspy.Signature("a -> b"), "no verdict")
        cells = scorer(metric=failing(dict.fromkeys(range(40), error)), max_errors=3)
        with using(OrderSensitiveEngine({})), pytest.raises(AdapterParseError):
            scored(cells, [IDENTITY], range(10))

    def test_error_messages_with_invalid_unicode_are_saved(self, engine, tmp_path):
        metric = failing({12: ValueError("unknown label \ud83d")})
        cells = scorer(metric=metric, log=RunLog(tmp_path / "calls.jsonl"))
        scored(cells, [IDENTITY], range(6))
        messages = {error.type: error.message for error in errors_of(cells)}
        assert messages["ValueError"] == "in the metric: unknown label \\ud83d"
        cells.log.close()

    def test_keys_of_models_in_a_metric_are_hidden_even_if_a_message_is_truncated(self, engine, caplog):
        class Judging:
            def __init__(self):
                self.judges = {"first": [dspy.LM("openai/x", api_key="plain words")]}
                self.module = dspy.ChainOfThought("answer -> verdict")
                self.module.set_lm(dspy.LM("openai/x", api_key="other words"))

            def __call__(self, example, prediction):
                raise LookupError("x" * 185 + "plain words, other words")

        cells = scorer(metric=Judging())
        with pytest.raises(RuntimeError, match="1 of 1 call failed"):
            scored(cells, [IDENTITY], [0])
        (error,) = errors_of(cells)
        assert error.message in caplog.text
        assert error.message == "in the metric: " + "x" * 185 + "[hidden], [hid…"


NO_NUMBERS = [None, {"score": 1.0}, "1.0", [1.0], np.zeros(2), dspy.Prediction(other=1), object()]


class TestMetric:
    @pytest.mark.parametrize("number", [True, 0.123456789, np.float32(0.5), np.bool_(True), 1e30])
    def test_may_return_any_kind_of_number(self, number):
        assert as_score(number) == float(number)
        assert as_score(np.array([number])) == float(number)
        prediction = dspy.Prediction(score=number, feedback="good")
        assert as_score(prediction) == float(number)

    @pytest.mark.parametrize("value", NO_NUMBERS)
    def test_must_not_return_other_values(self, value):
        with pytest.raises(TypeError, match="metric must return a number"):
            as_score(value)

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (float("nan"), "finite"),
            (float("inf"), "finite"),
            (10**400, "finite"),
            (1e31, "finite number of at most"),
            (-(10**40), "finite number of at most"),
        ],
    )
    def test_must_not_return_infinite_numbers_or_numbers_whose_square_overflows(self, value, words):
        with pytest.raises(ValueError, match=f"metric must return a .*{words}"):
            as_score(value)


class Terse(OrderSensitiveEngine):
    """An engine whose reply is cut off after 7 tokens if `cut_off` is true for the last message."""

    def __init__(self, cut_off):
        super().__init__({})
        self.cut_off = cut_off

    def complete(self, request):
        is_cut_off = self.cut_off(request.messages[-1].text)
        response = chat_response("[[ ## answer ## ]]\na", finish_reason="length" if is_cut_off else "stop")
        object.__setattr__(response.usage, "output_tokens", 7 if is_cut_off else 5)
        return response


CUT = "LM response was truncated; increase max_tokens or inspect history."


class Messages(logging.Handler):
    """A handler that stores messages. DSPy's messages do not propagate, so `caplog` of pytest 8 misses them."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def messages():
    handler = Messages()
    loggers = [logging.getLogger(name) for name in ("dspy", "plr_dspy")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.lines
    for logger in loggers:
        logger.removeHandler(handler)


def test_repeated_warnings_of_dspy_about_cut_off_replies_are_counted(messages):
    with using(Terse(lambda text: True), max_tokens=7):
        for _ in range(2):
            evaluate_programs({"a": student()}, exact_match, questions(10), display_progress=False)
        assert [line for line in messages if "truncated" in line] == [
            CUT,
            f"10 times in this run: {CUT}",
        ] * 2
        student()(question="after the runs")
        student()(question="again")
    assert messages[-2:] == [CUT, CUT]


def test_each_call_records_whether_the_program_s_reply_was_cut_off_but_not_that_of_a_judge():
    def judge(example, prediction):
        dspy.settings.lm("Is it right?")
        return 1.0

    with using(Terse(lambda text: "question 11" in text or "Is it right?" in text)):
        cells = scorer(metric=judge)
        scored(cells, [IDENTITY], range(4))
        records = cells.records_of(IDENTITY)
    assert [records[example].is_truncated for example in range(4)] == [False, True, False, False]
