"""`PLFewShot` with retrieved demos: leaks, budgets, limits, reports, saved programs, and invalid arguments."""

import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from datetime import datetime
from enum import Enum
from itertools import chain

import dspy
import fakes
import numpy as np
import pytest
from every_function import RUNS
from fakes import (
    FIELD,
    CopyingEngine,
    OrderSensitiveEngine,
    Program,
    engine_for,
    exact_match,
    questions,
    using,
)
from label_engines import LABELS, classifier, exact
from label_world import EXAMPLES as LABELED
from label_world import Engine
from matplotlib import pyplot

from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLFewShot, load_program
from plr_dspy.retrieval.predict import warn_of_unknown_example

WORDS = ["red", "green", "blue"]
ANSWERS = {word: f"answer {i}" for i, word in enumerate(WORDS)}
MODES = pytest.mark.parametrize("demos", ["retrieved", "auto"])


def examples(count=45, first=0):
    def example(i):
        word = WORDS[i % 3]
        question = f"thing number{i} is {word} all over"
        return dspy.Example(question=question, answer=ANSWERS[word]).with_inputs("question")

    return [example(i) for i in range(first, first + count)]


def color(question):
    return question.split()[-3]


def by_color(**options):
    return CopyingEngine(lambda demo, asked: color(demo) == color(asked), **options)


Thing = Enum("Thing", {f"MEMBER_{i}": f"word{i}" for i in range(30)})


class Teaching(CopyingEngine):
    def otherwise(self, asked):
        return ANSWERS[color(asked)] if len(self.shown) <= 8 else "wrong"


def predict(signature="question -> answer"):
    return dspy.Predict(signature)


def chooser(demos="retrieved", metric=exact_match, **options):
    defaults = {
        "max_metric_calls": 80,
        "max_demos": 4,
        "candidates": "labeled",
        "num_threads": 1,
        "display_progress": False,
    }
    return PLFewShot(metric, demos=demos, **{**defaults, **options})


def without_calls(metric=exact):
    return chooser(metric=metric, max_metric_calls=0)


def compiled(engine, *, student=None, trainset=None, valset=None, asks=1, **options):
    """Return the compiled program and its optimizer, after checking the number of calls.

    Args:
        asks: Number of LM calls in one program call.
    """
    optimizer = chooser(**options)
    student = student or predict()
    trainset = trainset or examples()
    with using(engine), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # NumPy warns about results that are not finite.
        program = optimizer.compile(student, trainset=trainset, valset=valset)
    num_calls = optimizer.report.program_calls["total"]
    assert engine.num_calls / asks == num_calls <= optimizer.max_metric_calls
    return program, optimizer


def shouted(example):
    return example.copy(question=f"  {example.question.upper()} ")


def in_dicts(example):
    texts = (example.question, example.question.upper())
    return [example.copy(question={"text": text}) for text in texts]


COPIES = ["none", "exact", "written otherwise", "in the valset", "numbered", "in dicts"]


