"""What the runs of an experiment gave: one record for each run, as JSON lines."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import orjson
from pydantic import Field, TypeAdapter, ValidationError

logger = logging.getLogger(__name__)

LABEL_METHODS = ("LocalE", "GlobalE", "PDO-FewShot", "PDO-FewShotU", "PDO-FewShotUP", "DEmO")
"""Methods that read label probabilities: they do not apply where answers are no labels."""

METHODS = ("Static", "Top-K", *LABEL_METHODS, "PLR-EMA", "PLR-1", "PLR-4", "Ours")
"""In the paper's order."""

CLASSIFICATION = ("mr", "sst5", "trec", "agnews", "subj")
REASONING = ("gsm8k", "math500", "deepmath")
TASKS = CLASSIFICATION + REASONING

# Strict, so that "8" or true in a record is an error, not the number it could be taken for.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(min_length=1)]


class Run(NamedTuple):
    """What tells one run of an experiment from another.

    Attributes:
        task: Name of the task.
        num_demos: Demos in the prompt.
        seed: Draws demos and examples, and is the seed of the method.
        method: One of `METHODS`, or another that `plr_dspy.experiments.runs.methods` knows.
    """

    task: str
    num_demos: int
    seed: int
    method: str

    def __str__(self) -> str:
        return f"{self.task}, {self.num_demos} demos, seed {self.seed}, {self.method}"


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes:
        task, num_demos, seed, method: Which run it was.
        model, format: The LM, and how it was prompted ("plain" or "chat").
        settings: Everything else that decides the result.
        versions: What made it.
        orderings: The chosen ordering, one permutation for each block of demos; None where each input has its own.
        accuracy: Mean of `scores`, a fraction.
        scores: By held-out example; all methods of one (task, seed) meet the same examples.
        program_calls: By phase, and in "total".
        tokens: By kind; empty where they are not known.
        seconds: Wall-clock time.
        schema: Version of the record.
        ranking: Of a run that ranked all orders: "orders", "log_probs" and "accuracies".
        data: Digests of the "pool" and of the "test" examples, which are the same for one (task, seed).
    """

    task: Name
    num_demos: Annotated[int, Field(strict=True, ge=1)]
    seed: Annotated[int, Field(strict=True)]
    method: Name
    model: Name
    format: Name
    settings: dict[str, Any]
    versions: dict[str, Any]
    orderings: tuple[tuple[Count, ...], ...] | None
    accuracy: Share
    scores: Annotated[tuple[Number, ...], Field(min_length=1)]
    program_calls: dict[str, Count]
    tokens: dict[str, Count]
    seconds: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
    schema: Literal[1]
    ranking: dict[str, Any] | None = None
    data: dict[str, str] | None = None

    def __post_init__(self) -> None:
        mean = math.fsum(self.scores) / len(self.scores)
        if not math.isclose(self.accuracy, mean, abs_tol=1e-6):
            raise ValueError(f"accuracy must be the mean of scores, {mean:.6f}; got {self.accuracy!r}")
        if "total" not in self.program_calls:
            raise ValueError(f"program_calls must have a 'total'; got {self.program_calls!r}")

    @property
    def run(self) -> Run:
        """Which run it was."""
        return Run(self.task, self.num_demos, self.seed, self.method)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Read a record; fields that it does not know are left aside.

        Raises:
            ValueError: when a field is missing or cannot be right.
        """
        try:
            return _RESULT.validate_python(data)
        except ValidationError as error:
            problems = [
                _problem(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors()
            ]
            raise ValueError(
                f"broken result record: {'; '.join(problems[:3])}: remove the record and make its run again"
            ) from error


_RESULT = TypeAdapter(Result)

Record: TypeAlias = Result | Mapping[str, Any]


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """Read a file of records, one a line.

    A last line that a crash cut off (it has no line end, and is no JSON) is skipped with a warning.

    Raises:
        ValueError: when another line is broken; the message names it.
    """
    lines = Path(path).read_bytes().split(b"\n")
    results = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            results.append(Result.from_dict(orjson.loads(line)))
        except orjson.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(
                    f"line {number} of {os.fspath(path)} is no JSON ({error}): remove the line and make its run again"
                ) from error
            logger.warning("%s: line %d was cut off while it was written; it is skipped", path, number)
        except ValueError as error:
            raise ValueError(f"line {number} of {os.fspath(path)}: {error}") from error
    return results


def by_run(results: Iterable[Record]) -> dict[Run, Result]:
    """The results of one experiment by their run, in the grid's order.

    Raises:
        ValueError: when there are none, when they are of several models or prompt formats, when two are of one run,
            or when the methods of one (task, seed) did not meet the same number of examples.
    """
    records = [record if isinstance(record, Result) else Result.from_dict(record) for record in results]
    if not records:
        raise ValueError("results must hold at least one record; got none: run a part of the grid first")
    kinds = sorted({(record.model, record.format) for record in records})
    if len(kinds) > 1:
        raise ValueError(
            f"results must be of one model and one prompt format; got {kinds}: make a table of each by itself"
        )
    found: dict[Run, Result] = {}
    examples: dict[tuple[str, int], Result] = {}
    for record in records:
        if record.run in found:
            raise ValueError(
                f"results must hold one record for each run; got two of {record.run}: remove one"
            )
        found[record.run] = record
        first = examples.setdefault((record.task, record.seed), record)
        if len(record.scores) != len(first.scores):
            raise ValueError(
                f"all runs of one task and seed must be scored on the same examples; got {len(record.scores)} scores "
                f"of {record.run} and {len(first.scores)} of {first.run}: make them with the same settings"
            )
        if record.data and first.data and record.data != first.data:
            raise ValueError(
                f"all runs of one task and seed must be scored on the same examples; those of {record.run} and "
                f"{first.run} differ: make them with the same data"
            )
    tasks = in_order({run.task for run in found}, TASKS)
    methods = in_order({run.method for run in found}, METHODS)
    return {
        run: found[run]
        for run in sorted(
            found, key=lambda r: (r.num_demos, tasks.index(r.task), methods.index(r.method), r.seed)
        )
    }


def in_order(names: Collection[str], known: Collection[str]) -> list[str]:
    """Names in the order of the known ones; unknown ones come last, by name."""
    return [name for name in known if name in names] + sorted(set(names) - set(known))


def applies(method: str, task: str) -> bool:
    """Whether the method can order demos of the task: those that read label probabilities need labels."""
    return method not in LABEL_METHODS or task not in REASONING


def setting_notes(results: Iterable[Result]) -> list[str]:
    """A sentence that names the settings and versions that are not the same in all results; none if there are none."""
    described = [
        {**r.settings, **{f"version of {name}": v for name, v in r.versions.items()}} for r in results
    ]
    names = sorted({name for settings in described for name in settings})
    differing = [name for name in names if any(s.get(name) != described[0].get(name) for s in described)]
    return [f"Not all runs were made alike; they differ in: {', '.join(differing)}."] if differing else []


def _problem(place: tuple[int | str, ...], message: str, value: object) -> str:
    field = ".".join(map(str, place))
    if message == "Field required":
        return f"{field} is missing"
    shown = repr(value)
    got = "" if isinstance(value, Mapping) else f"; got {shown if len(shown) <= 60 else shown[:57] + '...'}"
    return f"{field + ': ' if field else ''}{message.removeprefix('Value error, ')}{got}"
