"""A function that runs the code of a notebook in this process and in the current folder."""

import ast
import contextlib
import io
import logging
import shutil
import warnings
from pathlib import Path

import dspy
import nbformat
from fakes import PlainLabels, lm_of

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def local_lm():
    return contextlib.nullcontext(lm_of(PlainLabels(lean=0.5)))


def run_notebook(name: str, changes: dict[str, str]) -> str:
    """Run a notebook after replacing some of its code, and return the printed text."""
    shutil.copy(NOTEBOOKS / "recorded.json", "recorded.json")
    cells = nbformat.read(NOTEBOOKS / name, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    for long, short in changes.items():
        (place,) = [number for number, source in enumerate(code) if long in source]
        code[place] = code[place].replace(long, short)
    namespace = {"__name__": "notebook"}
    printed = io.StringIO()
    kept = {name: getattr(dspy.settings, name) for name in ("lm", "adapter")}
    levels = {name: logging.getLogger(name).level for name in ("dspy", "plr_dspy")}
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            for number, source in enumerate(code, start=1):
                # In interactive mode, code prints the values of expressions, as a notebook does.
                tree = ast.Interactive(ast.parse(source).body)
                exec(compile(tree, f"{name}, cell {number}", "single"), namespace)
        finally:
            if "server" in namespace:
                namespace["server"].close()
            dspy.configure(**kept)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
    return printed.getvalue()
