import asyncio
import threading
from collections import Counter

import dspy
import numpy as np
import pytest
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError, LMAuthError
from fakes import OrderSensitiveEngine, chat_response, exact_match, fake_lm, questions, scored

from plr_dspy.programs.calls import as_score, metric_caller
from plr_dspy.programs.evaluator import program_scorer
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.ledger import Ledger

EXAMPLES = questions(40)
NAMES = [f"example {i}" for i in range(40)]


@pytest.fixture
def engine():
    lm, engine = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


def program(num_demos=3):
    student = dspy.Predict("question -> answer")
    student.demos = EXAMPLES[:num_demos]
    return student


def scorer(student=None, *, metric=exact_match, **options):
    student = student or program()
    options = {"examples": EXAMPLES[10:], "num_threads": 4, **options}
    if "ledger" in options:
        options["ledger"].number_examples(NAMES)
    return program_scorer(student, ProgramSlots(student), metric=metric, **options)


REVERSED = ((2, 1, 0),)
IDENTITY = ((0, 1, 2),)


class TestCells:
    def test_scores_are_what_evaluate_finds(self, engine):
        student = program()
        (score,) = scored(scorer(student), [IDENTITY], range(30))
        evaluate = dspy.Evaluate(devset=EXAMPLES[10:], metric=exact_match, display_progress=False)
        assert round(100 * score, 2) == evaluate(student).score

    def test_no_cell_is_paid_twice(self, engine):
        cells = scorer()
        first, second, again = scored(cells, [IDENTITY, REVERSED, IDENTITY], range(5))
        assert first == again != second
        scored(cells, [REVERSED], range(8))
        assert cells.budget.calls == engine.num_calls == 13
        assert set(engine.requests.values()) == {1}

    def test_cells_run_ordering_by_ordering(self):
        seen = []

        class Recorder(OrderSensitiveEngine):
            def complete(self, request):
                seen.append(tuple(message.text for message in request.messages[:-1]))
                return super().complete(request)

        with dspy.context(lm=dspy.LM("fake/x", engine=Recorder({}), cache=False)):
            scored(scorer(num_threads=1), [IDENTITY, REVERSED], range(6))
        assert len(Counter(seen)) == 2
        assert seen == [seen[0]] * 6 + [seen[6]] * 6

    def test_tokens_are_summed_and_cached_answers_bill_none(self, engine):
        cells = scorer()
        scored(cells, [IDENTITY], range(4))
        assert cells.ledger.tokens["fake/order-sensitive"]["completion_tokens"] == 4 * 5

    def test_budget_is_hard(self, engine):
        cells = scorer(max_metric_calls=10)
        scored(cells, [IDENTITY], range(8))
        with pytest.raises(RuntimeError, match="max_metric_calls=10"):
            scored(cells, [REVERSED], range(8))
        assert engine.num_calls == 8

    def test_the_program_is_not_touched_and_traces_do_not_pile_up(self, engine):
        student = program()
        before = list(student.demos)
        with dspy.context(trace=[]):
            scored(scorer(student), [REVERSED], range(5))
            assert dspy.settings.trace == []
        assert student.demos == before

    def test_settings_of_the_caller_reach_the_workers(self, engine):
        seen = set()

        class Asking(dspy.Module):
            def __init__(self):
                super().__init__()
                self.predict = program()

            def forward(self, question):
                seen.add(dspy.settings.get("tenant"))
                return self.predict(question=question)

        with dspy.context(tenant="a"):
            scored(scorer(Asking()), [IDENTITY], range(3))
        assert seen == {"a"}

    def test_calls_run_side_by_side(self, engine):
        meeting = threading.Barrier(4)

        def metric(example, prediction):
            meeting.wait(10)
            return True

        assert scored(scorer(metric=metric, num_threads=4), [IDENTITY], range(8)) == [1.0]

    def test_one_thread_is_the_caller_s(self, engine):
        """To which what a program holds may be bound, such as a connection to a database."""
        metric = lambda example, prediction: threading.current_thread() is threading.main_thread()  # noqa: E731
        assert scored(scorer(metric=metric, num_threads=1), [IDENTITY], range(3)) == [1.0]


