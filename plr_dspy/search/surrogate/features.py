"""What an ordering looks like to a linear model: tables of numbers, a family for each kind of effect.

The families are those that explain how a real model's accuracy varies over orders: which item stands where,
which item follows which, and the same of classes of items (demos that give the same answer).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plr_dspy.plackett_luce.distribution import PlackettLuce
from plr_dspy.search.space import Ordering, OrderingSpace

Array = NDArray[np.float64]
Family = Callable[[NDArray[np.int64]], Array]
"""Orders ``[m, n]`` of one block to features ``[m, d]``."""

FAMILIES = ("position", "region", "rank", "last", "adjacency", "class region", "class adjacency")

REGION = 0.25
"""Length scale of "region", as a share of the block: places so near are much alike."""

NUM_REFERENCES = 300
"""Random orderings that centre and scale the features."""

MAX_FEATURES = 20_000
"""Of a family over all blocks: a block leaves out families that have more than its even share."""


class OrderingFeatures:
    """Features of the orderings of a space, in families.

    Each family has mean 0 and mean squared length 1 over random orderings.

    Args:
        space: What is ordered.
        classes: For each block the class of each of its items; None for no classes. Families of
            classes are left out where classes are more than two thirds as many as items.
        families: Which of `FAMILIES`: "position" (item at a place), "region" (item near a place), "rank"
            (how early an item comes: what one Plackett-Luce can say), "last" (the item at the end), "adjacency" (an
            item right before another), and "class region" and "class adjacency".

    Attributes:
        names: The families that there are.
        references: Random orderings that centre and scale the features.

    Raises:
        ValueError: for an unknown family, or classes that do not fit the space.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        classes: Sequence[Sequence[int]] | None = None,
        families: Sequence[str] = FAMILIES,
    ) -> None:
        if unknown := set(families) - set(FAMILIES):
            raise ValueError(f"families must be of {FAMILIES}; got {sorted(unknown)}")
        if classes is not None and tuple(map(len, classes)) != space.sizes:
            raise ValueError(f"classes must name a class for each item of blocks of {space.sizes} items")
        per_block = [
            _families(
                size,
                None if classes is None else classes[block],
                max_features=MAX_FEATURES // len(space.sizes),
            )
            for block, size in enumerate(space.sizes)
        ]
        self.names = [name for name in families if any(name in block for block in per_block)]
        if not self.names:
            raise ValueError(
                f"none of the families {list(families)} applies to blocks of {space.sizes} items"
            )
        self._families = [[block.get(name) for block in per_block] for name in self.names]
        self.references = random_orderings(space, NUM_REFERENCES)
        references = self._raw(self.references)
        self._means = [raw.mean(axis=0) for raw in references]
        self._scales = [
            1.0 / np.sqrt(((raw - mean) ** 2).sum(axis=1).mean() + 1e-12)
            for raw, mean in zip(references, self._means, strict=True)
        ]

    def __call__(self, orderings: Sequence[Ordering]) -> list[Array]:
        """Features ``[m, d]`` of each family."""
        return [
            (raw - mean) * scale
            for raw, mean, scale in zip(self._raw(orderings), self._means, self._scales, strict=True)
        ]

    def _raw(self, orderings: Sequence[Ordering]) -> list[Array]:
        blocks = [np.array(block, dtype=np.int64) for block in zip(*orderings, strict=True)]
        return [
            np.concatenate(
                [f(orders) for f, orders in zip(family, blocks, strict=True) if f is not None], axis=1
            )
            for family in self._families
        ]


def _families(size: int, classes: Sequence[int] | None, *, max_features: int) -> dict[str, Family]:
    """The families of one block."""
    places = np.arange(size)
    basis = _smooth_basis(size)
    families: dict[str, tuple[int, Family]] = {
        "position": (size**2, lambda orders: _counts(orders * size + places, size**2)),
        "region": (
            size * basis.shape[1],
            lambda orders: basis[np.argsort(orders, axis=1)].reshape(len(orders), -1),
        ),
        "rank": (size, lambda orders: np.argsort(orders, axis=1).astype(np.float64)),
        "last": (size, lambda orders: np.eye(size)[orders[:, -1]]),
        "adjacency": (size**2, lambda orders: _counts(orders[:, :-1] * size + orders[:, 1:], size**2)),
    }
    _, codes = np.unique(np.asarray([] if classes is None else classes), return_inverse=True)
    number = int(codes.max(initial=0)) + 1
    if 1 < number <= 2 * size / 3:
        families["class region"] = (
            number * basis.shape[1],
            lambda orders: np.einsum("mpc,pr->mcr", np.eye(number)[codes[orders]], basis).reshape(
                len(orders), -1
            ),
        )
        families["class adjacency"] = (
            number**2,
            lambda orders: _counts(codes[orders[:, :-1]] * number + codes[orders[:, 1:]], number**2),
        )
    return {name: family for name, (width, family) in families.items() if width <= max_features}


def _smooth_basis(size: int) -> Array:
    """``[size, r]`` with ``basis @ basis.T`` a Gaussian kernel over places."""
    places = np.arange(size)
    kernel = np.exp(-0.5 * ((places[:, None] - places[None, :]) / (REGION * size)) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    kept = values > 1e-6 * values.max()
    basis: Array = vectors[:, kept] * np.sqrt(values[kept])
    return basis


def _counts(codes: NDArray[np.int64], number: int) -> Array:
    """How often each code occurs in each row, ``[m, number]``."""
    rows = np.arange(len(codes))[:, None]
    flat = np.bincount((rows * number + codes).ravel(), minlength=len(codes) * number)
    return flat.reshape(len(codes), number).astype(np.float64)


def random_orderings(space: OrderingSpace, number: int) -> list[Ordering]:
    """So many, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    blocks = [
        PlackettLuce(torch.zeros(size), generator=generator).sample((number,)).tolist()
        for size in space.sizes
    ]
    return [space.canonical(ordering) for ordering in zip(*blocks, strict=True)]
