"""What programs are made of: copies of them that share the rest, and facts that tell what they and metrics do."""

import copy
import dis
import hashlib
import pickle
import re
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import dspy
import numpy as np
from dspy.primitives.base_module import BaseModule
from pydantic import BaseModel

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # types of values that hold no other
CONTAINERS = (list, tuple, set, frozenset, deque)
COPYABLE = (dict, *CONTAINERS, MethodType, partial)  # types of values that can be copied, whatever they hold
LARGEST_OWN = 1_000  # entries of a list, dict or set of a module's own, up to which each copy has its own

# Names by which LMs and objects of libraries are told how to reach a service; a user's `answer_key` is no key.
ACCESS = re.compile(
    r"(^|_)(key|secret|password|token|url|endpoint|credentials?)$|retries$|region|^aws_|^azure_|^vertex_"
    r"|^(api_base|cache|timeout|headers|extra_headers)$",
    re.IGNORECASE,
)
GLOBAL_KEY = re.compile(r"(^|_)api_key$", re.IGNORECASE)  # names of global variables that can only be such a key
# Attributes of DSPy's objects that record calls, or are computed from others and never twice to the last bit.
NOT_DECIDING = {"callbacks", "history", "corpus_embeddings", "index"}
NO_BEHAVIOUR = ("__doc__", "__firstlineno__", "__static_attributes__")  # what classes say about their code
DEEPEST = 30  # of values that lie deeper than this inside others, only the class is named


class ProgramFactory:
    """Copies a program, which is never changed, as often as there are orders to score.

    `Module.deepcopy` would copy a corpus, an index, each LM with its history. Here a copy has modules of its own, with
    their small lists, dicts and sets, and whatever leads to them (containers, bound methods, objects that hold the
    program); all else is shared.
    """

    def __init__(self, program: dspy.Module) -> None:
        self._program = program
        self._predictors = {id(predictor) for _, predictor in program.named_predictors()}
        self._shared = _shared_parts(program)

    def build(self, demos: dict[str, list[Any]]) -> dspy.Module:
        """A copy in which the named predictors have these demos, in new lists; a TypeError if it would share them."""
        try:
            program: dspy.Module = copy.deepcopy(self._program, dict(self._shared))
        except Exception:  # of an object that leads to a module, and cannot be copied
            self._shared = _shared_parts(self._program, cautious=True)
            program = copy.deepcopy(self._program, dict(self._shared))
        for name, predictor in program.named_predictors():
            if id(predictor) in self._predictors:
                raise TypeError(
                    f"the program cannot be copied: predictor {name!r} lies in an object that cannot be deep-copied, "
                    "so the copy would share it; make it an attribute of a dspy.Module"
                )
            predictor.demos = list(demos.get(name, predictor.demos))
        return program


def language_models(program: Any) -> list[Any]:
    """The LMs that a program or another object holds: in attributes, in containers and objects there."""
    found, _ = _reachable(program)
    return [value for value in found.values() if is_language_model(value)]


def is_language_model(value: Any) -> bool:
    """Tell whether predictors can call it: an LM, or a client that answers decision requests itself."""
    return isinstance(value, dspy.BaseLM) or getattr(type(value), "supports_decision_requests", None) is True


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, in slots too."""
    held: dict[str, Any] = {}
    slots = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    with suppress(Exception):  # of proxies
        held |= {n: getattr(value, n) for n in names if not n.startswith("__") and hasattr(value, n)}
        held |= vars(value)
    return held


def _shared_parts(program: dspy.Module, *, cautious: bool = False) -> dict[int, Any]:
    """What all copies of a program share, by its id; cautious, also what leads to a module and may not be copyable."""
    found, holders = _reachable(program)
    copied = {key: value for key, value in found.items() if isinstance(value, BaseModule)}
    pending = list(copied)
    while pending:
        for holder in holders[pending.pop()]:
            if holder not in copied and (not cautious or type(found[holder]) in COPYABLE):
                copied[holder] = found[holder]
                pending.append(holder)
    for module in [value for value in copied.values() if isinstance(value, BaseModule)]:
        # What optimizers or calls change in place, such as demos, traces or a memo of answers; a corpus is shared.
        held = (value for value in vars(module).values() if type(value) in (list, dict, set))
        copied |= {id(value): value for value in held if len(value) <= LARGEST_OWN}
    parts = (part for value in copied.values() for part in _parts(value))
    return {id(part): part for part in parts if type(part) not in PLAIN and id(part) not in copied}


def _reachable(program: Any) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """What a program holds, by its id, and the ids of what holds it; without what can hold no module."""
    found: dict[int, Any] = {id(program): program}
    holders: dict[int, list[int]] = defaultdict(list)
    pending: list[Any] = [program]
    while pending:
        value = pending.pop()
        for part in _parts(value):
            held = part.values() if type(part) is dict else part if type(part) in CONTAINERS else [part]
            if PLAIN.issuperset(map(type, list(held))):  # quick even for a million of them
                continue
            holders[id(part)].append(id(value))
            if id(part) not in found:
                found[id(part)] = part
                pending.append(part)
    return found, holders


def _parts(value: Any) -> list[Any]:
    """What a copy of a value would hold copies of: nothing of LMs, examples, and what has an end (threads, files)."""
    kind = type(value)
    closed = issubclass(kind, (type, dspy.Example, threading.Thread)) or hasattr(kind, "__del__")
    if closed or is_language_model(value):
        return []
    if issubclass(kind, MethodType):
        return [value.__self__]
    if issubclass(kind, partial):
        return [value.func, *value.args, *value.keywords.values()]
    parts: list[Any] = list(dict.values(value)) if issubclass(kind, dict) else []
    for container in CONTAINERS:
        parts += container.__iter__(value) if issubclass(kind, container) else ()
    package = kind.__module__.partition(".")[0]
    if package in ("collections", "types") or package not in sys.stdlib_module_names:  # queues are shared
        parts += attributes(value).values()
    return parts


def digest(value: Any) -> str:
    """Digest a value and the user's code that it needs: `#` and 16 hexadecimal digits, the same in every process."""
    return _hashed(repr(sorted(Facts({"": value}).found.items())))


