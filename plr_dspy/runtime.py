"""Helpers for the terminal, signals, files and secrets."""

import logging
import os
import re
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile
from tqdm.contrib.logging import logging_redirect_tqdm

PACKAGE = "plr_dspy"
HANDLER = "dspy_handler"  # the name that DSPy gives to its own handlers
LM_LOGGER = "dspy.clients.lm"  # DSPy's logger for warnings about replies
# Use DSPy's formats, so that all log lines look alike.
LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%Y/%m/%d %H:%M:%S"

logger = logging.getLogger(__name__)
_shows_progress = ContextVar("shows_progress", default=True)

SECRET_NAME = re.compile(
    r"(^|_|-)(key|secret|passw|password|credential|credentials|token|authorization)$", re.I
)
# Patterns of likely secrets. The text in a pattern's first group stays visible.
SECRET_SHAPES = (
    # "api_key": "...", token=..., Authorization: Basic ...
    r"(?i)((?:^|[^\w])(?:x[-_])?(?:api[-_]?key|access[-_]?token|auth[-_]?token|authorization|password|secret|token)"
    r"[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"'&,;]{6,}",
    r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]{6,}",
    r"(://[^\s/:@]+:)[^\s/@]+(?=@)",
    r"()\b(?:sk|pk|gsk|hf|xai|ghp|gho)[-_](?=[\w*-]*\d)[\w*-]{6,}",
    r"()\b(?:AKIA[A-Z0-9]{8,}|AIza[\w-]{10,})",
)
# Minimum length of a secret in an argument. The minimum is twice as large for environment variables that
# are recognized only by their names.
SHORTEST_SECRET = 6


class LogLines(logging.Handler):
    """A handler that shows log lines in DSPy's format, unless the user has configured logging.

    Lines below the level WARNING are hidden within `progress_bar(display=False)`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line to DSPy's stream, so that `dspy.disable_logging` silences it, too."""
        is_configured = logging.root.handlers or len(logging.getLogger(PACKAGE).handlers) > 1
        is_wanted = record.levelno >= logging.WARNING or _shows_progress.get()
        if is_configured or not is_wanted:
            return
        dspy_logging = sys.modules.get("dspy.utils.logging_utils")
        stream: Any = getattr(dspy_logging, "DSPY_LOGGING_STREAM", sys.stderr)
        try:
            stream.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def show_log_lines() -> None:
    """Install the handler that shows the package's log lines, and remove any earlier `HANDLER`."""
    handler = LogLines()
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    handler.set_name(HANDLER)
    logger = logging.getLogger(PACKAGE)
    logger.handlers[:] = [*(other for other in logger.handlers if other.name != HANDLER), handler]
    logger.setLevel(logger.level or logging.INFO)


class Unfailing:
    """A stream that ignores failed writes, for example to a pipe whose reader has exited."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def __eq__(self, other: object) -> bool:
        # tqdm compares streams to find the progress bars that a log line must not overwrite.
        return other is self or other == self._stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _FirstOnly(logging.Filter):
    """A filter that passes each line only once, and counts in `numbers` how often the line was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        self.numbers[text] += 1
        return self.numbers[text] == 1


@contextmanager
def warnings_once(name: str) -> Iterator[None]:
    """Show each line of the logger `name` only once. At the end, log how often repeated lines occurred."""
    source = logging.getLogger(name)
    first_only = _FirstOnly()
    source.addFilter(first_only)
    try:
        yield
    finally:
        source.removeFilter(first_only)
        for text, number in first_only.numbers.items():
            if number > 1:
                logger.warning("%d times in this run: %s", number, text)


@contextmanager
def progress_bar(
    total: int, *, display: bool, title: str, at_end: Callable[[], None] = lambda: None
) -> Iterator[tqdm]:
    """Yield a progress bar for up to `total` program calls, and call `at_end` at the end.

    Until then, show each DSPy warning about replies (for example, truncated ones) only once.
    """
    token = _shows_progress.set(display)
    is_disabled = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    hidden = not display or is_disabled or getattr(sys.stderr, "closed", True)
    stream = Unfailing(sys.stderr)
    try:
        with tqdm(
            total=total, desc=title, unit="call", dynamic_ncols=True, disable=hidden, file=stream
        ) as bar:
            with ExitStack() as stack:
                stack.enter_context(warnings_once(LM_LOGGER))
                if not bar.disable:  # Show log lines and programs' stderr output above the bar.
                    if logging.root.handlers:
                        stack.enter_context(logging_redirect_tqdm())
                    stack.enter_context(redirect_stderr(DummyTqdmFile(sys.stderr)))
                yield bar
            bar.total = bar.n  # The run may have needed fewer calls than planned.
            bar.refresh()
    finally:
        at_end()
        _shows_progress.reset(token)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set before they raise `KeyboardInterrupt` in the main thread.

    The event stays set even if a program catches the exception. The user's SIGINT handler is
    called before the exception is raised. Asyncio's handler is skipped, because it would wait for
    the next await. If the user has installed a SIGTERM handler, SIGTERM calls only this handler.
    """
    received = threading.Event()
    handlers: dict[int, Any] = {}

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.set()
        handler = handlers[number]
        module = getattr(getattr(handler, "func", handler), "__module__", "") or ""
        if callable(handler) and not module.startswith(("_signal", "asyncio")):
            handler(number, frame)
        raise KeyboardInterrupt(signal.Signals(number).name)

    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
            handlers[signal.SIGINT] = signal.getsignal(signal.SIGINT)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            handlers[signal.SIGTERM] = signal.SIG_DFL
    try:
        for number in handlers:
            signal.signal(number, interrupt)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, by renaming a temporary file in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Do not use `tempfile`, because its files do not have the default permissions.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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
    """A callable that hides known and likely secrets in text.

    Args:
        models: LMs or embedders. The values of arguments such as "api_key" are secrets.
        variables: Names of additional environment variables that contain secrets.
    """

    def __init__(self, models: Iterable[object], *, variables: Iterable[str | None] = ()) -> None:
        names = set(variables)
        secrets = set()
        for name, value in chain.from_iterable(map(_arguments_of, models)):
            if name == "api_key_env":
                names.add(value)
            elif SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET:
                secrets.add(value)
        for name, value in os.environ.items():
            if name in names or (SECRET_NAME.search(name) and len(value) >= 2 * SHORTEST_SECRET):
                secrets.add(value)
        # Replace longer secrets first, because a secret may contain another secret.
        self._secrets = sorted(secrets - {""}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with each secret replaced with "[hidden]"."""
        for secret in self._secrets:
            text = text.replace(secret, "[hidden]")
        for shape in SECRET_SHAPES:
            text = re.sub(shape, r"\g<1>[hidden]", text)
        return text


def _arguments_of(model: object) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each string argument, header and attribute of a model and its engines."""
    attributes = getattr(model, "__dict__", {})
    # Also search the attributes of attributes, because the engines of an LM may hold secrets.
    mappings = [attributes, *(getattr(part, "__dict__", None) for part in attributes.values())]
    for name in ("kwargs", "default_kwargs"):
        arguments = getattr(model, name, {})
        mappings += [arguments, arguments.get("headers"), arguments.get("extra_headers")]
    for mapping in mappings:
        if isinstance(mapping, Mapping):
            yield from ((name, value) for name, value in mapping.items() if isinstance(value, str))
