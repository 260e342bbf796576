"""Digests of large data: 256 bits in hexadecimal, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from plr_dspy.programs.digest.objects import PLAIN

CHUNK = 10_000
"""Items that are written out as text at a time."""


def digest_of_plain(values: Sequence[Any]) -> str:
    """The digest of a list of plain values; empty for other lists, empty ones, and where it fails."""
    if not values or not PLAIN.issuperset(map(type, values)):
        return ""
    whole = hashlib.sha256()
    try:
        for start in range(0, len(values), CHUNK):
            whole.update(repr(values[start : start + CHUNK]).encode(errors="backslashreplace"))
    except ValueError:  # a whole number of more digits than Python writes
        return ""
    return whole.hexdigest()


def digest_of_array(array: np.ndarray | torch.Tensor) -> str:
    """The digest of an array's type, shape and content; empty for one of objects."""
    if isinstance(array, torch.Tensor):
        content = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{array.dtype}{tuple(array.shape)}{hashlib.sha256(content.data).hexdigest()}"
    if array.dtype.hasobject:
        return ""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype.descr}{array.shape}{hashlib.sha256(content.data).hexdigest()}"


def digest_of_text(text: str) -> str:
    """The digest of a text, whatever is in it."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