class TestLeaks:
    """Leaks: the model copies the answer from a demo with the same question, so no such demo may be shown."""

    @MODES
    @pytest.mark.parametrize("copies", COPIES)
    def test_no_leak_from_examples_and_their_duplicates(self, demos, copies):
        trainset = examples(33)
        valset = None
        student = predict()
        if copies == "in the valset":
            valset = list(map(shouted, trainset[:10]))
        elif copies == "numbered":
            # The number makes inputs distinct, but is not part of any prompt.
            answer = lambda self, number, question: self.answer(question=question)  # noqa: E731
            student = Program(answer, answer=predict())
            numbered = [e.copy(number=i) for i, e in enumerate(trainset * 2)]
            trainset = [e.with_inputs("number", "question") for e in numbered]
        elif copies == "in dicts":
            trainset = [*chain.from_iterable(map(in_dicts, trainset))]
        elif copies == "exact":
            trainset = trainset * 2
        elif copies == "written otherwise":
            trainset = [*trainset, *map(shouted, trainset)]
        engine = CopyingEngine()
        data = {"student": student, "trainset": trainset, "valset": valset}
        # The search stops early, because all scores are 0. It would use up a smaller budget before it stops.
        options = {"demos": demos, "num_threads": 8, "max_metric_calls": 120}
        _, optimizer = compiled(engine, **options, **data)
        assert engine.num_calls >= 60
        assert engine.copied == 0
        assert max(map(len, engine.shown)) == 4
        assert "every score was 0" in optimizer.report.stopped

    @MODES
    def test_no_leak_from_a_list_of_candidates(self, demos):
        engine = CopyingEngine()
        candidates = [{**e, "question": e.question.upper()} for e in examples(30)]
        compiled(engine, demos=demos, candidates=candidates)
        assert engine.copied == 0
        assert max(map(len, engine.shown)) == 4

    @MODES
    def test_no_leak_from_bootstrapped_demos(self, demos):
        engine = Teaching()
        _, optimizer = compiled(engine, demos=demos, candidates="bootstrapped")
        assert optimizer.report.retrieval.num_pooled == 8
        assert engine.copied == 0
        assert max(map(len, engine.shown)) == 4

    @pytest.mark.parametrize("seed", [5, 7])
    def test_no_leak_from_bootstrapped_demos_to_a_metric_over_a_set(self, seed):
        """The metric reads the outputs of program calls, not the demos that the teacher made from these calls."""
        asked = questions(40)
        step = dspy.ChainOfThought("question -> answer")
        engine = engine_for(asked)
        options = {
            "candidates": "both",
            "max_demos": 8,
            "max_metric_calls": 60,
            "seed": seed,
            "metric": F1(),
        }
        compiled(engine, student=step, trainset=asked, **options)

    def test_no_leak_in_inner_predictors_with_derived_inputs(self):
        """A demo of the second predictor shows only the hint that the first predictor returned."""

        def steps(self, question):
            return self.answer(hint=self.hint(question=question).hint)

        class Hints(OrderSensitiveEngine):
            def answer(self, system, texts):
                fields = dict(FIELD.findall(texts[-1]))
                if "question" in fields:
                    return f"[[ ## hint ## ]]\nsee {fields['question']}\n\n[[ ## completed ## ]]"
                demos = [dict(FIELD.findall(text))["hint"] for text in texts[:-1:2]]
                leaks.append(fields["hint"] in demos)
                return self.formatted(system, texts, ANSWERS[color(fields["hint"])])

        leaks = []
        hint = predict("question -> hint")
        student = Program(steps, hint=hint, answer=predict("hint -> answer"))
        options = {"candidates": "bootstrapped", "asks": 2}
        _, optimizer = compiled(Hints({}), student=student, **options)
        assert optimizer.report.retrieval.num_pooled == 16
        assert len(leaks) > 50
        assert not any(leaks)

    @MODES
    def test_no_leak_in_plain_threads_without_the_context_of_the_example(self, demos, caplog):
        """Calls in threads that do not know the example show no retrieved demos."""
        warn_of_unknown_example.cache_clear()

        def in_a_thread(self, question):
            lm = dspy.settings.lm
            adapter = dspy.settings.adapter

            def ask():
                with dspy.context(lm=lm, adapter=adapter):
                    return self.answer(question=question)

            with ThreadPoolExecutor(1) as pool:
                return pool.submit(Context().run, ask).result()

        engine = CopyingEngine()
        compiled(engine, demos=demos, student=Program(in_a_thread, answer=predict()))
        assert engine.copied == 0
        assert caplog.text.count("Start threads with dspy.Parallel") == 1

    def test_no_leak_in_threads_started_by_dspy_parallel(self):
        def in_threads(self, question):
            calls = [(self.answer, {"question": question})] * 2
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(calls)[0]

        engine = CopyingEngine()
        student = Program(in_threads, answer=predict())
        _, optimizer = compiled(engine, student=student, asks=2)
        assert engine.copied == 0
        assert optimizer.report.errors == []
        assert max(map(len, engine.shown)) == 4


