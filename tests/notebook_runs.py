"""Runs the code of a notebook of `notebooks/` in this process and folder."""

import ast
import contextlib
import io
import json
import logging
import warnings
from pathlib import Path

import dspy
import nbformat

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BRIEF = {"from plr_dspy.data import load_reviews": "from brief import brief_reviews as load_reviews"}
SHORTER = {
    "01_quickstart.ipynb": BRIEF
    | {"max_metric_calls=120": "max_metric_calls=20", '"test")[:40]': '"test")[:2]', "k=6": "k=2"},
    "03_compare_methods.ipynb": {
        "BUDGET = 400": "BUDGET = 100",
        "range(8)": "range(2)",
        "examples[:12]": "examples[:3]",
        "num_candidates=4": "num_candidates=2",
        "num_candidates=8": "num_candidates=2",
    },
    "04_several_predictors_vllm.ipynb": BRIEF
    | {"= 1, 50, 6": "= 1, 24, 1", "max_tokens=24": "max_tokens=4", "]\nprogram =": "][::4]\nprogram ="},
    "05_choosing_demos.ipynb": BRIEF
    | {
        "max_metric_calls=300": "max_metric_calls=30",
        "max_demos=6": "max_demos=2",
        '"test")[:40]': '"test")[:2]',
    },
}
"""What stands in place of numbers that take minutes, and of long prompts, by notebook."""


def run_notebook(name: str) -> str:
    """Run its cells with fewer and shorter calls; returns what they print and show, or raises what they raise."""
    recorded = json.loads((NOTEBOOKS / "recorded.json").read_text(encoding="utf-8"))
    for row in recorded["demos"] + recorded["examples"]:
        row["review"] = " ".join(row["review"].split()[:7])
    Path("recorded.json").write_text(json.dumps(recorded))
    cells = nbformat.read(NOTEBOOKS / name, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    for long, short in SHORTER.get(name, {}).items():
        (place,) = [number for number, source in enumerate(code) if long in source]
        code[place] = code[place].replace(long, short)
    namespace, printed = {"__name__": "notebook"}, io.StringIO()
    kept = {each: getattr(dspy.settings, each) for each in ("lm", "adapter")}
    level = logging.getLogger("dspy").level
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            for number, source in enumerate(code, start=1):
                tree = ast.Interactive(ast.parse(source).body)  # which shows the values of expressions
                exec(compile(tree, f"{name}, cell {number}", "single"), namespace)
        finally:
            if "server" in namespace:
                namespace["server"].close()
            dspy.configure(**kept)
            logging.getLogger("dspy").setLevel(level)
    return printed.getvalue()
