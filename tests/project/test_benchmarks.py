"""Benchmarks know the package, count the calls of what they compare, and make the figures of the docs again."""

import itertools
import json
import logging
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import evidence
import live
import numpy as np
import pytest
import record
from fakes import PlainLabels, lm_of
from landscapes import RecordedLandscape
from offline import World, measure

from paper.model import ServedModel


@pytest.fixture(autouse=True)
def _log_lines_stay_as_they_were():
    """Undo what benchmarks do to the log lines of the process."""
    level = logging.getLogger("plr_dspy").level
    yield
    logging.disable(logging.NOTSET)
    logging.getLogger("plr_dspy").setLevel(level)


FIRST = {"--model": "hosted_vllm/one", "--pool": "20", "--test": "10", "--demos": "2"}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the live benchmark and gives its table and number of calls."""

    engines = {}

    def opened(self, **_):
        engine = engines.setdefault(self.model, PlainLabels(self.model))
        return nullcontext(lambda max_tokens: lm_of(engine, f"fake/{self.model}"))

    def requests():
        return sum(engine.requests for engine in engines.values())

    monkeypatch.setattr(ServedModel, "open", opened)

    def of(*sides, **changed):
        for part in ("train", "test"):
            labels = ("negative", "positive")
            rows = [{"text": f"{part} {i}", "label": labels[i % 2]} for i in range(40)]
            (tmp_path / f"mr_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = FIRST | {f"--{name}": str(value) for name, value in changed.items()}
        places = ["--tasks", "mr", "--data-dir", str(tmp_path), "--sides", *sides]
        arguments = itertools.chain.from_iterable(options.items())
        monkeypatch.setattr(sys, "argv", ["x", *places, *arguments])
        before = requests()
        live.main()
        table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        return [[*cells[:3], *cells[4:]] for cells in table], requests() - before

    return of


def test_sides_have_the_calls_that_they_are_compared_at_and_all_are_counted(run):
    """Those of the random search without a number; half of the search counts for what follows it.

    Labels may decide that answers stay as they are.
    """
    sides = ("random search", "half of it", "half of it, PLReorder", "PLReorder", "PLFewShot@30")
    counted = ("original", "calibrated", "TopK calibrated@100", "calibrate@40")
    num_calls = {}
    for some in (sides, counted):
        table, calls = run(*some, pool=30)
        num_calls |= {cells[0].strip("| "): int(cells[2]) for cells in table[1:]}
    assert num_calls["half of it"] < num_calls["half of it, PLReorder"] <= num_calls["random search"]
    assert 0 < num_calls["PLReorder"] <= num_calls["random search"]
    assert 0 < num_calls["PLFewShot@30"] <= 30
    assert (num_calls["calibrated"], num_calls["TopK calibrated@100"]) == (28, 100)
    assert 0 < num_calls["calibrate@40"] <= 40
    assert calls == sum(num_calls[side] for side in counted) + len(counted) * 10


def test_sides_that_find_demos_for_each_input_take_no_calls_but_those_of_the_answers(run):
    table, _ = run("nearest last", "random order", "frequent labels", "vote", "KNNFewShot")
    assert [cells[2] for cells in table[1:]] == ["0"] * 5
    assert all(0 <= float(cells[1]) <= 1 for cells in table[1:])


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(live.__file__).parent.glob("*.py")))
def test_no_benchmark_uses_a_name_that_is_gone(name):
    import_module(name)


def test_figures_of_the_docs_are_made_again(tmp_path, monkeypatch, capsys):
    for page in ("evidence",):
        text = (evidence.DOCS / f"{page}.md").read_text(encoding="utf-8")
        (tmp_path / f"{page}.md").write_text(
            text.replace("| MR, 5 demos, 120 orders | .640 |", "| MR, 5 demos, 120 orders | .740 |")
        )
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--only", "calibrated", "--jobs", "1"])
    monkeypatch.setattr(evidence, "DOCS", tmp_path)
    assert evidence.main() == 1
    output = capsys.readouterr().out
    assert output.count("DIFFERS") == 1
    assert "23 of 24 figures agree" in output


def test_answers_under_every_order_are_recorded(tmp_path, monkeypatch):
    engine = PlainLabels("recorded")
    monkeypatch.setattr(ServedModel, "open", lambda self, **_: nullcontext(lambda tokens: lm_of(engine)))
    path = tmp_path / "new" / "mine.npz"
    monkeypatch.setattr(sys, "argv", ["x", "--demos", "3", "--test", "8", "--out", str(path)])
    record.main()
    arrays = np.load(path)
    assert arrays["logprobs"].shape == (6, 8, 2)
    assert len({tuple(order) for order in arrays["orders"].tolist()}) == 6
    assert json.loads(str(arrays["about"]))["digest"].startswith("sha256 ")
    assert not {"texts", "demo_texts"} & set(arrays)
    assert RecordedLandscape(path, 0).log_probabilities((2, 0, 1)).shape == (8, 2)


@pytest.mark.parametrize("method", ["batch", "F1 batch", "F1 light@60"])
def test_methods_by_a_rare_label_on_recorded_answers(method):
    """Results have a held-out score and keep to the limit of calls."""
    world = World(evidence.FILES["AG News"], num_pool=70, share=0.15)
    result = measure(20_000, world=world, method=method)
    assert 0.0 <= result["held-out"] <= 1.0
    assert 0 < result["calls"] <= 64
