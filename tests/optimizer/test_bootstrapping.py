"""The demos that `PLFewShot` has a teacher make: from which answers, and what the teacher is shown."""

import contextlib
import random
import threading
from contextlib import contextmanager

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError, LMAuthError
from fakes import FIELD, OrderSensitiveEngine, chat_response, exact_match, fake_lm, questions

from plr_dspy.optimizer.fewshot import PLFewShot

EXAMPLES = questions(60)


class Judge(dspy.Module):
    def forward(self, example, prediction):
        return exact_match(example, prediction)


class CopyingEngine:
    """Copies the answer of a demo with the same question; counts these, and the calls that show no demo."""

    def __init__(self, *, fails_at=()):
        self.copied, self.numbers_of_demos, self.fails_at = 0, [], fails_at
        self._lock = threading.Lock()

    def complete(self, request):
        texts = [message.text or "" for message in request.messages]
        asked, *shown = (dict(FIELD.findall(text))["question"].strip() for text in [texts[-1], *texts[:-1:2]])
        with self._lock:
            self.numbers_of_demos.append(len(shown))
            self.copied += asked in shown
        if len(self.numbers_of_demos) - 1 in self.fails_at:
            raise ConnectionError("busy")
        return chat_response("[[ ## reasoning ## ]]\nso\n\n[[ ## answer ## ]]\nno\n\n[[ ## completed ## ]]")


class StumblingEngine(OrderSensitiveEngine):
    """Its first calls, which are the teacher's, end in something else than an answer."""

    def __init__(self, outcome, *, num_calls=15):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.outcome, self.num_stumbles = outcome, num_calls

    def complete(self, request):
        response = super().complete(request)
        if self.num_calls > self.num_stumbles:
            return response
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return chat_response(self.outcome)


@contextmanager
def stumbling(outcome, **options):
    """Such an engine answers."""
    engine = StumblingEngine(outcome, **options)
    lm = dspy.LM("fake/x", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        yield engine


class Renaming(dspy.Module):
    def __init__(self):
        super().__init__()
        self.inner = dspy.Predict("asked -> said")

    def forward(self, question):
        return dspy.Prediction(answer=self.inner(asked=question).said)


def exact_match_of_text(example, prediction, trace=None):
    return str(example.answer) == str(prediction.answer)


def chooser(metric=exact_match, **options):
    plain = {"max_metric_calls": 150, "max_demos": 4, "candidates": "bootstrapped", "display_progress": False}
    return PLFewShot(metric, **{**plain, **options})


def shown(optimizer):
    (slot,) = optimizer.report.slots
    return [demo["answer"] for demo in slot.demos]


@pytest.fixture
def engine():
    lm, engine = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


@pytest.mark.parametrize("whose", ["student", "teacher"])
@pytest.mark.parametrize(
    "demo", [dict, lambda example: dspy.Example(example, augmented=True, reasoning="so")]
)
def test_no_teacher_is_shown_the_example_that_it_answers(whose, demo):
    engine = CopyingEngine()
    student, teacher = (dspy.ChainOfThought("question -> answer") for _ in range(2))
    showing = student if whose == "student" else teacher
    showing.predictors()[0].demos = [demo(example) for example in EXAMPLES[:40]]
    with dspy.context(lm=dspy.LM("fake/copying", engine=engine, cache=False)):
        chooser().compile(student, trainset=EXAMPLES, teacher=teacher if whose == "teacher" else None)
    assert 39 in engine.numbers_of_demos
    assert engine.copied == 0


def test_a_failed_call_takes_no_demo_from_the_teacher():
    engine = CopyingEngine(fails_at=(0, 1, 2))
    teacher = dspy.ChainOfThought("question -> answer")
    teacher.predictors()[0].demos = [example.copy() for example in EXAMPLES]
    lm = dspy.LM("fake/copying", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm):
        chooser().compile(dspy.ChainOfThought("question -> answer"), trainset=EXAMPLES, teacher=teacher)
    assert set(engine.numbers_of_demos[:15]) == {59}


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ("The answer is no.", "AdapterParseError", "could not read the reply 'The answer is no.'"),
        (lm15.ContextLengthError("too long"), "ContextWindowExceededError", "too long"),
    ],
)
def test_a_teacher_without_an_answer_makes_no_demo_and_is_no_failure(tmp_path, outcome, error, message):
    errors = []
    with stumbling(outcome, num_calls=5) as engine:
        for _ in range(2):
            optimizer = chooser(max_errors=1, log_dir=tmp_path)
            optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
            report = optimizer.report
            errors += report.errors
            assert f"5 call(s) gave no demo: {error}: " in report.details()
            assert 1 <= len(shown(optimizer)) <= 10
            assert report.program_calls["bootstrap"] == 15
            assert engine.num_calls == report.program_calls["total"] <= 150
    found, again = errors
    assert found == again
    assert (found.type, found.outcome, found.count) == (error, "gave no demo", 5)
    assert message in found.message
    assert found.examples[0].startswith("trainset[")


