"""Tests that run every optimizer: limits, resuming, repeatable results, and errors."""

import re
import shutil
from collections import Counter
from functools import partial

import dspy
import pytest
from fakes import ProposingEngine, interrupt, lm_of, set_price, using
from label_world import DEMOS, EXAMPLES, Engine, comparable, exact, student

from plr_dspy import F1, CalibratedProgram, MixtureEM, PLFewShot, PLReorder, Report
from plr_dspy.baselines import TopKOrder


class WithPrograms(PLFewShot):
    """`PLFewShot` with programs that the user passes."""

    def compile(self, student, **options):
        return super().compile(student, programs=programs_of_others(), **options)

    def estimate(self, student, **options):
        return super().estimate(student, programs=programs_of_others(), **options)


def programs_of_others():
    return {"reversed": student(demos=DEMOS[::-1]), "fewer": student(demos=DEMOS[1:3])}


PROPOSER = ProposingEngine("Name the label.", revise=lambda content: "Read the text.")
KINDS = {
    "PLReorder": PLReorder,
    "scores alone": partial(PLReorder, signal="score", update=MixtureEM(num_components=2)),
    "calibrated": partial(PLReorder, calibrate=True),
    "paper": partial(PLReorder, auto="paper", num_samples=4, num_iterations=3, num_final_draws=2),
    "PLFewShot": partial(PLFewShot, max_demos=4, max_bootstrapped=4, candidates="bootstrapped"),
    "demos for each input": partial(PLFewShot, demos="auto", max_demos=4, candidates="labeled"),
    "programs": partial(WithPrograms, max_demos=4, candidates="labeled"),
    "instructions": partial(
        PLFewShot, max_demos=4, candidates="labeled", instructions=["Name the label.", "Read the text."]
    ),
    "proposals": partial(
        PLFewShot,
        max_demos=4,
        candidates="labeled",
        instructions="propose",
        num_instructions=1,
        prompt_model=lm_of(PROPOSER, "fake/proposer"),
    ),
    "TopKOrder": partial(TopKOrder, num_candidates=8),
    "without log-probabilities": PLReorder,
    "F1": PLReorder,
    "F1, calibrated": partial(PLFewShot, calibrate=True, max_demos=4, candidates="labeled"),
}
CHOOSING = ("PLFewShot", "demos for each input", "programs", "instructions", "proposals", "F1, calibrated")
TIMED = ("PLReorder", "calibrated", "paper", "PLFewShot", "demos for each input", "TopKOrder", "F1")
METRICS = {kind: F1("positive") for kind in ("F1", "F1, calibrated")}
BUDGET = {"paper": 300, "TopKOrder": 200}
"""Maximum number of program calls, keyed by kind. The default is 100."""
OFTEN = {"demos for each input": 3, "programs": 2, "instructions": 3, "proposals": 3}
"""Maximum number of calls with the same prompt, keyed by kind. The default is 1. Two variations of retrieval, or a
user's program and the search, may show the same demos. Recorded prompts do not contain instructions."""


def engine_for(kind):
    return Engine(logprobs=kind != "without log-probabilities")


def compiled(kind, engine, *, metric=None, program=None, trainset=EXAMPLES, **options):
    limits = {}
    if not options.keys() & {"max_cost", "max_seconds"}:
        limits["max_metric_calls"] = BUDGET.get(kind, 100)
    metric = metric or METRICS.get(kind, exact)
    limits |= {"num_threads": 1, "display_progress": False}
    optimizer = KINDS[kind](metric, **{**limits, **options})
    with using(engine, "fake/x"):
        return optimizer.compile(program or student(), trainset=trainset), optimizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder with the logs of uninterrupted compiles, in one subfolder for each kind."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(scope="module")
def finished(folders):
    """Return a function that returns the student, program, optimizer and engine of an uninterrupted compile."""
    compiles = {}

    def of(kind):
        if kind not in compiles:
            program = student()
            engine = engine_for(kind)
            options = {"program": program, "num_threads": 8, "log_dir": folders / kind}
            compiles[kind] = (program, *compiled(kind, engine, **options), engine)
        return compiles[kind]

    return of


