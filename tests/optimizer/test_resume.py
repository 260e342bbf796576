"""Runs that are killed, are interrupted or fail, and then resume from their `log_dir`."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter

import dspy
import fakes
import label_world
import orjson
import pytest
from dspy import lm15
from fakes import (
    OrderSensitiveEngine,
    engine_for,
    exact_match,
    failure,
    interrupt,
    lm_of,
    questions,
    student,
)
from label_engines import exact
from label_world import comparable

from plr_dspy import F1, PLFewShot, PLReorder, Report
from plr_dspy.baselines import TopKOrder
from plr_dspy.scoring.run_log import WRONG, CallRecord, open_log

EXAMPLES = questions(60)
NUM_THREADS = 4


class RecordingEngine(OrderSensitiveEngine):
    """An engine that appends a line to a file when a call begins, then waits."""

    def __init__(self, path, seconds):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.path = path
        self.seconds = seconds

    def answer(self, system, texts):
        with open(self.path, "ab", buffering=0) as file:
            file.write(orjson.dumps(texts) + b"\n")
        time.sleep(self.seconds)
        return super().answer(system, texts)


def optimizer(log_dir=None, **options):
    options = {"max_metric_calls": 150, "num_threads": NUM_THREADS, "display_progress": False, **options}
    return PLReorder(options.pop("metric", exact_match), log_dir=log_dir, **options)


def compiled(log_dir=None, program=None, trainset=EXAMPLES, **options):
    reorder = optimizer(log_dir, **options)
    reorder.compile(program or student(5), trainset=trainset)
    return reorder.report


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory):
    """Return the log folder of an uninterrupted compile. The `engine` fixture does not count its calls."""
    folder = tmp_path_factory.mktemp("finished")
    with dspy.context(lm=lm_of(engine_for(EXAMPLES))):
        compiled(folder, num_threads=1)
    return folder


@pytest.fixture
def finished_log(finished_folder, tmp_path):
    """Copy the log of an uninterrupted compile to the test's folder, and return the path of its calls."""
    shutil.copytree(finished_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "calls.jsonl"


@pytest.fixture
def uninterrupted(finished_folder):
    """Return the report of an uninterrupted compile."""
    return Report.load(finished_folder / "report.json")


def selected(log_dir=None, metric=exact_match, **options):
    demos = {"max_demos": 5, "max_bootstrapped": 4}
    options = {"max_metric_calls": 200, "num_threads": NUM_THREADS, **demos, **options}
    chooser = PLFewShot(metric, log_dir=log_dir, display_progress=False, **options)
    chooser.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    return chooser.report


def compile_in_child(log_dir, calls, seconds):
    with dspy.context(lm=lm_of(RecordingEngine(calls, seconds))):
        compiled(log_dir)


def start(tmp_path, log_dir, seconds=0.005):
    arguments = log_dir, tmp_path / "calls", seconds
    child = fakes.CHILDREN.Process(target=compile_in_child, args=arguments)
    child.start()
    return child


def lines(path):
    return path.read_bytes().splitlines() if path.exists() else []


def ring(number=signal.SIGINT):
    """Send a signal to this process, as a user or a batch system may do."""
    os.kill(os.getpid(), number)


class TestKilled:
    def test_at_random_moments(self, tmp_path, engine):
        num_kills = 2
        expected = comparable(compiled())
        rng = random.Random(0)
        log_dir = tmp_path / "log"
        finished_at = []
        for _ in range(num_kills):
            wanted = len(lines(tmp_path / "calls")) + rng.randint(5, 40)
            child = start(tmp_path, log_dir)
            while len(lines(tmp_path / "calls")) < wanted and child.is_alive():
                time.sleep(rng.random() / 100)
            assert child.is_alive(), "the compile ended before it was killed"
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            finished_at.append(len(lines(log_dir / "calls.jsonl")))
        assert finished_at == sorted(finished_at)
        child = start(tmp_path, log_dir, seconds=0.0)
        child.join()
        assert child.exitcode == 0
        report = Report.load(log_dir / "report.json")
        assert comparable(report) == expected
        assert report.program_calls["resumed"] > 0
        calls = Counter(lines(tmp_path / "calls"))
        total = report.program_calls["total"]
        assert len(calls) == total
        assert total <= sum(calls.values()) <= total + NUM_THREADS * num_kills

    def test_a_torn_line_costs_one_call(self, tmp_path, engine, finished_log, uninterrupted):
        finished_log.write_bytes(finished_log.read_bytes()[:-5])
        assert comparable(compiled(tmp_path)) == comparable(uninterrupted)
        assert engine.num_calls == 1
        assert all(orjson.loads(line) for line in lines(finished_log))

    @pytest.mark.parametrize("number", [10, 70, -5])
    def test_a_call_whose_line_was_removed_is_repeated(
        self, tmp_path, engine, finished_log, uninterrupted, number
    ):
        """The error about an unreadable line advises the user to remove the line."""
        cells = [line for line in lines(finished_log) if line.startswith(b'{"call"')]
        finished_log.write_bytes(finished_log.read_bytes().replace(cells[number] + b"\n", b""))
        assert comparable(compiled(tmp_path, num_threads=1)) == comparable(uninterrupted)
        assert engine.num_calls == 1

    @pytest.mark.parametrize("kind", ["call", "schema_version"])
    def test_an_unreadable_line_is_rejected_with_a_fix(self, tmp_path, engine, finished_log, kind):
        begin = b'{"%s"' % kind.encode()
        finished_log.write_bytes(finished_log.read_bytes().replace(begin, begin + b"...", 1))
        message = r"line \d+ of .* cannot be read \(.*\)\. Pass another log_dir.*remove the line"
        with pytest.raises(ValueError, match=message):
            compiled(tmp_path)

    def test_a_second_process_is_rejected(self, tmp_path, engine):
        child = start(tmp_path, tmp_path / "log", seconds=0.05)
        while not lines(tmp_path / "calls"):
            time.sleep(0.01)
        before = engine.num_calls
        with pytest.raises(RuntimeError, match="in use by another run"):
            compiled(tmp_path / "log")
        assert engine.num_calls == before
        child.kill()
        child.join()
        compiled(tmp_path / "log")


class Metric:
    """A metric that keeps its function in a private attribute."""

    def __init__(self, function):
        self._function = function

    def __call__(self, example, prediction):
        return self._function(example, prediction)


class Marked:
    def __init__(self, **attributes):
        vars(self).update(attributes, seen=[])

    def __call__(self, example, prediction):
        self.seen.append(example.question)
        return prediction[self.answer_key] == example[self.answer_key]


class TestIdentity:
    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"metric": lambda example, prediction: 1.0}, "the metric changed"),
            ({"trainset": [*EXAMPLES[:-1], questions(61)[-1]]}, "the examples changed"),
            ({"program": student(4)}, "program changed"),
            ({"program": dspy.ChainOfThought("question -> answer")}, "program changed"),
            ({"temperature": 0.7}, "the models changed"),
            ({"model": "fake/other"}, "models was .*order-sensitive.* is .*other"),
            ({"adapter": dspy.JSONAdapter()}, "adapter was 'ChatAdapter' and is now 'JSONAdapter'"),
        ],
    )
    def test_another_compile_is_rejected(self, tmp_path, engine, finished_log, change, difference):
        def go(model="fake/order-sensitive", temperature=None, adapter=None, **options):
            with dspy.context(lm=lm_of(engine, model, temperature=temperature), adapter=adapter):
                compiled(tmp_path, **options)

        message = f"belongs to another run: .*{difference}.*another log_dir"
        with pytest.raises(ValueError, match=message):
            go(**change)
        go()
        assert engine.num_calls == 0

    def test_access_to_models_and_runtime_settings_may_change(self, tmp_path, engine):
        def go(options, **access):
            program = fakes.Wrapped()
            program.judge = dspy.LM("fake/judge", **access)
            program.embedder = dspy.Embedder("fake/embedder", api_key=access["api_key"])
            metric = Marked(answer_key="answer", judge=dspy.LM("fake/judge", **access))
            compiled(tmp_path, program, metric=metric, **options)

        go({}, api_key="sk-one", api_base="http://one", headers={"X-Key": "one"}, timeout=1)
        before = engine.num_calls
        with dspy.context(lm=lm_of(engine, cache=True, num_retries=1)):
            access = {"api_key": "sk-two", "api_base": "http://two", "extra_headers": {"X-Key": "two"}}
            go({"num_threads": 1, "max_errors": 3, "max_seconds": 60}, timeout=2, **access)
        assert engine.num_calls == before