@pytest.mark.parametrize(("candidates", "num_demos"), [("both", 15), ("bootstrapped", 0)])
def test_a_teacher_that_makes_no_demo_leaves_the_other_ones(caplog, candidates, num_demos):
    student = dspy.Predict("question -> answer")
    with stumbling("The answer is no."):
        optimizer = chooser(candidates=candidates)
        compiled = optimizer.compile(student, trainset=EXAMPLES)
    assert sum(slot.num_demos for slot in optimizer.report.slots) == num_demos
    assert num_demos or compiled.dump_state()["demos"] == student.dump_state()["demos"]
    (warning,) = [line for line in caplog.messages if line.startswith("no demo was bootstrapped")]
    assert "of 15 calls of the teacher, 15 ended in AdapterParseError (ChatAdapter could not read" in warning


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("boom"), AdapterParseError("Judge", dspy.Signature("a -> b"), "no verdict")]
)
def test_failures_of_the_metric_end_the_compile_at_max_errors(engine, error):
    def metric(example, prediction):
        raise error

    with pytest.raises(type(error)) as told:
        chooser(metric, max_errors=3).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert engine.num_calls == 3
    if hasattr(error, "add_note"):
        (note,) = told.value.__notes__
        assert "the last of 3 failures (max_errors=3)" in note
        assert "candidates='labeled'" in note


def test_fewer_failures_are_listed(engine):
    broken = []

    def metric(example, prediction):
        if len(broken) < 2:
            broken.append(f"trainset[{EXAMPLES.index(example)}]")
            raise ZeroDivisionError("boom")
        return exact_match(example, prediction)

    optimizer = chooser(metric, max_errors=3)
    optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    (found,) = optimizer.report.errors
    assert (found.type, found.outcome, found.count) == ("ZeroDivisionError", "gave no demo", 2)
    assert found.examples == broken


def test_a_teacher_that_is_locked_out_ends_the_compile_at_once():
    locked = stumbling(lm15.AuthError("bad key", status=401))
    with locked as engine, pytest.raises(LMAuthError, match="bad key"):
        chooser().compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert engine.num_calls == 1


def test_a_metric_of_no_use_ends_the_compile_at_once(engine):
    with pytest.raises(TypeError, match=r"metric must return a number.*got str"):
        chooser(lambda example, prediction: "yes").compile(
            dspy.Predict("question -> answer"), trainset=EXAMPLES
        )
    assert engine.num_calls == 1


def test_a_judge_without_a_trace_accepts_answers(engine):
    optimizer = chooser(Judge())
    optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert len(shown(optimizer)) > 1


@pytest.mark.parametrize(("threshold", "wrong"), [(0, False), (-1, True), (None, True)])
def test_a_threshold_of_zero_is_one(engine, threshold, wrong):
    optimizer = chooser(
        lambda example, prediction: exact_match(example, prediction) - 1, metric_threshold=threshold
    )
    optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert ("wrong" in shown(optimizer)) == wrong


def test_a_metric_that_writes_to_its_example_changes_no_trainset(engine):
    def metric(example, prediction):
        example.answer = f"{example.answer}"
        example.seen = True
        return exact_match(example, prediction)

    chooser(metric).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert not any("seen" in example for example in EXAMPLES)


@pytest.mark.parametrize("candidates", ["both", "bootstrapped"])
def test_answers_make_demos_where_the_examples_cannot(engine, candidates):
    unlabelled = [dspy.Example(question=example.question).with_inputs("question") for example in EXAMPLES]
    gold = {example.question: example.answer for example in EXAMPLES}
    for program, trainset, field in [
        (dspy.Predict("question -> answer"), unlabelled, "answer"),
        (Renaming(), EXAMPLES, "said"),
    ]:
        optimizer = chooser(
            lambda e, prediction: gold[e.question] == prediction.answer, candidates=candidates
        )
        estimate = optimizer.estimate(program, trainset=trainset)
        assert (estimate.bootstrap_calls, estimate.program_calls <= 150) == (15, True)
        optimizer.compile(program, trainset=trainset)
        (slot,) = optimizer.report.slots
        assert slot.num_demos > 1
        assert all(demo[field] != "..." for demo in slot.demos)
        assert optimizer.report.program_calls["total"] <= 150


