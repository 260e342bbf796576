"""DSPy's decision outputs, whose demos are a JSON list in the system message, and whose probabilities replies state."""

import json
import math
from typing import Annotated, Literal

import dspy
import numpy as np
import pytest
from dspy.experimental import Choice, Noul, ReAnchor, Score
from fakes import OrderSensitiveEngine, using
from label_engines import Decider, normal
from label_world import number, two

from plr_dspy import BatchCalibration, CalibratedProgram, PLFewShot, PLReorder
from plr_dspy.baselines import PDO, GlobalE, TopKOrder
from plr_dspy.labels.reader import NoProbabilities

OPTIONS = (("negative", "it was disliked"), ("positive", "it was liked"))
KINDS = {
    "choice": Choice[OPTIONS],
    "annotated": Annotated[Literal["negative", "positive"], Choice[OPTIONS]],
    "literal in fields": Literal["negative", "positive"],
    "noul": Noul[(True, "it was liked"), (False, "it was disliked")],
    "annotated bool": Annotated[bool, Noul],
    "bool in fields": bool,
}
NUMBERS = (0, 2, 4, 1, 3)


def values(kind):
    """The answers "negative" and "positive", as plain values."""
    return (False, True) if "oo" in kind or "noul" in kind else ("negative", "positive")


def examples(kind, number=60, first=0):
    return [
        dspy.Example(text=f"text {i}", label=values(kind)[i % 2]).with_inputs("text")
        for i in range(first, first + number)
    ]


def student(kind="choice", numbers=NUMBERS, module=dspy.Predict, **fields):
    signature = dspy.Signature("text -> label").with_updated_fields("label", desc="how the text was meant")
    program = module(signature.with_updated_fields("label", type_=KINDS[kind]))
    (predictor,) = program.predictors()
    predictor.demos = [dspy.Example(text=f"demo {i}", label=values(kind)[i % 2]) for i in numbers]
    if "fields" in kind or fields:
        predictor.fields["label"] = dict(fields)
    return program


def plain(answer):
    return answer.value if isinstance(answer, (Choice, Noul)) else answer


def exact(example, prediction, trace=None):
    return example.label == plain(prediction.label)


def ascending(demos):
    """How much the demos ascend, from 0 to 1."""
    numbers = [number(demo["text"]) for demo in demos]
    pairs = [a < b for i, a in enumerate(numbers) for b in numbers[i + 1 :]]
    return sum(pairs) / len(pairs) if pairs else 0.5


def sharp(demos, text):
    """Right the more often the more the demos ascend."""
    return two((1 if number(text) % 2 else -1) * (3 * ascending(demos) - 0.5) + normal(text))


def leaning(demos, text):
    """Leans far to "positive", and would otherwise be right."""
    return two((1 if number(text) % 2 else -1) * 0.8 + 0.5 * normal(text) + 2.0)


@pytest.fixture
def engine():
    engine = Decider(sharp)
    with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False, num_retries=0)):
        yield engine


def reorder(**options):
    options = {"max_metric_calls": 120, "num_threads": 2, "display_progress": False, **options}
    return PLReorder(exact, **options)


def calibrated(program, trainset):
    return BatchCalibration(display_progress=False).compile(program, trainset=trainset)


def check_saved(engine, program, kind, folder):
    """What is loaded asks the same."""
    program.save(folder / "program.json")
    loaded = student(kind, numbers=())
    loaded.load(folder / "program.json")
    engine.prompts.clear()
    answers = [plain(each(text="text 7").label) for each in (program, loaded)]
    assert answers[0] == answers[1]
    assert engine.prompts[0] == engine.prompts[1]


def shown(program):
    (predictor,) = program.predictors()
    return [number(demo["text"]) for demo in predictor.demos]


def accuracy(program, kind):
    return np.mean([exact(each, program(**each.inputs())) for each in examples(kind, 60, first=1000)])