TOLD = b'{"call": ["x", "y"], "score": 1.0, "label_logprobs": %s}'


class TestFolders:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"\0\0", "line 1 of .*calls.jsonl"),
            (b'{"call": ["x", "y"], "score": "high"}', "line 1 of .*calls.jsonl"),
            (b'{"call": ["x", "y"], "score": 1}', "belongs to another run: models was None and is now "),
            (
                b'{"schema_version": 99, "identity": {}}',
                r"schema version \d+; got version 99 in .*another version of plr_dspy",
            ),
            (b'{"something": 1}', r"schema version \d+; got version None"),
            *((TOLD % values, "line 1 of") for values in (b"1", b"[null]", b"{}")),
        ],
    )
    def test_unreadable_files_are_rejected(self, tmp_path, engine, line, message):
        (tmp_path / "calls.jsonl").write_bytes(line + b"\n")
        with pytest.raises(ValueError, match=message):
            compiled(tmp_path)
        assert engine.num_calls == 0

    def test_a_partial_line_on_a_full_disk_is_removed(self, tmp_path, engine, monkeypatch):
        write = os.write
        num_lines = itertools.count()

        def half(file, content):
            if content.startswith(b'{"call"') and next(num_lines) == 20:
                return write(file, content[:10])
            return write(file, content)

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="no space left"):
            compiled(tmp_path)
        assert (tmp_path / "calls.jsonl").read_bytes().endswith(b"}\n")
        report = compiled(tmp_path)
        assert report.program_calls["resumed"] >= 20

    def test_a_full_disk_ends_a_compile_that_can_be_resumed(
        self, tmp_path, engine, uninterrupted, monkeypatch
    ):
        """If the disk is full from the start, no call is made."""
        write = os.write
        begins = [b"{"]
        before = engine.num_calls

        def full(file, content):
            if content.startswith(begins[0]) and engine.num_calls >= before:
                raise OSError(28, "No space left on device")
            return write(file, content)

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            compiled(tmp_path / "first")
        assert engine.num_calls == before
        begins[0] = b'{"call"'
        before = before + 50
        with pytest.raises(OSError, match="No space left"):
            compiled(tmp_path / "second")
        begins[0] = b"nothing"
        report = compiled(tmp_path / "second")
        assert comparable(report) == comparable(uninterrupted)
        assert report.program_calls["resumed"] > 40


