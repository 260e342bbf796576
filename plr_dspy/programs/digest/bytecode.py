"""What compiled Python code does, whatever it is called, wherever it stands and whatever is said about it."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any

KIND = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
"""The flags that say what kind of function it is."""

UNSAID = {"__doc__", "__firstlineno__", "__static_attributes__"}
"""What the body of a class stores beside what it does."""


@dataclass(frozen=True)
class Code:
    """Compiled code, that of the functions in it included.

    Attributes:
        steps: Name of each instruction and what it is applied to: a name, a constant, the place of a jump.
        arguments: Names and numbers of the arguments.
        reads, writes: Names of the global variables that it reads, and writes.
        names: These and all names of attributes.
    """

    steps: list[tuple[str, Any]]
    arguments: tuple[Any, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    names: frozenset[str]


def read_code(code: CodeType) -> Code:
    """Read what code does. Its docstring is not part of that: no instruction uses it."""
    instructions = [step for each in _nested(code) for step in dis.get_instructions(each)]
    count = code.co_argcount + code.co_kwonlyargcount
    return Code(
        steps=_steps(code),
        arguments=(
            code.co_varnames[:count],
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_flags & KIND,
        ),
        reads=frozenset(i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")),
        writes=frozenset(i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")),
        names=frozenset(name for each in _nested(code) for name in each.co_names),
    )


def _steps(code: CodeType) -> list[tuple[str, Any]]:
    steps: list[tuple[str, Any]] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME" and instruction.argval in UNSAID:
            del steps[-1:]  # what would have been stored
        else:
            steps.append((instruction.opname, instruction.argval))
    return steps


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code and that of all functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
