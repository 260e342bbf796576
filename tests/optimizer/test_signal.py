"""What PLReorder learns from a call: the score alone, or the log-probabilities of labels as well."""

import dataclasses
import json
import math
import time
from collections import Counter
from enum import Enum
from typing import Literal

import dspy
import pytest
from dspy import lm15
from fakes import FIELD, WANTED, LabelEngine, chat_response, digest, logprobs_of

from plr_dspy import PLReorder, Report
from plr_dspy.labels.requests import NoProbabilities
from plr_dspy.report.page import page

LABELS = ["negative", "positive"]
REFUSAL = lm15.InvalidRequestError("logprobs are not supported by this model", status=400)
KIND = Literal["negative", "positive"]


def normal(text):
    """A number whose distribution over texts is about the standard normal one."""
    return sum(digest(f"{text} {i}") for i in range(12)) - 6


def leaning(demos):
    """How far an order of demos leans to "positive": later demos weigh more, as in real models."""
    signs = [1 if int(demo.split()[-1]) % 2 else -1 for demo in demos]
    return 0.35 * sum(sign * (place + 1) for place, sign in enumerate(signs))


def probabilities(demos, text):
    """Examples have an effect of their own, orders lean to a label, and there is noise: best leans to neither."""
    number = int(text.split()[-1])
    own = (1 if number % 2 else -1) * 1.2 + 0.8 * normal(text)
    z = own + leaning(demos) + 0.3 * normal(f"{demos} {text}")
    return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]


EXAMPLES = [dspy.Example(text=f"text {i}", label=LABELS[i % 2]).with_inputs("text") for i in range(60)]
DEMOS = [dspy.Example(text=f"demo {i}", label=LABELS[i % 2]) for i in (0, 2, 4, 1, 3)]


class Engine(LabelEngine):
    """Keeps prompts, and fails, refuses or is silent where it is told to.

    Attributes:
        prompts: Texts of each request in turn.
        asked: Whether it was asked for log-probabilities, for each request.
        at: What is done at the beginning of a call, by its number.
        silent: Numbers of the calls whose replies come without log-probabilities.
    """

    def __init__(self, *, logprobs=True, refusal=None, labels=LABELS, probabilities=probabilities):
        super().__init__(labels, probabilities, logprobs=logprobs)
        self.refusal, self.prompts, self.asked = refusal, [], []
        self.at, self.silent = {}, set()

    def complete(self, request):
        with self._lock:
            number = len(self.prompts)
            self.prompts.append(tuple(message.text or "" for message in request.messages))
            self.asked.append(request.config.logprobs is not None)
        if number in self.at:
            self.at[number]()
        if self.refusal is not None and self.asked[number]:
            raise self.refusal
        return self.reply(request, told=self.asked[number] and number not in self.silent)

    def reply(self, request, *, told):
        """Answer all fields, the label last."""
        texts = [message.text or "" for message in request.messages]
        *others, last = [name for name in WANTED.findall(texts[-1]) if name != "completed"]
        demos = [FIELD.findall(text)[0][1].strip() for text in texts[:-1:2]]
        p = self.probabilities(demos, FIELD.findall(texts[-1])[0][1].strip())
        tops = [{f"[[ ## {name} ## ]]\nbecause\n\n": 1.0} for name in others]
        tops += [{f"[[ ## {last} ## ]]\n": 1.0}, dict(zip(self.labels, p, strict=True))]
        tops.append({"\n\n[[ ## completed ## ]]": 1.0})
        text = "".join(max(top, key=top.__getitem__) for top in tops)
        return chat_response(text, logprobs=logprobs_of(tops) if told and self.logprobs else None)


def exact(example, prediction, trace=None):
    return example.label == prediction.label


def student(kind=KIND, demos=DEMOS):
    program = dspy.Predict(dspy.Signature("text -> label").with_updated_fields("label", type_=kind))
    program.demos = list(demos)
    return program


