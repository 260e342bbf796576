"""Functions that print a command's output, even if its reader closes the pipe early.

For example, `head` does so in `plr-dspy report FILE | head`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class OutputClosed(Exception):
    """An error raised if the process that reads the output has closed the pipe."""


def show(text: object) -> None:
    """Print text immediately. Raise `OutputClosed` if the reader of the output has closed the pipe."""
    with printing():
        print(text)


@contextmanager
def printing() -> Iterator[None]:
    """Raise `OutputClosed` if the reader of the output has closed the pipe when this context prints.

    Do not run the user's code in this context, because that code may use other pipes.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # Python has no standard output if it is closed at the start.
                sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def discard_output() -> None:
    """Discard the output that could not be written, because its reader has closed the pipe.

    Otherwise, Python would try to write this output again at exit, and would print an error.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