class TestChoice:
    @MODES
    def test_helpful_demos_are_retrieved(self, demos):
        """A demo of the same color shows the answer, and the nearest demos include such a demo."""
        options = {"demos": demos, "max_demos": 2, "max_metric_calls": 150}
        program, optimizer = compiled(by_color(), **options)
        report = optimizer.report
        assert report.retrieves
        assert report.comparison.chosen > report.comparison.original == 0
        devset = examples(15, first=100)
        evaluate = dspy.Evaluate(devset=devset, metric=exact_match, num_threads=4)
        with using(by_color()) as engine:
            score = evaluate(program).score
            assert engine.num_calls == 15
        assert score > 90

    @pytest.mark.parametrize("likeness_helps", [False, True])
    def test_the_final_comparison_includes_the_best_retrieved_and_the_best_fixed_demos(
        self, likeness_helps
    ):
        engine = engine_for(examples())
        if likeness_helps:
            engine = by_color()
        _, optimizer = compiled(engine, demos="auto", max_metric_calls=150)
        (original, *others) = optimizer.report.candidates
        assert original.ordering == {"self": []}
        # The slot of a candidate with retrieved demos is empty.
        assert [candidate.ordering["self"] for candidate in others].count([]) == 1

    @pytest.mark.parametrize("calibrate", [False, True])
    def test_variations_are_chosen_by_log_probabilities(self, calibrate):
        signal = "auto" if calibrate else "logprobs"
        optimizer = chooser(metric=exact, signal=signal, calibrate=calibrate)
        engine = Engine()
        with using(engine, "fake/x"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            optimizer.compile(classifier(), trainset=LABELED)
        report = optimizer.report
        assert report.signal.used == "logprobs"
        assert len(engine.prompts) == report.program_calls["total"] <= 80
        scores = {entry.name: entry.score for entry in report.front}
        assert any(" retrieved demos" in name for name in scores)
        assert any(name.startswith("your program, ") for name in scores)
        assert all(0.2 < score < 1 for score in scores.values())

    @pytest.mark.parametrize(
        ("student", "value"),
        [
            ("thing -> answer", lambda i: "" if i % 2 else f"word{i}"),
            ("thing: int -> answer", lambda i: i),
            ("thing: list[str] -> answer", lambda i: [f"word{i}", "other"]),
            (
                "thing: list[dspy.Image | str] -> answer",
                lambda i: [f"word{i}", dspy.Image(f"https://example.org/{i}.png")],
            ),
            ("thing: Thing -> answer", lambda i: list(Thing)[i]),
            ("thing: datetime -> answer", lambda i: datetime(2026, 1 + i % 12, 1 + i % 5, i % 24)),
        ],
    )
    def test_inputs_of_all_types_can_be_retrieved_for_and_saved(self, student, value, tmp_path):
        student = dspy.Signature(student, custom_types={"Thing": Thing, "datetime": datetime})
        trainset = [dspy.Example(thing=value(i), answer=f"answer {i % 3}") for i in range(30)]
        trainset = [example.with_inputs("thing") for example in trainset]
        engine = OrderSensitiveEngine({})
        optimizer = chooser(max_metric_calls=0)
        with using(engine):
            program = optimizer.compile(predict(student), trainset=trainset)
            program.save(tmp_path / "p.json")
            program(**trainset[4].inputs())
            loaded = load_program(predict(student), tmp_path / "p.json")
            loaded(**trainset[4].inputs())
        assert list(engine.requests.values()) == [2]
        report = optimizer.report
        assert report.original.num_demos == 0 < report.returned.num_demos
        with pytest.raises(ValueError, match="call compile first"):
            optimizer.program_with(8)

    def test_limits_on_demos_and_tokens_are_respected(self, tmp_path):
        engine = by_color()
        _, optimizer = compiled(engine, max_demos=3, min_demos=2)
        assert {len(demos) for demos in engine.shown} == {0, 2, 3}
        returned = optimizer.report.returned
        tokens = returned.demo_tokens // returned.num_demos
        long = examples(1)[0].copy(question="long " * 300 + "is red all over")
        limits = {"max_demos": 4, "max_demo_tokens": 2 * tokens, "max_metric_calls": 200}
        for demos in ("retrieved", "auto"):
            engine = by_color()
            program, _ = compiled(engine, demos=demos, trainset=[long, *examples()], **limits)
            # A demo that is too long must not prevent shorter demos from being shown.
            assert max(map(len, engine.shown)) in (1, 2)
            demos_shown = chain.from_iterable(engine.shown)
            assert not [demo for demo in demos_shown if demo.startswith("long")]
        limits["max_metric_calls"] = 0
        program, _ = compiled(CopyingEngine(), trainset=examples(), **limits)
        program.save(tmp_path / "p.json")
        question = examples(1)[0].question
        for finder in (program, load_program(predict(), tmp_path / "p.json")):
            shown = finder.shown({"question": question})
            assert len(shown) < 3
            assert shown[-1]["question"] == question

    def test_the_token_limit_applies_to_all_predictors_together(self):
        def both(self, question):
            answer = self.one(question=question)
            self.other(question=question)
            return answer

        def report(**options):
            student = Program(both, one=predict(), other=predict())
            _, optimizer = compiled(by_color(), student=student, asks=2, **options)
            return optimizer.report

        tokens = report(max_metric_calls=0).returned.demo_tokens
        limited = report(max_metric_calls=0, max_demo_tokens=tokens // 2 + 2)
        assert limited.returned.demo_tokens <= tokens // 2 + 2

    @MODES
    def test_an_async_program_can_be_compiled_after_syncify(self, demos):
        student = dspy.syncify(fakes.OnlyAsync(predict()))
        _, optimizer = compiled(by_color(), student=student, demos=demos)
        assert optimizer.report.comparison is not None

    @MODES
    def test_no_prompt_is_paid_for_twice(self, demos):
        """Variations and fixed orders that show the same demos for an example share one call."""
        engine = by_color()
        options = {"max_demos": 2, "min_demos": 2, "max_metric_calls": 150}
        compiled(engine, demos=demos, trainset=examples(12), **options)
        assert max(engine.requests.values()) == 1

    def test_calls_are_resumed_with_another_order_or_embedder(self, tmp_path):
        """Calls are resumed even if the trainset is in another order. With an embedder, fewer calls are resumed."""
        engine = by_color()
        compiled(engine, log_dir=tmp_path)

        def lengths(texts):
            return np.array([[len(text), 1.0] for text in texts])

        def num_resumed(embedder):
            options = {"log_dir": tmp_path, "max_metric_calls": 160}
            optimizer = chooser(embedder=embedder, **options)
            with using(engine):
                optimizer.compile(predict(), trainset=examples()[::-1])
            return optimizer.report.program_calls["resumed"]

        by_words = num_resumed(None)
        by_length = num_resumed(dspy.Embedder(lengths, caching=False))
        assert by_words > by_length > 0

    def test_the_report_describes_retrieval_and_the_vote(self, tmp_path):
        for limit in (0, 80):
            _, optimizer = compiled(by_color(), max_metric_calls=limit)
            report = optimizer.report
            report.save(tmp_path / "report.json")
            assert type(report).load(tmp_path / "report.json") == report
            pyplot.close(report.plot())
            assert ("\n  4 retrieved demos" in report.details()) == (limit > 0)
            assert "all 45 demos are saved with the program" in str(report)
            assert "vote of the 4 nearest" in str(report)
            assert report.vote.score == 0.0 or report.vote.num_examples == 45

    def test_a_vote_ignores_the_example_itself(self):
        def example(i):
            question = f"word{i // 2} {''.ljust(i, 'a')}"
            return dspy.Example(question=question, answer=str(i % 2)).with_inputs("question")

        trainset = [example(i) for i in range(40)]
        options = {"max_demos": 1, "max_metric_calls": 0}
        _, optimizer = compiled(CopyingEngine(), trainset=trainset, **options)
        assert optimizer.report.vote.score == 0.0

    def test_a_vote_calls_no_model(self):
        def metric(example, prediction):
            dspy.Predict("answer -> question")(answer=prediction.answer)
            return exact_match(example, prediction)

        optimizer = without_calls(metric)
        with using(OrderSensitiveEngine({})) as engine:
            optimizer.compile(predict(), trainset=examples())
        assert engine.num_calls == 0
        assert optimizer.report.vote is None

    def test_a_vote_that_is_slow_or_fails_is_omitted(self, monkeypatch):
        """A metric may fail because it reads an output that the nearest demos do not have."""

        def metric(example, prediction):
            return len(prediction["reasoning"]) > 0

        asking = dspy.ChainOfThought("question -> answer")
        options = {"metric": metric, "max_metric_calls": 0}
        _, optimizer = compiled(CopyingEngine(), student=asking, **options)
        assert optimizer.report.vote is None
        monkeypatch.setattr("plr_dspy.labels.constant_answer.MAX_SECONDS", 0.0)
        _, optimizer = compiled(by_color(), max_metric_calls=0)
        assert optimizer.report.vote is None


class TestRetrievingStudents:
    def test_retrieving_students_are_rejected_by_optimizers_and_headroom(self):
        fix = r"pass the original student or, to calibrate this program, use BatchCalibration"
        with using(CopyingEngine()) as engine:
            program = chooser(max_metric_calls=0).compile(predict(), trainset=examples())
            for name in ("PLReorder", "headroom", "PLFewShot"):
                with pytest.raises(ValueError, match=fix):
                    RUNS[name](program, exact_match, examples())
        assert engine.num_calls == 0


def test_the_students_own_demos_can_be_retrieved():
    """The student shows 2 of the 45 examples, and all 45 are searched."""
    trainset = examples()
    student = dspy.LabeledFewShot(k=2).compile(predict(), trainset=trainset)
    engine = by_color()
    with using(engine):
        program = without_calls(exact_match).compile(student, trainset=trainset)
        program(question=student.demos[0].question)
    assert len(program.retrieval.pool.demos) == 45
    assert student.demos[0].question in str(engine.shown)


def test_without_calls_frequent_labels_are_preferred_in_a_large_pool():
    trainset = [LABELED[i % 2].copy(text=f"text {i}") for i in range(320)]
    with using(Engine(), "fake/x"):
        program = without_calls().compile(classifier(), trainset=trainset)
        few = without_calls().compile(classifier(), trainset=trainset[:40])
    assert program.retrieval.nearest.prefer == "frequent labels"
    assert few.retrieval.nearest.prefer == "nearest"


def test_a_calibrated_retrieving_program_can_be_saved_and_loaded(tmp_path):
    with using(Engine(), "fake/x"):
        inner = without_calls().compile(classifier(), trainset=LABELED)
        calibration = BatchCalibration(num_inputs=20, display_progress=False)
        program = calibration.compile(inner, trainset=LABELED)
        program.save(tmp_path / "p.json")
        with pytest.raises(KeyError):
            classifier().load(tmp_path / "p.json")
        loaded = load_program(classifier(), tmp_path / "p.json")
        prediction = program(text="text 7")
        assert loaded(text="text 7").toDict() == prediction.toDict()
    assert isinstance(program, CalibratedProgram)
    assert set(prediction.probabilities) == set(LABELS)


def words_in(text):
    return [float(word in text) for word in WORDS]


class TestBadInput:
    @pytest.mark.parametrize(
        "embedder",
        [
            lambda texts: np.ones(len(texts)),
            lambda texts: 1.0,
            lambda texts: np.ones((1, 3)),
            lambda texts: np.full((len(texts), 3), np.nan),
            lambda texts: np.ones((len(texts), 0)),
            "openai/text-embedding-3-small",
        ],
    )
    def test_an_embedder_that_returns_no_vectors_is_rejected(self, embedder):
        message = r"embedder must (return|be a dspy.Embedder)"
        with using(CopyingEngine()) as engine, pytest.raises(ValueError, match=message):
            chooser(embedder=embedder).compile(predict(), trainset=examples())
        assert engine.num_calls == 0

    def test_an_embedder_that_fails_sometimes_costs_only_a_few_calls(self, tmp_path):
        """Only a few calls fail, the embedder's key stays hidden, and each text is embedded once."""
        asked = Counter()
        failed = []

        def embed(texts, api_key):
            asked.update(texts)
            if len(texts) == 1 and {*failed} <= {*texts} and len(failed) < 6:
                failed.append(texts[0])
                raise ConnectionError(f"refused: {api_key}")
            return list(map(words_in, texts))

        embedder = dspy.Embedder(embed, caching=False, api_key="topsecretvalue")
        optimizer = chooser(embedder=embedder, log_dir=tmp_path)
        data = {"trainset": examples(), "valset": examples(20, first=45)}
        with using(by_color()):
            optimizer.estimate(predict(), trainset=examples())
            assert len(asked) == 45
            optimizer.compile(predict(), **data)
            (error,) = optimizer.report.errors
            optimizer.compile(predict(), **data)
        assert optimizer.report.comparison is not None
        assert error.message == "refused: [hidden]"
        assert error.count <= len(failed)
        for name in ("calls.jsonl", "report.json"):
            assert "topsecret" not in (tmp_path / name).read_text()
        assert {count for text, count in asked.items() if text not in failed} == {1}

    def test_the_time_limit_includes_the_embedder(self):
        """After the time limit, the embedder is not called again."""
        asked = []

        def embed(texts):
            asked.extend(texts)
            time.sleep(0.2)
            return [[1.0] for _ in texts]

        optimizer = chooser(embedder=dspy.Embedder(embed, caching=False), max_seconds=0.1)
        with using(by_color()) as engine:
            optimizer.compile(predict(), trainset=examples(), valset=examples(20, first=45))
        assert engine.num_calls == 0
        assert optimizer.report.stopped == "time limit"
        assert len(asked) == 45

    def test_inputs_without_text_are_rejected_and_auto_does_not_retrieve_demos(self, caplog):
        """All images would be equally similar, so every input would get the same demos."""
        student = predict("picture: dspy.Image -> answer")
        trainset = []
        for number in range(30):
            picture = dspy.Image(f"https://example.org/{number}.png")
            example = dspy.Example(picture=picture, answer=f"answer {number % 3}")
            trainset.append(example.with_inputs("picture"))
        message = "demos must not be 'retrieved' if the inputs have no text.*pass demos='fixed'"
        with using(OrderSensitiveEngine({})) as engine, pytest.raises(ValueError, match=message):
            without_calls(exact_match).compile(student, trainset=trainset)
        assert not engine.requests
        caplog.clear()
        optimizer = chooser("auto", max_metric_calls=60)
        with using(OrderSensitiveEngine({})):
            optimizer.compile(student, trainset=trainset)
        assert caplog.text.count("no demos are retrieved for predictor 'self'") == 1
        assert optimizer.report.retrieval.num_pooled == 0

    def test_a_pool_without_demos_is_rejected(self):
        student = predict("query -> answer")
        student.demos = [dspy.Example(query="x", answer="y")]
        renaming = Program(lambda self, question: self.answer(query=question), answer=student)
        message = "demos='retrieved' needs examples to retrieve"
        with using(CopyingEngine()), pytest.raises(ValueError, match=message):
            chooser(max_metric_calls=0).compile(renaming, trainset=examples())


class Private(dspy.Module):
    """A program with its predictor in a private attribute."""

    def __init__(self):
        super().__init__()
        self._step = predict()

    def forward(self, question):
        return self._step(question=question)


def test_variations_of_a_private_predictor_have_different_digests():
    _, optimizer = compiled(by_color(), student=Private())
    assert optimizer.report.program_calls["total"] > 75
