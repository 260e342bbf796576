"""Calls that fail for reasons outside the program, such as outages: advice, and repeated calls."""

import re
from functools import cache

import dspy
import fakes
import litellm
import pytest
from dspy import lm15
from fakes import engine_for, exact_match, questions, student, using
from label_world import comparable
from servers import ChatServer, refusal, running

from plr_dspy import PLFewShot, PLReorder, evaluate_programs, headroom

EXAMPLES = questions(60)

# Keyed by DSPy's error type: the exception that an engine raises, and a pattern for the advice.
CAUSES = {
    "ContextWindowExceededError": (lm15.ContextLengthError, "max_demo_tokens.*context length"),
    "LMAuthError": (lm15.AuthError, "key"),
    "LMBillingError": (lm15.BillingError, "credit"),
    "LMUnsupportedModelError": (lm15.UnsupportedModelError, "name of the model.*api_base"),
    "LMNotConfiguredError": (lm15.NotConfiguredError, "api_key"),
    "LMTransportError": (lm15.TransportError, "server is running.*api_base"),
    "LMRateLimitError": (lm15.RateLimitError, "num_threads"),
    "LMServerError": (lm15.ServerError, "the server's log"),
    "LMTimeoutError": (lm15.TimeoutError, "timeout"),
    "LMInvalidRequestError": (lm15.InvalidRequestError, "rejected the request"),
    "LMProviderError": (lm15.ProviderError, "the server's log"),
}
DSPY = {}
LITELLM = {"engine": "litellm"}
STATUSES = [
    (401, "invalid_api_key", "key", DSPY),
    (404, "model_not_found", "name of the model", LITELLM),
    (400, "context_length_exceeded", "context length", DSPY),
    (429, "rate_limit_exceeded", "num_threads", LITELLM),
    (500, "server_error", "the server's log", DSPY),
]


def chosen(log_dir, kind=PLReorder, *, demos=5, metric=exact_match, **options):
    """Compile a student, and return the report."""
    options = {"max_metric_calls": 150, "num_threads": 1, "display_progress": False, **options}
    optimizer = kind(metric, log_dir=log_dir, **options)
    optimizer.compile(student(0 if kind is PLFewShot else demos), trainset=EXAMPLES)
    return optimizer.report


@cache
def undisturbed(kind, **options):
    """Return the report of a compile whose calls all succeed."""
    with using(engine_for(EXAMPLES)):
        return chosen(None, kind, **options)


class Failing:
    """A function that raises an error while `is_broken` is true."""

    def __init__(self, error):
        self.error = error
        self.is_broken = True

    def __call__(self):
        if self.is_broken:
            raise self.error("as it was told")


def advice_of(error):
    """Return the message and the notes of an exception."""
    return " ".join([str(error), *getattr(error, "__notes__", ())])


CASES = [
    *((cause, 0, PLReorder) for cause in CAUSES),
    ("LMAuthError", 70, PLReorder),
    ("LMRateLimitError", 70, PLReorder),
    ("ContextWindowExceededError", 0, PLFewShot),
    ("LMServerError", 70, PLFewShot),
]


@pytest.mark.parametrize(("cause", "first_failing", "kind"), CASES)
def test_after_an_outage_the_same_log_dir_gives_the_result_of_an_undisturbed_run(
    tmp_path, caplog, cause, first_failing, kind
):
    error, advice = CAUSES[cause]
    failing = Failing(error)
    engine = engine_for(EXAMPLES)
    engine.at = dict.fromkeys(range(first_failing, 150), failing)
    options = {"max_metric_calls": 150 if first_failing else 40}
    if kind is PLFewShot:
        options["candidates"] = "labeled"
    uninterrupted = undisturbed(kind, **options)
    with using(engine):
        with pytest.raises(Exception, match=r".") as raised:
            chosen(tmp_path, kind, **options)
        assert re.search(advice, advice_of(raised.value))
        assert "larger max_tokens" not in advice_of(raised.value)
        num_failed = engine.num_calls - first_failing
        failing.is_broken = False
        caplog.clear()
        report = chosen(tmp_path, kind, **options)
    again = (
        rf"{num_failed} calls? that failed for a reason outside the program \({cause}\) will be repeated"
    )
    assert re.search(again, caplog.text)
    assert comparable(report) == comparable(uninterrupted)
    assert engine.num_calls == uninterrupted.program_calls["total"] + num_failed


