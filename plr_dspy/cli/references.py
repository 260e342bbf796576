"""What the command line names: objects in Python files and modules, and examples in files of JSON lines."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import dspy

from plr_dspy.cli.checks import split_reference
from plr_dspy.runtime.jsonl import read_json_lines


def named_object(reference: str, what: str) -> Any:
    """The object that "FILE.py:NAME" or "MODULE:NAME" stands for."""
    place, name = split_reference(reference, what)
    module = _module_at(Path(place), what) if place.endswith(".py") else _importable(place)
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ValueError(f"{what}: {place} has no {name!r}") from error


def _importable(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    return _imported(name, name)


def _imported(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"{place} cannot be imported: it raised {type(error).__name__}: {error}") from error


def _module_at(path: Path, what: str) -> ModuleType:
    """The module in a file, which may import its neighbours; loaded once."""
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is None:
        sys.path.insert(0, str(path.parent))
        return _imported(path.stem, str(path))
    if getattr(loaded, "__file__", None) != str(path):
        raise ValueError(f"{what}: another module is called {path.stem!r}; give {path.name} another name")
    return loaded


def read_examples(path: Path, inputs: Sequence[str]) -> list[dspy.Example]:
    """The examples of a file of JSON lines."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    examples = []
    for number, fields in read_json_lines(path):
        missing = [name for name in inputs if not isinstance(fields, dict) or name not in fields]
        if missing:
            raise ValueError(
                f"line {number} of {path} must be an object with the inputs {list(inputs)}; it has no {missing}"
            )
        examples.append(dspy.Example(fields).with_inputs(*inputs))
    return examples


def named_program(reference: str) -> dspy.Module:
    """The module that a reference names, or that what it names makes."""
    named = named_object(reference, "program")
    try:
        program = named() if callable(named) and not isinstance(named, dspy.Module) else named
    except Exception as error:
        raise TypeError(
            f"program: expected a DSPy module, or what makes one without arguments; {reference} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(program, dspy.Module):
        raise TypeError(f"program: expected a DSPy module, or what makes one; {reference} gave {program!r}")
    return program
