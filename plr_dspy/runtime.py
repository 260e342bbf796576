"""What belongs to the process: the terminal, signals, files, and keys that no text may show."""

import json
import logging
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from tqdm import tqdm

PACKAGE = "plr_dspy"
HANDLER = "dspy_handler"  # this and the formats are DSPy's
LINE_FORMAT, TIME_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y/%m/%d %H:%M:%S"

_shows_progress = ContextVar("shows_progress", default=True)  # whether what runs now says how far it is

SECRET_NAME = re.compile(r"(^|_|-)(key|secret|passw|password|credential|credentials|token|authorization)$", re.I)

SHAPES = (  # what looks like a secret, after what is kept of it
    # "api_key": "...", token=..., Authorization: Basic ...
    r"(?i)((?:^|[^\w])(?:x[-_])?(?:api[-_]?key|access[-_]?token|auth[-_]?token|authorization|password|secret|token)"
    r"[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"'&,;]{6,}",
    r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]{6,}",
    r"(://[^\s/:@]+:)[^\s/@]+(?=@)",
    r"()\b(?:sk|pk|gsk|hf|xai|ghp|gho)[-_](?=[\w*-]*\d)[\w*-]{6,}",
    r"()\b(?:AKIA[A-Z0-9]{8,}|AIza[\w-]{10,})",
)

SHORTEST = 6  # shorter values of arguments are no keys; those of the environment need twice as many characters


class LogLines(logging.Handler):
    """Shows the package's log lines as DSPy shows its own: warnings, and where progress is shown, all lines.

    Where the user has set up logging, they go there, and are not shown a second time.
    """

    def emit(self, record: logging.LogRecord) -> None:
        configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
        if configured or not (record.levelno >= logging.WARNING or _shows_progress.get()):
            return
        of_dspy = sys.modules.get("dspy.utils.logging_utils")  # whose stream `dspy.disable_logging` turns off
        stream: Any = getattr(of_dspy, "DSPY_LOGGING_STREAM", sys.stderr)
        try:
            stream.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def show_log_lines() -> None:
    """Show the package's log lines, once, however often this is called."""
    logger, handler = logging.getLogger(PACKAGE), LogLines()
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    handler.set_name(HANDLER)
    logger.handlers[:] = [*(each for each in logger.handlers if each.name != HANDLER), handler]
    logger.setLevel(logger.level or logging.INFO)


class Unfailing:
    """A stream that goes nowhere once it can no longer be written to, as where its reader is gone or a disk is full."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:  # so that tqdm knows which bars are in the way of a line
        return other is self or other == self._stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def progress_bar(
    total: int, *, display: bool, title: str = "PLReorder", at_end: Callable[[], None] = lambda: None
) -> Iterator[tqdm]:
    """Show a bar of program calls, of which there are so many at most; `at_end` is called when it has ended."""
    shown = _shows_progress.set(display)
    try:
        hidden = (
            not display or os.environ.get("TQDM_DISABLE", "0") not in ("", "0") or getattr(sys.stderr, "closed", True)
        )
        stream: Any = Unfailing(sys.stderr)
        with tqdm(total=total, desc=title, unit="call", dynamic_ncols=True, disable=hidden, file=stream) as bar:
            with ExitStack() as stack:
                if not bar.disable:
                    _write_above(stack)
                yield bar
            bar.total = bar.n  # Cells known already cost nothing.
            bar.refresh()
    finally:
        at_end()
        _shows_progress.reset(shown)


def _write_above(stack: ExitStack) -> None:
    """Write log lines, warnings and what else goes to the standard error above the bars, until the stack ends."""
    from tqdm.contrib import DummyTqdmFile

    above = {}
    for stream in (sys.stdout, sys.stderr):
        bare: Any = stream  # A bar whose thread began before another's and ended before it leaves its own behind.
        while isinstance(bare, DummyTqdmFile):
            bare = bare._wrapped
        above[id(stream)] = DummyTqdmFile(bare)
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", [])}:
        # Not those whose stream is whatever `sys.stderr` is.
        if (stream := vars(handler).get("stream")) is not None and id(stream) in above:
            handler.setStream(above[id(stream)])
            stack.callback(handler.setStream, stream)
    stack.enter_context(redirect_stderr(above[id(sys.stderr)]))


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """While this context lasts, SIGINT and SIGTERM raise `KeyboardInterrupt` in the main thread, and set the event.

    So they do inside `asyncio.run`, whose own handler would wait for the next await. A handler of the user's own is
    called first; where there is one for SIGTERM, it alone decides. Other threads get no signals. A program may have
    swallowed the exception; the event stays set.
    """
    received, before = threading.Event(), dict[int, Any]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.set()
        handler = before[number]
        module = getattr(getattr(handler, "func", handler), "__module__", "") or ""
        if callable(handler) and not module.startswith(("_signal", "asyncio")):
            handler(number, frame)
        raise KeyboardInterrupt("SIGTERM" if number == signal.SIGTERM else "")

    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(kind)
            own = kind == signal.SIGTERM and handler is not signal.SIG_DFL
            if not own and handler not in (None, signal.SIG_IGN):
                before[kind] = handler
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_json(value: Any) -> bytes:
    """JSON of a value; half of a pair of characters, which no file can hold, becomes a question mark."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return json.dumps(value, default=str, ensure_ascii=False).encode(errors="replace")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file through a temporary one in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # with the permissions of any new file
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Redactor:
    """Hides secrets among the arguments of LMs and in the environment, by their names, and what looks like one.

    `variables` of the environment hold one, whatever they are called.
    """

    def __init__(self, models: Iterable[Any], *, variables: Iterable[str | None] = ()) -> None:
        told = [(name, value) for name, value in os.environ.items() if len(value) >= 2 * SHORTEST]
        holding: list[Any] = [*variables]
        for model in models:  # An LM, or an embedder: its attributes, arguments and headers, and those of its engines.
            engines = [getattr(model, name, None) for name in ("_engine_spec", "_async_engine_spec")]
            given = {**getattr(model, "kwargs", {}), **getattr(model, "default_kwargs", {})}
            held = [given.get("headers"), given.get("extra_headers")]
            held += [getattr(owner, "__dict__", None) for owner in (model, *engines)]
            for each in held:
                given.update(each if isinstance(each, Mapping) else {})
            told += given.items()
            holding.append(given.get("api_key_env"))
        values = {value for name, value in told if SECRET_NAME.search(name) and isinstance(value, str)}
        named = {os.environ.get(name, "") for name in holding if isinstance(name, str)}
        long = {value for value in values if len(value) >= SHORTEST}
        self._values = sorted(filter(None, long | named), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, "[hidden]")
        for shape in SHAPES:
            text = re.sub(shape, r"\g<1>[hidden]", text)
        return text
