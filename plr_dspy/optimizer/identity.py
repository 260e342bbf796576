"""What tells one compile from another, so that none goes on from the cells of a different one."""

from __future__ import annotations

import sys
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.copies import named_modules, named_predictors
from plr_dspy.programs.digest.description import Describer, digest, is_part
from plr_dspy.programs.digest.digests import digest_of_text
from plr_dspy.programs.digest.libraries import is_library
from plr_dspy.scoring.changes import DEMOS

SHOWN = (bool, int, type(None))
"""Types of values that a message may show; of others, digests are kept: they may be long, or secret."""


def identity(job: Job) -> dict[str, Any]:
    """What decides the result of a compile, as JSON data: values where they say something, else digests.

    In groups of which each decides much of the next.
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
        },
        "settings": settings,
    }


def _minor(version: str) -> str:
    """A version without its patch level."""
    return ".".join(version.split(".")[:2])


def _program(job: Job, settings: dict[str, Any]) -> dict[str, Any]:
    """The program, its models and adapter, the metric, and what the user's code in them reads elsewhere."""
    describer = Describer()
    models = [predictor.lm or dspy.settings.lm for _, predictor in named_predictors(job.program)]
    facts = {
        **_modules(job.program, describer),
        **{name: settings[name] for name in ("models", "adapter")},
        "the settings of its models": _fact(models, describer),
        "the settings of the adapter": _fact(dspy.settings.adapter or dspy.ChatAdapter(), describer),
        "the metric's code or state": _fact(job.optimizer.metric, describer),
    }
    return facts | {name: _fact(value, describer) for name, value in describer.globals().items()}


def _fact(value: Any, describer: Describer) -> Any:
    return value if isinstance(value, SHOWN) else "#" + digest_of_text(describer.describe(value))[:16]


def _modules(program: dspy.Module, describer: Describer) -> dict[str, Any]:
    """The classes, attributes and, where they are the user's, code of a program's modules, frozen ones too."""
    facts: dict[str, Any] = {}
    for name, module in named_modules(program):
        kind = type(module)
        facts[f"the class of {name}"] = kind.__qualname__
        if not is_library(kind.__module__):
            facts[f"the code of {name}"] = _fact(kind, describer)
        if isinstance(module, dspy.Predict):
            facts[f"the signature of {name}"] = _fact(module.signature, describer)
            facts[f"{DEMOS}{name}"] = _fact(list(module.demos), describer)
            facts[f"the settings of {name}"] = _fact([module.config, module.lm], describer)
            continue
        for attribute, value in vars(module).items():
            if is_part(attribute, value):
                facts[f"{name}.{attribute}"] = _fact(value, describer)
    return facts
