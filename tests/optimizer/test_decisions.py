"""DSPy's decision outputs: replies state the probabilities themselves."""

from typing import Annotated, Literal

import dspy
import numpy as np
import pytest
from dspy.experimental import Choice, Noul, Score
from fakes import ascending_share
from label_engines import Decider, normal
from label_world import number, two

from plr_dspy import BatchCalibration, PLFewShot, PLReorder

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
    return ascending_share(numbers)


def sharp(demos, text):
    sign = 1 if number(text) % 2 else -1
    return two(sign * (3 * ascending(demos) - 0.5) + normal(text))


@pytest.fixture
def engine():
    engine = Decider(sharp)
    with dspy.context(lm=dspy.LM("fake/x", engine=engine, cache=False, num_retries=0)):
        yield engine


def reorder(**options):
    return PLReorder(exact, **{"max_metric_calls": 120, **options})


def check_saved(engine, program, kind, folder):
    program.save(folder / "program.json")
    loaded = student(kind, numbers=())
    loaded.load(folder / "program.json")
    engine.prompts.clear()
    answers = [plain(copy(text="text 7").label) for copy in (program, loaded)]
    assert answers[0] == answers[1]
    assert engine.prompts[0] == engine.prompts[1]


def shown(program):
    (predictor,) = program.predictors()
    return [number(demo["text"]) for demo in predictor.demos]


def accuracy(program, kind, count=40):
    fresh = examples(kind, count, first=1000)
    return np.mean([exact(example, program(**example.inputs())) for example in fresh])


class TestOrders:
    @pytest.mark.parametrize("kind", ["choice", "bool in fields", "noul"])
    def test_the_order_is_found_saved_and_loaded(self, engine, kind, tmp_path):
        optimizer = reorder(max_metric_calls=160)
        program = student(kind, numbers=(4, 3, 2, 1, 0))
        compiled = optimizer.compile(program, trainset=examples(kind))
        assert ascending([{"text": f"demo {i}"} for i in shown(compiled)]) >= 0.6
        assert optimizer.report.signal.used == "score"
        assert not any(engine.asked), "a reply that states probabilities needs no log-probabilities"
        check_saved(engine, compiled, kind, tmp_path)

    @pytest.mark.parametrize("candidates", ["labeled", "bootstrapped"])
    def test_demos_are_chosen(self, engine, candidates, tmp_path):
        optimizer = PLFewShot(exact, candidates=candidates, max_metric_calls=150)
        compiled = optimizer.compile(student(numbers=()), trainset=examples("choice", 100))
        assert len(shown(compiled)) > 1
        assert accuracy(compiled, "choice", 60) > accuracy(student(numbers=()), "choice", 60) + 0.03
        check_saved(engine, compiled, "choice", tmp_path)


def test_bootstrapped_demos_hold_decisions_before_and_after_a_resume(engine, tmp_path):
    optimizer = PLFewShot(exact, candidates="bootstrapped", max_metric_calls=60, log_dir=tmp_path)
    demos = []
    for _ in ("fresh", "resumed"):
        compiled = optimizer.compile(student(numbers=()), trainset=examples("choice", 100))
        demos.append([demo["label"] for demo in compiled.predictors()[0].demos])
    fresh, resumed = demos
    assert fresh == resumed
    assert all(isinstance(label, KINDS["choice"]) for label in fresh)
    assert optimizer.report.program_calls["resumed"] == optimizer.report.program_calls["total"]


@pytest.mark.parametrize("kind", KINDS)
def test_decision_outputs_are_not_calibrated(engine, kind):
    fix = r"replies of predictor 'self' already contain probabilities.*dspy\.experimental\.ReAnchor"
    with pytest.raises(ValueError, match=fix):
        BatchCalibration().compile(student(kind), trainset=examples(kind))
    with pytest.raises(ValueError, match="ReAnchor"):
        PLReorder(exact, calibrate=True).compile(student(kind), trainset=examples(kind))
    assert not engine.prompts


def test_demos_with_score_outputs_are_ordered(engine):
    def close(example, prediction, trace=None):
        return prediction.label.level == number(example.text) % 3

    signature = dspy.Signature("text -> label").with_updated_fields("label", desc="how good")
    program = dspy.Predict(signature.with_updated_fields("label", type_=Score["poor", "fair", "good"]))
    program.demos = [dspy.Example(text=f"demo {i}", label=i % 3) for i in (4, 3, 2, 1, 0)]

    def probabilities(demos, text):
        level = (number(text) + (ascending(demos) < 0.6)) % 3
        return [0.9 if i == level else 0.1 for i in range(3)]

    engine.probabilities = probabilities
    trainset = [e.without("label").with_inputs("text") for e in examples("choice")]
    optimizer = PLReorder(close, max_metric_calls=150, display_progress=False)
    compiled = optimizer.compile(program, trainset=trainset)
    assert "ReAnchor" in optimizer.report.signal.reason
    assert ascending([{"text": f"demo {i}"} for i in shown(compiled)]) >= 0.6
