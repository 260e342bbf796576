"""The arguments of `examples/quickstart.py`, which need no model; test_end_to_end.py runs it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from plr_dspy.data import load_reviews

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.fixture
def quickstart(monkeypatch):
    spec = importlib.util.spec_from_file_location("quickstart", QUICKSTART)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "quickstart", module)
    spec.loader.exec_module(module)
    return module


def test_data_that_is_not_there_is_named(tmp_path):
    command = [sys.executable, str(QUICKSTART), "--task", "mr", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("quickstart: no file")


@pytest.mark.parametrize(
    "options", [["--demos", "1"], ["--threads", "0"], ["--data-dir", "."], ["--task", "none"]]
)
def test_arguments_are_checked(quickstart, monkeypatch, capsys, options):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *options])
    with pytest.raises(SystemExit) as done:
        quickstart.main()
    assert done.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_the_bundled_reviews_are_the_default(quickstart, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    args = quickstart.parse_args()
    data = quickstart.load_data(args.task, args.data_dir)
    assert [dict(e) for part in (data.train, data.test) for e in part] == [
        dict(e) for part in ("train", "test") for e in load_reviews(part)
    ]
