"""What the runs of an experiment gave: one result for each run, kept as JSON lines."""

from __future__ import annotations

import logging
import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from plr_dspy.experiments.runs.ranking import Ranking
from plr_dspy.runtime.jsonl import CutOffLine, read_json_lines

logger = logging.getLogger(__name__)

# Strict, so that "8" or true in a file is an error, not the number that it could be taken for.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(min_length=1)]


class Run(NamedTuple):
    """What tells one run of an experiment from another.

    Attributes:
        task: Name of the task.
        num_demos: Number of demos in the prompt.
        seed: Decides which demos and examples are drawn, and what the method draws.
        method: A name that `plr_dspy.experiments.runs.methods` knows, or its `RANKING`.
    """

    task: str
    num_demos: int
    seed: int
    method: str

    def __str__(self) -> str:
        return f"{self.task}, {self.num_demos} demos, seed {self.seed}, {self.method}"


@dataclass(frozen=True)
class Result:
    """What one run gave. Types are checked where a file is read, and sums wherever a result is made.

    Attributes:
        task, num_demos, seed, method: The run, as in `Run`.
        model: Name of the language model.
        format: Format of the prompts, "plain" or "chat".
        settings: Everything else that decides the result.
        versions: Versions of Python and of the packages that made the result.
        orderings: The chosen ordering, one permutation for each block of demos; None where each input has its own.
        accuracy: Mean of `scores`, a fraction.
        scores: Score of each held-out example; all methods of one task and seed meet the same examples.
        program_calls: Program calls by phase of the search, and in "total".
        tokens: Tokens by kind, "prompt" and "completion"; empty where they are not known.
        seconds: Wall-clock time of the search.
        schema: Version of the file format.
        ranking: All orders, of a run that ranked them.
        data: Digests of the "pool" and of the "test" examples, which are the same for one task and seed.

    Raises:
        ValueError: when the accuracy is not the mean of the scores, or the program calls have no total.
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
    accuracy: Fraction
    scores: Annotated[tuple[Number, ...], Field(min_length=1)]
    program_calls: dict[str, Count]
    tokens: dict[str, Count]
    seconds: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
    schema: Literal[1]
    ranking: Ranking | None = None
    data: dict[str, str] | None = None

    def __post_init__(self) -> None:
        mean = math.fsum(self.scores) / len(self.scores)
        if not math.isclose(self.accuracy, mean, abs_tol=1e-6):
            raise ValueError(f"accuracy must be the mean of scores, {mean:.6f}; got {self.accuracy!r}")
        if "total" not in self.program_calls:
            raise ValueError(f"program_calls must have a 'total'; got {self.program_calls!r}")

    @property
    def run(self) -> Run:
        """The run that gave this result."""
        return Run(self.task, self.num_demos, self.seed, self.method)

    @classmethod
    def from_dict(cls, data: Any) -> Result:
        """Read a result from plain data; fields that it does not know are left aside.

        Raises:
            ValueError: when a field is missing or cannot be right; the message names up to three of them.
        """
        try:
            return _RESULT.validate_python(data)
        except ValidationError as error:
            problems = "; ".join(
                _problem(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors()[:3]
            )
            raise ValueError(
                f"broken result record: {problems}: remove the record and make its run again"
            ) from error

    def to_json(self) -> bytes:
        """The result as one JSON object, without a line end."""
        return _RESULT.dump_json(self)


_RESULT = TypeAdapter(Result)


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """Read a file of results, one a line.

    A last line that a crash cut off (it has no line end, and is no JSON) is skipped with a warning.

    Raises:
        ValueError: when another line is broken; the message names it.
    """
    results = []
    try:
        for number, data in read_json_lines(Path(path)):
            try:
                results.append(Result.from_dict(data))
            except ValueError as error:
                raise ValueError(f"line {number} of {os.fspath(path)}: {error}") from error
    except CutOffLine as error:
        logger.warning("%s: line %d was cut off while it was written; it is skipped", path, error.number)
    return results


def _problem(place: tuple[int | str, ...], message: str, value: object) -> str:
    """Say what is wrong with one field of a result."""
    field = ".".join(map(str, place))
    if message == "Field required":
        return f"{field} is missing"
    got = "" if isinstance(value, Mapping) else f"; got {reprlib.repr(value)}"
    return f"{field + ': ' if field else ''}{message.removeprefix('Value error, ')}{got}"
