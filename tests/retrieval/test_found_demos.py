"""PLFewShot with demos that are found for each input: no leak, budgets, limits, what comes back, and bad arguments."""

import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import dspy
import fakes
import numpy as np
import pytest
from fakes import FIELD, CopyingEngine, OrderSensitiveEngine, Program, engine_for, exact_match, questions, using
from label_engines import LABELS, classifier, exact
from label_world import EXAMPLES as LABELLED
from label_world import Engine
from matplotlib import pyplot

from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLFewShot, PLReorder, load_program, order_sensitivity
from plr_dspy.retrieval.predict import RetrievingPredict, _warn_of_unknown_example

WORDS = ["red", "green", "blue"]
ANSWERS = {word: f"answer {i}" for i, word in enumerate(WORDS)}
MODES = pytest.mark.parametrize("demos", ["retrieved", "auto"])


def examples(count=45, first=0):
    asked = [(WORDS[i % 3], f"thing number{i} is {WORDS[i % 3]} all over") for i in range(first, first + count)]
    return [dspy.Example(question=q, answer=ANSWERS[word]).with_inputs("question") for word, q in asked]


def by_colour(**options):
    return CopyingEngine(lambda demo, asked: demo.split()[-3] == asked.split()[-3], **options)


class Teaching(CopyingEngine):
    def otherwise(self, asked):
        return ANSWERS[asked.split()[-3]] if len(self.shown) <= 8 else "wrong"


def predict(signature="question -> answer"):
    return dspy.Predict(signature)


def chooser(demos="retrieved", metric=exact_match, **options):
    plain = {"max_metric_calls": 120, "max_demos": 4, "candidates": "labeled", "num_threads": 1}
    return PLFewShot(metric, demos=demos, display_progress=False, **{**plain, **options})


def compiled(engine, *, student=None, trainset=None, valset=None, asks=1, **options):
    """The program, which asks its model so often, and the optimizer, which made no more calls than it may."""
    optimizer = chooser(**options)
    with using(engine), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of numbers that are none
        program = optimizer.compile(student or predict(), trainset=trainset or examples(), valset=valset)
    assert engine.num_calls / asks == optimizer.report.program_calls["total"] <= optimizer.max_metric_calls
    return program, optimizer