class TestOtherArguments:
    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 1},
            {"max_metric_calls": 70},
            {"update": "ema", "patience": 2},
            {"trainset": EXAMPLES[:50], "accept_changes": True},
        ],
    )
    def test_no_call_is_repeated(self, tmp_path, engine, change):
        """Logged calls are identified by the content of their examples."""
        compiled(tmp_path, student(4), max_metric_calls=100)
        before = engine.num_calls
        report = compiled(tmp_path, student(4), **{"max_metric_calls": 150, **change})
        calls = report.program_calls
        assert set(engine.requests.values()) == {1}
        assert engine.num_calls - before == calls["total"] - calls["resumed"]
        assert calls["resumed"] > 0
        assert report.comparison is not None

    @pytest.mark.parametrize(
        ("kind", "options", "num_demos"),
        [(PLReorder, {}, 5), (PLReorder, {}, 0), (PLFewShot, {"max_bootstrapped": 4}, 0)],
    )
    def test_the_order_of_examples_does_not_matter(self, tmp_path, engine, kind, options, num_demos):
        """Splits, pools and added demos stay the same if the examples are reversed."""

        def go(trainset, log_dir=None):
            options_of = {**options, "max_metric_calls": 100, "num_threads": 1, "display_progress": False}
            chooser = kind(exact_match, log_dir=log_dir, **options_of)
            program = chooser.compile(student(num_demos), trainset=trainset)
            return program.demos, chooser.report.comparison, chooser.report.program_calls["total"]

        engine.at = {70: interrupt}
        with pytest.raises(KeyboardInterrupt):
            go(EXAMPLES, tmp_path)
        assert go(EXAMPLES[::-1], tmp_path) == go(EXAMPLES)

    @pytest.mark.parametrize(
        ("options", "first", "second"),
        [
            ({"auto": "paper", "num_samples": 4, "num_iterations": 6, "num_final_draws": 2}, 300, 500),
            # With three demos, all orders are scored on all examples.
            ({}, 100, 500),
        ],
    )
    def test_another_plan_gives_the_same_result_as_without_a_log(
        self, tmp_path, engine, options, first, second
    ):
        compiled(tmp_path, student(3), max_metric_calls=first, **options)
        report = compiled(tmp_path, student(3), max_metric_calls=second, **options)
        assert set(engine.requests.values()) == {1}
        assert report.program_calls["total"] <= second
        assert comparable(report) == comparable(
            compiled(None, student(3), max_metric_calls=second, **options)
        )

    def test_a_smaller_budget_than_that_of_a_finished_run_is_reported(
        self, tmp_path, engine, finished_log, uninterrupted, caplog
    ):
        num_calls = uninterrupted.program_calls["total"]
        message = f"holds a finished run of {num_calls} calls, but this run may make only 100"
        compiled(tmp_path, max_metric_calls=150)
        assert message not in caplog.text
        compiled(tmp_path, max_metric_calls=100)
        assert message in caplog.text

    @pytest.mark.parametrize("work", [compiled, selected])
    def test_each_budget_and_seed_gives_the_same_result_again(self, tmp_path, engine, work):
        """Calls of other compiles in the same folder do not change the result."""
        runs = [(0, 100), (0, 70), (1, 100)]
        reports = {}
        for seed, limit in runs:
            report = comparable(work(tmp_path, seed=seed, max_metric_calls=limit))
            reports[seed, limit] = report
            assert report["comparison"] is not None
        assert set(engine.requests.values()) == {1}
        spent = engine.num_calls
        for seed, limit in runs:
            assert comparable(work(tmp_path, seed=seed, max_metric_calls=limit)) == reports[seed, limit]
        assert engine.num_calls == spent
        assert comparable(work(None, seed=1, max_metric_calls=100)) == reports[1, 100]

    def test_an_accepted_change_is_no_longer_a_change(self, tmp_path, engine):
        compiled(tmp_path, max_metric_calls=60)
        other = {"metric": Metric(exact_match), "max_metric_calls": 60}
        compiled(tmp_path, accept_changes=True, **other)
        before = engine.num_calls
        compiled(tmp_path, **other)
        assert engine.num_calls == before

    def test_the_next_run_completes_a_round_that_the_time_limit_cut(self, tmp_path, engine, monkeypatch):
        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(engine.num_calls))
        options = {"num_candidates": 12, "num_finalists": 2, "num_threads": 1, "display_progress": False}
        for limits in ({"max_seconds": 240}, {}):
            last = TopKOrder(exact_match, log_dir=tmp_path, **limits, **options)
            last.compile(student(4), trainset=EXAMPLES[:40])
        assert set(engine.requests.values()) == {1}
        whole = TopKOrder(exact_match, **options)
        whole.compile(student(4), trainset=EXAMPLES[:40])
        assert last.report.candidates == whole.report.candidates

    def test_a_student_with_other_demos_starts_a_new_search(self, tmp_path, engine):
        """Orderings contain demo indices, so they are not valid for other demos."""
        compiled(tmp_path, student(5), EXAMPLES[10:])
        for num_demos in (6, 4):
            (slot,) = compiled(tmp_path, student(num_demos), EXAMPLES[10:], accept_changes=True).slots
            assert sorted(slot.ordering) == list(range(num_demos))