@pytest.fixture
def whole(finished):
    return lambda kind: finished(kind)[2].report


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestLimits:
    def test_the_budget_is_kept_by_eight_threads(self, kind, finished):
        budget = BUDGET.get(kind, 100)
        *_, optimizer, engine = finished(kind)
        assert len(engine.prompts) == optimizer.report.program_calls["total"] <= budget
        assert max(Counter(engine.prompts).values()) <= OFTEN.get(kind, 1)
        with using(engine, "fake/x"):
            estimate = optimizer.estimate(student(), trainset=EXAMPLES)
        calls = optimizer.report.program_calls
        settings = optimizer.report.settings
        phases = calls.keys() - {"total", "resumed"}
        assert sum(calls[phase] for phase in phases) == calls["total"]
        assert calls["total"] <= estimate.program_calls <= budget
        assert "program calls" in str(estimate)
        planned = settings["num_selection_examples"]
        compared = optimizer.report.comparison.num_examples
        # A metric over a set compares two programs on all examples that both answered.
        assert compared >= planned if kind in METRICS else compared == planned

    @pytest.mark.parametrize(
        ("kind", "limit"),
        [*((kind, "max_seconds") for kind in TIMED), ("calibrated", "max_cost"), ("TopKOrder", "max_cost")],
    )
    def test_time_and_cost_limits_are_kept_and_leave_a_comparison(self, kind, limit, monkeypatch):
        """Each call takes a second and costs a dollar."""
        engine = Engine()
        most = BUDGET.get(kind, 100)
        monkeypatch.setattr("plr_dspy.scoring.budget.time.monotonic", lambda: float(len(engine.prompts)))
        set_price(monkeypatch, "fake/x", 2e-6, 8e-6)
        a_call = 2e-6 * engine.prompt_tokens + 8e-6 * 5
        unit = a_call if limit == "max_cost" else 1
        _, optimizer = compiled(kind, engine, **{limit: most * unit})
        assert 0.65 * most < len(engine.prompts) == optimizer.report.program_calls["total"] <= most
        assert optimizer.report.cost == pytest.approx(a_call * len(engine.prompts))
        assert optimizer.report.comparison is not None
        ended_by = "time" if limit == "max_seconds" else "cost"
        assert optimizer.report.stopped.startswith(ended_by) or kind == "paper"


class TestResuming:
    def test_a_compile_resumes_wherever_it_was_stopped(self, kind, whole, tmp_path):
        """Only calls that were in progress are repeated. The number of threads does not change the result."""
        engine = engine_for(kind)
        num_threads = 4
        stops = (2, 48)
        for further in stops:
            engine.at = dict.fromkeys(range(len(engine.prompts) + further, 1_000), interrupt)
            with pytest.raises(KeyboardInterrupt):
                compiled(kind, engine, num_threads=num_threads, log_dir=tmp_path)
        engine.at = {}
        report = compiled(kind, engine, log_dir=tmp_path)[1].report
        assert comparable(report) == comparable(whole(kind))
        assert report.program_calls["resumed"] > 45
        if kind not in ("instructions", "proposals"):  # Recorded prompts lack the instructions.
            again = Counter(engine.prompts)
            assert sum(again.values()) - len(again) <= num_threads * len(stops)
            assert len(again) == report.program_calls["total"]

    def test_a_finished_compile_needs_no_calls_and_a_larger_budget_only_new_calls(
        self, kind, whole, folders, tmp_path
    ):
        """Another metric is rejected unless the change is accepted."""

        def other(example, prediction):
            return 1.0 * exact(example, prediction)

        engine = engine_for(kind)
        paid = whole(kind).program_calls["total"]
        shutil.copytree(folders / kind, tmp_path, dirs_exist_ok=True)
        _, optimizer = compiled(kind, engine, log_dir=tmp_path)
        assert not engine.prompts
        assert optimizer.report.program_calls["resumed"] == paid
        assert comparable(optimizer.report) == comparable(whole(kind))
        message = r"metric changed.*another log_dir.*accept_changes=True"
        with pytest.raises(ValueError, match=message):
            compiled(kind, engine, metric=other, log_dir=tmp_path)
        assert not engine.prompts
        budget = int(1.2 * BUDGET.get(kind, 100))
        options = {"metric": other, "max_metric_calls": budget, "log_dir": tmp_path}
        _, optimizer = compiled(kind, engine, accept_changes=True, **options)
        calls = optimizer.report.program_calls
        assert 0 < len(engine.prompts) == calls["total"] - calls["resumed"]
        assert 0 < calls["resumed"] <= paid
        assert calls["total"] <= budget
        assert max(Counter(engine.prompts).values()) <= OFTEN.get(kind, 1)