class TestLeaks:
    """A program that copies the answer of a demo that asks the same is never right."""

    @MODES
    @pytest.mark.parametrize("copies", ["none", "exact", "written otherwise", "in the valset", "numbered", "in dicts"])
    def test_of_examples_and_their_copies(self, demos, copies):
        trainset = examples(33)
        valset = None
        student = predict()
        more = [e.copy(question=f"  {e.question.upper()} ") for e in trainset] if copies != "exact" else trainset
        if copies == "in the valset":
            valset = more[:10]
        elif copies == "numbered":
            # No prompt shows the number.
            student = Program(lambda self, number, question: self.answer(question=question), answer=predict())
            both = enumerate([*trainset, *trainset])
            trainset = [e.copy(number=i).with_inputs("number", "question") for i, e in both]
        elif copies == "in dicts":
            trainset = [e.copy(question={"text": text}) for e in trainset for text in (e.question, e.question.upper())]
        elif copies != "none":
            trainset = [*trainset, *more]
        engine = CopyingEngine()
        options = {"demos": demos, "num_threads": 8}
        _, optimizer = compiled(engine, student=student, trainset=trainset, valset=valset, **options)
        assert engine.num_calls >= 60 and engine.copied == 0
        assert max(map(len, engine.shown)) == 4
        assert "every score was 0" in optimizer.report.stopped

    @MODES
    def test_of_a_list_of_candidates(self, demos):
        engine = CopyingEngine()
        given = [{**example, "question": example.question.upper()} for example in examples(30)]
        compiled(engine, demos=demos, candidates=given)
        assert engine.copied == 0 and max(map(len, engine.shown)) == 4

    @MODES
    def test_of_bootstrapped_demos(self, demos):
        """Also of those made of examples that score."""
        engine = Teaching()
        _, optimizer = compiled(engine, demos=demos, candidates="bootstrapped")
        assert optimizer.report.retrieval.num_pooled == 8
        assert engine.copied == 0 and max(map(len, engine.shown)) == 4

    @pytest.mark.parametrize("seed", [5, 7])
    def test_of_bootstrapped_demos_to_a_metric_over_a_set(self, seed):
        """Which reads outputs of answers, and not the demos that a teacher's calls have made of the same examples."""
        asked = questions(40)
        step = dspy.ChainOfThought("question -> answer")
        engine = engine_for(asked)
        options = {"candidates": "both", "max_demos": 8, "max_metric_calls": 60, "seed": seed}
        compiled(engine, student=step, trainset=asked, metric=F1(), **options)

    def test_of_inner_predictors_whose_inputs_tell_nothing(self):
        """A demo of the second predictor has a hint alone, which the first one makes."""

        def steps(self, question):
            return self.answer(hint=self.hint(question=question).hint)

        class Hints(OrderSensitiveEngine):
            def answer(self, system, texts):
                fields = dict(FIELD.findall(texts[-1]))
                if "question" in fields:
                    return f"[[ ## hint ## ]]\nsee {fields['question']}\n\n[[ ## completed ## ]]"
                demos = [dict(FIELD.findall(text))["hint"] for text in texts[:-1:2]]
                leaks.append(fields["hint"] in demos)
                return self.formatted(system, texts, ANSWERS[fields["hint"].split()[-3]])

        leaks = []
        student = Program(steps, hint=predict("question -> hint"), answer=predict("hint -> answer"))
        _, optimizer = compiled(Hints({}), student=student, candidates="bootstrapped", asks=2)
        assert optimizer.report.retrieval.num_pooled == 16 and len(leaks) > 50
        assert not any(leaks)

    @MODES
    def test_in_plain_threads_which_do_not_know_the_example(self, demos, caplog):
        """They are shown no demos that are found."""
        _warn_of_unknown_example.cache_clear()

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
        assert caplog.text.count("start threads with dspy.Parallel") == 1

    def test_in_threads_that_the_program_starts(self):
        def in_threads(self, question):
            calls = [(self.answer, {"question": question})] * 2
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(calls)[0]

        engine = CopyingEngine()
        _, optimizer = compiled(engine, student=Program(in_threads, answer=predict()), asks=2)
        assert engine.copied == 0 and optimizer.report.errors == []
        assert max(map(len, engine.shown)) == 4


