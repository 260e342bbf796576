"""The main job on the real local model: a program, its demos, a better order, a saved file."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Literal

import dspy
import litellm
import pytest

from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews

ROOT = Path(__file__).parent.parent


class Sentiment(dspy.Signature):
    review: str = dspy.InputField()
    sentiment: Literal["negative", "positive"] = dspy.OutputField()


def accuracy(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment


@pytest.fixture(scope="module")
def trainset():
    return load_reviews("train")[:60]


@pytest.mark.parametrize("route", ["completion", "chat", "litellm"])
def test_every_route_to_the_server(server, trainset, route, monkeypatch):
    through_litellm = []
    for name in ("completion", "text_completion"):
        original = getattr(litellm, name)
        monkeypatch.setattr(
            litellm, name, lambda *args, _f=original, **kw: through_litellm.append(1) or _f(*args, **kw)
        )
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=trainset)
    reorder = PLReorder(accuracy, max_metric_calls=70, num_threads=2, display_progress=False)
    with dspy.context(lm=server.lm(route, max_tokens=4), adapter=PlainTextAdapter()):
        compiled = reorder.compile(student, trainset=trainset)
    report = reorder.report
    calls = report.program_calls["total"]
    assert report.distinct_prompts == 6
    assert 30 < calls <= 70
    assert len(through_litellm) == (0 if route == "chat" else calls)
    assert {error.type for error in report.errors} <= {"AdapterParseError"}
    tokens = next(iter(report.tokens.values()))
    assert tokens["prompt_tokens"] > 50 * calls
    assert sorted(d.review for d in compiled.demos) == sorted(d.review for d in student.demos)
    if route == "completion":
        assert not report.errors, "the model answers plain few-shot prompts with labels only"
        assert report.comparison.chosen > 0.3


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
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--out", str(tmp_path)]
    options = ["--demos", "3", "--pool", "10", "--test", "6", "--random-orders", "2", "--seeds", "0", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("original ", "chosen ", "random orders", "program calls", "mean gain", "saved"):
        assert words in done.stdout
    loaded = dspy.Predict(Sentiment)
    loaded.load(tmp_path / "program.json")
    assert len(loaded.demos) == 3


@pytest.fixture
def load_task(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("quickstart").load_task


def test_quickstart_reads_json_lines(tmp_path, load_task):
    for part in ("train", "test"):
        lines = (ROOT / "plr_dspy" / "data" / f"reviews_{part}.jsonl").read_text().splitlines()[:20]
        (tmp_path / f"mine_{part}.jsonl").write_text("\n".join(lines))
    task = load_task("mine", tmp_path)
    assert len(task.train) == len(task.test) == 20
    assert set(task.train[0].inputs().keys()) == {"text"}
    assert task.train[0].label in ("negative", "positive")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file"),
        ("", "cannot be read|holds 0 texts"),
        ("not JSON", "cannot be read"),
        ('{"review": "r", "sentiment": "s"}', "must have columns"),
        ('{"text": "only one", "label": "a"}', "at least two"),
    ],
)
def test_quickstart_says_what_is_wrong_with_data(tmp_path, load_task, content, message):
    if content is not None:
        (tmp_path / "mine_train.jsonl").write_text(content)
    with pytest.raises(Exception, match=message) as caught:
        load_task("mine", tmp_path)
    assert type(caught.value).__name__ == "DataError"


def test_quickstart_checks_its_arguments(tmp_path):
    for options in (["--demos", "1"], ["--threads", "0"], ["--data-dir", str(tmp_path)]):
        command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
