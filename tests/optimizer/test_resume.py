"""Compiles that are killed, interrupted or fail, and go on from their log_dir."""

import asyncio
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import dspy
import orjson
import pytest
from fakes import OrderSensitiveEngine, exact_match, fake_lm, printed_whatever_the_hashes, questions

from plr_dspy import PLFewShot, PLReorder, order_sensitivity
from plr_dspy.baselines import TopKOrder
from plr_dspy.plackett_luce.updates import MixtureEM

EXAMPLES = questions(60)
NUM_THREADS = 4
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["dspy", "litellm", "torch", "plr_dspy.optimizer.fewshot"])


class RecordingEngine(OrderSensitiveEngine):
    """Appends a line to a file when a call begins, and takes its time."""

    def __init__(self, path, seconds):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.path, self.seconds = path, seconds

    def complete(self, request):
        texts = [message.text or "" for message in request.messages]
        line = orjson.dumps(texts) + b"\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)
        time.sleep(self.seconds)
        return super().complete(request)


def student(num_demos=5, **config):
    program = dspy.Predict("question -> answer", **config)
    program.demos = EXAMPLES[:num_demos]
    return program


def optimizer(log_dir=None, **options):
    options = {"max_metric_calls": 300, "num_threads": NUM_THREADS, "display_progress": False, **options}
    return PLReorder(options.pop("metric", exact_match), log_dir=log_dir, **options)


def tear_last_cell(log_dir):
    """Cut the end off the last call that was logged."""
    path = log_dir / "cells.jsonl"
    settled = lines(path)[-1]
    content = path.read_bytes().removesuffix(settled + b"\n")
    path.write_bytes(content[:-5])


def ordered(log_dir=None):
    reorder = optimizer(log_dir)
    reorder.compile(student(), trainset=EXAMPLES)
    return reorder.report.to_dict()


def selected(log_dir=None):
    options = {"max_metric_calls": 300, "num_threads": NUM_THREADS, "display_progress": False}
    chooser = PLFewShot(exact_match, max_demos=5, max_bootstrapped=4, log_dir=log_dir, **options)
    chooser.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    return chooser.report.to_dict()


def compile_in_child(compiled, log_dir, calls, result, seconds):
    engine = RecordingEngine(calls, seconds)
    with dspy.context(lm=dspy.LM("fake/order-sensitive", engine=engine, cache=False)):
        report = compiled(log_dir)
    Path(result).write_text(json.dumps(report))


def start(tmp_path, log_dir, seconds=0.005, compiled=ordered):
    child = SPAWN.Process(
        target=compile_in_child,
        args=(compiled, str(log_dir), str(tmp_path / "calls"), str(tmp_path / "result.json"), seconds),
    )
    child.start()
    return child


def lines(path):
    return path.read_bytes().splitlines() if path.exists() else []


def same(report):
    """What two reports of one compile must share."""
    volatile = {"seconds", "settings"}
    plain = {name: value for name, value in report.items() if name not in volatile}
    plain["program_calls"] = {k: v for k, v in report["program_calls"].items() if k != "resumed"}
    return plain


@pytest.fixture
def engine():
    lm, engine = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


@pytest.fixture
def uninterrupted(engine):
    reorder = optimizer()
    reorder.compile(student(), trainset=EXAMPLES)
    return json.loads(json.dumps(reorder.report.to_dict()))


