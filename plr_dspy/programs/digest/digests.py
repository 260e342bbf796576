"""Digests of large data: 256 bits in hexadecimal, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch


def digest_of_array(array: np.ndarray | torch.Tensor) -> str:
    """Digest an array's type, shape and bytes; one of Python objects has no digest, and gives an empty text."""
    if isinstance(array, torch.Tensor):
        content = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{array.dtype}{tuple(array.shape)}{hashlib.sha256(content.data).hexdigest()}"
    if array.dtype.hasobject:
        return ""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype.descr}{array.shape}{hashlib.sha256(content.data).hexdigest()}"


def digest_of_texts(texts: Iterable[str]) -> str:
    """Digest texts one after the other, a line for each, without holding them all."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode(errors="backslashreplace") + b"\n")
    return whole.hexdigest()
