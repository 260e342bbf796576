"""The file of an experiment's results: a run that is there is not made again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from plr_dspy.experiments.names import RESULTS
from plr_dspy.experiments.runs.results import Result, Run, read_results
from plr_dspy.runtime.jsonl import append_json_line, mend_end


class Store:
    """`results.jsonl` in the folder of an experiment, held by one process at a time, as a context.

    Args:
        folder: Folder of the experiment, made where it is missing.
        settings: What decides the results; the results in the file must have the same settings.

    Attributes:
        done: The results so far, by run.

    Raises:
        ValueError: when the file holds results of other settings, or cannot be read.
        RuntimeError: when another process is writing to it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.done: dict[Run, Result] = {}
        self._path = results_path(folder)
        self._settings = settings
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

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Those of the runs that have no result yet."""
        return [run for run in runs if run not in self.done]

    def add(self, result: Result) -> None:
        """Write the result of a run; it is on disk when this returns.

        Raises:
            OSError: when it cannot be written.
        """
        append_json_line(self._path, result.to_json())
        self.done[result.run] = result

    def _read(self) -> None:
        """Take up the results of the file, if they have the same settings, and mend its end."""
        for result in read_results(self._path):
            differing = [
                f"{name}={result.settings.get(name)!r} there, {value!r} now"
                for name, value in self._settings.items()
                if result.settings.get(name) != value
            ]
            if differing:
                raise ValueError(
                    f"{self._path} holds results of other settings ({', '.join(differing)}): take another folder"
                )
            self.done[result.run] = result
        mend_end(self._path)


def results_path(folder: Path) -> Path:
    """Path of the results in the folder of an experiment."""
    return folder / RESULTS
