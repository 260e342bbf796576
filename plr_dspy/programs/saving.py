"""Whether a program can be saved as JSON, and what such a file holds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.utils.saving import get_dependency_versions

from plr_dspy.programs.copies import named_predictors

logger = logging.getLogger(__name__)


def saved_state(path: str | Path) -> dict[str, Any]:
    """Read what `program.save("x.json")` wrote, and warn where that was with other versions.

    Returns:
        The state, as `load_state` takes it.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it holds no saved program.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(
            f"path must end in .json; got {str(path)!r}: save the program with program.save('x.json'), or load what "
            "was saved with save_program=True with dspy.load"
        )
    try:
        state: dict[str, Any] = orjson.loads(path.read_bytes())
        versions = state.pop("metadata")["dependency_versions"]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no program: pass a file that program.save('x.json') wrote") from error
    for name, version in get_dependency_versions().items():
        if versions.get(name) not in (version, None):
            logger.warning("%s was saved with %s %s, and this is %s", path, name, versions[name], version)
    return state


def json_obstacle(program: dspy.Module) -> str:
    """Say what keeps `program.save("x.json")` from its work, and what to do; empty if nothing does."""
    if obstacle := demo_obstacle(program):
        return obstacle
    try:
        orjson.dumps(program.dump_state())
    except Exception as error:
        return (
            f"program.save('x.json') will fail ({type(error).__name__}: {error}): leave language models to "
            "dspy.configure(lm=...), and keep to plain data, or save with save_program=True"
        )
    return ""


def demo_obstacle(program: dspy.Module) -> str:
    """Say which demo keeps `program.save("x.json")` from its work, and what to do; empty if none does."""
    obstacles = [
        f"demo {i} of predictor {name!r} holds a {type(value).__name__} in field {field!r} ({problem})"
        for name, predictor in named_predictors(program)
        for i, demo in enumerate(predictor.demos)
        for field, value in demo.items()
        if (problem := _problem(value))
    ]
    if not obstacles:
        return ""
    more = f", and {len(obstacles) - 1} more fields are like it" if len(obstacles) > 1 else ""
    return (
        f"{obstacles[0]}{more}: program.save('x.json') will fail; convert it to plain data, such as int(...), str(...) "
        "or list(...), or save as 'x.pkl' or with save_program=True"
    )


def _problem(value: Any) -> str:
    """Why JSON cannot hold a value; empty if it can."""
    try:
        orjson.dumps(serialize_object(value))
    except TypeError as error:
        return str(error)
    return ""