class TestKilled:
    @pytest.mark.parametrize(("compiled", "num_kills"), [(ordered, 10), (selected, 6)])
    def test_at_random_moments(self, tmp_path, engine, compiled, num_kills):
        """At most the calls under way are made again, and the report is that of a compile in one go."""
        uninterrupted = json.loads(json.dumps(compiled()))
        rng = random.Random(0)
        log_dir = tmp_path / "log"
        kills = 0
        finished_at = []
        while kills < num_kills:
            before = len(lines(tmp_path / "calls"))
            child = start(tmp_path, log_dir, seconds=0.01, compiled=compiled)
            wanted = before + rng.randint(1, 22)
            while len(lines(tmp_path / "calls")) < wanted and child.is_alive():
                time.sleep(rng.random() / 100)
            assert child.is_alive(), "the compile ended before it was killed"
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
            finished_at.append(len(lines(log_dir / "cells.jsonl")))
        assert finished_at == sorted(finished_at)
        child = start(tmp_path, log_dir, seconds=0.0, compiled=compiled)
        child.join()
        assert child.exitcode == 0
        report = json.loads((tmp_path / "result.json").read_text())
        assert same(report) == same(uninterrupted)
        assert report["program_calls"]["resumed"] > 0
        calls = Counter(lines(tmp_path / "calls"))
        total = report["program_calls"]["total"]
        assert len(calls) == total
        assert total <= sum(calls.values()) <= total + NUM_THREADS * kills

    def test_a_finished_compile_costs_nothing_again(self, tmp_path, engine, uninterrupted):
        for resumed in (0, uninterrupted["program_calls"]["total"]):
            reorder = optimizer(tmp_path)
            before = engine.num_calls
            reorder.compile(student(), trainset=EXAMPLES)
            assert engine.num_calls - before == uninterrupted["program_calls"]["total"] - resumed
            assert same(json.loads(json.dumps(reorder.report.to_dict()))) == same(uninterrupted)

    def test_a_torn_line_costs_one_call(self, tmp_path, engine):
        """All six orders of 3 demos on all examples, which leaves some calls."""
        before = optimizer(tmp_path, max_metric_calls=500)
        before.compile(student(3), trainset=EXAMPLES)
        num_calls = engine.num_calls
        tear_last_cell(tmp_path)
        reorder = optimizer(tmp_path, max_metric_calls=500)
        reorder.compile(student(3), trainset=EXAMPLES)
        assert engine.num_calls - num_calls == 1
        report, expected = same(reorder.report.to_dict()), same(before.report.to_dict())
        assert report.pop("program_calls")["total"] == expected.pop("program_calls")["total"] + 1
        assert report == expected
        assert all(orjson.loads(line) for line in lines(tmp_path / "cells.jsonl"))

    def test_a_torn_line_of_a_budget_that_is_used_up_costs_one_example(self, tmp_path, engine):
        for budget in range(300, 330):
            whole = optimizer(tmp_path / str(budget), max_metric_calls=budget)
            whole.compile(student(), trainset=EXAMPLES)
            if whole.report.program_calls["total"] == budget:
                break
        assert whole.report.program_calls["total"] == budget
        tear_last_cell(tmp_path / str(budget))
        reorder = optimizer(tmp_path / str(budget), max_metric_calls=budget)
        before = engine.num_calls
        reorder.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == before
        comparison = reorder.report.comparison
        assert comparison.num_examples == whole.report.comparison.num_examples - 1
        assert comparison.num_candidates == whole.report.comparison.num_candidates

    @pytest.mark.parametrize(
        "options",
        [{"auto": "paper", "num_samples": 4}, {"update": MixtureEM(num_components=2)}, {"update": "ema"}],
    )
    def test_every_kind_of_search(self, tmp_path, engine, options):
        options = {"num_iterations": 3, "max_metric_calls": 800, **options}
        whole = optimizer(**options)
        whole.compile(student(), trainset=EXAMPLES)
        first = engine.num_calls

        reorder = optimizer(tmp_path, **options)
        bell = threading.Thread(target=ring_at, args=(engine, first + first // 2))
        bell.start()
        with pytest.raises(KeyboardInterrupt):
            reorder.compile(student(), trainset=EXAMPLES)
        bell.join()
        reorder.compile(student(), trainset=EXAMPLES)
        assert same(reorder.report.to_dict()) == same(whole.report.to_dict())
        assert engine.num_calls <= 2 * first + NUM_THREADS


def ring_at(engine, calls, number=signal.SIGINT):
    while engine.num_calls < calls:
        time.sleep(0.001)
    os.kill(os.getpid(), number)


class Metric:
    """A metric whose public state is the same whatever the function does."""

    def __init__(self, function):
        self._function = function

    def __call__(self, example, prediction):
        return self._function(example, prediction)


class Weighted:
    """A metric with a state."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, example, prediction):
        return self.weight * exact_match(example, prediction)


class Marked:
    """A metric whose attributes have names that keys and addresses often have."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __call__(self, example, prediction):
        return prediction[self.answer_key] == example[self.answer_key]


class Wrapped(dspy.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.depth = depth
        self.answer = student()

    def forward(self, question):
        return self.answer(question=question)


class WrappedTwice(Wrapped):
    def forward(self, question):
        self.answer(question=question)
        return self.answer(question=question)


class TestIdentity:
    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"metric": lambda example, prediction: 1.0}, "the code of the metric changed"),
            ({"trainset": EXAMPLES[:50]}, "the examples changed"),
            ({"trainset": [*EXAMPLES[:-1], questions(61)[-1]]}, "the examples changed"),
            ({"student": student(4)}, "the demos of self changed"),
            (
                {"student": dspy.ChainOfThought("question -> answer")},
                "self was 'Predict', is 'Chain",
            ),
            ({"student": Wrapped()}, "the class of"),
            ({"instructions": "Answer in French."}, "the signature of self changed"),
            ({"temperature": 0.7}, "the settings of its models changed"),
            ({"model": "fake/other"}, "models was .*order-sensitive.* is .*other"),
            ({"adapter": dspy.JSONAdapter()}, "adapter was 'ChatAdapter', is 'JSONAdapter'"),
            (
                {"adapter": dspy.ChatAdapter(use_json_adapter_fallback=False)},
                "the adapter.use_json_adapter_fallback was True, is False",
            ),
            ({"student": student(temperature=0.7)}, "the settings of self changed"),
        ],
    )
    def test_another_compile_is_refused(self, tmp_path, engine, change, difference):
        def go(**change):
            program = change.pop("student", student())
            if "instructions" in change:
                program.signature = program.signature.with_instructions(change.pop("instructions"))
            lm = dspy.LM(
                change.pop("model", "fake/order-sensitive"),
                engine=engine,
                cache=False,
                temperature=change.pop("temperature", 0.0),
            )
            arguments = {"trainset": change.pop("trainset", EXAMPLES)}
            with dspy.context(lm=lm, adapter=change.pop("adapter", None)):
                optimizer(tmp_path, **change).compile(program, **arguments)

        go()
        before = engine.num_calls
        with pytest.raises(ValueError, match=f"belongs to another compile: .*{difference}.*another log_dir"):
            go(**change)
        assert engine.num_calls == before
        go()
        assert engine.num_calls == before

    def test_the_program_s_own_code_and_attributes_count(self, tmp_path, engine):
        optimizer(tmp_path).compile(Wrapped(), trainset=EXAMPLES)
        with pytest.raises(ValueError, match=r"self\.depth was 1, is 2"):
            optimizer(tmp_path).compile(Wrapped(depth=2), trainset=EXAMPLES)
        with pytest.raises(
            ValueError, match=r"the class of self was 'Wrapped', is 'WrappedTwice'; the code of"
        ):
            optimizer(tmp_path).compile(WrappedTwice(), trainset=EXAMPLES)

    @pytest.mark.parametrize("name", ["answer_key", "stop_token", "page_url", "key", "cache", "timeout"])
    def test_attributes_of_the_user_s_count_whatever_their_names(self, tmp_path, engine, name):
        def go(folder, **change):
            program, attributes = Wrapped(), {"answer_key": "answer", name: "answer"}
            setattr(program, name, change.get("module", "answer"))
            metric = Marked(**attributes | ({name: change["metric"]} if "metric" in change else {}))
            optimizer(tmp_path / folder, metric=metric).compile(program, trainset=EXAMPLES)

        go("log")
        before = engine.num_calls
        for change, difference in [
            ({"metric": "question"}, rf"the metric\.{name} changed"),
            ({"module": "question"}, rf"self\.{name} changed"),
        ]:
            with pytest.raises(ValueError, match=f"{difference}.*accept_changes=True"):
                go("log", **change)
        assert engine.num_calls == before
        go("log")
        assert engine.num_calls == before

    def test_an_attribute_that_calls_change_hides_no_other(self, tmp_path, engine):
        class Counting(Marked):
            def __call__(self, example, prediction):
                self.seen.append(example.question)
                return super().__call__(example, prediction)

        optimizer(tmp_path, metric=Counting(answer_key="answer", seen=[])).compile(
            student(), trainset=EXAMPLES
        )
        before = engine.num_calls
        optimizer(tmp_path, metric=Counting(answer_key="answer", seen=[])).compile(
            student(), trainset=EXAMPLES
        )
        with pytest.raises(ValueError, match=r"the metric\.answer_key changed"):
            optimizer(tmp_path, metric=Counting(answer_key="question", seen=[])).compile(
                student(), trainset=EXAMPLES
            )
        assert engine.num_calls == before

    def test_how_a_model_is_reached_may_differ(self, tmp_path, engine):
        def go(**access):
            program = Wrapped()
            program.judge = dspy.LM("fake/judge", **access)
            program.embedder = dspy.Embedder("fake/embedder", api_key=access["api_key"])
            metric = Marked(answer_key="answer", judge=dspy.LM("fake/judge", **access))
            optimizer(tmp_path, metric=metric).compile(program, trainset=EXAMPLES)

        go(api_key="sk-one", api_base="http://one", headers={"X-Key": "one"}, timeout=1)
        before = engine.num_calls
        go(api_key="sk-two", api_base="http://two", extra_headers={"X-Key": "two"}, timeout=2)
        assert engine.num_calls == before

    def test_how_it_runs_may_differ(self, tmp_path, engine):
        optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        before = engine.num_calls
        lm = dspy.LM("fake/order-sensitive", engine=engine, cache=True, num_retries=1)
        with dspy.context(lm=lm):
            optimizer(tmp_path, num_threads=1, max_errors=3, max_seconds=60).compile(
                student(), trainset=EXAMPLES
            )
        assert engine.num_calls == before

    def test_what_a_subclass_keeps_for_itself_is_no_argument(self, tmp_path, engine):
        """It may be large, secret, or never the same."""

        class Noting(PLReorder):
            def __init__(self, metric, *, api_key, **options):
                super().__init__(metric, **options)
                self.api_key, self.started, self.lock = api_key, time.monotonic(), threading.Lock()

        for key in ("sk-first-0123456789", "sk-second-0123456789"):
            reorder = Noting(
                exact_match, api_key=key, max_metric_calls=100, display_progress=False, log_dir=tmp_path
            )
            compiled = reorder.compile(student(), trainset=EXAMPLES)
            written = [path.read_text() for path in tmp_path.glob("*.json*")]
            assert key not in "".join([*written, repr(compiled.reorder_report)])
        assert set(engine.requests.values()) == {1}

    @pytest.mark.parametrize("kind", ["closure", "partial"])
    def test_a_metric_that_counts_beside_its_code_is_told_by_its_code(self, tmp_path, engine, kind):
        def counting(function):
            seen = {}

            def metric(example, prediction, seen=seen):
                seen["n"] = seen.get("n", 0) + 1
                return function(example, prediction)

            def closed(example, prediction):
                return metric(example, prediction, seen)

            return closed if kind == "closure" else functools.partial(metric, seen=seen)

        same, other = counting(exact_match), counting(lambda e, p: e.answer != p.answer)
        optimizer(tmp_path, metric=same).compile(student(), trainset=EXAMPLES)
        before = engine.num_calls
        optimizer(tmp_path, metric=counting(exact_match)).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == before
        with pytest.raises(ValueError, match="metric"):
            optimizer(tmp_path, metric=other).compile(student(), trainset=EXAMPLES)

    def test_an_argument_that_was_set_later_is_taken(self, tmp_path, engine):
        reorder = optimizer()
        reorder.update, reorder.log_dir, reorder.max_metric_calls = "ema", str(tmp_path / "log"), 100
        reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.settings["update"]["name"] == "ema"
        assert (tmp_path / "log" / "report.json").exists()

    def test_is_the_same_in_every_process(self):
        code = (
            "import dspy; import tempfile; from pathlib import Path; from test_resume import *;"
            "lm, _ = fake_lm(EXAMPLES); dspy.configure(lm=lm); folder = Path(tempfile.mkdtemp());"
            "metric = lambda e, p: p.answer in {'a', 'b', 'c', 'd'};"
            "optimizer(folder, metric=metric, max_metric_calls=60).compile(Wrapped(), trainset=EXAMPLES);"
            "print((folder / 'cells.jsonl').read_text().splitlines()[0])"
        )
        assert "#" in printed_whatever_the_hashes(code)

    def test_a_second_process_is_refused(self, tmp_path, engine):
        child = start(tmp_path, tmp_path / "log", seconds=0.05)
        while not lines(tmp_path / "calls"):
            time.sleep(0.01)
        before = engine.num_calls
        with pytest.raises(RuntimeError, match="in use by another compile"):
            optimizer(tmp_path / "log").compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == before
        child.kill()
        child.join()
        optimizer(tmp_path / "log").compile(student(), trainset=EXAMPLES)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"\0\0", "line 1 of .*cells.jsonl cannot be read"),
            (b'{"cell": ["x", "y"], "score": "high"}', "line 1 of .*cells.jsonl cannot be read"),
            (b'{"cell": ["x", "y"], "score": 1, "tokens": [1]}', "line 1 of .*cells.jsonl cannot be read"),
            (b'{"cell": ["x", "y"], "score": 1}', "not written by this version"),
            (b'{"schema_version": 99, "identity": {}}', "schema version 99"),
            (b'{"something": 1}', "none of the kinds of lines"),
        ],
    )
    def test_files_that_cannot_be_read(self, tmp_path, engine, line, message):
        (tmp_path / "cells.jsonl").write_bytes(line + b"\n")
        with pytest.raises(ValueError, match=message):
            optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == 0

    def test_a_disk_that_is_full_from_the_start(self, tmp_path, engine, monkeypatch):
        def full(file, content):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("plr_dspy.scoring.ledger.os.write", full)
        with pytest.raises(OSError, match="No space left"):
            optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == 0

    def test_keys_in_messages_are_hidden(self, tmp_path, engine, monkeypatch, caplog):
        monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")

        def metric(example, prediction):
            raise LookupError(
                "sk-proj-12345678 at http://x/?api_key=abc123def and correct-horse-battery, Bearer xyz987"
            )

        with pytest.raises(LookupError):
            optimizer(tmp_path, metric=metric, max_errors=3).compile(student(), trainset=EXAMPLES)
        written = caplog.text + "".join(path.read_text() for path in tmp_path.iterdir())
        assert "LookupError" in written
        assert not [s for s in ("12345678", "abc123def", "correct-horse", "xyz987") if s in written]

    def test_paths_of_every_kind(self, tmp_path, engine, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        reorder = optimizer("~/logs")
        assert reorder.log_dir == tmp_path / "logs"
        relative = optimizer("here")
        (tmp_path / "elsewhere").mkdir()

        def metric(example, prediction):
            os.chdir(tmp_path / "elsewhere")
            return exact_match(example, prediction)

        relative.metric = metric
        relative.compile(student(), trainset=EXAMPLES)
        assert {path.name for path in (tmp_path / "here").iterdir()} >= {
            "cells.jsonl",
            "report.json",
        }
        assert not list((tmp_path / "elsewhere").iterdir())


class TestLargerBudget:
    """What was paid for is paid for, and the search goes on."""

    @pytest.mark.parametrize(("first", "second"), [(120, 200), (120, 125), (100, 600), (150, 150)])
    def test_goes_on(self, tmp_path, engine, first, second):
        optimizer(tmp_path, max_metric_calls=first).compile(student(), trainset=EXAMPLES)
        paid = engine.num_calls
        reorder = optimizer(tmp_path, max_metric_calls=second)
        reorder.compile(student(), trainset=EXAMPLES)
        calls = reorder.report.program_calls
        assert calls["resumed"] == paid
        assert engine.num_calls == calls["total"] <= second
        assert set(engine.requests.values()) == {1}  # none twice
        assert reorder.report.comparison is not None

    def test_the_search_gets_the_new_calls(self, tmp_path, engine):
        small, large = (optimizer(tmp_path, max_metric_calls=calls) for calls in (120, 300))
        small.compile(student(), trainset=EXAMPLES)
        large.compile(student(), trainset=EXAMPLES)
        rounds = len(small.report.history)
        assert large.report.history[:rounds] == small.report.history
        assert len(large.report.history) > rounds
        new = large.report.program_calls["total"] - small.report.program_calls["total"]
        assert large.report.program_calls["search"] - small.report.program_calls["search"] > new / 2

    def test_and_once_more_and_back_is_refused(self, tmp_path, engine):
        for budget in (120, 200, 280):
            reorder = optimizer(tmp_path, max_metric_calls=budget)
            reorder.compile(student(), trainset=EXAMPLES)
            assert engine.num_calls == reorder.report.program_calls["total"] <= budget
        before = engine.num_calls
        reorder.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == before

    @pytest.mark.parametrize(
        "change", [{"seed": 1}, {"max_metric_calls": 290}, {"update": "ema"}, {"patience": 2}]
    )
    def test_other_arguments_reuse_what_is_paid(self, tmp_path, engine, change):
        optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        reorder = optimizer(tmp_path, **{"max_metric_calls": 500, **change})
        reorder.compile(student(), trainset=EXAMPLES)
        assert set(engine.requests.values()) == {1}
        assert engine.num_calls == reorder.report.program_calls["total"] <= 500

    @pytest.mark.parametrize("stop_at", [125, 170])
    def test_stopped_and_gone_on_with(self, tmp_path, engine, stop_at):
        """Whether before or after the larger search has ended a round."""

        def ringing(example, prediction):
            if engine.num_calls == stop_at:
                os.kill(os.getpid(), signal.SIGINT)
            return exact_match(example, prediction)

        optimizer(tmp_path, metric=Metric(ringing), max_metric_calls=120).compile(
            student(), trainset=EXAMPLES
        )
        reorder = optimizer(tmp_path, metric=Metric(ringing), max_metric_calls=300, num_threads=1)
        with pytest.raises(KeyboardInterrupt):
            reorder.compile(student(), trainset=EXAMPLES)
        reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.program_calls["total"] <= 300
        assert engine.num_calls <= 300 + NUM_THREADS
        assert reorder.report.program_calls["total"] > 240

    def test_from_auto_to_a_number(self, tmp_path, engine):
        optimizer(tmp_path, max_metric_calls=None).compile(student(3), trainset=EXAMPLES[:30])
        reorder = optimizer(tmp_path, max_metric_calls=None, auto="medium")
        reorder.compile(student(3), trainset=EXAMPLES[:30])
        assert set(engine.requests.values()) == {1}

    @pytest.mark.parametrize(
        ("options", "first", "second"),
        [
            ({"auto": "paper", "num_samples": 4, "num_iterations": 6, "num_final_draws": 2}, 300, 500),
            ({}, 100, 500),  # of three demos: from a racing plan to an exhaustive one
        ],
    )
    def test_other_plans_begin_anew_over_what_is_paid(self, tmp_path, engine, options, first, second):
        optimizer(tmp_path, max_metric_calls=first, **options).compile(student(3), trainset=EXAMPLES)
        reorder = optimizer(tmp_path, max_metric_calls=second, **options)
        reorder.compile(student(3), trainset=EXAMPLES)
        whole = optimizer(max_metric_calls=second, **options)
        assert set(engine.requests.values()) == {1}
        assert engine.num_calls == reorder.report.program_calls["total"] <= second
        whole.compile(student(3), trainset=EXAMPLES)
        assert reorder.report.slots[0].ordering == whole.report.slots[0].ordering

    def test_top_k(self, tmp_path, engine):
        for budget in (200, 400):
            reorder = TopKOrder(
                exact_match,
                num_candidates=6,
                max_metric_calls=budget,
                log_dir=tmp_path,
                num_threads=NUM_THREADS,
                display_progress=False,
            )
            reorder.compile(student(), trainset=EXAMPLES)
            assert engine.num_calls == reorder.report.program_calls["total"] <= budget
        assert set(engine.requests.values()) == {1}

    def test_calls_that_failed_count(self, tmp_path, engine):
        flaky = TestFailed().flaky(engine, first=60)
        with dspy.context(lm=flaky), pytest.raises(Exception, match="refused"):
            optimizer(tmp_path, max_metric_calls=120, max_errors=5).compile(student(), trainset=EXAMPLES)
        reorder = optimizer(tmp_path, max_metric_calls=200)
        reorder.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == reorder.report.program_calls["total"] <= 200


class TestNothingToMixUp:
    """A folder without any score, where another compile starts."""

    @pytest.mark.parametrize("change", [{}, {"seed": 1, "max_metric_calls": 200}])
    def test_after_failures_alone(self, tmp_path, engine, change):
        with pytest.raises(TypeError, match="metric must return a number"):
            optimizer(tmp_path, metric=lambda example, prediction: None).compile(student(), trainset=EXAMPLES)
        spent = engine.num_calls
        whole = optimizer(**change)
        whole.compile(student(), trainset=EXAMPLES)
        alone = engine.num_calls - spent
        reorder = optimizer(tmp_path, **change)
        reorder.compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == spent + 2 * alone
        assert same(reorder.report.to_dict()) == same(whole.report.to_dict())
        optimizer(tmp_path, **change).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == spent + 2 * alone

    @pytest.mark.parametrize(
        ("broken", "candidates"),
        [
            ("the metric", "both"),
            ("the metric", "labeled"),
            ("the teacher", "both"),
            ("the threshold", "bootstrapped"),
        ],
    )
    def test_where_demos_are_chosen(self, tmp_path, engine, candidates, broken):
        def chooser(metric=exact_match, **options):
            options = {"num_threads": 1, "max_demos": 4, "max_metric_calls": 150, "max_errors": 3, **options}
            return PLFewShot(metric, log_dir=tmp_path, display_progress=False, **options)

        program = dspy.Predict("question -> answer")
        options, lm = {"candidates": "bootstrapped", "metric_threshold": 2}, dspy.settings.lm
        if broken != "the threshold":
            options = {"metric": lambda example, prediction: exact_match(example, prediction) / 0}
        if broken == "the teacher":
            options, lm = {}, TestFailed().flaky(engine, first=0)
        with dspy.context(lm=lm), contextlib.suppress(ZeroDivisionError, dspy.LMError):
            chooser(**options).compile(program, trainset=EXAMPLES)
        spent = engine.num_calls
        assert spent in (3, 15)
        optimizer = chooser(candidates=candidates, max_bootstrapped=4)
        optimizer.compile(program, trainset=EXAMPLES)
        begun_anew = broken == "the metric"
        assert optimizer.report.program_calls["total"] == engine.num_calls - spent * begun_anew <= 150

    def test_a_single_score_is_something_to_mix_up(self, tmp_path, engine):
        down = TestFailed().flaky(engine, first=2)
        with dspy.context(lm=down), pytest.raises(Exception, match="refused"):
            optimizer(tmp_path, num_threads=1, max_errors=1).compile(student(), trainset=EXAMPLES)
        with pytest.raises(ValueError, match="belongs to another compile: the code of the metric changed"):
            optimizer(tmp_path, metric=lambda example, prediction: 1.0).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == 2


class TestAcceptedChanges:
    def test_code(self, tmp_path, engine, caplog):
        def other(example, prediction):
            return 1.0 * exact_match(example, prediction)

        whole = optimizer(tmp_path)
        whole.compile(student(), trainset=EXAMPLES)
        before = engine.num_calls
        with pytest.raises(ValueError, match=r"the code of the metric changed.*pass accept_changes=True"):
            optimizer(tmp_path, metric=other).compile(student(), trainset=EXAMPLES)
        reorder = optimizer(tmp_path, metric=other, accept_changes=True)
        reorder.compile(student(), trainset=EXAMPLES)
        assert "although the code of the metric changed" in caplog.text
        assert engine.num_calls == before
        assert reorder.report.slots == whole.report.slots
        optimizer(tmp_path, metric=other).compile(student(), trainset=EXAMPLES)  # it is known by now

    def test_other_examples(self, tmp_path, engine):
        """Cells are named by the content of their example: those of examples that stay are taken."""
        optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        with pytest.raises(ValueError, match=r"the examples changed.*pass accept_changes=True"):
            optimizer(tmp_path).compile(student(), trainset=EXAMPLES[:50])
        reorder = optimizer(tmp_path, max_metric_calls=400, accept_changes=True)
        reorder.compile(student(), trainset=EXAMPLES[:50])
        assert set(engine.requests.values()) == {1}
        assert engine.num_calls == reorder.report.program_calls["total"] <= 400

    def test_examples_in_another_order(self, tmp_path, engine):
        optimizer(tmp_path).compile(student(), trainset=EXAMPLES)
        reorder = optimizer(tmp_path, max_metric_calls=400)
        reorder.compile(student(), trainset=EXAMPLES[::-1])
        assert set(engine.requests.values()) == {1}
        assert engine.num_calls == reorder.report.program_calls["total"] <= 400

    def test_other_demos_begin_the_search_anew(self, tmp_path, engine):
        """The state of a search numbers the demos; there may be more of them now, or the same number of others."""
        examples = EXAMPLES[10:]
        optimizer(tmp_path).compile(student(5), trainset=examples)
        for num_demos in (6, 4):
            reorder = optimizer(tmp_path, accept_changes=True)
            reorder.compile(student(num_demos), trainset=examples)
            (slot,) = reorder.report.slots
            assert sorted(slot.ordering) == list(range(num_demos))

    def test_versions_and_docstrings_do_not_count(self, tmp_path, engine, monkeypatch):
        def metric(example, prediction):
            """Say whether it is right."""
            return exact_match(example, prediction)

        first = metric

        def metric(example, prediction):
            # Says the same, in other words.
            return exact_match(example, prediction)

        optimizer(tmp_path, metric=first).compile(student(), trainset=EXAMPLES)
        before = engine.num_calls
        monkeypatch.setattr(dspy, "__version__", "99.0")
        optimizer(tmp_path, metric=metric).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == before

    def test_in_order_sensitivity(self, tmp_path, engine):
        def other(example, prediction):
            return 1.0 * exact_match(example, prediction)

        options = {"num_orders": 3, "num_threads": 4, "log_dir": tmp_path, "display_progress": False}
        order_sensitivity(student(), exact_match, EXAMPLES, **options)
        before = engine.num_calls
        with pytest.raises(ValueError, match="pass accept_changes=True"):
            order_sensitivity(student(), other, EXAMPLES, **options)
        order_sensitivity(student(), other, EXAMPLES, accept_changes=True, **options)
        assert engine.num_calls == before


class TestWhatTheMetricCalls:
    SOURCE = """
LIMIT = 1
SEEN, TIMES, STRAY = [], {"all": 0}, 0

def right(example, prediction):
    return example.answer == prediction.answer

def metric(example, prediction):
    global STRAY
    STRAY += 1
    TIMES["all"] += 1
    SEEN.append(example.question)
    return LIMIT * right(example, prediction)
"""

    def metric(self, source=SOURCE):
        namespace = {"__name__": "users"}
        exec(source, namespace)
        return namespace["metric"]

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (("LIMIT = 1", "LIMIT = 2"), "LIMIT of users was 1, is 2"),
            (("== prediction", "!= prediction"), "right of users changed"),
        ],
    )
    def test_counts(self, tmp_path, engine, change, difference):
        optimizer(tmp_path, metric=self.metric()).compile(student(), trainset=EXAMPLES)
        before = engine.num_calls
        with pytest.raises(ValueError, match=f"{difference}.*accept_changes=True"):
            optimizer(tmp_path, metric=self.metric(self.SOURCE.replace(*change))).compile(
                student(), trainset=EXAMPLES
            )
        assert engine.num_calls == before

    def test_a_change_of_the_metric_is_said_once(self, tmp_path, engine):
        optimizer(tmp_path, metric=self.metric()).compile(student(), trainset=EXAMPLES)
        changed = self.metric(self.SOURCE.replace("LIMIT * right", "-LIMIT * right"))
        with pytest.raises(ValueError, match=r"another compile: the code of the metric changed\. Pass"):
            optimizer(tmp_path, metric=changed).compile(student(), trainset=EXAMPLES)

    def test_what_changes_while_a_compile_runs_does_not(self, tmp_path, engine):
        """Counters, caches: in the same process, and in one where they begin anew."""
        metric = self.metric()
        for each in (metric, metric, self.metric()):
            optimizer(tmp_path, metric=each).compile(student(), trainset=EXAMPLES)
        assert engine.num_calls == len(metric.__globals__["SEEN"]) == metric.__globals__["STRAY"]
        with pytest.raises(ValueError, match="LIMIT of users was 1, is 2"):
            optimizer(tmp_path, metric=self.metric(self.SOURCE.replace("LIMIT = 1", "LIMIT = 2"))).compile(
                student(), trainset=EXAMPLES
            )

    def test_nor_does_what_it_changed_before_it_was_interrupted(self, tmp_path, engine):
        metric = self.metric()
        bell = threading.Thread(target=ring_at, args=(engine, 60))
        bell.start()
        with pytest.raises(KeyboardInterrupt):
            optimizer(tmp_path, metric=metric).compile(student(), trainset=EXAMPLES)
        bell.join()
        optimizer(tmp_path, metric=metric).compile(student(), trainset=EXAMPLES)
        assert set(engine.requests.values()) <= {1, 2}

    def test_a_list_that_the_program_appends_to(self, tmp_path, engine):
        class Writing(Wrapped):
            def forward(self, question):
                self.seen.append(question)
                return super().forward(question)

        program = Writing()
        program.seen = []
        for _ in range(2):
            optimizer(tmp_path).compile(program, trainset=EXAMPLES)
        assert engine.num_calls == len(program.seen)
        program.depth = 2
        with pytest.raises(ValueError, match=r"self\.depth was 1, is 2"):
            optimizer(tmp_path).compile(program, trainset=EXAMPLES)