class TestPrompts:
    """What is ordered, counted and warned of is what the prompts really show."""

    def test_incomplete_demos_are_ordered_among_the_others(self, engine, caplog):
        program = student(module=dspy.ChainOfThought, numbers=range(5))
        for i, demo in enumerate(program.predict.demos[:2]):
            program.predict.demos[i] = dspy.Example(demo, reasoning="because")
        program.predict.demos.append(dspy.Example(text="demo 5"))
        estimate = reorder().estimate(program, trainset=examples("choice"))
        assert estimate.distinct_prompts == math.factorial(6)
        assert "in no prompt" not in caplog.text

    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
    def test_tokens_are_those_of_the_whole_prompt(self, engine, adapter):
        with dspy.context(adapter=adapter):
            few = reorder().estimate(student(), trainset=examples("choice"))
            long = student()
            long.demos[0] = dspy.Example(long.demos[0], text="demo 0" + " word" * 300)
            many = reorder().estimate(long, trainset=examples("choice"))
        assert 300 <= (many.prompt_tokens - few.prompt_tokens) / many.program_calls <= 400

    def test_other_criteria_are_another_compile(self, engine, tmp_path):
        trainset = examples("choice")
        reorder(log_dir=tmp_path).compile(student("annotated"), trainset=trainset)
        with pytest.raises(ValueError, match="the settings of self"):
            reorder(log_dir=tmp_path).compile(student("annotated", instructions="new"), trainset=trainset)
        other = student()
        other.signature = other.signature.with_updated_fields(
            "label",
            type_=Annotated[Literal["negative", "positive"], Choice[("negative", "x"), ("positive", "y")]],
        )
        with pytest.raises(ValueError, match="the signature of self"):
            reorder(log_dir=tmp_path).compile(other, trainset=trainset)


class TestOrders:
    @pytest.mark.parametrize(
        ("kind", "signal"), [*((kind, "logprobs") for kind in KINDS), ("choice", "score"), ("noul", "score")]
    )
    def test_the_order_is_found_saved_and_loaded(self, engine, kind, signal, tmp_path):
        optimizer = reorder(signal=signal)
        program = student(kind, numbers=(4, 3, 2, 1, 0))
        compiled = optimizer.compile(program, trainset=examples(kind))
        assert ascending([{"text": f"demo {i}"} for i in shown(compiled)]) >= 0.7
        assert optimizer.report.signal.used == signal
        assert not any(engine.asked), "a reply that states probabilities needs no log-probabilities"
        check_saved(engine, compiled, kind, tmp_path)

    def test_weights_decide_what_the_probabilities_say(self, engine):
        """The answer is the label of the largest weighted probability, and so the search takes it."""
        engine.probabilities = leaning
        weighted = student(weights={"positive": 0.15})
        optimizer = reorder(signal="logprobs", max_metric_calls=60)
        optimizer.compile(weighted, trainset=examples("choice"))
        leaning_of = optimizer.report.signal.leaning
        assert leaning_of.original[1] == pytest.approx(0.5, abs=0.15)

    @pytest.mark.parametrize("candidates", ["labeled", "bootstrapped"])
    def test_demos_are_chosen(self, engine, candidates, tmp_path):
        options = {"max_metric_calls": 150, "num_threads": 2, "display_progress": False}
        optimizer = PLFewShot(exact, candidates=candidates, **options)
        compiled = optimizer.compile(student(numbers=()), trainset=examples("choice", 100))
        assert len(shown(compiled)) > 1
        assert accuracy(compiled, "choice") > accuracy(student(numbers=()), "choice") + 0.05
        check_saved(engine, compiled, "choice", tmp_path)