class TestResult:
    def test_is_a_copy_with_a_report_that_can_be_saved(self, kind, finished, tmp_path):
        engine = engine_for(kind)
        program, result, optimizer, _ = finished(kind)
        assert program.dump_state() == student().dump_state()
        assert program.demos == student().demos
        assert not getattr(program, "_compiled", False)
        inner = getattr(result, "program", result)
        assert result.reorder_report == optimizer.report.to_dict()
        if kind not in CHOOSING:
            texts = sorted(demo["text"] for demo in inner.demos)
            assert texts == sorted(demo["text"] for demo in DEMOS)
        optimizer.report.save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == optimizer.report
        inner.save(tmp_path / "program.json")
        loaded = dspy.Predict(program.signature)
        loaded.load(tmp_path / "program.json")
        with using(engine):
            assert inner(text="text 7").label == loaded(text="text 7").label
        assert engine.prompts[-1] == engine.prompts[-2]

    def test_the_seed_of_compile_overrides_the_seed_of_the_optimizer(self, whole):
        optimizer = PLReorder(exact, max_metric_calls=100, display_progress=False, seed=5)
        with using(Engine(), "fake/x"):
            optimizer.compile(student(), trainset=EXAMPLES, seed=0)
            zero = optimizer.report.candidates
            optimizer.compile(student(), trainset=EXAMPLES)
        assert zero == whole("PLReorder").candidates != optimizer.report.candidates


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "stopped"), [(LookupError, "ended by LookupError"), (KeyboardInterrupt, "interrupted")]
    )
    def test_an_error_reaches_the_user_and_leaves_a_report_and_a_program(self, kind, error, stopped):
        engine = engine_for(kind)

        def metric(example, prediction):
            if len(engine.prompts) > 40:
                raise error("gone")
            return exact(example, prediction)

        options = {"max_metric_calls": 300, "num_threads": 2, "display_progress": False}
        optimizer = KINDS[kind](metric, **options)
        with using(engine, "fake/x"), pytest.raises(error, match="gone"):
            optimizer.compile(student(), trainset=EXAMPLES)
        report = optimizer.report
        assert report.stopped == stopped
        assert report.comparison is None
        if error is LookupError:
            (entry,) = [entry for entry in report.errors if entry.type == "LookupError"]
            assert re.match(r"trainset\[\d+\]", entry.examples[0])
        assert report.program_calls["total"] >= 40 - options["num_threads"]
        assert optimizer.best_program.reorder_report == report.to_dict()
        if kind == "calibrated":
            assert isinstance(optimizer.best_program, CalibratedProgram)

    @pytest.mark.parametrize("value", [None, float("nan")])
    def test_a_metric_without_a_valid_score_ends_the_compile_at_once(self, kind, value):
        engine = engine_for(kind)
        options = {"max_metric_calls": 300, "max_errors": 3, "num_threads": 2, "display_progress": False}
        optimizer = KINDS[kind](lambda example, prediction: value, **options)
        with using(engine, "fake/x"), pytest.raises((TypeError, ValueError), match="metric"):
            optimizer.compile(student(), trainset=EXAMPLES)
        assert len(engine.prompts) <= 6
