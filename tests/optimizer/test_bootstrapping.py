"""The demos that `PLFewShot` bootstraps from the answers of a teacher."""

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Literal

import dspy
import fakes
import pytest
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError
from fakes import engine_for, exact_match, interrupt, questions, student, using

from plr_dspy import PLFewShot, PLReorder
from plr_dspy.labels.reader import NoProbabilities

EXAMPLES = questions(60)
CLOCK = "plr_dspy.scoring.budget.time.monotonic"
UNLABELED = [example.without("answer").with_inputs("question") for example in EXAMPLES]


def predict(kind=dspy.Predict, demos=()):
    program = kind("question -> answer")
    program.predictors()[0].demos = list(demos)
    return program


def chooser(metric=exact_match, **options):
    defaults = {
        "max_metric_calls": 90,
        "max_demos": 4,
        "candidates": "bootstrapped",
        "display_progress": False,
    }
    return PLFewShot(metric, **{**defaults, **options})


def warning_without_demos(caplog):
    start = "no demo was bootstrapped"
    (warning,) = [line for line in caplog.messages if line.startswith(start)]
    return warning


def shown(optimizer):
    (slot,) = optimizer.report.slots
    return [demo["answer"] for demo in slot.demos]


@pytest.fixture
def engine():
    with using(engine_for(EXAMPLES)) as engine:
        yield engine


class TestTeachers:
    @pytest.mark.parametrize("whose", ["student", "teacher"])
    @pytest.mark.parametrize(
        "demo", [dict, lambda example: dspy.Example(example, augmented=True, reasoning="so")]
    )
    def test_no_prompt_shows_the_example_to_answer(self, whose, demo):
        programs = {name: predict(dspy.ChainOfThought) for name in ("student", "teacher")}
        programs[whose].predictors()[0].demos = [demo(example) for example in EXAMPLES[:40]]
        teacher = programs["teacher"] if whose == "teacher" else None
        with using(fakes.CopyingEngine()) as engine:
            chooser().compile(programs["student"], trainset=EXAMPLES, teacher=teacher)
        assert 39 in map(len, engine.shown)
        assert engine.copied == 0

    @pytest.mark.parametrize("whose", ["student", "teacher"])
    @pytest.mark.parametrize(("num_demos", "is_compiled"), [(0, False), (0, True), (4, False)])
    def test_student_and_teacher_keep_their_own_models(self, engine, whose, num_demos, is_compiled):
        own = engine_for(EXAMPLES)
        programs = {name: predict() for name in ("student", "teacher")}
        programs[whose].set_lm(fakes.lm_of(own, "fake/own"))
        programs["teacher"].demos = EXAMPLES[:num_demos]
        programs["teacher"]._compiled = is_compiled
        optimizer = chooser(candidates="both")
        teacher = programs["teacher"] if whose == "teacher" else None
        teachers = [teacher] if teacher else None
        with dspy.context(lm=None if whose == "student" else dspy.settings.lm):
            optimizer.compile(programs["student"], trainset=EXAMPLES, teacher=teachers)
        calls = optimizer.report.program_calls
        phase = "total" if whose == "student" else "bootstrap"
        assert own.num_calls == calls[phase] > 0
        assert optimizer.report.tokens["fake/own"]["total_tokens"] > 0
        origins = optimizer.report.slots[0].origins
        num_bootstrapped = sum(origin.startswith("bootstrapped") for origin in origins)
        assert num_bootstrapped > 0
        if optimizer.report.slots[0].ordering:
            assert f" demos ({num_bootstrapped} bootstrapped) in the order" in optimizer.report.details()
        if whose == "teacher":
            labeled = set()
            for texts in own.requests:
                labeled.update(texts[:-1:2])
            assert len(labeled) == (0 if is_compiled else 4)
            assert len(teacher.demos) == num_demos

    def test_failed_calls_do_not_count_as_correct_answers(self, engine):
        engine.at = dict.fromkeys(range(4), fakes.failure)
        optimizer = chooser()
        optimizer.compile(predict(), trainset=EXAMPLES)
        assert optimizer.report.program_calls["bootstrap"] > 8

    @pytest.mark.parametrize("message", [None, "too long"])
    def test_calls_without_an_answer_make_no_demo_and_do_not_count_as_failures(self, tmp_path, message):
        def too_long():
            raise lm15.ContextLengthError(message)

        model = engine_for(EXAMPLES)
        errors = []
        if message is None:
            error = "AdapterParseError"
            message = "could not parse the reply 'Well, let me see ...'"
            model.mumbles = lambda texts: model.num_calls <= 5
        else:
            error = "ContextWindowExceededError"
            model.at = dict.fromkeys(range(5), too_long)
        # A second run repeats calls whose prompts were too long.
        for _ in range(2 if error == "AdapterParseError" else 1):
            optimizer = chooser(max_errors=1, log_dir=tmp_path)
            with using(model):
                optimizer.compile(predict(), trainset=EXAMPLES)
            errors.append(optimizer.report.errors[0])
            assert f"5 calls gave no demo: {error}: " in optimizer.report.details()
            assert 1 <= len(shown(optimizer)) <= 10
            assert optimizer.report.program_calls["bootstrap"] == 15
            assert model.num_calls == optimizer.report.program_calls["total"] <= 90
        assert errors[0] == errors[-1]
        assert errors[0].type == error
        assert errors[0].outcome == "gave no demo"
        assert errors[0].count == 5
        assert message in errors[0].message
        assert errors[0].examples[0].startswith("trainset[")

    @pytest.mark.parametrize(("candidates", "num_demos"), [("both", 15), ("bootstrapped", 0)])
    def test_labeled_demos_remain_if_the_teacher_makes_no_demo(self, caplog, candidates, num_demos):
        optimizer = chooser(candidates=candidates)
        model = engine_for(EXAMPLES)
        model.mumbles = lambda texts: model.num_calls <= 15
        with using(model):
            compiled = optimizer.compile(predict(), trainset=EXAMPLES)
        assert sum(len(slot.demos) for slot in optimizer.report.slots) == num_demos
        assert num_demos or compiled.demos == []
        warning = warning_without_demos(caplog)
        assert "15 of the teacher's 15 calls raised AdapterParseError" in warning
        assert warning.endswith("or a larger max_tokens if replies are truncated")
        assert "PlainTextAdapter" in warning

    @pytest.mark.parametrize(
        ("error", "fix"),
        [(lm15.ContextLengthError, "max_demo_tokens"), (lm15.RateLimitError, "num_threads")],
    )
    def test_provider_errors_are_reported_with_a_fix(self, caplog, error, fix):
        def fail():
            raise error("no")

        with using(engine_for(EXAMPLES, at=dict.fromkeys(range(15), fail))):
            chooser(candidates="both", max_errors=100).compile(predict(), trainset=EXAMPLES)
        warning = warning_without_demos(caplog)
        assert fix in warning
        assert "teacher or" not in warning

    def test_a_metric_that_raises_for_the_teacher_is_reported(self, caplog):
        def metric(example, prediction, trace=None):
            return exact_match(example, prediction) / (trace is None)

        with using(engine_for(EXAMPLES)):
            optimizer = chooser(metric, candidates="both", max_errors=100)
            optimizer.compile(predict(), trainset=EXAMPLES)
        warning = warning_without_demos(caplog)
        assert "raised ZeroDivisionError" in warning
        assert warning.endswith("fix the program or the metric, or pass another teacher")


