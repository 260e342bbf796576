"""Benchmarks know the package, and what live ones keep under --out: the same command goes on, any other begins anew."""

import json
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import dspy
import pytest
from fakes import chat_response, digest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fewshot
import live

from paper.model import ServedModel

FIRST = {"--model": "hosted_vllm/one", "--pool": "20", "--test": "10", "--demos": "2"}


class Engine:
    """Answers as the model's name and the prompt decide."""

    requests = 0

    def __init__(self, model):
        self.model = model

    def complete(self, request):
        Engine.requests += 1
        share = digest(f"{self.model}{request.messages[-1].text}")
        return chat_response(" positive" if share < 0.5 else " negative")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a benchmark on files of a task; gives its table, and how many calls it made."""

    @contextmanager
    def opened(self, **_):
        yield lambda max_tokens: dspy.LM(f"fake/{self.model}", engine=Engine(self.model), cache=False)

    monkeypatch.setattr(ServedModel, "open", opened)

    def of(benchmark, out, data="first", **changed):
        side = "original" if benchmark is live else "labelled"
        folder = tmp_path / data
        folder.mkdir(exist_ok=True)
        for part in ("train", "test"):
            rows = [
                {"text": f"{data} {part} {i}", "label": ("negative", "positive")[i % 2]} for i in range(40)
            ]
            (folder / f"mr_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = FIRST | {f"--{name}": str(value) for name, value in changed.items()}
        places = ["--tasks", "mr", "--data-dir", str(folder), "--out", str(tmp_path / out), "--sides", side]
        monkeypatch.setattr(sys, "argv", ["x", *places, *(text for pair in options.items() for text in pair)])
        before = Engine.requests
        benchmark.main()
        table = [line.rsplit("|", 2)[0] for line in capsys.readouterr().out.splitlines() if "| " in line]
        return table, Engine.requests - before

    return of


@pytest.mark.parametrize("benchmark", [fewshot, live], ids=["fewshot", "live"])
@pytest.mark.parametrize(
    "changed",
    [{"model": "hosted_vllm/two"}, {"pool": 30}, {"test": 30}, {"demos": 4}, {"data": "second"}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_result_is_taken_up_by_the_same_command_alone(run, benchmark, changed):
    first, calls = run(benchmark, "shared")
    assert calls
    assert run(benchmark, "shared") == (first, 0)
    assert run(benchmark, "shared", **changed) == run(benchmark, "alone", **changed)
    assert run(benchmark, "shared") == (first, 0)


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(live.__file__).parent.glob("*.py")))
def test_no_benchmark_uses_a_name_that_is_gone(name):
    import_module(name)
