"""Tells which code is a library's, and which is the user's own."""

from __future__ import annotations

import site
import sys
import sysconfig
from functools import cache
from pathlib import Path

OURS = {"plr_dspy", "dspy"}
"""Packages that are libraries wherever they lie, also as checkouts."""


def is_library(module: str | None) -> bool:
    """Tell whether a module, by its name, belongs to Python or to an installed package.

    Scripts, notebooks, modules beside them and packages installed from a checkout (`pip install -e`) are the user's.
    """
    if not module or module == "__main__":
        return False
    package = module.partition(".")[0]
    if package in OURS:
        return True
    file = getattr(sys.modules.get(module) or sys.modules.get(package), "__file__", None)
    if file is None:  # It is built in, or made without a file, as a notebook is.
        return package in sys.stdlib_module_names
    return any(path in Path(file).resolve().parents for path in _folders())


def is_pythons_own(kind: type) -> bool:
    """Tell whether a class belongs to Python's standard library."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


@cache
def _folders() -> tuple[Path, ...]:
    """List the folders of Python's own modules and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_paths()[name] for name in names]
    folders += site.getsitepackages()
    folders.append(site.getusersitepackages())
    return tuple(Path(folder).resolve() for folder in folders)