def go(engine, *, program=None, trainset=EXAMPLES, valset=None, metric=exact, **options):
    """The program compiled, and the report."""
    options = {"max_metric_calls": 120, "num_threads": 1, "display_progress": False, **options}
    reorder = PLReorder(metric, **options)
    lm = dspy.LM("fake/x", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        compiled = reorder.compile(program or student(), trainset=trainset, valset=valset)
    return compiled, reorder.report


def found(report, *but):
    """What a report says, but for what may differ between two compiles of one kind."""
    plain = json.loads(json.dumps(report.to_dict()))
    for name in ("seconds", *but):
        del plain[name]
    plain["program_calls"].pop("resumed", None)
    for name in ("signal", "num_threads", "max_errors"):
        plain["settings"].pop(name)
    return plain


def whole_prediction(example, prediction, trace=None):
    return exact(example, prediction) and len(prediction.keys()) > 0


def judged(example, prediction, trace=None):
    judge = dspy.Predict("text -> label: Literal['negative', 'positive']")
    return judge(text=example.text).label == prediction.label


class TestScoresWhereThereIsNothingElse:
    def same(self, engine, other, reason, **options):
        """Both signals make the same calls, and find the same."""
        program, report = go(engine, **options)
        expected, plain = go(other, signal="score", **options)
        assert engine.prompts == other.prompts
        for (_, one), (_, two) in zip(program.named_predictors(), expected.named_predictors(), strict=True):
            assert [demo["text"] for demo in one.demos] == [demo["text"] for demo in two.demos]
        assert found(report, "signal") == found(plain, "signal")
        assert (report.signal.used, report.signal.labels, report.signal.leaning) == ("score", [], None)
        assert report.signal.reason == reason
        assert f"learnt from scores alone: {reason}" in report.details()
        assert (plain.signal.used, plain.signal.reason) == ("score", "")
        assert "learnt from" not in plain.details()

    def test_silence(self):
        engine = Engine(logprobs=False)
        self.same(engine, Engine(), "fake/x gives no log-probabilities")
        assert engine.asked[0]
        assert not any(engine.asked[1:])

    @pytest.mark.parametrize("auto", ["light", "paper"])
    def test_the_paper_s_search(self, auto):
        options = {"auto": auto, "max_metric_calls": 300, "num_samples": 3, "num_final_draws": 2}
        reason = {
            "light": "fake/x gives no log-probabilities",
            "paper": "auto='paper' scores orders as the paper does",
        }
        self.same(Engine(logprobs=False), Engine(), reason[auto], **options)

    def test_a_student_without_demos(self):
        options = {"program": student(demos=[]), "num_demos": 4}
        self.same(Engine(logprobs=False), Engine(), "fake/x gives no log-probabilities", **options)

    def test_few_orders(self):
        options = {"program": student(demos=DEMOS[:3]), "max_metric_calls": 500}
        self.same(Engine(logprobs=False), Engine(), "fake/x gives no log-probabilities", **options)

    def test_ten_examples(self):
        options = {"trainset": EXAMPLES[:10], "max_metric_calls": 60}
        self.same(Engine(logprobs=False), Engine(), "fake/x gives no log-probabilities", **options)

    def test_a_metric_that_looks_at_more(self):
        reason = "the metric looks at more of the prediction than 'label'"
        self.same(Engine(), Engine(), reason, metric=whole_prediction)

    def test_a_judge(self):
        self.same(Engine(), Engine(), "the metric calls a language model", metric=judged)

    def test_an_open_output(self):
        engines = Engine(), Engine()
        self.same(*engines, "no output is a Literal, an enum or a bool", program=student(str))
        assert not any(engines[0].asked)

    def test_refusal(self):
        """Which costs a request, and no program call."""
        engine, other = Engine(refusal=REFUSAL), Engine()
        self.refused(engine, other)
        assert engine.prompts[0] == engine.prompts[1]
        assert engine.prompts[1:] == other.prompts
        assert engine.asked == [True] + [False] * (len(engine.asked) - 1)

    def refused(self, engine, other):
        program, report = go(engine)
        expected, plain = go(other, signal="score")
        assert [demo["text"] for demo in program.demos] == [demo["text"] for demo in expected.demos]
        assert found(report, "signal") == found(plain, "signal")
        assert report.signal.reason == "fake/x refuses requests for log-probabilities"
        assert report.program_calls["total"] == len(engine.prompts) - 1

    def test_first_calls_that_fail(self):
        engine, other = Engine(), Engine()
        for each in (engine, other):
            each.at = dict.fromkeys((0, 1), failure)
        self.same(engine, other, "the first calls failed", max_errors=5)

    def test_a_metric_with_a_state(self):
        """The same answer has another score when the search asks for it than when the labels were scored."""

        class Counting:
            def __init__(self):
                self.calls = 0

            def __call__(self, example, prediction):
                self.calls += 1
                return exact(example, prediction) + self.calls / 1_000

        _, report = go(Engine(), metric=Counting())
        reason = "the metric scores the same answer differently when it is asked again"
        assert (report.signal.used, report.signal.reason) == ("score", reason)
        with pytest.raises(NoProbabilities, match=f"there are none: {reason}"):
            go(Engine(), metric=Counting(), signal="logprobs")

    def test_a_program_that_asks_twice(self):
        class Twice(dspy.Module):
            def __init__(self):
                super().__init__()
                self.predict = student()

            def forward(self, text):
                return [self.predict(text=text) for _ in range(2)][-1]

        reason = "the program calls its classifier several times for an answer"
        self.same(Engine(), Engine(), reason, program=Twice())


def failure():
    raise ConnectionError("down")


def interrupt():
    raise KeyboardInterrupt


class TestLogProbabilities:
    @pytest.mark.parametrize("num_threads", [1, 8])
    @pytest.mark.parametrize("budget", [30, 97, 150])
    def test_cost_no_further_call(self, num_threads, budget):
        engine = Engine()
        _, report = go(engine, num_threads=num_threads, max_metric_calls=budget)
        assert len(engine.prompts) == report.program_calls["total"] <= budget
        assert all(engine.asked)
        assert set(Counter(engine.prompts).values()) == {1}
        assert (report.signal.used, report.signal.reason, report.signal.labels) == ("logprobs", "", LABELS)
        assert "learnt from the probabilities of labels that came with the calls" in report.details()

    def test_the_same_at_any_number_of_threads(self):
        (one, first), (eight, second) = (go(Engine(), num_threads=n) for n in (1, 8))
        assert [demo["text"] for demo in one.demos] == [demo["text"] for demo in eight.demos]
        assert found(first) == found(second)

    def test_they_find_better_orders(self):
        """The accuracy of the orders found, on all that the model would do on new texts."""
        texts = [f"text {i}" for i in range(1000, 1400)]

        def accuracy(program):
            shown = [demo["text"] for demo in program.demos]
            answers = [probabilities(shown, text)[1] > 0.5 for text in texts]
            return sum(a == bool(int(t.split()[-1]) % 2) for a, t in zip(answers, texts, strict=True)) / 400

        pairs = [
            [accuracy(go(Engine(), signal=signal, max_metric_calls=150, seed=seed)[0]) for seed in range(5)]
            for signal in ("logprobs", "score")
        ]
        assert sum(told >= alone for told, alone in zip(*pairs, strict=True)) >= 3, pairs
        assert sum(pairs[0]) > sum(pairs[1])
        assert min(pairs[0]) > 0.88 > accuracy(student())

    def test_the_leaning_is_about_the_true_one(self):
        program, report = go(Engine(), max_metric_calls=150)
        leans = report.signal.leaning
        assert leans.right == pytest.approx([0.5, 0.5], abs=0.12)
        for shares, demos in [(leans.original, DEMOS), (leans.chosen, program.demos)]:
            shown = [demo["text"] for demo in demos]
            true = sum(probabilities(shown, example.text)[1] > 0.5 for example in EXAMPLES) / len(EXAMPLES)
            assert sum(shares) == pytest.approx(1.0, abs=1e-6)
            assert shares[1] == pytest.approx(true, abs=0.15)
        assert abs(leans.chosen[1] - 0.5) <= abs(leans.original[1] - 0.5)


@pytest.fixture(scope="module")
def whole():
    """The report of a compile that nothing stopped."""
    return go(Engine())[1]


class TestResumed:
    @pytest.mark.parametrize("how", [failure, interrupt])
    @pytest.mark.parametrize("stop_at", [0, 1, 3, 9, 40, 90, 110])
    @pytest.mark.parametrize("num_threads", [1, 4])
    def test_goes_on(self, tmp_path, whole, how, stop_at, num_threads):
        assert whole.program_calls["total"] > 110
        engine = Engine()
        engine.at = {stop_at: how}
        options = {"log_dir": tmp_path, "num_threads": num_threads, "max_errors": 1}
        with pytest.raises((ConnectionError, KeyboardInterrupt, dspy.LMError)):
            go(engine, **options)
        assert num_threads > 1 or len(engine.prompts) == stop_at + 1
        _, report = go(engine, **options)
        assert [slot.ordering for slot in report.slots] == [slot.ordering for slot in whole.slots]
        assert report.signal.used == "logprobs"
        again = [prompt for prompt, count in Counter(engine.prompts).items() if count > 1]
        assert len(again) <= num_threads  # what was under way
        assert all(engine.asked)
        if how is interrupt:  # A call that failed counts, and leaves one less.
            assert found(report, "tokens") == found(whole, "tokens")

    def test_a_finished_compile_costs_nothing_again(self, tmp_path):
        engine = Engine()
        _, first = go(engine, log_dir=tmp_path)
        before = len(engine.prompts)
        _, second = go(engine, log_dir=tmp_path)
        assert len(engine.prompts) == before
        assert second.program_calls["resumed"] == before
        assert found(first) == found(second)

    def test_a_larger_budget_goes_on(self, tmp_path):
        engine = Engine()
        go(engine, log_dir=tmp_path)
        _, report = go(engine, log_dir=tmp_path, max_metric_calls=200)
        assert report.signal.used == "logprobs"
        assert len(engine.prompts) == report.program_calls["total"] <= 200
        assert set(Counter(engine.prompts).values()) == {1}

    def test_of_scores_where_none_are_given(self, tmp_path):
        engine = Engine(logprobs=False)
        _, first = go(engine, log_dir=tmp_path)
        before = len(engine.prompts)
        _, second = go(engine, log_dir=tmp_path)
        assert len(engine.prompts) == before
        assert found(first, "signal") == found(second, "signal")
        assert second.signal.used == "score"

    def test_another_signal_is_refused_unless_it_is_accepted(self, tmp_path):
        engine = Engine()
        go(engine, log_dir=tmp_path)
        before = len(engine.prompts)
        message = "signal was 'auto', is 'score'.*another log_dir.*pass accept_changes=True"
        with pytest.raises(ValueError, match=message):
            go(engine, log_dir=tmp_path, signal="score")
        assert len(engine.prompts) == before
        _, report = go(engine, log_dir=tmp_path, signal="score", accept_changes=True)
        assert report.signal.used == "score"
        assert report.program_calls["total"] == len(engine.prompts) <= 120
        assert set(Counter(engine.prompts).values()) == {1}

    def test_from_scores_to_log_probabilities(self, tmp_path):
        """What was paid without them stays without."""
        engine = Engine()
        go(engine, log_dir=tmp_path, signal="score", max_metric_calls=60)
        _, report = go(engine, log_dir=tmp_path, accept_changes=True)
        assert report.program_calls["total"] == len(engine.prompts) <= 120
        assert set(Counter(engine.prompts).values()) == {1}


class TestBadSignals:
    @pytest.mark.parametrize("value", ["logprob", "", None, 1, ["auto"], True])
    def test_are_named(self, value):
        with pytest.raises(ValueError, match=r"signal must be one of .*auto.*score.*logprobs.*got"):
            PLReorder(exact, signal=value)

    def test_where_they_are_not_possible(self):
        for options, reason in [
            ({"program": student(str)}, "no output is a Literal, an enum or a bool"),
            ({"metric": whole_prediction}, "looks at more of the prediction"),
            ({"metric": judged}, "calls a language model"),
            ({"auto": "paper", "max_metric_calls": None}, "auto='paper'"),
        ]:
            engine = Engine()
            with pytest.raises(ValueError, match=rf"signal='logprobs' is not possible: .*{reason}.*'auto'"):
                go(engine, signal="logprobs", **options)
            assert not engine.prompts

    @pytest.mark.parametrize("refusal", [None, REFUSAL])
    def test_where_the_endpoint_gives_none(self, refusal):
        engine = Engine(logprobs=False, refusal=refusal)
        with pytest.raises(NoProbabilities, match=r"signal='logprobs' needs .*fake/x .*Pass signal='auto'"):
            go(engine, signal="logprobs")
        assert len(engine.prompts) == 1 + (refusal is not None)
        _, report = go(engine, signal="auto")
        assert report.comparison is not None
        assert report.signal.used == "score"


class Chain(dspy.Module):
    """The last of three predictors gives the label."""

    def __init__(self):
        super().__init__()
        self.first, self.second = dspy.Predict("text -> summary"), dspy.Predict("text -> hint")
        self.last = dspy.ChainOfThought("text -> label: Literal['negative', 'positive']")
        self.first.demos = [dspy.Example(text=f"demo {i}", summary="s") for i in range(3)]
        self.last.predict.demos = [dspy.Example(reasoning="r", **demo) for demo in DEMOS]

    def forward(self, text):
        assert self.first(text=text).summary
        assert self.second(text=text).hint
        return self.last(text=text)


class Sentiment(Enum):
    BAD = "negative"
    GOOD = "positive"


class TestPrograms:
    def check(self, engine=None, *, calls=1, **options):
        engine = engine or Engine()
        program, report = go(engine, **options)
        assert len(engine.prompts) == calls * report.program_calls["total"]
        assert report.signal.used == "logprobs", report.signal
        assert str(report)
        return program, report

    def test_of_several_predictors(self):
        engine = Engine()
        self.check(engine, calls=3, program=Chain())
        assert engine.asked.count(True) == len(engine.asked) / 3

    def test_chains_of_thought(self):
        program = dspy.ChainOfThought("text -> label: Literal['negative', 'positive']")
        program.predict.demos = [dspy.Example(reasoning="r", **demo) for demo in DEMOS]
        self.check(program=program)

    @pytest.mark.parametrize(
        ("kind", "values"), [(bool, [False, True]), (Sentiment, list(Sentiment))], ids=["bool", "enum"]
    )
    def test_of_other_labels(self, kind, values):
        def valued(example):
            number = int(example.text.split()[-1])
            return dspy.Example(text=example.text, label=values[number % 2]).with_inputs("text")

        labels = ["False", "True"] if kind is bool else LABELS  # as the engine numbers them
        _, report = self.check(
            Engine(labels=labels),
            program=student(kind, [valued(demo) for demo in DEMOS]),
            trainset=[valued(example) for example in EXAMPLES],
        )
        assert set(report.signal.labels) == set(labels)

    def test_without_demos(self):
        self.check(program=student(demos=[]), num_demos=4)

    def test_with_a_valset(self):
        self.check(trainset=EXAMPLES[:40], valset=EXAMPLES[40:])

    def test_one_class_only(self):
        self.check(trainset=EXAMPLES[::2])

    def test_ten_examples(self):
        self.check(trainset=EXAMPLES[:10], max_metric_calls=60)

    def test_few_orders(self):
        self.check(program=student(demos=DEMOS[:3]), max_metric_calls=500)
        self.check(program=student(demos=DEMOS[2:4]), max_metric_calls=500)

    def test_all_scores_equal(self):
        engine = Engine(
            probabilities=lambda demos, text: [0.3, 0.7] if int(text.split()[-1]) % 2 else [0.7, 0.3]
        )
        program, report = self.check(engine)
        assert [demo["text"] for demo in program.demos] == [demo["text"] for demo in DEMOS]
        assert report.comparison is None or report.comparison.gain == 0

    def test_all_labels_equally_likely(self):
        program, _ = self.check(Engine(probabilities=lambda demos, text: [0.5, 0.5]))
        assert [demo["text"] for demo in program.demos] == [demo["text"] for demo in DEMOS]

    def test_a_provider_that_leaves_some_out(self):
        engine = Engine()
        engine.silent = {number for number in range(1, 200) if digest(f"silent {number}") < 0.4}
        self.check(engine)

    def test_calls_that_fail_in_between(self):
        engine = Engine()
        engine.at = {number: failure for number in range(2, 200) if digest(f"fails {number}") < 0.2}
        _, report = self.check(engine, max_errors=1000)
        assert report.errors[0].type

    def test_a_first_call_that_fails(self):
        engine = Engine()
        engine.at = {0: failure}
        self.check(engine, max_errors=5)

    def test_a_first_answer_that_cannot_be_read(self):
        class Garbled(Engine):
            def complete(self, request):
                reply = super().complete(request)
                if len(self.prompts) > 1:
                    return reply
                part = dataclasses.replace(reply.message.parts[0], text="no fields here")
                message = dataclasses.replace(reply.message, parts=(part,))
                return dataclasses.replace(reply, message=message)

        self.check(Garbled())

    def test_a_metric_with_several_best_labels(self):
        self.check(metric=lambda example, prediction: 0.5 + 0.5 * (example.label == prediction.label))
        self.check(
            metric=lambda example, prediction: 1.0 if example.text == "text 7" else exact(example, prediction)
        )


class TestTime:
    @pytest.mark.parametrize("fails", [False, True])
    @pytest.mark.parametrize("logprobs", [True, False])
    def test_the_first_call_takes_of_it(self, logprobs, fails):
        """No other begins when it is over."""

        def slow():
            time.sleep(0.03)
            if fails:
                failure()

        engine = Engine(logprobs=logprobs)
        engine.at = {0: slow}
        _, report = go(engine, max_seconds=0.02, max_errors=5)
        assert len(engine.prompts) == 1
        assert "time" in report.stopped


class TestReports:
    def test_round_trip(self, tmp_path):
        for engine in (Engine(), Engine(logprobs=False)):
            _, report = go(engine)
            report.save(tmp_path / "report.json")
            assert Report.load(tmp_path / "report.json") == report
            assert report.settings["signal"] == "auto"

    def test_pages_say_what_was_learnt(self):
        pytest.importorskip("matplotlib")
        _, report = go(Engine())
        _, plain = go(Engine(logprobs=False))
        assert "learnt from the probabilities of labels that came with the calls" in page(report)
        assert "% of the examples" in page(report)
        assert "learnt from scores alone: fake/x gives no log-probabilities" in page(plain)

    def test_interrupted_before_anything_was_learnt(self):
        engine = Engine()
        engine.at = {0: interrupt}
        reorder = PLReorder(exact, max_metric_calls=100, num_threads=1, display_progress=False)
        with (
            dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)),
            pytest.raises(KeyboardInterrupt),
        ):
            reorder.compile(student(), trainset=EXAMPLES)
        assert reorder.report.stopped == "interrupted"
        assert "learnt" not in reorder.report.details()

    def test_estimates_are_free(self):
        asked = []

        def metric(example, prediction):
            asked.append(example)
            return exact(example, prediction)

        engine, estimates = Engine(), []
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False)):
            for signal in ("auto", "score", "logprobs"):
                reorder = PLReorder(metric, signal=signal, max_metric_calls=120, display_progress=False)
                estimates.append(reorder.estimate(student(), trainset=EXAMPLES))
        assert estimates[0] == estimates[1] == estimates[2]
        assert not engine.prompts
        assert not asked


class TestCached:
    def test_a_second_compile_is_free(self):
        """From DSPy's cache, which keeps the replies on the disk alone."""
        engine, reports = Engine(), []
        before = set(dspy.cache.memory_cache)
        for _ in range(2):
            reorder = PLReorder(exact, max_metric_calls=120, num_threads=4, display_progress=False)
            with dspy.context(lm=dspy.LM("fake/cached", engine=engine), adapter=dspy.ChatAdapter()):
                reorder.compile(student(), trainset=EXAMPLES)
            reports.append(reorder.report)
            assert len(engine.prompts) == reports[0].program_calls["total"]
        assert found(reports[0], "tokens") == found(reports[1], "tokens")
        assert set(dspy.cache.memory_cache) == before
