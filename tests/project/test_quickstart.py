"""`examples/quickstart.py` on the local model."""

import importlib.util
import logging
import sys
from pathlib import Path

import dspy
import pytest
from brief import Sentiment, write_task

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.fixture
def quickstart(monkeypatch):
    spec = importlib.util.spec_from_file_location("quickstart", QUICKSTART)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "quickstart", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    level = logging.getLogger("plr_dspy").level
    yield module
    logging.getLogger("plr_dspy").setLevel(level)


def test_quickstart_prints_scores_and_saves_the_program(quickstart, tmp_path, monkeypatch, capsys):
    write_task(tmp_path)
    places = ["--out", str(tmp_path), "--task", "mr", "--data-dir", str(tmp_path)]
    options = ["--demos", "2", "--pool", "4", "--test", "2", "--random-orders", "1", "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *places, *options])
    quickstart.main()
    printed = capsys.readouterr().out
    for words in ("original ", "chosen ", "a random order", "program calls", "mean gain", "saved"):
        assert words in printed
    loaded = dspy.Predict(Sentiment)
    loaded.load(tmp_path / "program.json")
    assert len(loaded.demos) == 2


def test_a_missing_data_file_is_an_error(quickstart, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--task", "mr", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^quickstart: there is no file"):
        quickstart.main()