class TestMetrics:
    @pytest.mark.parametrize(
        "error",
        [ZeroDivisionError("boom"), AdapterParseError("Judge", dspy.Signature("a -> b"), "no verdict")],
    )
    def test_failures_end_the_compile_at_max_errors(self, engine, error):
        def metric(example, prediction):
            raise error

        with pytest.raises(type(error)) as raised:
            chooser(metric, max_errors=3).compile(predict(), trainset=EXAMPLES)
        assert engine.num_calls == 3
        (note,) = raised.value.__notes__
        assert "trainset[" in note
        assert "the last of 3 failures (max_errors=3)" in note
        assert "candidates='labeled'" in note

    @pytest.mark.parametrize(("threshold", "wrong"), [(0, False), (-1, True), (None, None)])
    def test_a_threshold_of_zero_is_not_ignored(self, engine, threshold, wrong, caplog):
        """Without a threshold, any answer with a score above 0 counts as correct."""
        optimizer = chooser(lambda e, p: exact_match(e, p) - 1, metric_threshold=threshold)
        optimizer.compile(predict(), trainset=EXAMPLES)
        assert wrong is None or ("wrong" in shown(optimizer)) == wrong
        for warning in (
            "none of the teacher's 15 answers scored high enough",
            "the metric compares the right fields",
        ):
            assert (warning in caplog.text) == (wrong is None)
        assert "dspy.Parallel" not in caplog.text  # This program starts no threads.