class TestErrors:
    def failing_on(self, *questions_):
        def metric(example, prediction):
            if example.question in questions_:
                raise ZeroDivisionError("boom")
            return exact_match(example, prediction)

        return metric

    def failing_once(self, question):
        """Fails the first time it sees a question."""
        calls = []

        def metric(example, prediction):
            calls.append(example.question)
            if example.question == question and calls.count(question) == 1:
                raise TimeoutError("late")
            return True

        return metric

    def test_a_failed_call_counts_against_its_ordering(self, engine):
        """Otherwise an order whose hard examples fail would look better than one that answers them."""
        cells = scorer(metric=self.failing_once("question 12"), num_threads=1)
        assert scored(cells, [IDENTITY, REVERSED], range(6)) == [5 / 6, 1.0]
        assert cells.cell(IDENTITY, 2).score is None
        error = cells.ledger.errors(NAMES)[0]
        assert (error.type, error.outcome, error.count) == ("TimeoutError", "not scored", 1)
        assert error.examples == ["example 2"]
        assert cells.budget.calls == 12

    def test_a_favoured_ordering_loses_nothing_by_failures(self, engine):
        cells = scorer(metric=self.failing_once("question 12"), num_threads=1)
        examples, rows = cells.table([IDENTITY, REVERSED], range(6), favoured=0)
        assert (examples, rows) == (list(range(6)), [[1.0] * 6, [1.0] * 6])

    def test_an_example_that_fails_for_all_counts_for_none(self, engine):
        cells = scorer(metric=self.failing_on("question 12"))
        examples, rows = cells.table([IDENTITY, REVERSED], range(6))
        assert examples == [0, 1, 3, 4, 5]
        assert [len(row) for row in rows] == [5, 5]

    def test_an_unparsable_answer_is_no_better_than_the_worst_for_negative_metrics(self):
        class HalfBabbling(OrderSensitiveEngine):
            def complete(self, request):
                answer = super().complete(request)
                return answer if "question 2" in request.messages[-1].text else chat_response("no fields")

        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=dspy.LM("fake/x", engine=HalfBabbling({}), cache=False), adapter=adapter):
            cells = scorer(metric=lambda example, prediction: -2.0)
            assert scored(cells, [IDENTITY], range(20)) == [-2.0]

    def test_an_unparsable_answer_is_no_worse_for_what_other_examples_score(self):
        """What the final comparison finds must not move the scores of the search."""

        class HalfBabbling(OrderSensitiveEngine):
            def complete(self, request):
                answer = super().complete(request)
                return chat_response("no fields") if "question 10" in request.messages[-1].text else answer

        def metric(example, prediction):
            return -5.0 if example.question == "question 20" else 1.0

        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=dspy.LM("fake/x", engine=HalfBabbling({}), cache=False), adapter=adapter):
            cells = scorer(metric=metric)
            assert scored(cells, [IDENTITY], [10]) == [-5.0]
            assert scored(cells, [IDENTITY], range(4)) == [3 / 4]
            assert scored(cells, [IDENTITY], [0, 10]) == [-5.0]

    def test_an_unparsable_judge_is_a_failure_of_the_metric(self, engine):
        def judge(example, prediction):
            raise AdapterParseError("Judge", dspy.Signature("a -> b"), "no verdict")

        with pytest.raises(AdapterParseError):
            scored(scorer(metric=judge, max_errors=3), [IDENTITY], range(10))

    def test_metrics_may_ask_for_usage(self, engine):
        seen = []

        def metric(example, prediction):
            seen.append(prediction.get_lm_usage())
            return True

        with dspy.context(track_usage=True):
            scored(scorer(metric=metric), [IDENTITY], range(3))
        assert all(usage["fake/order-sensitive"]["completion_tokens"] == 5 for usage in seen)

    def test_a_metric_that_writes_to_examples_leaves_them_alone(self, engine):
        def metric(example, prediction):
            example.answer = "changed"
            return True

        scored(scorer(metric=metric), [IDENTITY], range(5))
        assert "changed" not in {example.answer for example in EXAMPLES}

    @pytest.mark.parametrize("num_threads", [1, 8])
    def test_too_many_failures_end_with_the_failure_itself(self, engine, num_threads):
        metric = self.failing_on(*(f"question {i}" for i in range(10, 40)))
        cells = scorer(metric=metric, max_errors=3, num_threads=num_threads)
        with pytest.raises(ZeroDivisionError, match="boom"):
            scored(cells, [IDENTITY], range(30))
        assert 3 <= engine.num_calls <= 3 + num_threads

    def test_an_example_that_never_runs_is_one_failure(self, engine):
        """As in `dspy.Evaluate`: a broken example does not end the run once it has met many orders."""
        orderings = [IDENTITY, REVERSED, ((1, 0, 2),), ((1, 2, 0),)]
        cells = scorer(metric=self.failing_on("question 12", "question 15"), max_errors=3, num_threads=1)
        assert cells.table(orderings, range(10))[0] == [0, 1, 3, 4, 6, 7, 8, 9]
        assert cells.ledger.errors(NAMES)[0].count == 8

    def test_an_example_that_runs_now_and_then_counts_each_time(self, engine):
        def metric(example, prediction):
            if prediction.answer == "wrong":
                raise ValueError("unreadable")
            return 1.0

        with pytest.raises(ValueError, match="unreadable"):
            scored(scorer(metric=metric, max_errors=9), [IDENTITY, REVERSED, ((1, 0, 2),)], range(30))

    def test_few_examples_and_nothing_runs(self, engine):
        """Failures in a row end the run, although these are only two examples."""
        cells = scorer(metric=self.failing_on("question 10", "question 11"), max_errors=5, num_threads=1)
        with pytest.raises(ZeroDivisionError) as caught:
            scored(cells, [((0, 1, 2),), ((0, 2, 1),), ((1, 0, 2),), ((1, 2, 0),)], range(2))
        assert engine.num_calls == 5
        if hasattr(caught.value, "__notes__"):
            assert "max_errors=5" in caught.value.__notes__[0]

    def test_a_metric_without_a_number_now_and_then_is_a_failure_that_counts(self, engine, tmp_path):
        """Also where it is the first of a compile that goes on."""

        def metric(example, prediction):
            return None if example.question == "question 12" else 1.0

        for examples in ([0, 1, 2, 3], [2, 4, 5]):
            ledger = Ledger(tmp_path / "cells.jsonl")
            cells = scorer(metric=metric, ledger=ledger, max_errors=2, num_threads=1)
            ran, rows = cells.table([REVERSED if 4 in examples else IDENTITY], examples)
            assert (ran, rows) == ([e for e in examples if e != 2], [[1.0] * (len(examples) - 1)])
            ledger.close()

    def test_replies_that_cannot_be_read_are_no_values_of_the_metric(self):
        class HalfBabbling(OrderSensitiveEngine):
            def complete(self, request):
                answer = super().complete(request)
                return chat_response("no fields") if self.num_calls <= 3 else answer

        engine, adapter = HalfBabbling({}), dspy.ChatAdapter(use_json_adapter_fallback=False)
        lm = dspy.LM("fake/x", engine=engine, cache=False)
        with dspy.context(lm=lm, adapter=adapter), pytest.raises(TypeError, match="got NoneType"):
            scored(scorer(metric=lambda example, prediction: None, num_threads=1), [IDENTITY], range(20))
        assert engine.num_calls == 4

    @pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit])
    def test_what_would_end_more_than_a_call_is_a_failure(self, engine, error):
        def metric(example, prediction):
            if example.question == "question 12":
                raise error("bye")
            return True

        cells = scorer(metric=metric, max_errors=2)
        assert cells.table([IDENTITY], range(6))[0] == [0, 1, 3, 4, 5]
        assert cells.ledger.errors(NAMES)[0].type == error.__name__
        with pytest.raises(RuntimeError, match=f"raised {error.__name__}: bye"):
            scored(scorer(metric=metric, max_errors=1), [IDENTITY], range(6))

    def test_messages_that_cannot_be_written(self, engine, tmp_path):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no")

        def metric(example, prediction):
            if example.question == "question 12":
                raise ValueError("unknown label \ud83d")
            if example.question == "question 13":
                raise Mute
            return True

        ledger = Ledger(tmp_path / "cells.jsonl")
        cells = scorer(metric=metric, ledger=ledger)
        scored(cells, [IDENTITY], range(6))
        ledger.close()
        messages = {error.type: error.message for error in cells.ledger.errors(NAMES)}
        assert messages["ValueError"] == "unknown label \\ud83d"
        assert "cannot be read" in messages["Mute"]
        again = Ledger(tmp_path / "cells.jsonl")
        again.number_examples(NAMES)
        assert again.cells == ledger.cells
        again.close()

    def test_an_unparsable_answer_is_wrong_and_no_failure(self):
        class Babbling:
            def complete(self, request):
                return chat_response("no fields here")

        with dspy.context(lm=dspy.LM("fake/x", engine=Babbling(), cache=False)):
            cells = scorer(max_errors=1)
            assert cells.table([IDENTITY], range(5)) == (list(range(5)), [[0.0] * 5])
        error = cells.ledger.errors(NAMES)[0]
        assert (error.type, error.outcome, error.count) == ("AdapterParseError", "counted as wrong", 5)

    def test_a_context_window_error_is_wrong_and_said(self, caplog):
        class Short:
            def complete(self, request):
                raise lm15.ContextLengthError("too long")

        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=dspy.LM("fake/x", engine=Short(), cache=False), adapter=adapter):
            cells = scorer(max_errors=1)
            assert scored(cells, [IDENTITY], range(2)) == [0.0]
        assert cells.ledger.errors(NAMES)[0].type == "ContextWindowExceededError"
        assert "context window" in caplog.text

    def test_an_authentication_error_stops_at_once(self):
        calls = []

        class Locked:
            def complete(self, request):
                calls.append(1)
                raise lm15.AuthError("bad key", status=401)

        with dspy.context(lm=dspy.LM("fake/x", engine=Locked(), cache=False)):
            cells = scorer(num_threads=4, max_errors=1000)
            with pytest.raises(LMAuthError, match="bad key"):
                scored(cells, [IDENTITY], range(30))
        assert len(calls) <= 5


