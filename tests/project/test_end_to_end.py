"""The main job on the real local model: a program, its demos, a better order, a saved file."""

import subprocess
import sys
from pathlib import Path

import dspy
import litellm
import pytest
from brief import Sentiment, accuracy, brief_reviews, write_rows

from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import LocalServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trainset():
    return load_reviews("train")[:60]


@pytest.mark.parametrize(("route", "options"), [("completion", {}), ("chat", {"engine": "litellm"})])
def test_every_route_to_the_server(server, route, options, monkeypatch):
    through_litellm = []
    for name in ("completion", "text_completion"):
        original = getattr(litellm, name)
        monkeypatch.setattr(
            litellm, name, lambda *args, _f=original, **kw: through_litellm.append(1) or _f(*args, **kw)
        )
    trainset = brief_reviews("train", 20)
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=trainset)
    reorder = PLReorder(
        accuracy, max_metric_calls=30, num_iterations=1, num_samples=3, num_threads=2, display_progress=False
    )
    with dspy.context(lm=server.lm(route, max_tokens=4, **options), adapter=PlainTextAdapter()):
        compiled = reorder.compile(student, trainset=trainset)
    report = reorder.report
    calls = report.program_calls["total"]
    assert report.distinct_prompts == 6
    assert 10 < calls <= 30
    assert len(through_litellm) == (calls if route == "completion" or options else 0)
    assert {error.type for error in report.errors} <= {"AdapterParseError"}
    tokens = next(iter(report.tokens.values()))
    assert tokens["prompt_tokens"] > 30 * calls
    assert sorted(d.review for d in compiled.demos) == sorted(d.review for d in student.demos)
    if route == "completion":
        assert not report.errors, "the model answers plain few-shot prompts with labels only"
        assert report.comparison.chosen > 0.3
        assert report.signal.used == "logprobs"


def test_order_matters_to_the_model(server, trainset):
    """What the package is about: the same demos, another order, other answers."""
    student = dspy.LabeledFewShot(k=6).compile(dspy.Predict(Sentiment), trainset=trainset)
    by_label = sorted(student.demos, key=lambda demo: demo.sentiment)
    answers = set()
    with dspy.context(lm=server.lm(), adapter=PlainTextAdapter()):
        for demos in (by_label, by_label[::-1]):
            student.demos = demos
            answers.add(tuple(student(review=e.review).sentiment for e in load_reviews("test")[:12]))
    assert len(answers) == 2


def test_quickstart(tmp_path):
    for part in ("train", "test"):
        write_rows(tmp_path / f"mr_{part}.jsonl")
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--out", str(tmp_path)]
    data = ["--task", "mr", "--data-dir", str(tmp_path)]
    options = ["--demos", "2", "--pool", "4", "--test", "2", "--random-orders", "2", "--seeds", "0", "1"]
    done = subprocess.run([*command, *data, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("original ", "chosen ", "random orders", "program calls", "mean gain", "saved"):
        assert words in done.stdout
    loaded = dspy.Predict(Sentiment)
    loaded.load(tmp_path / "program.json")
    assert len(loaded.demos) == 2


def test_goes_on_after_the_server_has_died(tmp_path):
    """The compile ends with an error; the next one makes the calls that failed again, and no other."""
    trainset, calls = brief_reviews("train", 14), []
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=trainset)

    def compiled(server, **others):
        def metric(example, prediction, trace=None):
            calls.append(example)
            if len(calls) == 15:
                server.__exit__(None, None, None)
            return accuracy(example, prediction)

        options = {"max_metric_calls": 60, "num_iterations": 2, "num_samples": 3, "signal": "score", **others}
        reorder = PLReorder(
            metric, num_threads=2, max_errors=2, log_dir=tmp_path, display_progress=False, **options
        )
        with dspy.context(lm=server.lm(max_tokens=4, num_retries=0), adapter=PlainTextAdapter()):
            reorder.compile(student, trainset=trainset)
        return reorder.report

    with LocalServer(context_length=1024) as first, pytest.raises(dspy.LMError):
        compiled(first)
    with LocalServer(context_length=1024) as second:
        report = compiled(second, accept_changes=True)  # The metric holds another server.
    assert report.comparison is not None
    assert report.errors == []
    failed = report.program_calls["total"] - len(calls)
    assert 2 <= failed <= 4