@pytest.mark.parametrize("kind", [PLReorder, PLFewShot])
def test_failed_calls_of_a_partial_outage_are_repeated(tmp_path, kind):
    failing = Failing(lm15.TransportError)
    engine = engine_for(EXAMPLES)
    engine.at = {number: failing for number in range(20, 150) if number % 3}
    options = {"candidates": "labeled"} if kind is PLFewShot else {}
    expected = undisturbed(kind, **options)
    with using(engine):
        with pytest.raises(Exception, match="as it was told"):
            chosen(tmp_path, kind, max_errors=2, **options)
        num_failed = sum(number in engine.at for number in range(engine.num_calls))
        failing.is_broken = False
        report = chosen(tmp_path, kind, max_errors=2, **options)
    assert num_failed == 2
    assert not report.errors
    assert comparable(report) == comparable(expected)
    assert engine.num_calls == expected.program_calls["total"] + num_failed


def test_the_report_begins_with_a_warning_if_many_prompts_are_too_long(tmp_path):
    failing = Failing(lm15.ContextLengthError)
    engine = engine_for(EXAMPLES)
    engine.at = {number: failing for number in range(30, 150) if number % 2}
    with using(engine):
        report = chosen(tmp_path)
        first_line = str(report).splitlines()[0]
        assert re.match(r"\d+ of \d+ prompts exceeded the model's context length", first_line)
        assert "accept_changes=True" in first_line
        failing.is_broken = False
        assert not chosen(tmp_path, accept_changes=True).errors


@pytest.mark.parametrize("kind", [PLReorder, PLFewShot])
def test_a_failure_that_did_not_end_the_run_is_not_repeated(tmp_path, kind):
    failing = Failing(lm15.RateLimitError)
    engine = engine_for(EXAMPLES, at={10: failing})
    options = {"candidates": "labeled"} if kind is PLFewShot else {}
    with using(engine):
        report = chosen(tmp_path, kind, **options)
        num_calls = engine.num_calls
        again = chosen(tmp_path, kind, **options)
    assert engine.num_calls == num_calls
    assert comparable(again) == comparable(report)
    assert [error.count for error in again.errors] == [1]


def test_a_valset_that_cannot_be_scored_does_not_discard_the_search():
    valset = questions(62)[60:]

    def metric(example, prediction, trace=None):
        if example in valset:
            raise ValueError("cannot score this row")
        return exact_match(example, prediction)

    optimizer = PLReorder(metric, max_metric_calls=150, display_progress=False)
    message = (
        r"6 of 6 calls of the final comparison failed \(the first with ValueError: in the metric: cannot"
    )
    with using(engine_for([*EXAMPLES, *valset])), pytest.raises(RuntimeError, match=message):
        optimizer.compile(student(5), trainset=EXAMPLES, valset=valset)
    assert len(optimizer.best_program.demos) == 5
    assert optimizer.report.program_calls["search"] > 50


class NotFoundError(Exception):
    """A user-defined error with the name of a provider's error."""


def test_a_users_own_error_is_not_treated_as_an_outage(tmp_path, caplog):
    def metric(example, prediction):
        raise NotFoundError("no such row")

    with using(engine_for(EXAMPLES)) as engine:
        with pytest.raises(NotFoundError) as raised:
            chosen(tmp_path, metric=metric, max_errors=3)
        assert "name of the model" not in advice_of(raised.value)
        assert engine.num_calls == 3
    assert "outside the program" not in caplog.text


def is_long(texts):
    """Return whether a prompt is one of the tenth of all prompts that can fail."""
    return fakes.digest(repr(texts)) < 0.1


class Limited(fakes.OrderSensitiveEngine):
    """An engine that fails on a tenth of all prompts while `failing.is_broken` is true."""

    def __init__(self, error):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.failing = Failing(error)
        self.failed = []

    def answer(self, system, texts):
        if is_long(texts) and self.failing.is_broken:
            self.failed.append(tuple(texts))
            self.failing()
        return super().answer(system, texts)