class Judging:
    """A metric that fails, and whose message repeats the key of the LM that it asks."""

    def __init__(self, asks, text="Incorrect key: plain words"):
        lm = dspy.LM("openai/x", api_key="plain words")
        if asks == "an LM":
            self.lm = lm
        else:
            self.judge = dspy.ChainOfThought("answer -> verdict")
            self.judge.set_lm(lm)
        self.text = text

    def __call__(self, example, prediction):
        raise LookupError(self.text)


class TestSecrets:
    def message(self, metric, caplog):
        cells = scorer(metric=metric)
        with pytest.raises(RuntimeError, match="no call ended with an answer"):
            scored(cells, [IDENTITY], [0])
        (error,) = cells.ledger.errors(NAMES)
        assert error.message in caplog.text
        return error.message

    @pytest.mark.parametrize("asks", ["an LM", "a module"])
    def test_of_the_model_that_a_metric_asks_are_hidden(self, engine, caplog, asks):
        assert self.message(Judging(asks), caplog) == "Incorrect key: [hidden]"

    @pytest.mark.parametrize("length", [188, 195, 199])
    def test_are_hidden_where_a_long_message_is_cut(self, engine, caplog, length):
        message = self.message(Judging("an LM", "x" * length + "plain words"), caplog)
        assert message == ("x" * length + "[hidden]")[:200]