class TestFoldersWithoutAnswers:
    def test_a_folder_with_only_failures_accepts_another_compile(self, tmp_path, engine):
        change = {"seed": 1, "max_metric_calls": 150}
        with pytest.raises(TypeError, match="metric must return a number"):
            compiled(tmp_path, metric=lambda example, prediction: None)
        spent = engine.num_calls
        whole = compiled(**change)
        alone = engine.num_calls - spent
        for _ in range(2):
            assert comparable(compiled(tmp_path, **change)) == comparable(whole)
        assert engine.num_calls == spent + 2 * alone

    @pytest.mark.parametrize(
        ("broken", "candidates"),
        [("metric", "both"), ("metric", "labeled"), ("teacher", "both"), ("threshold", "bootstrapped")],
    )
    def test_a_folder_with_failed_bootstrapping_accepts_another_compile(
        self, tmp_path, engine, candidates, broken
    ):
        options = {"num_threads": 1, "max_demos": 4, "max_metric_calls": 80, "max_errors": 3}
        if broken == "threshold":
            too_high = {"candidates": "bootstrapped", "max_bootstrapped": 8, "metric_threshold": 2}
            selected(tmp_path, **too_high, **options)
        else:
            metric = exact_match
            if broken == "teacher":
                engine.at = dict.fromkeys(range(3), failure)
            else:
                metric = lambda e, p: exact_match(e, p) / 0  # noqa: E731
            with pytest.raises((ZeroDivisionError, dspy.LMError)):
                selected(tmp_path, metric, **options)
        spent = engine.num_calls
        assert spent == (15 if broken == "threshold" else 3)
        total = selected(tmp_path, candidates=candidates, **options).program_calls["total"]
        assert total == engine.num_calls - spent <= 80


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_returns_control_even_if_calls_hang(self, tmp_path, number):
        release = threading.Event()
        hanging = []

        def hang():
            hanging.append(1)
            if len(hanging) == NUM_THREADS:
                ring(number)
            release.wait(60)

        engine = engine_for(EXAMPLES, at=dict.fromkeys(range(50, 54), hang))
        reorder = optimizer(tmp_path)
        with dspy.context(lm=lm_of(engine)):
            with pytest.raises(KeyboardInterrupt):
                reorder.compile(student(5), trainset=EXAMPLES)
            assert not release.is_set()
            finished = reorder.report.program_calls["total"]
            assert 40 < finished <= 50
            assert len(reorder.best_program.demos) == 5
            release.set()
            # The calls that hung end during this compile.
            reorder.compile(student(5), trainset=EXAMPLES)
            assert reorder.report.program_calls["resumed"] == finished
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    @pytest.mark.parametrize(
        ("where", "num_threads"),
        [*{"asyncio": 4, "own handler": 1, "swallowing": 4, "plain": 1}.items(), ("swallowing", 1)],
    )
    def test_ctrl_c_ends_a_compile_in_every_environment(self, engine, num_threads, where):
        def swallow(self, question):
            try:
                return self.answer(question=question)
            except:  # noqa: E722
                return dspy.Prediction(answer="none")

        def metric(example, prediction):
            time.sleep(0.001)
            return exact_match(example, prediction)

        reorder = optimizer(metric=metric, num_threads=num_threads)
        program = student(5)
        if where == "swallowing":
            program = fakes.Program(swallow, answer=program)
        heard = []

        async def cell():
            return reorder.compile(program, trainset=EXAMPLES)

        own = where == "own handler"
        handler = (lambda *arguments: heard.append(1)) if own else signal.default_int_handler
        before = signal.signal(signal.SIGINT, handler)
        engine.at = {40: ring}
        try:
            with pytest.raises(KeyboardInterrupt):
                if where == "asyncio":
                    asyncio.run(cell())
                else:
                    reorder.compile(program, trainset=EXAMPLES)
        finally:
            assert signal.signal(signal.SIGINT, before) is handler
        assert reorder.report.stopped == "interrupted"
        assert engine.num_calls < 140
        assert len(heard) == own
        types = [error.type for error in reorder.report.errors]
        assert "KeyboardInterrupt" not in types

    def test_ctrl_c_while_the_report_is_built(self):
        """The nearest-neighbor vote calls the metric after all program calls."""
        rung = []

        def metric(example, prediction):
            is_of_vote = dspy.settings.trace == [] and not dspy.settings.get("plr_dspy_scored")
            if is_of_vote and len(engine.prompts) > 50 and not rung:
                rung.append(1)
                ring()
            return example.label == prediction.label

        options = {"max_metric_calls": 60, "signal": "score", "num_threads": 1, "display_progress": False}
        chooser = PLFewShot(metric, **options)
        with fakes.using(label_world.Engine()) as engine, pytest.raises(KeyboardInterrupt):
            chooser.compile(label_world.student(), trainset=label_world.EXAMPLES)
        assert rung
        assert len(engine.prompts) == chooser.report.program_calls["total"] > 50
        assert chooser.report.comparison is not None
        assert chooser.report.stopped == "interrupted"
        assert chooser.best_program is not None

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_after_ctrl_c_simple_methods_are_not_scored(self, interrupted):
        """Scoring them may take seconds, and the user is waiting for the process to end."""
        chooser = PLFewShot(exact, max_metric_calls=60, num_threads=1, display_progress=False)
        ending = contextlib.nullcontext()
        with fakes.using(label_world.Engine()) as engine:
            if interrupted:
                engine.at = {40: ring}
                ending = pytest.raises(KeyboardInterrupt)
            with ending:
                chooser.compile(label_world.student(), trainset=label_world.EXAMPLES)
        omitted = "the scores of simple methods are omitted, because the run was interrupted"
        assert (omitted in str(chooser.report)) == interrupted
        assert (chooser.report.vote is None) == interrupted
        assert isinstance(chooser.best_program, dspy.Module)


