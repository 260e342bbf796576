"""Runs a notebook of `notebooks/` in a folder of its own."""

import shutil
import sys
from pathlib import Path

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SECONDS = 600
"""Most that a cell may take."""


def run_notebook(name: str, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of this run; an exception of a cell is raised.

    The kernel is that of this environment, not one that a user has registered by its name.
    """
    shutil.copy(NOTEBOOKS / "recorded.json", folder)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.km = client.create_kernel_manager()
    client.km._kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )
    return client.execute()


def text_of(notebook: nbformat.NotebookNode) -> str:
    """What its cells print and show as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        str(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs
    )
