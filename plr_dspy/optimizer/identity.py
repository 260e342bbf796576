"""The identity of a compile, as plain data: the program, the examples, the metric, the arguments, the versions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.copies import named_modules, named_predictors
from plr_dspy.programs.digest.description import Describer, digest, public_attributes
from plr_dspy.programs.digest.digests import digest_of_texts
from plr_dspy.programs.digest.libraries import is_library
from plr_dspy.programs.pools import PoolSlots
from plr_dspy.scoring.identity_check import DEMOS_OF, WHOLE_METRIC

SHOWN = (bool, int, type(None))
"""Types of values that a message may show; of others, digests are kept: they may be long, or secret."""


def identity(job: Job) -> dict[str, Any]:
    """Collect what decides the result of a compile, as JSON data: values that say something to people, else digests.

    The facts are in groups of which each decides much of the next.
    """
    settings = job.settings()
    return {
        "arguments": job.arguments(),
        "versions": {
            "python": ".".join(map(str, sys.version_info[:2])),
            "dspy": _minor(dspy.__version__),
            "plr_dspy": _minor(__version__),
        },
        "program": _program(job, settings),
        "examples": {
            "the train examples": digest(job.splits.train),
            "the selection examples": digest(job.splits.selection),
            "the number of examples searched on": len(job.setup.names),
            **_pool(job),
        },
        "settings": settings,
    }


def bootstrap_identity(job: Job, teacher: Any, examples: Iterable[dspy.Example]) -> dict[str, Any]:
    """Collect what decides the demos that a teacher makes, as `identity` does.

    Args:
        job: Laid out before demos are made.
        teacher: A program, or None for the student.
        examples: That it is run on.
    """
    arguments = job.arguments()
    return {
        "arguments": {
            name: arguments[name] for name in ("max_demos", "max_bootstrapped", "metric_threshold", "seed")
        },
        "program": {**_program(job, job.settings()), "the teacher": digest(teacher)},
        "examples": {"the part of trainset that demos are made of": digest(list(examples))},
    }


def _pool(job: Job) -> dict[str, Any]:
    """Describe the demos that are chosen from, if there are such."""
    if not isinstance(job.slots, PoolSlots):
        return {}
    return {"the pool of demos": digest([list(slot.demos) for slot in job.slots.slots])}


def _minor(version: str) -> str:
    """Write a version without its patch level."""
    return ".".join(version.split(".")[:2])


def _program(job: Job, settings: dict[str, Any]) -> dict[str, Any]:
    """Describe the program, its models and adapter, the metric, and what the user's code in them reads elsewhere."""
    models = [predictor.lm or dspy.settings.lm for _, predictor in named_predictors(job.program)]
    shown = {f"the class of {name}": type(module).__qualname__ for name, module in named_modules(job.program)}
    shown |= {name: settings[name] for name in ("models", "adapter")}
    values = {
        **_modules(job.program),
        "the settings of its models": models,
        "the settings of the adapter": dspy.settings.adapter or dspy.ChatAdapter(),
        **_metric(job.optimizer.metric),
    }
    describer = Describer()
    facts = {name: _fact(value, describer) for name, value in values.items()}
    used = {name: _fact(value, describer) for name, value in describer.globals().items()}
    return {**shown, **facts, **used}


def _fact(value: Any, describer: Describer) -> Any:
    """Return the value itself if a message may show it, else a digest of its description."""
    return value if isinstance(value, SHOWN) else f"#{digest_of_texts([describer.describe(value)])[:16]}"


def _metric(metric: Any) -> dict[str, Any]:
    """Collect the metric, and what it is made of part by part: where calls change one part, the others still count."""
    holder = metric.__self__ if isinstance(metric, MethodType) else metric
    if isinstance(metric, (partial, FunctionType)):
        parts = _function("the metric", metric, set())
    elif not is_library(type(holder).__module__):
        parts = {**_attributes("the metric", holder), "the code of the metric": type(holder)}
    else:
        parts = {}
    return {**parts, WHOLE_METRIC: metric}


def _function(name: str, value: Any, seen: set[int]) -> dict[str, Any]:
    """Collect the code of a function, and what its arguments and closure hold; of other values, these themselves."""
    own = isinstance(value, FunctionType) and not is_library(value.__module__)
    if id(value) in seen or not (own or isinstance(value, partial)):
        return {name: value}
    seen.add(id(value))
    if isinstance(value, partial):
        held: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
        code = _function(name, value.func, seen)
    else:
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        defaults = {"defaults": value.__defaults__, "keyword defaults": value.__kwdefaults__}
        held = {
            **defaults,
            **{variable: cell.cell_contents for variable, cell in cells if cell != CellType()},
        }
        code = {f"the code of {name}": value.__code__}
    parts = (_function(f"{part} of {name}", value, seen) for part, value in held.items())
    return {key: part for collected in (code, *parts) for key, part in collected.items()}


def _modules(program: dspy.Module) -> dict[str, Any]:
    """Collect the attributes of a program's modules, frozen ones too, and the code of those that are the user's."""
    values: dict[str, Any] = {}
    for name, module in named_modules(program):
        if not is_library(type(module).__module__):
            values[f"the code of {name}"] = type(module)
        if isinstance(module, dspy.Predict):
            values[f"the signature of {name}"] = module.signature
            values[f"{DEMOS_OF}{name}"] = list(module.demos)
            values[f"the settings of {name}"] = [module.config, module.fields, module.lm]
        else:
            values |= _attributes(name, module, but=dspy.Module)
    return values


def _attributes(name: str, value: Any, *, but: type | tuple[()] = ()) -> dict[str, Any]:
    """Collect the attributes that decide what an object does, by the names that messages give them."""
    held = public_attributes(value).items()
    return {f"{name}.{attribute}": part for attribute, part in held if not isinstance(part, but)}
