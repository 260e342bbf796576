"""Functions that print to a pipe that the reading program, such as `head`, may close early."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OutputClosed(Exception):
    """An error raised if the process that reads the output has closed the pipe."""


def show(text: object) -> None:
    """Print text and flush stdout. Raise `OutputClosed` if the reader of the output has closed the pipe."""
    with printing():
        print(text)


@contextmanager
def printing() -> Iterator[None]:
    """Flush stdout when this context ends. Raise `OutputClosed` if the reader has closed the pipe.

    Do not run the user's code in this context: errors from that code's own pipes would look the same.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # It is None if stdout was already closed when Python started.
                sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def discard_output() -> None:
    """Discard the buffered output after its reader has closed the pipe.

    Otherwise, Python would try to write the output again at exit and print an error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
