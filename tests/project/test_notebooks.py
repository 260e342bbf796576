"""The notebooks run from top to bottom on the local model and on what was recorded, and are kept with their outputs."""

import json

import nbformat
import pytest
from notebook_runs import NOTEBOOKS, run_notebook

from plr_dspy.data import load_reviews

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_all_are_here():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("name", NAMES)
def test_runs(name, tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_BASE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run_notebook(name)


@pytest.mark.parametrize("name", NAMES)
def test_is_kept_with_the_outputs_of_one_run(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [
        output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert "/site-packages/" not in json.dumps(outputs), "a path of the machine that ran it"


def test_what_was_recorded_is_whole():
    recorded = json.loads((NOTEBOOKS / "recorded.json").read_text(encoding="utf-8"))
    assert len(recorded["right"]) == 120
    assert {len(answers) for answers in recorded["right"].values()} == {len(recorded["examples"])}
    sentiment = {example.review: example.sentiment for example in load_reviews("train")}
    shown = {row["review"] for row in recorded["demos"]}
    asked = {row["review"] for row in recorded["examples"]}
    assert not shown & asked
    assert all(
        sentiment[row["review"]] == row["sentiment"] for row in recorded["demos"] + recorded["examples"]
    )