class TestChoice:
    @MODES
    def test_demos_that_help_are_found(self, demos):
        """A demo of the same colour tells the answer; among neighbours there is one."""
        program, optimizer = compiled(by_colour(), demos=demos, max_demos=2, max_metric_calls=150)
        assert isinstance(program, RetrievingPredict) and optimizer.report.retrieves
        report = optimizer.report
        assert report.comparison.chosen > report.comparison.original == 0
        with using(by_colour()) as engine:
            score = dspy.Evaluate(devset=examples(15, first=100), metric=exact_match, num_threads=4)(program).score
            assert engine.num_calls == 15
        assert score > 90

    @pytest.mark.parametrize("likeness_helps", [False, True])
    def test_the_best_found_demos_meet_the_best_fixed_demos_in_the_final_comparison(self, likeness_helps):
        ordered = OrderSensitiveEngine({each.question: each.answer for each in examples()})
        _, optimizer = compiled(by_colour() if likeness_helps else ordered, demos="auto", max_metric_calls=150)
        (original, *others) = optimizer.report.candidates
        assert original.ordering == {"self": []}
        assert [not each.ordering["self"] for each in others].count(True) == 1  # found demos are none of the slot

    @pytest.mark.parametrize("calibrate", [False, True])
    def test_log_probabilities_choose_a_variation(self, calibrate):
        optimizer = chooser(metric=exact, signal="auto" if calibrate else "logprobs", calibrate=calibrate)
        engine = Engine()
        with using(engine, "fake/x"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            optimizer.compile(classifier(), trainset=LABELLED)
        report = optimizer.report
        assert report.signal.used == "logprobs"
        assert len(engine.prompts) == report.program_calls["total"] <= 120
        names = {each.name for each in report.retrieval.alternatives}
        assert "the best found demos" in names
        assert names & {"your program", "your program, calibrated"}
        assert all(0.2 < each.score < 1 for each in report.retrieval.alternatives)

    @pytest.mark.parametrize(
        ("student", "value"),
        [
            ("thing -> answer", lambda i: "" if i % 2 else f"word{i}"),
            ("thing: int -> answer", lambda i: i),
            ("thing: list[str] -> answer", lambda i: [f"word{i}", "other"]),
            ("thing: dspy.Image -> answer", lambda i: dspy.Image(f"https://example.org/{i}.png")),
        ],
    )
    def test_inputs_of_all_kinds(self, student, value, tmp_path):
        trainset = [dspy.Example(thing=value(i), answer=f"answer {i % 3}").with_inputs("thing") for i in range(30)]
        engine = OrderSensitiveEngine({})
        optimizer = chooser(max_metric_calls=0)
        with using(engine):
            program = optimizer.compile(predict(student), trainset=trainset)
            program.save(tmp_path / "p.json")
            for each in (program, load_program(predict(student), tmp_path / "p.json")):
                each(**trainset[4].inputs())
        assert list(engine.requests.values()) == [2]
        assert optimizer.report.original.num_demos == 0 < optimizer.report.returned.num_demos
        with pytest.raises(ValueError, match="with a budget of calls"):
            optimizer.program_with(8)

    def test_limits(self, tmp_path):
        engine = by_colour()
        _, optimizer = compiled(engine, max_demos=3, min_demos=2)
        assert {len(demos) for demos in engine.shown} == {0, 2, 3}
        returned = optimizer.report.returned
        tokens = returned.demo_tokens // returned.num_demos
        long = examples(1)[0].copy(question="long " * 300 + "is red all over")
        limits = {"max_demos": 4, "max_demo_tokens": 2 * tokens, "max_metric_calls": 200}
        for demos in ("retrieved", "auto"):
            engine = by_colour()
            program, _ = compiled(engine, demos=demos, trainset=[long, *examples()], **limits)
            assert max(map(len, engine.shown)) in (1, 2)  # and never none for the sake of one that is too long
            assert not [demo for demos in engine.shown for demo in demos if demo.startswith("long")]
        program, _ = compiled(engine := CopyingEngine(), trainset=examples(), **{**limits, "max_metric_calls": 0})
        program.save(tmp_path / "p.json")
        for each in (program, load_program(predict(), tmp_path / "p.json")):
            *_, nearest = shown = each.shown({"question": examples(1)[0].question})
            assert len(shown) < 3 and nearest["question"] == examples(1)[0].question

    def test_limits_hold_for_all_predictors_together(self):
        def report(**options):
            both = lambda self, **asked: (self.one(**asked), self.other(**asked))[0]  # noqa: E731
            student = Program(both, one=predict(), other=predict())
            return compiled(by_colour(), student=student, asks=2, **options)[1].report

        tokens = report(max_metric_calls=0).returned.demo_tokens
        limited = report(max_metric_calls=0, max_demo_tokens=tokens // 2 + 2)
        assert limited.returned.demo_tokens <= tokens // 2 + 2

    @MODES
    def test_an_async_program_that_is_made_to_wait(self, demos):
        _, optimizer = compiled(by_colour(), student=dspy.syncify(fakes.OnlyAsync(predict())), demos=demos)
        assert optimizer.report.comparison is not None

    @MODES
    def test_no_prompt_is_paid_for_twice(self, demos):
        """Variations that show an example the same demos share its call, also with fixed arrangements."""
        engine = by_colour()
        trainset = examples(12)
        given = {"max_demos": 2, "min_demos": 2}
        compiled(engine, demos=demos, trainset=trainset, max_metric_calls=150, **given)
        assert max(engine.requests.values()) == 1

    def test_it_goes_on_from_its_folder(self, tmp_path):
        """What was paid for holds in another order of the trainset, but not where something else compares inputs."""
        compiled(engine := by_colour(), log_dir=tmp_path)
        letters = dspy.Embedder(lambda texts: np.array([[len(t), 1.0] for t in texts]), caching=False)
        resumed = []
        for limit, embedder in ((240, None), (240, letters)):
            options = {"log_dir": tmp_path, "max_metric_calls": limit, "embedder": embedder}
            with using(engine):
                (other := chooser(**options)).compile(predict(), trainset=examples()[::-1])
            resumed.append(other.report.program_calls["resumed"])
        assert resumed[0] > resumed[1] > 0

    def test_reports(self, tmp_path):
        for limit in (0, 120):
            _, optimizer = compiled(by_colour(), max_metric_calls=limit)
            report = optimizer.report
            report.save(tmp_path / "report.json")
            assert type(report).load(tmp_path / "report.json") == report
            pyplot.close(report.plot())
            assert ("the best found demos" in report.details()) == (limit > 0)
            assert "the saved program holds all 45" in str(report)
            assert "vote of the 4 nearest" in str(report)
            assert report.vote.score == 0.0 or report.vote.num_examples == 45

    def test_a_vote_leaves_the_example_itself_out(self):
        pairs = [dspy.Example(question=f"word{i // 2}", answer=str(i % 2)).with_inputs("question") for i in range(40)]
        trainset = [each.copy(question=f"{each.question} {'a' * i}") for i, each in enumerate(pairs)]
        _, optimizer = compiled(CopyingEngine(), trainset=trainset, max_demos=1, max_metric_calls=0)
        assert optimizer.report.vote.score == 0.0

    def test_a_vote_calls_no_model(self):
        def metric(example, prediction):
            dspy.Predict("answer -> question")(answer=prediction.answer)
            return exact_match(example, prediction)

        with using(OrderSensitiveEngine({})) as engine:
            (optimizer := chooser(metric=metric, max_metric_calls=0)).compile(predict(), trainset=examples())
        assert engine.num_calls == 0 and optimizer.report.vote is None

    def test_a_vote_that_takes_long_or_fails_is_left_out(self, monkeypatch):
        """It is scored by what the metric reads, which may be more than a neighbour has."""

        def metric(example, prediction):
            return len(prediction["reasoning"]) > 0

        asking = dspy.ChainOfThought("question -> answer")
        _, optimizer = compiled(CopyingEngine(), student=asking, metric=metric, max_metric_calls=0)
        assert optimizer.report.vote is None
        monkeypatch.setattr("plr_dspy.optimizer.yardsticks.LONGEST", 0.0)
        _, optimizer = compiled(by_colour(), max_metric_calls=0)
        assert optimizer.report.vote is None


class TestStudentsThatFindTheirDemos:
    def test_are_refused_by_what_orders_demos(self):
        cure = r"pass the program that it was made of, or pass it to BatchCalibration"
        with using(CopyingEngine()) as engine:
            program = chooser(max_metric_calls=0).compile(predict(), trainset=examples())
            with pytest.raises(ValueError, match=cure):
                PLReorder(exact_match).compile(program, trainset=examples())
            with pytest.raises(ValueError, match=cure):
                order_sensitivity(program, exact_match, examples(), display_progress=False)
            with pytest.raises(ValueError, match=cure):
                chooser().compile(program, trainset=examples())
        assert engine.num_calls == 0


def test_without_calls_labels_of_neighbours_count_in_a_large_pool():
    trainset = [LABELLED[i % 2].copy(text=f"text {i}") for i in range(320)]
    with using(Engine(), "fake/x"):
        program = chooser(metric=exact, max_metric_calls=0).compile(classifier(), trainset=trainset)
        few = chooser(metric=exact, max_metric_calls=0).compile(classifier(), trainset=trainset[:40])
    assert program.retrieval.nearest.prefer == "frequent labels"
    assert few.retrieval.nearest.prefer == "nearest"


def test_a_calibrated_one_is_loaded(tmp_path):
    with using(Engine(), "fake/x"):
        inner = chooser(metric=exact, max_metric_calls=0).compile(classifier(), trainset=LABELLED)
        program = BatchCalibration(num_inputs=20, display_progress=False).compile(inner, trainset=LABELLED)
        program.save(tmp_path / "p.json")
        with pytest.raises(KeyError):
            classifier().load(tmp_path / "p.json")
        said = program(text="text 7")
        assert load_program(classifier(), tmp_path / "p.json")(text="text 7").toDict() == said.toDict()
    assert isinstance(program, CalibratedProgram) and set(said.probabilities) == set(LABELS)


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
    def test_an_embedder_that_makes_no_vectors(self, embedder):
        with using(CopyingEngine()) as engine, pytest.raises(ValueError, match=r"embedder must (return|be callable)"):
            chooser(embedder=embedder).compile(predict(), trainset=examples())
        assert engine.num_calls == 0

    def test_an_embedder_that_fails_now_and_then(self, tmp_path):
        """Costs a few calls, and its key is told to nobody; each text is embedded once, by an estimate or later."""
        asked = Counter()
        failed = []

        def embed(texts, api_key):
            asked.update(texts)
            if len(texts) == 1 and {*failed} <= {*texts} and len(failed) < 6:
                failed.append(texts[0])
                raise ConnectionError(f"refused: {api_key}")
            return [[float(word in text) for word in WORDS] for text in texts]

        embedder = dspy.Embedder(embed, caching=False, api_key="topsecretvalue")
        optimizer = chooser(embedder=embedder, log_dir=tmp_path)
        with using(by_colour()):
            optimizer.estimate(predict(), trainset=examples())
            assert len(asked) == 45
            optimizer.compile(predict(), trainset=examples(), valset=examples(20, first=45))
            (error,) = optimizer.report.errors
            optimizer.compile(predict(), trainset=examples(), valset=examples(20, first=45))
        assert optimizer.report.comparison is not None
        assert error.message == "refused: [hidden]" and error.count <= len(failed)
        assert "topsecret" not in (tmp_path / "calls.jsonl").read_text() + (tmp_path / "report.json").read_text()
        assert {count for text, count in asked.items() if text not in failed} == {1}

    def test_the_time_that_an_embedder_takes_counts(self):
        """And when it is up, none is asked any more."""
        asked = []
        embed = lambda texts: asked.extend(texts) or time.sleep(0.2) or [[1.0]] * len(texts)  # noqa: E731
        slow = dspy.Embedder(embed, caching=False)
        with using(by_colour()) as engine:
            optimizer = chooser(embedder=slow, max_seconds=0.1)
            optimizer.compile(predict(), trainset=examples(), valset=examples(20, first=45))
        assert (engine.num_calls, optimizer.report.stopped) == (0, "time limit, nothing compared")
        assert len(asked) == 45

    def test_nothing_to_find(self):
        student = predict("query -> answer")
        student.demos = [dspy.Example(query="x", answer="y")]
        with using(CopyingEngine()), pytest.raises(ValueError, match="demos='retrieved' needs demos"):
            renaming = Program(lambda self, question: self.answer(query=question), answer=student)
            chooser(max_metric_calls=0).compile(renaming, trainset=examples())


class Private(dspy.Module):
    """Keeps its predictor in an attribute that begins with an underscore."""

    def __init__(self):
        super().__init__()
        self._step = predict()

    def forward(self, question):
        return self._step(question=question)


def test_variations_of_a_private_predictor_are_told_apart():
    _, optimizer = compiled(by_colour(), student=Private())
    assert optimizer.report.program_calls["total"] > 110
