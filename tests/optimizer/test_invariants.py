"""Properties that hold for every run, tested with random demos, failures and arguments."""

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path

import dspy
import orjson
from fakes import digest, engine_for, lm_of, questions
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plr_dspy import PLReorder

EXAMPLES = questions(24, classes=2)
DEMOS = st.one_of(  # demos with or without an answer, without any field of the prompt, or as dicts
    st.integers(0, 4).map(lambda i: dspy.Example(question=f"demo {i}", answer=f"answer {i % 2}")),
    st.integers(0, 2).map(lambda i: dspy.Example(question=f"demo {i}")),
    st.just(dspy.Example(other="never shown")),
    st.integers(5, 8).map(lambda i: {"question": f"demo {i}", "answer": "answer 0"}),
)


class Program(dspy.Module):
    """A program that calls its predictors in turn, and fails on the share `failing` of the questions."""

    def __init__(self, predictors, failing):
        super().__init__()
        self.steps = []
        self.failing = failing
        for demos, reasons in predictors:
            self.steps.append((dspy.ChainOfThought if reasons else dspy.Predict)("question -> answer"))
            self.steps[-1].predictors()[0].demos = list(demos)

    def forward(self, question):
        if digest(f"program {question}") < self.failing:
            raise ConnectionError(question)
        return [step(question=question) for step in self.steps][-1]


def as_json(demo):
    return orjson.dumps(dict(demo.items()), option=orjson.OPT_SORT_KEYS)


def multisets(program):
    return [sorted(map(as_json, predictor.demos)) for predictor in program.predictors()]


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    predictors=st.lists(st.tuples(st.lists(DEMOS, max_size=6), st.booleans()), min_size=1, max_size=3),
    program_fails=st.sampled_from([0.0, 0.0, 0.2]),
    metric_fails=st.sampled_from([0.0, 0.0, 0.2]),
    update=st.sampled_from(["mle", "ema"]),
    max_metric_calls=st.integers(60, 160),
    num_threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 3),
)
def test_invariants(predictors, program_fails, metric_fails, max_metric_calls, **options):
    drawn = itertools.chain.from_iterable(demos for demos, _ in predictors)
    assume(any("question" in demo for demo in drawn))
    student = Program(predictors, program_fails)
    calls = []
    before = multisets(student)

    def metric(example, prediction):
        # Count only answers of the program: the metric also scores constant answers.
        if prediction.completions is not None:
            calls.append(example.question)
        if digest(f"metric {example.question}") < metric_fails:
            raise ZeroDivisionError(example.question)
        return example.answer == prediction.answer

    with tempfile.TemporaryDirectory() as log_dir, dspy.context(lm=lm_of(engine_for(EXAMPLES))):
        options |= {"max_metric_calls": max_metric_calls, "max_errors": 1000, "log_dir": log_dir}
        reorder = PLReorder(metric, display_progress=False, **options)
        planned = reorder.estimate(student, trainset=EXAMPLES).program_calls
        compiled = reorder.compile(student, trainset=EXAMPLES)
        report = reorder.report
        log = (Path(log_dir) / "calls.jsonl").read_text()
        lines = list(map(json.loads, log.splitlines()))
        calls_logged = [line for line in lines if "call" in line]
        saved = json.loads((Path(log_dir) / "report.json").read_text())

    # Neither the compiled copy nor the student gains or loses demos.
    assert multisets(compiled) == multisets(student) == before
    # Each ordering contains exactly the original demos.
    assert all(sorted(slot.ordering) == sorted(slot.original) for slot in report.slots)

    # The number of calls is within the budget, and the log contains every call.
    total = report.program_calls["total"]
    assert total <= planned <= max_metric_calls
    phases = ("search", "race", "final")
    assert total == sum(report.program_calls[phase] for phase in phases) == len(calls_logged)
    in_program = sum(error.count for error in report.errors if error.type == "ConnectionError")
    assert len(calls) == total - in_program

    # The report agrees with the log and the saved report.
    logged = Counter(call["error"] for call in calls_logged if "error" in call)
    assert logged == Counter({error.type: error.count for error in report.errors})
    names = {f"trainset[{i}]" for i in range(len(EXAMPLES))}
    for error in report.errors:
        assert names.issuperset(error.examples)
    assert saved == json.loads(json.dumps(report.to_dict()))
    assert saved == json.loads(json.dumps(compiled.reorder_report))
    if report.comparison is not None:
        assert report.comparison.chosen >= report.comparison.original
        assert report.comparison.num_candidates == len(report.candidates)
        assert report.comparison.chosen in {candidate.score for candidate in report.candidates}
    else:
        assert total == 0
        assert all(slot.ordering == slot.original for slot in report.slots)
