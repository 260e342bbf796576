"""What a user sees in a terminal: nothing of `estimate`, whole lines above the bar, one line at the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

QUIET = ("HF_HUB_OFFLINE", "LITELLM_LOCAL_MODEL_COST_MAP", "TQDM_DISABLE")
"""What the other tests set, and users do not."""


def run(code, **env):
    """The output of code in a process of its own, which knows the test doubles."""
    env = {name: value for name, value in os.environ.items() if name not in QUIET} | env
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)


ESTIMATE = """
import os, socket

def refuse(*arguments, **options):
    os.write(1, b"a look at the network")
    raise OSError("no network")

socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refuse

import dspy
from fakes import exact_match, questions
from plr_dspy import PLReorder

examples = questions(60)
program = dspy.LabeledFewShot(k=4).compile(dspy.Predict("question -> answer"), trainset=examples)
with dspy.context(lm=dspy.LM({model!r}, api_key="none")):
    estimate = PLReorder(metric=exact_match).estimate(program, trainset=examples)
assert estimate.prompt_tokens > 100 * estimate.program_calls, estimate
assert {environment!r} not in os.environ
"""


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "together_ai/meta-llama/Llama-3-8b-chat-hf"])
def test_an_estimate_needs_no_network_and_prints_nothing(model):
    code = ESTIMATE.format(model=model, environment="LITELLM_LOCAL_MODEL_COST_MAP")
    done = run(code)
    assert (done.stdout, done.stderr) == ("", "")
