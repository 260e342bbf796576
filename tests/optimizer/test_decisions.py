"""DSPy's decision outputs, whose demos are a JSON list in the system message, and whose probabilities replies state."""

from typing import Annotated, Literal

import dspy
import numpy as np
import pytest
from dspy.experimental import Choice, Noul, Score
from fakes import OrderSensitiveEngine, using
from label_engines import Decider, normal
from label_world import number, two

from plr_dspy import BatchCalibration, CalibratedProgram, PLFewShot, PLReorder
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
    numbers = [number(demo["text"]) for demo in demos]
    pairs = [a < b for i, a in enumerate(numbers) for b in numbers[i + 1 :]]
    return sum(pairs) / len(pairs) if pairs else 0.5


def sharp(demos, text):
    return two((1 if number(text) % 2 else -1) * (3 * ascending(demos) - 0.5) + normal(text))


def leaning(demos, text):
    return two((1 if number(text) % 2 else -1) * 0.8 + 0.5 * normal(text) + 2.0)


@pytest.fixture
def engine():
    engine = Decider(sharp)
    with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False, num_retries=0)):
        yield engine


def reorder(**options):
    return PLReorder(exact, **{"max_metric_calls": 120, **options})


def calibrated(program, trainset):
    return BatchCalibration(display_progress=False).compile(program, trainset=trainset)


def check_saved(engine, program, kind, folder):
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


def accuracy(program, kind, count=40):
    return np.mean([exact(each, program(**each.inputs())) for each in examples(kind, count, first=1000)])


class TestOrders:
    @pytest.mark.parametrize(
        ("kind", "signal"), [("choice", "logprobs"), ("bool in fields", "logprobs"), ("noul", "score")]
    )
    def test_the_order_is_found_saved_and_loaded(self, engine, kind, signal, tmp_path):
        optimizer = reorder(signal=signal, max_metric_calls=240)
        program = student(kind, numbers=(4, 3, 2, 1, 0))
        compiled = optimizer.compile(program, trainset=examples(kind))
        assert ascending([{"text": f"demo {i}"} for i in shown(compiled)]) >= 0.6
        assert optimizer.report.signal.used == signal
        assert not any(engine.asked), "a reply that states probabilities needs no log-probabilities"
        check_saved(engine, compiled, kind, tmp_path)

    @pytest.mark.parametrize("candidates", ["labeled", "bootstrapped"])
    def test_demos_are_chosen(self, engine, candidates, tmp_path):
        optimizer = PLFewShot(exact, candidates=candidates, max_metric_calls=150)
        compiled = optimizer.compile(student(numbers=()), trainset=examples("choice", 100))
        assert len(shown(compiled)) > 1
        assert accuracy(compiled, "choice", 60) > accuracy(student(numbers=()), "choice", 60) + 0.05
        check_saved(engine, compiled, "choice", tmp_path)


class TestCalibration:
    @pytest.mark.parametrize(
        ("kind", "adapter"), [*((kind, dspy.ChatAdapter()) for kind in KINDS), ("noul", dspy.JSONAdapter())]
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
                assert max(one.probabilities, key=one.probabilities.get) == plain(one.label) == plain(same.label)
                assert type(one.label) is type(raw.label)
                told = CalibratedProgram(program)(text=text).probabilities
                assert told[values(kind)[1]] == pytest.approx(round(leaning([], text)[1], 2), abs=0.006)

    def test_orders_are_found_under_it(self, engine):
        engine.probabilities = lambda demos, text: two(
            (1 if number(text) % 2 else -1) * (2 * ascending(demos)) + 0.7 * normal(text) + 3.0
        )
        program = student(numbers=(4, 3, 2, 1, 0))
        alone = calibrated(program, examples("choice"))
        compiled = reorder(calibrate=True).compile(program, trainset=examples("choice"))
        assert isinstance(compiled, CalibratedProgram)
        assert accuracy(compiled, "choice") > accuracy(alone, "choice") + 0.1


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

    @pytest.mark.parametrize("kind", KINDS)
    def test_replies_without_probabilities_end_it_after_a_few_calls_with_another_cure(self, kind):
        cure = r"state the probabilities of 'label'.*declare a Literal alone"
        with using(OrderSensitiveEngine({})) as engine, pytest.raises(NoProbabilities, match=cure):
            calibrated(student(kind), examples(kind))
        assert engine.num_calls <= 6