def is_library(module: str | None) -> bool:
    """Tell whether a module, by its name, belongs to Python or an installed package, and not to the user."""
    package = (module or "").partition(".")[0]
    if package == "__main__":  # whatever runs it
        return False
    if package in ("plr_dspy", "dspy") or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module or "") or sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class Facts:
    """What decides what values do, by name, and what the user's functions and objects do that they reach.

    Functions are told by their bytecode (there is source for few, and it may have been edited since), what they close
    over and the global variables that they read; objects by their class and public attributes; what belongs to an
    installed package by its name. All are taken apart one after the other.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        # Whole numbers, bools, None and the names of classes as they are: messages may show them. Of all else, which
        # may be long or secret, digests, which begin with `#`.
        self.found: dict[str, Any] = {}
        self.pending = deque(values.items())
        self._globals: set[str] = set()
        self._open: set[int] = set()
        self._seen: dict[int, Any] = {}  # with the values themselves: an id stays theirs as long as they live
        while self.pending:
            name, value = self.pending.popleft()
            kind = type(value)
            if kind in (bool, type(None)) or (kind is int and value.bit_length() <= 63):
                self._note(name, value)
            elif _contents(value) is not None:
                self._note(name, _hashed(self._text(name, value)))
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                if isinstance(value, FunctionType):
                    self._note(f"the code of {name}", _hashed(self._function(name, value)))
                elif isinstance(value, type):
                    self._note(f"the name of {name}", _named(value))
                    self.pending.extend(_members(name, value).items())
                else:
                    self._note(f"the class of {name}", kind.__qualname__)
                    self.pending.extend((_members(name, kind) | _attributes(name, value)).items())

    def _note(self, name: str, fact: Any) -> None:
        while name in self.found:  # another function of this name
            name += "'"
        self.found[name] = fact

    def _text(self, name: str, value: Any) -> str:
        """Describe data, with the objects in it, by a text; code and modules are named there, and become pending."""
        kind, held = type(value), self._open
        if id(value) in held or len(held) > DEEPEST:  # it holds itself, or goes on for ever
            return _named(kind)
        held.add(id(value))
        try:
            if kind in PLAIN:
                return repr(value)
            if isinstance(value, dict):
                rows = [f"{self._text(name, k)}: {self._text(f'{name}[{k}]', v)}" for k, v in value.items()]
                return f"{{{', '.join(sorted(rows))}}}"
            if isinstance(value, (set, frozenset)):
                return f"{{{', '.join(sorted(self._text(name, each) for each in value))}}}"
            if isinstance(value, (list, tuple, deque)):
                return f"[{', '.join([self._text(f'{name}[{i}]', each) for i, each in enumerate(value)])}]"
            if (contents := _contents(value)) is not None:
                return f"{_named(kind)} {self._text(name, contents)}"
            if isinstance(value, (FunctionType, type, dspy.Module)):
                self.pending.append((name, value))
                return _named(kind if isinstance(value, dspy.Module) else value)
            if id(value) in self._seen:
                return _named(kind)
            self._seen[id(value)] = value
            self.pending.append((_named(kind), kind))
            return f"{_named(kind)} {self._text(name, _attributes('', value))}"
        except Exception:  # of the value's own: it cannot be told from others of its class
            return _named(kind)
        finally:
            held.discard(id(value))

    def _function(self, name: str, function: FunctionType) -> str:
        """Describe what a function does; what it closes over and reads becomes pending."""
        code = function.__code__
        held = {f"default {i}": each for i, each in enumerate(function.__defaults__ or ())}
        held |= function.__kwdefaults__ or {}
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if cell != type(cell)():  # it is set
                held[variable] = cell.cell_contents
        self.pending.extend((f"{variable} of {name}", each) for variable, each in held.items())
        if is_library(function.__module__):
            return _named(function)
        read, used = set[str](), set[str]()
        text, variables = _behaviour(code, read, used), function.__globals__
        module = variables.get("__name__", "")
        for each in sorted(read & variables.keys()):
            self._global(module, each, variables[each], used)
        return text

    def _global(self, module: str, name: str, value: Any, used: set[str]) -> None:
        """Take a global variable that code reads; of a module of the user's, what code takes from it."""
        full = f"{name} of {module}"
        if full in self._globals or GLOBAL_KEY.search(name):
            return
        self._globals.add(full)
        if not isinstance(value, ModuleType):
            self.pending.append((full, value))
        elif not is_library(value.__name__):
            for attribute in sorted(used & vars(value).keys() - {name}):
                self._global(value.__name__, attribute, vars(value)[attribute], used - {name})


