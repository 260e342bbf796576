"""What tells one compile from another, so that none goes on from the cells of a different one."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.description import Describer, is_part
from plr_dspy.jobs import Job


def identity(job: Job) -> dict[str, Any]:
    """What decides the result of a compile, as JSON data: values where they say something, else digests.

    In groups of which each decides much of the next.
    """
    program = job.program
    settings = job.settings()
    models = [predictor.lm or dspy.settings.lm for predictor in program.predictors()]
    return {
        "arguments": job.options.arguments(),
        "program": {
            **_modules(program),
            **{name: settings[name] for name in ("models", "adapter")},
            "the settings of its models": digest(models),
            "the settings of the adapter": digest(dspy.settings.adapter or dspy.ChatAdapter()),
            "the metric's code or state": digest(job.options.metric),
        },
        "examples": {
            "the train examples": digest(job.splits.train),
            "the selection examples": digest(job.splits.selection),
        },
        "versions": {
            "python": ".".join(map(str, sys.version_info[:2])),
            "dspy": dspy.__version__,
            "plr_dspy": __version__,
        },
        "settings": settings,
    }


def digest(value: Any) -> str:
    """`#` and 64 bits in hexadecimal, the same in every process."""
    text = Describer().describe(value)
    return "#" + hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def _modules(program: dspy.Module) -> dict[str, Any]:
    """The classes, attributes and, where they are not DSPy's, code of a program's modules, frozen ones too."""
    plain = (bool, int, type(None))
    facts: dict[str, Any] = {}
    for name, module in program.named_sub_modules():
        kind = type(module)
        facts[f"the class of {name}"] = kind.__qualname__
        if not kind.__module__.startswith("dspy."):
            facts[f"the code of {name}"] = digest(kind)
        if isinstance(module, dspy.Predict):
            facts[f"the signature of {name}"] = digest(module.signature)
            facts[f"the demos of {name}"] = digest(list(module.demos))
            facts[f"the settings of {name}"] = digest([module.config, module.lm])
            continue
        for attribute, value in vars(module).items():
            if is_part(attribute, value):
                facts[f"{name}.{attribute}"] = value if isinstance(value, plain) else digest(value)
    return facts
