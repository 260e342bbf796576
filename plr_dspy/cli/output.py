"""Print the output of a command, whose reader may stop reading, as in `plr-dspy report FILE | head`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OutputClosed(Exception):
    """The reader of the output has gone."""


def show(text: object) -> None:
    """Print a text at once; raise `OutputClosed` if nobody reads it."""
    with printing():
        print(text)


@contextmanager
def printing() -> Iterator[None]:
    """Raise `OutputClosed` if nobody reads what is printed in a context; no user's code may run in it."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def discard_output() -> None:
    """Discard the text that could not be written; otherwise, Python would write it again at exit, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