@pytest.mark.parametrize("options", [{"calibrate": True}, {"signal": "logprobs"}])
def test_log_probabilities_that_cannot_be_are_refused_before_any_call(engine, options):
    with pytest.raises(ValueError, match="is not possible: no output is a Literal"):
        chooser(**options).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert engine.num_calls == 0


@pytest.mark.parametrize("earlier", [{"candidates": "labeled"}, {"max_bootstrapped": 7}])
def test_other_demos_reuse_what_is_paid(engine, tmp_path, earlier):
    chooser(log_dir=tmp_path, **earlier).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    optimizer = chooser(log_dir=tmp_path, max_metric_calls=500)
    optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert engine.num_calls == optimizer.report.program_calls["total"] <= 500


class Noting(OrderSensitiveEngine):
    """Keeps each call as what was asked and the questions that were shown; is killed after so many calls."""

    def __init__(self, *, last=10_000):
        super().__init__({example.question: example.answer for example in EXAMPLES})
        self.last, self.calls = last, []

    def complete(self, request):
        if len(self.calls) >= self.last:
            raise KeyboardInterrupt
        texts = [message.text or "" for message in request.messages]
        shown = [dict(FIELD.findall(text))["question"].strip() for text in [texts[-1], *texts[:-1:2]]]
        self.calls.append((shown[0], frozenset(shown[1:])))
        return super().complete(request)


def noted(log_dir, trainset, *, last=10_000, **options):
    """The calls of a compile that is killed after so many of them."""
    engine = Noting(last=last)
    optimizer = chooser(log_dir=log_dir, num_threads=1, **options)
    lm = dspy.LM("fake/order-sensitive", engine=engine, cache=False)
    with dspy.context(lm=lm), contextlib.suppress(KeyboardInterrupt):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=trainset)
    return engine.calls, optimizer.report


@pytest.mark.parametrize(("changed", "accepted"), [(0, False), (0, True), (20, True)])
def test_no_demo_is_scored_on_its_own_example_after_a_kill(tmp_path, changed, accepted):
    """The trainset is in another order, or some of its examples are others, when the compile goes on."""
    whole, uninterrupted = noted(None, EXAMPLES)
    attempts = uninterrupted.program_calls["bootstrap"]
    first, _ = noted(tmp_path, EXAMPLES, last=attempts - 3)
    trainset = [*EXAMPLES[changed:], *questions(60 + changed)[60:]]
    random.Random(1).shuffle(trainset)
    second, report = noted(tmp_path, trainset, accept_changes=accepted)
    assert not [asked for asked, shown in second if asked in shown]
    (slot,) = report.slots
    numbers = {each.question: f"bootstrapped from trainset[{i}]" for i, each in enumerate(trainset)}
    assert slot.origins == [numbers[demo["question"]] for demo in slot.demos]
    if not changed:
        assert report.program_calls["bootstrap"] == attempts
        assert [asked for asked, _ in first + second[:3]] == [asked for asked, _ in whole[:attempts]]
        assert report.program_calls["total"] == len(first) + len(second)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"metric": exact_match_of_text}, "the code of the metric"),
        ({"trainset": EXAMPLES[:50]}, "the examples"),
    ],
)
def test_what_changed_since_demos_were_made_is_said_and_can_be_accepted(engine, tmp_path, change, difference):
    noted(tmp_path, EXAMPLES, last=14)
    trainset = change.pop("trainset", EXAMPLES)
    student = dspy.Predict("question -> answer")
    with pytest.raises(ValueError, match=rf"another compile: {difference} .*pass accept_changes=True"):
        chooser(log_dir=tmp_path, **change).compile(student, trainset=trainset)
    assert engine.num_calls == 0
    for accepted in (True, False):  # What was accepted is no change any more.
        chooser(log_dir=tmp_path, accept_changes=accepted, **change).compile(student, trainset=trainset)


@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_a_teacher_without_demos_keeps_its_own_model(engine, whose):
    lm, own = fake_lm(EXAMPLES)
    student, teacher = (dspy.Predict("question -> answer") for _ in range(2))
    (student if whose == "student" else teacher).set_lm(lm)
    optimizer = chooser()
    optimizer.compile(student, trainset=EXAMPLES, teacher=teacher if whose == "teacher" else None)
    calls = optimizer.report.program_calls
    assert own.num_calls == (calls["total"] if whose == "student" else calls["bootstrap"])