class TestInterrupted:
    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX signals")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_control_comes_back_although_calls_hang(self, tmp_path, number):
        release = threading.Event()

        class Hanging(OrderSensitiveEngine):
            hanging: ClassVar[list] = []

            def complete(self, request):
                if self.num_calls >= 50:
                    self.hanging.append(request)
                    release.wait(60)
                return super().complete(request)

        engine = Hanging({example.question: example.answer for example in EXAMPLES})
        reorder = optimizer(tmp_path)

        def ring():
            while engine.num_calls < 50 or len(engine.hanging) < NUM_THREADS:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        bell = threading.Thread(target=ring)
        with dspy.context(lm=dspy.LM("fake/order-sensitive", engine=engine, cache=False)):
            bell.start()
            with pytest.raises(KeyboardInterrupt):
                reorder.compile(student(), trainset=EXAMPLES)
            assert not release.is_set()
            finished = reorder.report.program_calls["total"]
            assert 40 < finished <= 50
            assert len(reorder.best_program.demos) == 5
            release.set()
            bell.join()
            reorder.compile(student(), trainset=EXAMPLES)  # while those calls end
            assert reorder.report.program_calls["resumed"] == finished
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_calls_that_end_in_time_are_kept(self, tmp_path, engine):
        class Slow(OrderSensitiveEngine):
            def complete(self, request):
                time.sleep(0.3)
                return super().complete(request)

        slow = Slow({example.question: example.answer for example in EXAMPLES})
        with dspy.context(lm=dspy.LM("fake/order-sensitive", engine=slow, cache=False)):
            reorder = optimizer(tmp_path)
            bell = threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT))
            bell.start()
            with pytest.raises(KeyboardInterrupt):
                reorder.compile(student(), trainset=EXAMPLES)
            bell.join()
        assert reorder.report.program_calls["total"] == slow.num_calls

    @pytest.mark.parametrize("num_threads", [1, 4])
    @pytest.mark.parametrize("where", ["asyncio", "own handler", "swallowing program"])
    def test_ctrl_c_wherever_it_is(self, engine, num_threads, where):
        class Swallowing(dspy.Module):
            def __init__(self):
                super().__init__()
                self.answer = student()

            def forward(self, question):
                try:
                    return self.answer(question=question)
                except:  # noqa: E722
                    return dspy.Prediction(answer="none")

        def metric(example, prediction):
            time.sleep(0.001)
            return exact_match(example, prediction)

        reorder = optimizer(metric=metric, num_threads=num_threads)
        program = Swallowing() if where == "swallowing program" else student()

        async def cell():
            return reorder.compile(program, trainset=EXAMPLES)

        heard = []
        handler = (
            (lambda *arguments: heard.append(1)) if where == "own handler" else signal.default_int_handler
        )
        before = signal.signal(signal.SIGINT, handler)
        bell = threading.Thread(target=ring_at, args=(engine, 40))
        bell.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(cell()) if where == "asyncio" else reorder.compile(program, trainset=EXAMPLES)
        finally:
            bell.join()
            assert signal.signal(signal.SIGINT, before) is handler
        assert reorder.report.stopped == "interrupted"
        assert engine.num_calls < 140
        assert len(heard) == (where == "own handler")
        assert not [error for error in reorder.report.errors if error.type == "KeyboardInterrupt"]

    def test_a_handler_of_the_users_own_stays(self, engine):
        seen = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        try:
            bell = threading.Thread(target=ring_at, args=(engine, 20, signal.SIGTERM))
            bell.start()
            optimizer().compile(student(), trainset=EXAMPLES)
            bell.join()
        finally:
            signal.signal(signal.SIGTERM, before)
        assert seen == [signal.SIGTERM]

    def test_not_in_the_main_thread(self, engine, uninterrupted):
        reports = []

        def work():
            reorder = optimizer()
            with dspy.context(lm=dspy.LM("fake/order-sensitive", engine=engine, cache=False)):
                reorder.compile(student(), trainset=EXAMPLES)
            reports.append(json.loads(json.dumps(reorder.report.to_dict())))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert same(reports[0]) == same(uninterrupted)


