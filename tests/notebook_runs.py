"""Runs a notebook of `notebooks/` in a folder of its own."""

import os
import shutil
import sys
from pathlib import Path

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec

TESTS = Path(__file__).parent
NOTEBOOKS = TESTS.parent / "notebooks"
SECONDS = 600
"""Most that a cell may take."""
BRIEF = {"from plr_dspy.data import load_reviews": "from brief import brief_reviews as load_reviews"}
SHORTER = {
    "01_quickstart.ipynb": BRIEF
    | {"max_metric_calls=120": "max_metric_calls=24", '"test")[:40]': '"test")[:2]', "k=6": "k=3"},
    "03_compare_methods.ipynb": {
        "BUDGET = 400": "BUDGET = 120",
        "range(8)": "range(2)",
        "examples[:12]": "examples[:4]",
        "num_candidates=4": "num_candidates=2",
        "num_candidates=8": "num_candidates=2",
    },
    "04_several_predictors_vllm.ipynb": BRIEF
    | {"= 1, 50, 6": "= 1, 24, 1", "max_tokens=24": "max_tokens=6", "]\nprogram =": "][::2]\nprogram ="},
    "05_choosing_demos.ipynb": BRIEF
    | {
        "max_metric_calls=300": "max_metric_calls=40",
        "max_demos=6": "max_demos=2",
        '"test")[:40]': '"test")[:2]',
    },
}
"""What stands in place of numbers that take minutes, and of long prompts, by notebook."""


def run_notebook(name: str, folder: Path) -> nbformat.NotebookNode:
    """The notebook, with fewer and shorter calls, and the outputs of this run; an exception of a cell is raised.

    The kernel is that of this environment, not one that a user has registered by its name.
    """
    shutil.copy(NOTEBOOKS / "recorded.json", folder)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    for long, short in SHORTER.get(name, {}).items():
        (cell,) = [cell for cell in notebook.cells if long in cell.source]
        cell.source = cell.source.replace(long, short)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.km = client.create_kernel_manager()
    client.km._kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        env={"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))},
    )
    return client.execute()


def text_of(notebook: nbformat.NotebookNode) -> str:
    """What its cells print and show as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        str(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs
    )