class TestCalibration:
    @pytest.mark.parametrize(
        ("kind", "adapter"),
        [
            *((kind, dspy.ChatAdapter()) for kind in KINDS),
            ("choice", dspy.JSONAdapter()),
            ("noul", dspy.JSONAdapter()),
        ],
    )
    def test_takes_away_the_lean_and_tells_probabilities(self, engine, kind, adapter, tmp_path):
        engine.probabilities = leaning
        program = student(kind)
        with dspy.context(adapter=adapter):
            result = calibrated(program, examples(kind, 64))
            assert len(engine.prompts) == 64
            assert not any(engine.asked)
            assert accuracy(result, kind) > accuracy(program, kind) + 0.15
            result.save(tmp_path / "program.json")
            loaded = CalibratedProgram(student(kind, numbers=()))
            loaded.load(tmp_path / "program.json")
            for text in ("text 1", "text 2", "text 8"):
                one, same, raw = result(text=text), loaded(text=text), program(text=text)
                assert one.probabilities == pytest.approx(same.probabilities)
                assert set(one.probabilities) == set(values(kind))
                assert sum(one.probabilities.values()) == pytest.approx(1)
                assert (
                    max(one.probabilities, key=one.probabilities.get) == plain(one.label) == plain(same.label)
                )
                assert type(one.label) is type(raw.label)
                told = CalibratedProgram(program)(text=text).probabilities
                assert told[values(kind)[1]] == pytest.approx(round(leaning([], text)[1], 2), abs=0.006)

    def test_reads_the_label_after_a_reasoning(self, engine):
        engine.probabilities = leaning
        program = student(module=dspy.ChainOfThought)
        result = calibrated(program, examples("choice"))
        assert result(text="text 1").reasoning == "because"
        assert accuracy(result, "choice") > accuracy(program, "choice") + 0.15

    def test_of_weighted_labels_starts_from_the_answers(self, engine):
        """Weights that overdo it are calibrated away like a lean of the model, and the threshold of a Noul is, too."""
        for kind, fields in (("choice", {"weights": {"positive": 0.1}}), ("noul", {"threshold": 0.9})):
            program = student(kind, **fields)
            assert accuracy(program, kind) < 0.85
            result = calibrated(program, examples(kind))
            assert accuracy(result, kind) > accuracy(student(kind), kind) - 0.05

    def test_orders_are_found_under_it(self, engine):
        engine.probabilities = lambda demos, text: two(
            (1 if number(text) % 2 else -1) * (2 * ascending(demos)) + 0.7 * normal(text) + 3.0
        )
        program = student(numbers=(4, 3, 2, 1, 0))
        alone = calibrated(program, examples("choice"))
        compiled = reorder(calibrate=True).compile(program, trainset=examples("choice"))
        assert isinstance(compiled, CalibratedProgram)
        assert accuracy(compiled, "choice") > accuracy(alone, "choice") + 0.1

    def test_zeros_and_ones_are_borne(self, engine, recwarn):
        engine.probabilities = lambda demos, text: [float(number(text) % 3 == 0), float(number(text) % 3 > 0)]
        result = calibrated(student(), examples("choice"))
        assert result(text="text 3").label.value == "negative"
        assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


class TestReAnchor:
    """DSPy's own calibration, which changes the format of prompts where an output was no decision before."""

    FEW = 20

    @pytest.fixture
    def cached(self):
        engine = Decider(leaning, labels=("False", "True"))
        with dspy.context(lm=dspy.LM("fake/x", engine=engine, num_retries=0)):
            yield engine

    def anchored(self, program):
        return ReAnchor(exact, num_threads=1).compile(program, trainset=examples("bool in fields", self.FEW))

    @pytest.mark.parametrize("last", ["reanchor", "reorder"])
    def test_chains_with_an_order_of_decisions_on_either_side(self, cached, last, tmp_path):
        kind = "bool in fields"
        program = student(kind)
        optimizers = [reorder(max_metric_calls=60).compile, None]
        for optimizer in optimizers if last == "reanchor" else optimizers[::-1]:
            before = shown(program)
            program = (
                self.anchored(program) if optimizer is None else optimizer(program, trainset=examples(kind))
            )
            assert optimizer is not None or shown(program) == before
        assert accuracy(program, kind) > accuracy(student(kind), kind) + 0.15
        program.save(tmp_path / "program.json")
        loaded = student(kind, numbers=())
        loaded.load(tmp_path / "program.json")
        assert (shown(loaded), loaded.fields) == (shown(program), program.fields)

    def test_changes_the_prompts_that_an_order_was_chosen_for(self, cached):
        """So the output is made a decision first: then all prompts are of one format."""
        plain_bool, decided = student("bool in fields"), student("bool in fields")
        plain_bool.fields.clear()
        estimates, demos = [], [*plain_bool.demos, dspy.Example(text="demo 9")]
        for program in (plain_bool, self.anchored(plain_bool), decided):
            program.demos = list(demos)
            estimate = reorder().estimate(program, trainset=examples("bool in fields"))
            estimates.append((bool(program.fields), estimate.distinct_prompts))
        assert estimates == [(False, math.factorial(5)), (True, math.factorial(6)), (True, math.factorial(6))]


class Client:
    """Answers decision requests itself, as `dspy.experimental.TypeSafe` does."""

    supports_decision_requests = True
    model = "client"
    cache = True

    def __init__(self):
        self.api_key, self.requests = "hidden123456", []

    def dump_state(self):
        return {"model": self.model}

    def __call__(self, state, questions):
        self.requests.append(json.dumps(state))
        if state["inputs"]["text"] == "text 3":
            raise ConnectionError(f"no answer to {self.api_key}")
        p = dict(
            zip(("negative", "positive"), sharp(state.get("demos", []), state["inputs"]["text"]), strict=True)
        )
        return {name: {"probabilities": p, "confidence": 0.5} for name in questions}