class TestFailed:
    def flaky(self, engine, *, first=120, last=10**9):
        """Fails from one call to another, as a server that is down."""

        class Down(OrderSensitiveEngine):
            def complete(self, request):
                response = engine.complete(request)
                if first <= engine.num_calls < last:
                    raise ConnectionError("refused")
                return response

        return dspy.LM("fake/order-sensitive", engine=Down({}), cache=False)

    def test_calls_of_the_round_that_failed_are_made_again(self, tmp_path, engine):
        reorder = optimizer(tmp_path, max_errors=5)
        with dspy.context(lm=self.flaky(engine, first=70)), pytest.raises(Exception, match="refused"):
            reorder.compile(student(), trainset=EXAMPLES)
        failed = reorder.report.errors[0].count
        assert 5 <= failed <= 5 + NUM_THREADS
        reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.errors == []
        assert reorder.report.program_calls["total"] == engine.num_calls
        assert Counter(engine.requests.values())[2] == failed
        assert set(engine.requests.values()) == {1, 2}

    @pytest.mark.parametrize("rounds", [0, 2, 3])
    def test_a_tool_that_was_down_for_a_whole_round_is_asked_again(self, tmp_path, engine, rounds):
        """From the first call on, and from the end of the second and the third round."""
        whole = optimizer(tmp_path / "whole")
        whole.compile(student(), trainset=EXAMPLES)
        ends = [0, *(iteration.program_calls for iteration in whole.report.history)]
        first, down = engine.num_calls + max(1, ends[rounds]), True

        def metric(example, prediction):
            if down and engine.num_calls >= first:
                raise ConnectionError("down")
            return exact_match(example, prediction)

        reorder = optimizer(tmp_path / "down", metric=Metric(metric), max_errors=10_000)
        with pytest.raises(
            RuntimeError, match=r"no call ended with an answer|train examples ran for any order"
        ):
            reorder.compile(student(), trainset=EXAMPLES)
        down = False
        reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.comparison is not None
        left = sum(error.count for error in reorder.report.errors)
        assert left <= NUM_THREADS  # the first ones may have been of a round that was whole

    def test_broken_examples_do_not_keep_a_compile_from_going_on(self, tmp_path, engine):
        """They are few, and one failure each, however often they are met again."""
        state = {"down": False}
        broken = ("question 20", "question 30", "question 40")

        def metric(example, prediction):
            state["down"] = state["down"] or (not state.get("mended") and engine.num_calls >= 90)
            if state["down"] or example.question in broken:
                raise ConnectionError("down")
            return exact_match(example, prediction)

        reorder = optimizer(tmp_path, metric=Metric(metric), max_errors=4)
        with pytest.raises(ConnectionError):
            reorder.compile(student(), trainset=EXAMPLES)
        state.update(down=False, mended=True)
        reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.comparison is not None

    @pytest.mark.parametrize("limit", [200, 333, 800])
    def test_a_compile_that_its_budget_ended_stays_as_it_is(self, tmp_path, engine, limit):
        options = {"auto": "paper", "num_samples": 5, "num_final_draws": 2, "max_metric_calls": limit}
        first = optimizer(tmp_path, **options)
        first.compile(student(), trainset=EXAMPLES[:40])
        calls = engine.num_calls
        second = optimizer(tmp_path, **options)
        second.compile(student(), trainset=EXAMPLES[:40])
        assert engine.num_calls == calls
        assert same(second.report.to_dict()) == same(first.report.to_dict())

    def test_failures_that_were_decided_on_stay(self, tmp_path, engine):
        def metric(example, prediction):
            if example.question == "question 30":
                raise ZeroDivisionError("boom")
            return exact_match(example, prediction)

        whole = optimizer(metric=metric, max_errors=100)
        whole.compile(student(), trainset=EXAMPLES)
        first = engine.num_calls
        reorder = optimizer(tmp_path, metric=metric, max_errors=100)
        bell = threading.Thread(target=ring_at, args=(engine, first + 200))
        bell.start()
        with pytest.raises(KeyboardInterrupt):
            reorder.compile(student(), trainset=EXAMPLES)
        bell.join()
        reorder.compile(student(), trainset=EXAMPLES)
        for name in ("slots", "comparison", "candidates", "errors", "stopped"):
            assert getattr(reorder.report, name) == getattr(whole.report, name)

    def test_the_budget_holds_over_all_parts(self, tmp_path, engine):
        """Failed calls are paid: the final comparison shrinks rather than pass the limit."""
        budget = 300
        for _ in itertools.count():
            reorder = optimizer(tmp_path, max_errors=4)
            first = engine.num_calls + 25
            with dspy.context(lm=self.flaky(engine, first=first)):
                try:
                    reorder.compile(student(), trainset=EXAMPLES)
                    break
                except Exception as error:
                    assert "refused" in str(error), error
            assert engine.num_calls == reorder.report.program_calls["total"] <= budget
        assert engine.num_calls == reorder.report.program_calls["total"] <= budget
        assert reorder.report.comparison is None or reorder.report.comparison.num_candidates >= 2

    def test_a_full_disk_loses_nothing(self, tmp_path, engine, uninterrupted, monkeypatch, caplog):
        write = os.write

        def full(file, data):
            if (
                data.startswith(b'{"cell"')
                and engine.num_calls > uninterrupted["program_calls"]["total"] + 50
            ):
                raise OSError(28, "No space left on device")
            return write(file, data)

        monkeypatch.setattr(os, "write", full)
        reorder = optimizer(tmp_path)
        reorder.compile(student(), trainset=EXAMPLES)
        assert same(json.loads(json.dumps(reorder.report.to_dict()))) == same(uninterrupted)
        assert caplog.text.count("No space left") == 1
