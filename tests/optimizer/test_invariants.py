"""What holds for every program, whatever its demos look like and whatever fails."""

import tempfile
from collections import Counter
from pathlib import Path

import dspy
import orjson
from fakes import OrderSensitiveEngine, digest, questions
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plr_dspy import PLReorder
from plr_dspy.scoring.ledger import Ledger

EXAMPLES = questions(24, classes=2)

complete = st.builds(
    lambda i: dspy.Example(question=f"demo {i}", answer=f"answer {i % 2}"), st.integers(0, 4)
)
incomplete = st.builds(lambda i: dspy.Example(question=f"demo {i}"), st.integers(0, 2))
unseen = st.just(dspy.Example(other="never shown"))
plain = st.builds(lambda i: {"question": f"demo {i}", "answer": "answer 0"}, st.integers(5, 8))
demo_lists = st.lists(st.one_of(complete, incomplete, unseen, plain), max_size=6)


class Program(dspy.Module):
    """Predictors one after another; the first or the last answers."""

    def __init__(self, demos, reasons):
        super().__init__()
        kinds = [dspy.ChainOfThought if reason else dspy.Predict for reason in reasons]
        self.steps = [kind("question -> answer") for kind in kinds]
        for step, chosen in zip(self.steps, demos, strict=True):
            step.predictors()[0].demos = list(chosen)

    def forward(self, question):
        if fails("program", question, len(self.steps)):
            raise ConnectionError(question)
        return [step(question=question) for step in self.steps][-1]


def fails(where, question, salt):
    """Deterministic, for a share of the questions that the salt decides."""
    return digest(f"{where} {question} {salt}") < SHARE[where]


SHARE = {"program": 0.0, "metric": 0.0}


def metric(example, prediction):
    if fails("metric", example.question, 0):
        raise ZeroDivisionError(example.question)
    return example.answer == prediction.answer


def multiset(demos):
    return Counter(orjson.dumps(dict(demo.items()), option=orjson.OPT_SORT_KEYS) for demo in demos)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    predictors=st.lists(st.tuples(demo_lists, st.booleans()), min_size=1, max_size=3),
    program_fails=st.sampled_from([0.0, 0.0, 0.2]),
    metric_fails=st.sampled_from([0.0, 0.0, 0.3]),
    update=st.sampled_from(["mle", "ema"]),
    budget=st.integers(60, 160),
    num_threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 3),
)
def test_invariants(predictors, program_fails, metric_fails, update, budget, num_threads, seed):
    demos, reasons = zip(*predictors, strict=True)
    assume(any("question" in demo for chosen in demos for demo in chosen))
    SHARE.update(program=program_fails, metric=metric_fails)
    student = Program(demos, reasons)
    before = [multiset(p.demos) for p in student.predictors()]
    engine = OrderSensitiveEngine({example.question: example.answer for example in EXAMPLES})
    calls = []

    def counted(example, prediction):
        calls.append(example.question)
        return metric(example, prediction)

    with tempfile.TemporaryDirectory() as log_dir:
        reorder = PLReorder(
            counted,
            update=update,
            max_metric_calls=budget,
            num_threads=num_threads,
            max_errors=1000,
            seed=seed,
            log_dir=log_dir,
            display_progress=False,
        )
        with dspy.context(lm=dspy.LM("fake/order-sensitive", engine=engine, cache=False)):
            planned = reorder.estimate(student, trainset=EXAMPLES).program_calls
            compiled = reorder.compile(student, trainset=EXAMPLES)
        report = reorder.report
        ledger = Ledger(Path(log_dir) / "cells.jsonl")
        ledger.close()

    # The multiset of demos is kept, in the copy and in the student.
    assert [multiset(p.demos) for p in compiled.predictors()] == before
    assert [multiset(p.demos) for p in student.predictors()] == before
    for slot in report.slots:
        assert sorted(slot.ordering) == list(range(slot.num_demos))

    # The budget is kept, and the log has every call.
    total = report.program_calls["total"]
    assert total <= planned <= budget
    phases = ("search", "race", "final", "original")
    assert total == sum(report.program_calls[phase] for phase in phases) == ledger.calls
    in_program = sum(error.count for error in report.errors if error.type == "ConnectionError")
    assert len(calls) == total - in_program

    logged = Counter(cell.error for cell in ledger.earlier.values() if cell.error)
    assert logged == Counter({error.type: error.count for error in report.errors})
    if report.comparison is None:
        assert total == 0
        assert [slot.ordering for slot in report.slots] == [list(range(s.num_demos)) for s in report.slots]