class TestWhatIsNotSupported:
    """An error before any call names it, and the cure that it gives works."""

    def graded(self):
        signature = dspy.Signature("text -> label").with_updated_fields("label", desc="how good")
        program = dspy.Predict(signature.with_updated_fields("label", type_=Score["poor", "fair", "good"]))
        program.demos = [dspy.Example(text=f"demo {i}", label=i % 3) for i in (4, 3, 2, 1, 0)]
        return program

    def test_scores_are_ordered_and_not_calibrated(self, engine):
        def close(example, prediction, trace=None):
            return prediction.label.level == number(example.text) % 3

        engine.probabilities = lambda demos, text: [
            0.1 + 0.8 * ((number(text) + (ascending(demos) < 0.6)) % 3 == i) for i in range(3)
        ]
        trainset = [each.without("label").with_inputs("text") for each in examples("choice")]
        with pytest.raises(ValueError, match=r"Score.*make it a Choice.*ReAnchor"):
            calibrated(self.graded(), trainset)
        with pytest.raises(ValueError, match=r"Score.*Leave it out"):
            PLReorder(close, calibrate=True).compile(self.graded(), trainset=trainset)
        assert not engine.prompts
        optimizer = PLReorder(close, max_metric_calls=150, display_progress=False)
        compiled = optimizer.compile(self.graded(), trainset=trainset)
        assert "Score" in optimizer.report.signal.reason
        assert ascending([{"text": f"demo {i}"} for i in shown(compiled)]) >= 0.6

    def test_replies_without_probabilities_are_told_with_another_cure(self):
        cure = r"state the probabilities of 'label'.*declare a Literal alone"
        with using(OrderSensitiveEngine({})), pytest.raises(NoProbabilities, match=cure):
            calibrated(student(), examples("choice"))

    @pytest.mark.parametrize("where", ["settings", "predictor"])
    def test_a_client_of_decision_requests_orders_and_does_not_calibrate(self, where, caplog, tmp_path):
        client, trainset, program = (
            Client(),
            examples("choice"),
            student("annotated", numbers=(4, 3, 2, 1, 0)),
        )
        program.lm = client if where == "predictor" else None
        with dspy.context(lm=client if where == "settings" else None):
            with pytest.raises(ValueError, match=r"Client.*ReAnchor"):
                calibrated(program, trainset)
            with pytest.raises(ValueError, match=r"Client.*Leave it out"):
                reorder(calibrate=True).compile(program, trainset=trainset)
            with pytest.raises(ValueError, match=r"LM in place of Client.*PLReorder"):
                PDO(exact).compile(program, trainset=trainset)
            assert not client.requests
            optimizer = reorder(log_dir=tmp_path)
            compiled = optimizer.compile(program, trainset=trainset)
            assert "no answer to" in caplog.text
            assert client.api_key not in caplog.text
            assert optimizer.report.distinct_prompts == 120
            told = len(set(client.requests))
            again = reorder(log_dir=tmp_path).compile(program, trainset=trainset)
            assert (shown(again), len(set(client.requests))) == (shown(compiled), told)
            assert accuracy(compiled, "annotated") > accuracy(program, "annotated") + 0.1
            ReAnchor(exact, num_threads=1).compile(compiled, trainset=trainset[10:20])

    @pytest.mark.parametrize(("method", "kind"), [(PDO, "choice"), (GlobalE, "literal in fields")])
    def test_methods_that_need_tokens_of_labels_say_so(self, engine, method, kind):
        with pytest.raises(ValueError, match="PLReorder or TopKOrder"):
            method(exact, num_candidates=4).compile(student(kind), trainset=examples(kind))
        assert not engine.prompts
        TopKOrder(exact, max_metric_calls=100, display_progress=False).compile(
            student(kind), trainset=examples(kind)
        )

    def test_an_output_without_a_description_is_told_before_any_call(self, engine):
        program = student()
        program.signature = program.signature.with_updated_fields("label", desc="${label}")
        with pytest.raises(ValueError, match=r"desc="):
            reorder().compile(program, trainset=examples("choice"))
        assert not engine.prompts