@pytest.mark.parametrize("candidates", ["both", "bootstrapped"])
def test_answers_become_demos_if_examples_lack_output_fields(engine, candidates):
    gold = {example.question: example.answer for example in EXAMPLES}

    def rename(self, question):
        return dspy.Prediction(answer=self.inner(asked=question).said)

    renaming = fakes.Program(rename, inner=dspy.Predict("asked -> said"))

    def is_right(example, prediction):
        return gold[example.question] == prediction.answer

    cases = [(predict(), UNLABELED, "answer"), (renaming, EXAMPLES, "said")]
    for program, trainset, field in cases:
        optimizer = chooser(is_right, candidates=candidates)
        estimate = optimizer.estimate(program, trainset=trainset)
        assert estimate.bootstrap_calls == 15
        assert estimate.program_calls <= 90
        optimizer.compile(program, trainset=trainset)
        (slot,) = optimizer.report.slots
        assert len(slot.demos) > 1
        assert all(demo[field] != "..." for demo in slot.demos)
    message = r"PLFewShot .*with the fields that the prompts show"
    with pytest.raises(ValueError, match=message):
        PLReorder(exact_match).compile(renaming, trainset=EXAMPLES)


def test_a_slow_teacher_leaves_three_quarters_of_the_time(engine, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(CLOCK, lambda: float(engine.num_calls))
    options = {"max_seconds": 40, "max_metric_calls": 60, "log_dir": tmp_path, "num_threads": 1}
    optimizer = chooser(**options)
    optimizer.compile(predict(), trainset=EXAMPLES)
    assert optimizer.report.program_calls["bootstrap"] == 10
    assert engine.num_calls == optimizer.report.program_calls["total"] <= 40
    assert "bootstrapping stopped after 10 examples" in caplog.text
    assert optimizer.report.comparison is not None
    optimizer.compile(predict(), trainset=EXAMPLES)
    assert optimizer.report.program_calls["bootstrap"] > 10
    assert set(engine.requests.values()) == {1}


def test_a_compile_without_time_for_demos_returns_the_student_and_can_be_resumed(
    engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(CLOCK, lambda: float(engine.num_calls))
    engine.mumbles = lambda texts: engine.num_calls <= 11
    gold = {example.question: example.answer for example in EXAMPLES}
    options = {"candidates": "both", "max_seconds": 40, "log_dir": tmp_path}
    optimizer = chooser(lambda e, p: gold[e.question] == p.answer, **options)
    assert not optimizer.compile(predict(), trainset=UNLABELED).demos
    assert engine.num_calls == 10
    optimizer.compile(predict(), trainset=UNLABELED)
    assert optimizer.report.program_calls["bootstrap"] == 15


def test_log_probabilities_are_requested_even_after_a_slow_teacher(engine, monkeypatch):
    """One call is still left for the request after the teacher has used up its time."""
    monkeypatch.setattr(CLOCK, lambda: float(min(10, engine.num_calls)))
    labels = Literal[tuple(example.answer for example in EXAMPLES)]
    program = predict()
    program.signature = program.signature.with_updated_fields("answer", type_=labels)
    with pytest.raises(NoProbabilities, match="signal='logprobs' needs"):
        chooser(signal="logprobs", max_seconds=40).compile(program, trainset=EXAMPLES)
    assert engine.num_calls == 11


@pytest.mark.parametrize("earlier", [{"candidates": "labeled"}, {"max_bootstrapped": 7}])
def test_a_compile_with_other_demos_reuses_logged_calls(engine, tmp_path, earlier):
    chooser(log_dir=tmp_path, **earlier).compile(predict(), trainset=EXAMPLES)
    before = engine.num_calls
    optimizer = chooser(log_dir=tmp_path, max_metric_calls=180)
    optimizer.compile(predict(), trainset=EXAMPLES)
    calls = optimizer.report.program_calls
    assert engine.num_calls - before == calls["total"] - calls["resumed"]
    assert calls["resumed"] > 0
    assert calls["total"] <= 180


def question_of(text):
    return dict(fakes.FIELD.findall(text))["question"].strip()


def noted(log_dir, trainset, *, last=10_000, **options):
    """Interrupt a compile after `last` calls. Return the question and the demos of each call, and the report."""
    engine = engine_for(EXAMPLES, at={last: fakes.interrupt})
    optimizer = chooser(log_dir=log_dir, num_threads=1, **options)
    with using(engine), contextlib.suppress(KeyboardInterrupt):
        optimizer.compile(predict(), trainset=trainset)
    calls = []
    for texts in list(engine.requests)[:last]:
        asked, *shown = map(question_of, texts[::-2])
        calls.append((asked, frozenset(shown)))
    return calls, optimizer.report


@pytest.mark.parametrize(("changed", "accepted"), [(0, False), (0, True), (20, True)])
def test_no_demo_is_scored_on_its_own_example_after_an_interrupt(tmp_path, changed, accepted):
    """Examples are shuffled or replaced before the compile resumes."""
    whole, uninterrupted = noted(None, EXAMPLES)
    attempts = uninterrupted.program_calls["bootstrap"]
    first, _ = noted(tmp_path, EXAMPLES, last=attempts - 3)
    trainset = [*EXAMPLES[changed:], *questions(60 + changed)[60:]]
    random.Random(1).shuffle(trainset)
    second, report = noted(tmp_path, trainset, accept_changes=accepted)
    assert not [asked for asked, shown in second if asked in shown]
    (slot,) = report.slots
    questions_asked = [example.question for example in trainset]
    for origin, demo in zip(slot.origins, slot.demos, strict=True):
        number = questions_asked.index(demo["question"])
        assert origin == f"bootstrapped from trainset[{number}]"
    if not changed:
        assert report.program_calls["bootstrap"] == attempts
        asked = [question for question, _ in first + second[:3]]
        assert asked == [question for question, _ in whole[:attempts]]
        assert report.program_calls["total"] == len(first) + len(second)


def test_if_a_predictor_is_called_twice_either_call_becomes_the_demo(engine):
    def rethink(self, question):
        self.inner(question=f"At first: {question}")
        return self.inner(question=question)

    optimizer = chooser(lambda example, prediction: True)
    optimizer.compile(fakes.Program(rethink, inner=predict()), trainset=EXAMPLES)
    (slot,) = optimizer.report.slots
    assert len(slot.origins) == len(set(slot.origins)) == 8
    assert 0 < sum(demo["question"].startswith("At first") for demo in slot.demos) < 8


def test_calls_without_a_trace_make_no_demo_and_can_be_resumed(engine, caplog, tmp_path):
    def asked(program, question):
        with dspy.context(trace=[]):
            return program.inner(question=question)

    def in_a_thread(program, question):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(copy_context().run, asked, program, question).result()

    program = fakes.Program(in_a_thread, inner=predict())
    for _ in range(2):
        optimizer = chooser(lambda example, prediction: True, log_dir=tmp_path)
        optimizer.compile(program, trainset=EXAMPLES)
    calls = optimizer.report.program_calls
    assert calls["bootstrap"] == 15
    assert calls["resumed"] == calls["total"]
    warnings = [line for line in caplog.messages if "appeared in DSPy's trace" in line]
    assert any("dspy.Parallel" in line for line in warnings)


@pytest.mark.parametrize("num_own_demos", [0, 3])
@pytest.mark.parametrize("candidates", ["both", "bootstrapped"])
@pytest.mark.parametrize("demos", ["fixed", "auto", "retrieved"])
def test_instructions_are_searched_if_no_answer_becomes_a_demo(demos, candidates, num_own_demos):
    """No score reaches the threshold, and no example can be shown as a demo."""
    options = {"instructions": "propose", "num_instructions": 2, "metric_threshold": 2}
    optimizer = chooser(
        lambda example, prediction: len(prediction.answer) % 2,
        demos=demos,
        candidates=candidates,
        max_metric_calls=100,
        num_threads=1,
        **options,
    )
    with using(engine_for(EXAMPLES)):
        optimizer.compile(student(num_own_demos), trainset=UNLABELED)
    assert optimizer.report.program_calls["bootstrap"] > 0
    assert optimizer.report.comparison is not None


def test_the_best_program_is_the_student_if_an_interrupt_stops_the_teacher():
    optimizer = chooser(num_threads=1)
    with using(engine_for(EXAMPLES, at={5: interrupt})), pytest.raises(KeyboardInterrupt):
        optimizer.compile(student(2), trainset=EXAMPLES)
    assert optimizer.best_program.demos == student(2).demos
    assert optimizer.report is None


@pytest.mark.parametrize("candidates", ["both", "bootstrapped"])
def test_an_error_says_that_the_time_allows_no_demos_to_retrieve(candidates):
    def metric(example, prediction, trace=None):
        return True

    optimizer = chooser(metric, demos="retrieved", candidates=candidates, max_seconds=0.01)
    message = "a quarter of max_seconds or max_cost is not enough for a single call"
    with using(engine_for(EXAMPLES)), pytest.raises(RuntimeError, match=message):
        optimizer.compile(student(3), trainset=UNLABELED)