def _contents(value: Any) -> Any:
    """Return the data that tells a value from others of its class; None for code, and objects to be taken apart."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, (dict, set, frozenset, list, tuple, deque)):
        return () if value is None else value
    if isinstance(value, type):
        if not issubclass(value, dspy.Signature):
            return None
        signature: Any = value
        fields = {k: [repr(f.rebuild_annotation()), f.json_schema_extra] for k, f in signature.fields.items()}
        return [signature.instructions, fields, list(fields)]
    if isinstance(value, Enum):
        return [value.name, value.value]
    if isinstance(value, (dspy.Example, BaseModel)):
        return dict(value.items()) if isinstance(value, dspy.Example) else dict(value)
    if isinstance(value, dspy.Embedder) or is_language_model(value):
        given = getattr(value, "kwargs", getattr(value, "default_kwargs", {}))
        arguments = {name: each for name, each in given.items() if not ACCESS.search(name)}
        return [getattr(value, "model", None), getattr(value, "model_type", None), arguments]
    if isinstance(value, ModuleType):
        return _named(value)
    if isinstance(value, (MethodType, BuiltinFunctionType)):
        return [_named(value), getattr(value, "__self__", None)]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        return None
    if "__wrapped__" in attributes(value):  # a functools.lru_cache is one
        return [value.__wrapped__]
    is_pythons = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    try:
        if hasattr(kind, "__array__"):
            array = np.asarray(value)
            return [str(array.dtype), array.shape, array.tolist() if array.dtype.hasobject else array.tobytes()]
        if is_pythons and not isinstance(value, Random):  # what numbers come next, calls decide
            return pickle.dumps(value)
    except Exception:  # it runs, or is open
        return ()
    return () if is_pythons else None


def _attributes(name: str, value: Any) -> dict[str, Any]:
    """Collect the attributes that decide what an object does, by the names that messages give them."""
    kind = type(value)
    if isinstance(value, dspy.Predict):
        settings = [value.config, value.fields, value.lm]
        parts = {"signature": value.signature, "demos": list(value.demos), "settings": settings}
        if (finding := vars(value).get("retrieval")) is not None:
            parts["rule and pool"] = finding.facts
        return {f"the {part} of {name}": each for part, each in parts.items()}
    of_dspy = any(base.__module__.partition(".")[0] == "dspy" for base in kind.__mro__)
    of_library = is_library(kind.__module__)
    closed = of_library and not isinstance(value, dspy.Module)
    return {
        f"{name}.{attribute}": part
        for attribute, part in attributes(value).items()
        if not attribute.startswith("_")
        and not (of_dspy and attribute in NOT_DECIDING)
        and not (of_library and ACCESS.search(attribute))
        and not (closed and _contents(part) is None and not isinstance(part, FunctionType))
        and not isinstance(getattr(kind, attribute, None), cached_property)
    }


def _members(name: str, kind: type) -> dict[str, Any]:
    """Collect what a class and its bases define that are no library's."""
    defined: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        defined |= {} if is_library(base.__module__) else vars(base)
    made = ("__func__", "fget", "func")  # of methods that need no object, properties, cached properties
    return {
        f"{name}.{key}": next((getattr(member, each) for each in made if hasattr(member, each)), member)
        for key, member in defined.items()
        if key in ("__call__", "__init__") or not key.startswith(("__", "_abc_"))
    }


def _behaviour(code: CodeType, read: set[str], used: set[str]) -> str:
    """Describe each instruction with what it is applied to, and the arguments; gather the names of what it uses."""
    used.update(code.co_names)
    steps: list[str] = []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(step.argval)
        if step.opname == "STORE_NAME" and step.argval in NO_BEHAVIOUR:
            del steps[-1:]  # the instruction that loads it
        elif isinstance(step.argval, CodeType):
            steps.append(_behaviour(step.argval, read, used))
        else:
            constant = sorted(map(repr, step.argval)) if isinstance(step.argval, frozenset) else step.argval
            steps.append(f"{step.opname} {constant!r}")
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    counts = code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    return f"{steps} {arguments} {counts}"


def _named(value: Any) -> str:
    """Name a class, function or module together with the module that defines it."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return f"{getattr(value, '__module__', '')}.{name}"


def _hashed(text: str) -> str:
    return "#" + hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
