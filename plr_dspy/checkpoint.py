"""A folder from which a compile goes on where it was stopped."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from plr_dspy.ledger import Ledger
from plr_dspy.records import write_atomically

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 4


class Checkpoint:
    """The state of a compile on disk, as a context; one process at a time.

    The folder holds ``cells.jsonl``, to which every finished cell is appended (`Ledger`), ``state.json``,
    which is replaced whole after each round, and ``lock``.

    Args:
        folder: Made if it does not exist; None keeps everything in memory.
        identity: What decides the compile, as JSON data in groups: only an equal one goes on from the
            folder.

    Attributes:
        ledger: What has been paid for; in the context only.
        state: What was saved last; None at the start.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any]) -> None:
        self._folder = folder
        self._identity = json.loads(json.dumps(identity))
        self._exit = ExitStack()
        self.ledger: Ledger
        self.state: dict[str, Any] | None = None

    def __enter__(self) -> Checkpoint:
        """Open the folder.

        Raises:
            ValueError: when it belongs to another compile, or cannot be read.
            RuntimeError: when another process, or another compile of this one, is using it.
            OSError: when nothing can be written there.
        """
        if self._folder is None:
            self.ledger = Ledger()
            return self
        with ExitStack() as opened:
            try:
                opened.enter_context(FileLock(self._folder / "lock", timeout=0, thread_local=False))
            except IsADirectoryError as error:
                raise ValueError(f"log_dir {self._folder} cannot be used: {error}") from error
            except Timeout:
                raise RuntimeError(
                    f"log_dir {self._folder} is in use by another compile: wait for its end, or pass another log_dir"
                ) from None
            self.state = self._read(self._folder)
            if self.state is None:
                self._write(self._folder, None)
            paid = (self.state or {}).get("program_calls", 0)
            self.ledger = Ledger(self._folder / "cells.jsonl", least=paid)
            opened.callback(self.ledger.close)
            self._exit = opened.pop_all()
        if self.ledger.num_resumed:
            logger.info("%s: %d program calls were made before", self._folder, self.ledger.num_resumed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()
        self._exit.close()

    def save(self, state: dict[str, Any] | None) -> None:
        """Replace the state on disk; a disk that cannot take it gives a warning.

        Args:
            state: JSON data; "program_calls" in it says how many the ledger held.
        """
        self.state = state
        if self._folder is None:
            return
        try:
            self._write(self._folder, state)
        except OSError as error:
            logger.warning("the state could not be written to %s: %s", self._folder, error)

    def _write(self, folder: Path, state: dict[str, Any] | None) -> None:
        content = {"schema_version": SCHEMA_VERSION, "identity": self._identity, "state": state}
        write_atomically(folder / "state.json", json.dumps(content).encode())

    def _read(self, folder: Path) -> dict[str, Any] | None:
        path = folder / "state.json"
        try:
            content = json.loads(path.read_bytes())
            version, identity = content["schema_version"], dict(content["identity"])
            state: dict[str, Any] | None = content["state"]
            if not isinstance(state, (dict, type(None))):
                raise TypeError(f"its state is a {type(state).__name__}")
            int((state or {}).get("program_calls", 0))
            if not all(isinstance(group, dict) for group in identity.values()):
                raise TypeError("its identity has no groups")
        except FileNotFoundError:
            if (folder / "cells.jsonl").exists():
                raise ValueError(
                    f"log_dir {folder} has cells but no state.json, so nobody can tell what they are of: "
                    "pass another log_dir"
                ) from None
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): pass another log_dir") from error
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"{path} has schema version {version!r}, this plr_dspy writes {SCHEMA_VERSION}: go on with the "
                "version that wrote it, or pass another log_dir"
            )
        if differences := _differences(identity, self._identity):
            raise ValueError(
                f"log_dir {folder} belongs to another compile: {'; '.join(differences)}. Pass another log_dir, or "
                "compile with what it began with to go on from there"
            )
        return state


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What differs in the first group that does, one phrase each; digests (`#...`) say nothing to people."""

    def phrase(name: str, was: Any, now: Any) -> str:
        if any(isinstance(value, str) and value.startswith("#") for value in (was, now)):
            return f"{name} changed"
        return f"{name} was {was!r}, is {now!r}"

    for group in {**here, **there}:
        was, now = there.get(group, {}), here.get(group, {})
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if names:
            return [phrase(name, was.get(name), now.get(name)) for name in names]
    return []
