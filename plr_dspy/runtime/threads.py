"""How many threads the search's own arithmetic takes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg  # noqa: F401  # brings a library of its own, which is to be among those limited
import torch
from threadpoolctl import ThreadpoolController

_LIBRARIES = ThreadpoolController()
_ARITHMETIC = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for linear algebra, whose number belongs to the process, so that compiles take turns, and for torch.

    For matrices of some hundred rows, further threads cost more than they bring: on a busy machine ten times as much.
    """
    with _ARITHMETIC, _LIBRARIES.limit(limits=1, user_api="blas"):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