class TestMetric:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (True, 1.0),
            (False, 0.0),
            (1, 1.0),
            (0.123456789, 0.123456789),
            (np.float32(0.5), 0.5),
            (np.int64(1), 1.0),
            (np.bool_(True), 1.0),
            (dspy.Prediction(score=0.25), 0.25),
            (dspy.Prediction(score=True, feedback="good"), 1.0),
        ],
    )
    def test_numbers_of_every_kind(self, value, expected):
        assert as_score(value) == expected

    @pytest.mark.parametrize(
        "value", [None, {"score": 1.0}, "1.0", [1.0], dspy.Prediction(other=1), object()]
    )
    def test_refuses_what_is_no_number(self, value):
        with pytest.raises(TypeError, match="metric must return a number"):
            as_score(value)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), np.nan, 10**400])
    def test_refuses_nan_and_infinity(self, value):
        with pytest.raises(ValueError, match="finite"):
            as_score(value)

    @pytest.mark.parametrize("value", [1e31, -1e300, 10**40])
    def test_refuses_what_overflows_when_squared(self, value):
        with pytest.raises(ValueError, match=r"metric must return a number between .*: scale it"):
            as_score(value)

    def test_passes_none_for_what_the_metric_insists_on(self):
        assert metric_caller(lambda e, p: (e, p))(1, 2) == (1, 2)
        assert metric_caller(lambda e, p, trace=5: trace)(1, 2) == 5
        assert metric_caller(lambda e, p, trace: (e, p, trace))(1, 2) == (1, 2, None)
        assert metric_caller(lambda gold, pred, trace, name, pred_trace: pred)(1, 2) == 2
        assert metric_caller(max)(1, 2) == 2

    @pytest.mark.parametrize("metric", [None, "accuracy", 0.5, lambda: 1, lambda e: 1])
    def test_refuses_what_cannot_be_called(self, metric):
        with pytest.raises(TypeError, match="metric must be callable"):
            metric_caller(metric)

    def test_refuses_async_metrics(self):
        async def metric(example, prediction):
            return 1.0

        class Judge:
            async def __call__(self, example, prediction):
                return 1.0

        for each in (metric, Judge()):
            with pytest.raises(TypeError, match="async"):
                metric_caller(each)
