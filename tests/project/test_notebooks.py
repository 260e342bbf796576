"""The notebooks: all cells run with a fake model, and the stored outputs are from one run."""

import json

import nbformat
import pytest
from notebook_runs import NOTEBOOKS, run_notebook

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))

METRICS = 'urllib.request.urlopen(base.removesuffix("/v1") + "/metrics").read().decode()'
FAKE = {"from plr_dspy.local import local_lm": "from notebook_runs import local_lm"}
SHORTER = {
    "01_quickstart.ipynb": FAKE,
    "02_what_it_learns.ipynb": {
        "for seed in range(5)": "for seed in range(1)",
        "[1, 2, 3, 4, 6]": "[1, 2]",
    },
    "03_compare_methods.ipynb": FAKE | {"BUDGET = 400": "BUDGET = 100", "range(8)": "range(2)"},
    "04_several_predictors_vllm.ipynb": {
        "import LocalServer": "import LocalServer\nfrom notebook_runs import local_lm",
        "server.enter_context(LocalServer(parallel=2))": "LocalServer(parallel=2)",
        "local.api_base, local.model": "'http://127.0.0.1/v1', 'none'",
        'completion_lm(f"hosted_vllm/{name}", api_base=base, max_tokens=24)': "server.enter_context(local_lm())",
        METRICS: "'llamacpp:prompt_tokens_total 9'",
    },
    "05_choosing_demos.ipynb": FAKE
    | {
        "max_metric_calls=300": "max_metric_calls=100",
        "max_metric_calls=200": "max_metric_calls=60",
        "num_demos=2": "num_demos=1",  # A short search may score no prompt with two demos.
    },
}
"""Replacements in each notebook's code, for smaller numbers and a fake model."""


@pytest.mark.parametrize("name", NAMES)
def test_all_cells_run(name, tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_BASE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run_notebook(name, SHORTER[name])


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_from_one_run(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = []
    for cell in cells:
        outputs += cell.outputs
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert "/site-packages/" not in json.dumps(outputs), "an output contains a path on the author's machine"
