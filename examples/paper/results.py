"""The results of an experiment, stored as one JSON line per run."""

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
"""Name of the results file in an experiment's folder."""

# Types are strict, so that "8" or true in place of a number is an error.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Ranking:
    """All distinct orders of the demos, ``[orders, demos]``, and their log-probabilities and accuracies."""

    orders: Annotated[tuple[tuple[Count, ...], ...], Field(min_length=1)]
    log_probabilities: tuple[Number, ...]
    accuracies: tuple[Annotated[Number, Field(ge=0, le=1)], ...]

    def __post_init__(self) -> None:
        lengths = {
            len(set(self.orders)),
            len(self.orders),
            len(self.log_probabilities),
            len(self.accuracies),
        }
        if len(lengths) > 1:
            raise ValueError(
                "orders must be distinct, and each must have a log-probability and an accuracy; got lists with lengths "
                f"{sorted(lengths)}. Delete this result, and run the command again."
            )


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Result:
    """The result of one run.

    Attributes:
        settings, versions: Settings of the experiment, and versions of the software.
        orderings: The chosen ordering, with one permutation per block of demos. None if the method
            chooses an ordering for each input.
        accuracy: Mean of the scores.
        scores: Score of each held-out example. All methods of a task and seed share the examples.
        program_calls: Number of program calls in each phase of the search, and the sum as "total".
        tokens: Number of "prompt" tokens and of "completion" tokens; empty if unknown.
        seconds: Wall-clock time of the search.
        data: Digests of the "pool" and "test" examples. All results of a task and seed share them.
        ranking: All orders with their accuracies, or None if the run did not score all orders.
    """

    task: Name
    num_demos: Annotated[int, Field(strict=True, ge=1)]
    seed: Annotated[int, Field(strict=True)]
    method: Name
    model: Name
    format: Name
    settings: dict[str, Any]
    versions: dict[str, str]
    orderings: tuple[tuple[Count, ...], ...] | None
    accuracy: Annotated[Number, Field(ge=0, le=1)]
    scores: Annotated[tuple[Number, ...], Field(min_length=1)]
    program_calls: dict[str, Count]
    tokens: dict[str, Count]
    seconds: Annotated[Number, Field(ge=0)]
    schema: Literal[1]
    data: dict[str, str] = Field(default_factory=dict)
    ranking: Ranking | None = None

    def __post_init__(self) -> None:
        mean = math.fsum(self.scores) / len(self.scores)
        if not math.isclose(self.accuracy, mean, abs_tol=1e-6):
            raise ValueError(
                f"accuracy must be the mean of scores, {mean:.6f}; got {self.accuracy!r}. Delete this result, and run "
                "the command again."
            )
        if "total" not in self.program_calls:
            raise ValueError(
                f"program_calls must have a 'total'; got {self.program_calls!r}. Delete this result, and run the "
                "command again."
            )

    @property
    def run(self) -> Run:
        """The run that made this result."""
        return Run(self.task, self.num_demos, self.seed, self.method)


RESULT = TypeAdapter(Result)


def read_results(path: Path) -> list[Result]:
    """Return the results in a file, or an empty list if the file does not exist."""
    if not path.exists():
        return []
    results = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                results.append(RESULT.validate_json(line))
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {path} is not a valid result: {error}\nDelete this line, and run the "
                    "command again."
                ) from error
    return results


class Store(dict[Run, Result]):
    """The results in an experiment's folder, keyed by run. To open a store, call `open_store`."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._path = path
        for result in read_results(path):
            for name, value in settings.items():
                if result.settings.get(name) != value:
                    raise ValueError(
                        f"the results in {path} must have the current settings; {name} is "
                        f"{result.settings.get(name)!r} in the file, but {value!r} now. Use another folder."
                    )
            self[result.run] = result

    def add(self, result: Result) -> None:
        """Add the result of a run, and write it to disk."""
        self[result.run] = result
        lines = [RESULT.dump_json(stored) + b"\n" for stored in self.values()]
        write_atomically(self._path, b"".join(lines))


@contextmanager
def open_store(folder: Path, settings: Mapping[str, Any]) -> Iterator[Store]:
    """Lock and yield an experiment's results. Raise a ValueError if the stored settings differ."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "results.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RuntimeError(
            f"another process is writing to {folder}. Wait until it exits, or use another folder."
        ) from error
    try:
        yield Store(folder / RESULTS, settings)
    finally:
        lock.release()
