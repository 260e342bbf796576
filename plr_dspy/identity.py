"""What tells one compile from another, so that none goes on from the cells of a different one."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.jobs import Job
from plr_dspy.splits import value_key

ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
"""In the repr of objects that have none of their own."""

NOT_THE_ANSWER = re.compile(
    r"key|secret|passw|credential|header|base|url|timeout|retries|auth|cache|callback"
)
"""Arguments of an LM that do not shape its answers: how it is reached, and secrets."""


def identity(job: Job) -> dict[str, Any]:
    """What decides the result of a compile, as JSON data: values where they say something, else digests.

    In groups of which each decides much of the next.
    """
    program = job.program
    predictors = dict(program.named_predictors())
    return {
        "arguments": job.options.arguments(),
        "program": {
            **_modules(program),
            "the program's signatures": _digest([_signature(p.signature) for p in predictors.values()]),
            "the program's demos": _digest(
                [[name, [dict(demo.items()) for demo in p.demos]] for name, p in predictors.items()]
            ),
            "the settings of its models": _digest([_model(predictor) for predictor in predictors.values()]),
            "the metric's code": _digest(list(_code(job.options.metric))),
        },
        "examples": {
            "the train examples": _digest([dict(example.items()) for example in job.splits.train]),
            "the selection examples": _digest([dict(example.items()) for example in job.splits.selection]),
        },
        "versions": {
            "python": ".".join(map(str, sys.version_info[:2])),
            "dspy": dspy.__version__,
            "plr_dspy": __version__,
        },
        "settings": job.settings(),
    }


def _digest(value: Any) -> str:
    """`#` and 64 bits in hexadecimal."""
    return "#" + hashlib.sha256(ADDRESS.sub(b"", value_key(value))).hexdigest()[:16]


def _signature(signature: Any) -> list[Any]:
    return [
        signature.instructions,
        [[name, repr(field.annotation), field.json_schema_extra] for name, field in signature.fields.items()],
    ]


def _model(predictor: dspy.Predict) -> list[Any]:
    lm = predictor.lm or dspy.settings.lm
    arguments = {k: v for k, v in getattr(lm, "kwargs", {}).items() if not NOT_THE_ANSWER.search(k)}
    return [type(lm).__qualname__, getattr(lm, "model_type", ""), arguments, predictor.config]


def _modules(program: dspy.Module) -> dict[str, Any]:
    """The classes, plain attributes and, where they are not DSPy's, code of a program's modules."""
    plain = (bool, int, float, str, type(None))
    facts: dict[str, Any] = {}
    for name, module in program.named_sub_modules():
        kind = type(module)
        facts[f"the class of {name}"] = kind.__qualname__
        if not kind.__module__.startswith("dspy."):
            facts[f"the code of {name}.forward"] = _digest(list(_code(getattr(kind, "forward", None))))
        if isinstance(module, dspy.Predict):
            continue  # its settings are told elsewhere; `stage` is random
        for attribute, value in vars(module).items():
            if isinstance(value, plain) and not attribute.startswith("_"):
                facts[f"{name}.{attribute}"] = _digest(value) if isinstance(value, str) else value
    return facts


def _code(function: Any) -> Iterator[str]:
    """What a function does, as text; nothing where it is not written in Python."""
    if isinstance(function, partial):
        yield repr((function.args, function.keywords))
        yield from _code(function.func)
        return
    if not hasattr(function, "__code__") and not inspect.ismethod(function):
        function = type(function).__call__
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield from _instructions(code)
        yield repr((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, (bool, int, float, str)):
                yield repr(cell.cell_contents)


def _instructions(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        elif isinstance(constant, frozenset):  # printed in another order by each process
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)