def limited():
    raise lm15.RateLimitError("slow down")


class TestFailed:
    @pytest.mark.parametrize("rounds", [0, 2])
    def test_a_round_in_which_all_calls_failed_is_repeated(self, tmp_path, engine, uninterrupted, rounds):
        ends = [0, *(iteration.program_calls for iteration in uninterrupted.history)]
        first = max(1, ends[rounds])
        down = True

        def metric(example, prediction):
            if down and engine.num_calls >= first:
                failure()
            return exact_match(example, prediction)

        reorder = optimizer(tmp_path, metric=Metric(metric), max_errors=10_000)
        message = r"calls failed|train examples ran for any order"
        with pytest.raises(RuntimeError, match=message):
            reorder.compile(student(5), trainset=EXAMPLES)
        down = False
        reorder.compile(student(5), trainset=EXAMPLES)
        assert reorder.report.comparison is not None
        left = sum(error.count for error in reorder.report.errors)
        # The first failed calls may belong to a round that was completed.
        assert left <= NUM_THREADS

    def test_a_repeated_call_that_succeeded_is_not_made_a_third_time(self, tmp_path, engine):
        with dspy.context(lm=lm_of(engine, num_retries=0)):
            engine.at = {10: limited, 20: interrupt}
            with pytest.raises(KeyboardInterrupt):
                compiled(tmp_path, num_threads=1)
            engine.at = dict.fromkeys(range(engine.num_calls + 20, engine.num_calls + 23), failure)
            with pytest.raises(Exception, match="down"):
                compiled(tmp_path, num_threads=1, max_errors=3)
            compiled(tmp_path, num_threads=1)
        assert Counter(engine.requests.values()).keys() == {1, 2}

    def test_a_folder_without_a_correct_answer_accepts_another_metric(self, tmp_path):
        """No other compile reuses incorrect or unparsable answers, but `max_cost` includes their cost."""
        tokens = {"fake/x": {"prompt_tokens": 7}}
        for num_before, metric in ((0, "#one"), (2, "#other")):
            with open_log(tmp_path, lambda metric=metric: {"metric": metric}) as log:
                assert not log.earlier_records
                assert len(log.tokens_before) == num_before
                log.add(("bootstrapped", 0), CallRecord(None, value={}), tokens)
                log.add(("scored", 1), CallRecord(None, WRONG, "AdapterParseError"), tokens)
        with open_log(tmp_path, lambda: {"metric": "#other"}) as log:
            assert len(log.earlier_records) == 2
            assert log.tokens_before == [tokens, tokens, tokens, tokens]

    def test_failed_calls_that_the_search_used_are_kept(self, tmp_path, engine):
        def metric(example, prediction):
            return 1 / (example.question != "question 30") * exact_match(example, prediction)

        whole = compiled(metric=metric, max_errors=100)
        engine.at = {engine.num_calls + 100: ring}
        with pytest.raises(KeyboardInterrupt):
            compiled(tmp_path, metric=metric, max_errors=100)
        report = compiled(tmp_path, metric=metric, max_errors=100)
        for name in ("slots", "comparison", "candidates", "errors", "stopped"):
            assert getattr(report, name) == getattr(whole, name)


def test_a_reply_with_half_a_surrogate_pair_is_logged(tmp_path):
    """JSON can escape half a surrogate pair, but UTF-8 cannot encode it."""
    engine = fakes.ScriptedEngine(*['{"answer": "\\ud83d"}', '{"answer": "yes"}'] * 50)
    optimizer = PLReorder(F1(), max_metric_calls=80, num_threads=1, log_dir=tmp_path)
    for _ in range(2):
        with dspy.context(lm=lm_of(engine), adapter=dspy.JSONAdapter()):
            optimizer.compile(student(EXAMPLES[:4]), trainset=EXAMPLES[4:])
        assert len(engine.requests) == optimizer.report.program_calls["total"]
        assert not optimizer.report.errors