@pytest.mark.parametrize(
    ("error", "kind"), [(lm15.ContextLengthError, PLReorder), (lm15.RateLimitError, PLFewShot)]
)
class TestCompleted:
    """Runs that were completed although some calls failed."""

    def test_failed_calls_are_repeated_only_if_changes_are_accepted(self, tmp_path, error, kind):
        with using(Limited(error)) as engine:
            reports = [chosen(tmp_path, kind, max_errors=1_000)]
            num_calls = engine.num_calls
            num_failed = len(engine.failed)
            assert num_failed > 5
            reports.append(chosen(tmp_path, kind, max_errors=1_000))
            num_last = engine.num_calls - num_calls
            # Only failed calls of the last batch, the final comparison, are repeated.
            assert num_last <= len(reports[0].candidates) * reports[0].comparison.num_examples
            reports.append(chosen(tmp_path, kind, max_errors=1_000, accept_changes=True))
            assert engine.num_calls == num_calls + num_last + num_failed
            assert sorted(engine.failed[-num_failed:]) == sorted(engine.failed[:num_failed])
        assert comparable(reports[0]) == comparable(reports[1]) == comparable(reports[2])

    def test_every_call_succeeds_after_the_cause_is_fixed(self, tmp_path, error, kind):
        with using(Limited(error)) as engine:
            chosen(tmp_path, kind, max_errors=1_000)
            num_failed = len(engine.failed)
            engine.failing.is_broken = False
            engine.at = {engine.num_calls + num_failed // 2: fakes.interrupt}
            with pytest.raises(KeyboardInterrupt):
                chosen(tmp_path, kind, accept_changes=True)
            report = chosen(tmp_path, kind, accept_changes=True)
            assert not report.errors
            assert report.comparison is not None
            assert report.program_calls["total"] <= 150
            num_calls = engine.num_calls
            again = chosen(tmp_path, kind)
            assert engine.num_calls == num_calls
        assert comparable(report) == comparable(again)


def test_a_failure_of_the_metric_is_not_repeated(tmp_path, caplog):
    def metric(example, prediction):
        return exact_match(example, prediction) / (example.question != "question 30")

    with using(engine_for(EXAMPLES)) as engine:
        for _ in range(2):
            chosen(tmp_path, metric=metric, max_errors=1_000)
            num_calls = engine.num_calls
        assert engine.num_calls == num_calls
    assert "will be repeated" not in caplog.text


@pytest.mark.parametrize(("number", "kind", "advice", "route"), STATUSES)
def test_a_compile_succeeds_after_the_server_is_fixed(tmp_path, number, kind, advice, route):
    refused = refusal(number, kind=kind)
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    options = {"max_metric_calls": 40, "num_threads": 4}
    server = ChatServer(engine_for(EXAMPLES), lambda number, prompt: refused)
    with running(server), dspy.context(lm=server.lm(**route), adapter=adapter):
        with pytest.raises(Exception, match=r".") as raised:
            chosen(tmp_path, **options)
        assert re.search(advice, advice_of(raised.value))
        server.trouble = lambda number, prompt: None
        report = chosen(tmp_path, **options)
    assert report.program_calls["resumed"] == 0
    assert report.comparison is not None


@pytest.mark.parametrize("cause", ["ContextWindowExceededError", "LMRateLimitError"])
def test_errors_of_other_functions_contain_the_advice(cause, caplog):
    error, advice = CAUSES[cause]
    engine = engine_for(EXAMPLES, at=dict.fromkeys(range(500), Failing(error)))
    with using(engine):
        with pytest.raises(RuntimeError, match=advice):
            headroom(student(4), exact_match, EXAMPLES, max_errors=1_000)
        if cause == "LMRateLimitError":
            with pytest.raises(RuntimeError, match=advice):
                evaluate_programs({"one": student(2)}, exact_match, EXAMPLES, max_errors=1_000)
        else:
            evaluate_programs({"one": student(2)}, exact_match, EXAMPLES)
            assert re.search(advice, caplog.text)


def test_one_failed_authentication_ends_a_compile_with_any_lm_class(tmp_path):
    class AuthenticationError(Exception):
        """An error with the name and the module of litellm's error."""

    AuthenticationError.__module__ = "litellm.exceptions"

    class OwnLM(dspy.BaseLM):
        num_calls = 0

        def forward(self, prompt=None, messages=None, **options):
            self.num_calls += 1
            if self.num_calls == 20:
                raise AuthenticationError("the key was withdrawn")
            message = {
                "role": "assistant",
                "content": "[[ ## answer ## ]]\nanswer 1\n\n[[ ## completed ## ]]",
            }
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            return litellm.ModelResponse(model="own/lm", choices=[{"message": message}], usage=usage)

    lm = OwnLM(model="own/lm")
    with dspy.context(lm=lm), pytest.raises(AuthenticationError) as raised:
        chosen(tmp_path)
    assert lm.num_calls == 20
    assert "check the key" in advice_of(raised.value)
