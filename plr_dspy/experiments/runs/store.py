"""The file of an experiment's results: what is there is not run again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
from filelock import FileLock, Timeout

from plr_dspy.experiments.runs.results import Result, Run, read_results


class Store:
    """`results.jsonl` in the folder of an experiment, held by one process at a time, as a context.

    Args:
        folder: Made where it is missing.
        settings: What decides the results; those in the file must be of the same.

    Attributes:
        done: The results so far, by run.

    Raises:
        ValueError: when the file holds results of other settings, or cannot be read.
        RuntimeError: when another process is writing to it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.done: dict[Run, Result] = {}
        self._path = results_path(folder)
        self._settings = dict(settings)
        self._lock = FileLock(folder / "results.lock")

    def __enter__(self) -> Store:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RuntimeError(
                f"another process is writing to {self._path.parent}: wait for it, or take another folder"
            ) from error
        try:
            if self._path.exists():
                self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Those of the runs that have no result yet."""
        return [run for run in runs if run not in self.done]

    def add(self, record: Mapping[str, Any]) -> Result:
        """Write the record of a run, on disk when this returns.

        Raises:
            ValueError: when it is broken.
            OSError: when it cannot be written.
        """
        result = Result.from_dict(record)
        with self._path.open("ab") as file:
            file.write(orjson.dumps(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[result.run] = result
        return result

    def _read(self) -> None:
        for result in read_results(self._path):
            differing = {
                name: (result.settings.get(name), value)
                for name, value in self._settings.items()
                if result.settings.get(name) != value
            }
            if differing:
                there = ", ".join(
                    f"{name}={old!r} there, {new!r} now" for name, (old, new) in differing.items()
                )
                raise ValueError(
                    f"{self._path} holds results of other settings ({there}): take another folder"
                )
            self.done[result.run] = result
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return
        try:
            orjson.loads(content[whole:])
        except orjson.JSONDecodeError:  # a crash cut the last line off: the next one must not continue it
            os.truncate(self._path, whole)
        else:
            with self._path.open("ab") as file:
                file.write(b"\n")


def results_path(folder: Path) -> Path:
    """Where the results of an experiment are."""
    return folder / "results.jsonl"
