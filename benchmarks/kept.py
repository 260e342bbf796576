"""What live benchmarks keep under `--out`: each result in a folder that everything which decides it names.

So a command never takes up what another model, other examples, other arguments or another version of the code gave.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dspy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import paper
import plr_dspy
from paper.model import LOCAL
from plr_dspy.local.server import find_weights
from plr_dspy.programs.identity import digest
from plr_dspy.runtime.files import write_atomically

NOT_DECIDING = {"api_base", "data_dir", "draws", "out", "seeds", "sides", "tasks", "threads"}
"""Arguments that do not decide a result, or that a result's task, seed, side and examples stand for."""


def folder_of(
    args: argparse.Namespace,
    *,
    script: str,
    task: str,
    seed: int,
    side: str,
    examples: Sequence[list[dspy.Example]],
) -> Path:
    """Return the folder of a result, where `decided_by.json` says what the result is of.

    Args:
        args: All of them count, but those that do not decide.
        script: File of the benchmark, whose code counts as that of `plr_dspy` does.
        task, seed, side: Of the result.
        examples: Those that programs are made with, and those that score them.
    """
    decided_by = {name: value for name, value in vars(args).items() if name not in NOT_DECIDING}
    code = [*Path(plr_dspy.__file__).parent.rglob("*.py"), *Path(paper.__file__).parent.rglob("*.py")]
    decided_by |= {
        "task": task,
        "seed": seed,
        "side": side,
        "examples": [digest(part) for part in examples],
        "weights": _digest_of_files(find_weights()) if args.model == LOCAL else None,
        "code": _digest_of_files(Path(script), *sorted(code)),
        "dspy": dspy.__version__,
    }
    text = json.dumps(decided_by, indent=2, sort_keys=True)
    name = f"{side.replace(' ', '_')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder: Path = args.out / task / f"seed{seed}" / name
    write_atomically(folder / "decided_by.json", text.encode())
    return folder


def kept(folder: Path, make: Callable[[], Any]) -> dict[str, Any]:
    """Read the fields of the result in a folder; where there is none, make it, a dataclass, and keep it there."""
    path = folder / "result.json"
    if not path.exists():
        write_atomically(path, json.dumps(asdict(make())).encode())
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@functools.cache
def _digest_of_files(*paths: Path) -> str:
    """Digest the contents of files, in their order."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()
