"""Python values as text that is the same in every process, and differs where they would act differently."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
from pydantic import BaseModel

from plr_dspy.splits import value_key

NOT_THE_ANSWER = re.compile(
    r"key|secret|passw|credential|header|base|url|endpoint|region|(^|_)token$|timeout|retries|auth|cache|callback"
    r"|history"
)
"""Names of what does not shape an answer: how a model is reached, secrets, records of what was called."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""In the repr of objects that have none of their own."""

DEEPEST = 8


def is_part(name: str, value: Any) -> bool:
    """Whether an attribute belongs to what its object is: private ones do not, nor does what is told elsewhere."""
    hidden = name.startswith("_") or NOT_THE_ANSWER.search(name.lower()) or name == "lm"
    return not hidden and not _holds_modules(value)


class Describer:
    """Describes functions by their code and what they close over, objects by their public attributes."""

    def __init__(self) -> None:
        self._under_way: list[int] = []

    def describe(self, value: Any) -> str:
        """The value as text."""
        if id(value) in self._under_way or len(self._under_way) > DEEPEST:
            return f"<{type(value).__qualname__}>"
        self._under_way.append(id(value))
        try:
            return self._describe(value)
        finally:
            self._under_way.pop()

    def _describe(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return repr(value)
        if isinstance(value, CodeType):
            return self._all(_code_parts(value))
        if isinstance(value, FunctionType):
            cells = [_contents(cell) for cell in value.__closure__ or ()]
            return self._all([value.__code__, value.__defaults__, value.__kwdefaults__, *cells])
        if isinstance(value, MethodType):
            return self._all([value.__func__, value.__self__])
        if isinstance(value, partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, (type, ModuleType, BuiltinFunctionType)):
            return self._named(value)
        if isinstance(value, (set, frozenset)):
            return "{" + ",".join(sorted(map(self.describe, value))) + "}"
        if isinstance(value, dspy.Example):
            return self._mapping(dict(value.items()))
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return self._all(value)
        return self._object(value)

    def _all(self, values: Any) -> str:
        return "[" + ",".join(map(self.describe, values)) + "]"

    def _mapping(self, values: Mapping[Any, Any]) -> str:
        return (
            "{" + ",".join(sorted(f"{self.describe(k)}:{self.describe(v)}" for k, v in values.items())) + "}"
        )

    def _named(self, value: Any) -> str:
        """A class, a module or a built-in function: its name, and the functions of a class that is not DSPy's."""
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, type(dspy.Signature)):
            fields = {k: [repr(f.annotation), f.json_schema_extra] for k, f in value.fields.items()}
            return self._all([value.instructions, fields, list(fields)])
        library = name.startswith(("dspy.", "builtins.", "pydantic.", "numpy.", "torch."))
        if inspect.isclass(value) and not library:
            return name + self._mapping({k: f for k, f in vars(value).items() if isinstance(f, FunctionType)})
        return name

    def _object(self, value: Any) -> str:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, dspy.BaseLM):
            arguments = {k: v for k, v in value.kwargs.items() if not NOT_THE_ANSWER.search(k.lower())}
            return self._all([name, value.model, value.model_type, arguments])
        if isinstance(value, dspy.Predict):
            return self._all([name, value.signature, list(value.demos), value.config])
        if isinstance(value, BaseModel):
            return name + self._mapping(dict(value))
        if isinstance(value, Enum) or not hasattr(value, "__dict__"):
            return name + ADDRESS.sub("", value_key(value).decode(errors="replace"))
        public = {
            k: v for k, v in vars(value).items() if not k.startswith("_") and not NOT_THE_ANSWER.search(k)
        }
        return self._named(kind) + self._mapping(public)


def _holds_modules(value: Any) -> bool:
    if isinstance(value, (dspy.Module, dspy.BaseLM)):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_modules, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_modules, value))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code_parts(code: CodeType) -> Iterator[Any]:
    """What the code does: not its file, lines or the name of the file."""
    yield code.co_code
    yield from (code.co_names, code.co_varnames, code.co_freevars)
    yield from code.co_consts
