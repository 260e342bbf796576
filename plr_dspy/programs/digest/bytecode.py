"""Reads what compiled Python code does, whatever its name, its place and its docstring are."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any

KIND_FLAGS = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""The flags of code that say what kind of function it is."""

NOT_BEHAVIOUR = {"__doc__", "__firstlineno__", "__static_attributes__"}
"""What the body of a class stores beside what it does."""


@dataclass
class GlobalNames:
    """The names by which code, that of the functions in it included, reaches what is defined outside of it.

    Attributes:
        read, written: The global variables that it reads, and those that it writes.
        all: These, and the names of all attributes that it takes.
    """

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    all: set[str] = field(default_factory=set)


def behaviour(code: CodeType) -> list[Any]:
    """List each instruction with what it is applied to, then the arguments; no instruction uses the docstring."""
    steps: list[list[Any]] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME" and instruction.argval in NOT_BEHAVIOUR:
            del steps[-1:]  # the instruction that loads what would have been stored
        else:
            steps.append([instruction.opname, instruction.argval])
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [steps, names, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & KIND_FLAGS]


def global_names(code: CodeType) -> GlobalNames:
    """Collect the names of what code uses from outside."""
    names = GlobalNames()
    for each in _nested(code):
        names.all.update(each.co_names)
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.read.add(instruction.argval)
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                names.written.add(instruction.argval)
    return names


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield the code, and that of all functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
