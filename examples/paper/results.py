"""What the runs of an experiment gave: one result a run, as JSON lines; a run that is there is not made again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from plr_dspy.runtime import write_atomically

from .protocol import Run

RESULTS = "results.jsonl"
"""Name of the file with the results, in the folder of an experiment."""

# Strict, so that "8" or true in a file is an error, not the number that it could be taken for.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Result:
    """What one run gave.

    Attributes:
        settings, versions: Everything else that decides the result, and what it was made with.
        orderings: The chosen ordering, one permutation for each block of demos; None where each input has its own.
        accuracy, scores: Of the held-out examples; all methods of one task and seed meet the same ones.
        program_calls: Program calls by phase of the search, and in "total".
        tokens: Tokens by kind, "prompt" and "completion"; empty where they are not known.
        seconds: Wall-clock time of the search.
        data: Digests of the "pool" and of the "test" examples, which are the same for one task and seed.
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
    accuracy: Annotated[Number, Field(ge=0, le=1)]
    scores: Annotated[tuple[Number, ...], Field(min_length=1)]
    program_calls: dict[str, Count]
    tokens: dict[str, Count]
    seconds: Annotated[Number, Field(ge=0)]
    schema: Literal[1]
    data: dict[str, str] = Field(default_factory=dict)

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


RESULT = TypeAdapter(Result)


def read_results(path: Path) -> list[Result]:
    """Read a file of results, if there is one; the error of a broken line names it."""
    results = []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], start=1):
        try:
            if line.strip():
                results.append(RESULT.validate_json(line))
        except ValueError as error:
            message = f"line {number} of {path} is no result: {error}\nremove it and make its run again"
            raise ValueError(message) from error
    return results


class Store(dict[Run, Result]):
    """The results in the folder of an experiment, by run; see `opened`."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._path = path
        for result in read_results(path):
            there = {name: result.settings.get(name) for name in settings}
            if differing := [name for name in settings if there[name] != settings[name]]:
                both = ", ".join(f"{name}={there[name]!r} there, {settings[name]!r} now" for name in differing)
                raise ValueError(f"{path} holds results of other settings ({both}): take another folder")
            self[result.run] = result

    def add(self, result: Result) -> None:
        """Write the result of a run; it is on disk when this returns."""
        self[result.run] = result
        write_atomically(self._path, b"".join(RESULT.dump_json(each) + b"\n" for each in self.values()))


@contextmanager
def opened(folder: Path, settings: Mapping[str, Any]) -> Iterator[Store]:
    """Hold the results of an experiment for this process alone; results in the file must have the same settings."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "results.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RuntimeError(f"another process is writing to {folder}: wait, or take another folder") from error
    try:
        yield Store(folder / RESULTS, settings)
    finally:
        lock.release()
