"""A folder from which a compile goes on where it was stopped."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from plr_dspy.runtime.files import write_atomically
from plr_dspy.scoring.identity_check import Changes, Identity
from plr_dspy.scoring.ledger import Ledger, has_answers

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 5


class Checkpoint:
    """The state of a compile on disk, as a context; one process at a time.

    The folder holds ``cells.jsonl``, to which every finished cell is appended (`Ledger`), ``state.json``,
    which is replaced whole after each round, and ``lock``.

    Args:
        folder: Made if it does not exist; None keeps everything in memory.
        identity: Tells what decides the compile, as JSON data in groups: only an equal one, or one with a larger
            budget, goes on from the folder. It is asked again at the end: what has changed by itself meanwhile,
            such as a counter, is not compared from then on.
        accept_changes: Go on from the folder of another compile, too, if its cells are of the same examples.

    A folder of another compile in which no call ended with an answer is begun anew: its failed calls are forgotten.

    Attributes:
        ledger: What has been paid for; in the context only.
        state: What was saved last; None at the start. With "extended" in it, it is that of a search which is to
            go on, or if there is no search in it to begin anew, because of what has changed.
    """

    def __init__(
        self, folder: Path | None, identity: Callable[[], Identity], *, accept_changes: bool = False
    ) -> None:
        self._folder = folder
        self._describe = identity
        self._identity: Identity = {}
        self._unstable: list[str] = []
        self._accept_changes = accept_changes
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
            self._identity = _as_json(self._describe())
            self.state = self._read(self._folder)
            self._write(self._folder, self.state)
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
        with self._exit:
            self._note_unstable()

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
        content = {
            "schema_version": SCHEMA_VERSION,
            "identity": self._identity,
            "unstable": self._unstable,
            "state": state,
        }
        write_atomically(folder / "state.json", json.dumps(content).encode())

    def _note_unstable(self) -> None:
        """Note which facts about the program changed while the compile ran."""
        if self._folder is None:
            return
        try:
            now = _as_json(self._describe())
        except Exception as error:  # of the user's objects; what was found must not be lost to it
            logger.warning("what changed while the compile ran cannot be told: %r", error)
            return
        if new := Changes(self._identity, now, self._unstable).names("program"):
            logger.info("%s changed while the compile ran, and will not be compared", ", ".join(new))
            self._unstable += new
            self.save(self.state)

    def _read(self, folder: Path) -> dict[str, Any] | None:
        path = folder / "state.json"
        try:
            content = json.loads(path.read_bytes())
            version, identity = content["schema_version"], dict(content["identity"])
            self._unstable = [str(name) for name in content["unstable"]]
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
        return self._accept(folder, Changes(identity, self._identity, self._unstable), state)

    def _accept(self, folder: Path, changes: Changes, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The state to go on from, of a folder with these differences."""
        if not changes.groups:
            return state
        phrases = "; ".join(changes.phrases())
        if not (changes.only_grows or (self._accept_changes and changes.keeps_cells)):
            if not has_answers(cells := folder / "cells.jsonl"):
                logger.info(
                    "%s holds no answer of another compile, and is begun anew, although %s", folder, phrases
                )
                cells.unlink(missing_ok=True)
                self._unstable = []
                return None
            accept = ", or, if the scores paid for there hold all the same, pass accept_changes=True"
            raise ValueError(
                f"log_dir {folder} belongs to another compile: {phrases}. Pass another log_dir, or compile with what "
                f"it began with to go on from there{accept if changes.keeps_cells else ''}"
            )
        logger.log(
            logging.INFO if changes.only_grows else logging.WARNING,
            "%s: goes on with what was paid for there, although %s",
            folder,
            phrases,
        )
        if changes.same_search:
            return state
        paid = {"program_calls": (state or {}).get("program_calls", 0)}
        return {**(state if state and changes.keeps_search else paid), "extended": True}


def _as_json(identity: Identity) -> Identity:
    """The identity as it is read back from a file."""
    read: Identity = json.loads(json.dumps(identity))
    return read
