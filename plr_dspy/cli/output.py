"""The output of a command. Its reader may close the pipe early, as in `plr-dspy report FILE | head`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OutputClosed(Exception):
    """The error for output whose reader has closed the pipe."""


def show(text: object) -> None:
    """Print text immediately. Raise `OutputClosed` if the reader has closed the pipe."""
    with printing():
        print(text)


@contextmanager
def printing() -> Iterator[None]:
    """Raise `OutputClosed` if the reader closes the pipe while this context prints.

    Do not run the user's code in this context, because that code may use other pipes.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def discard_output() -> None:
    """Discard output that could not be written.

    Otherwise, Python would try to write the output again at exit, and print an error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
