"""What an arrangement looks like to a linear model: tables of numbers, a family for each kind of effect.

As `features`, for arrangements of different lengths: places are counted from the end, which is next to the question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.space import Ordering, OrderingSpace

Array = NDArray[np.float64]
Family = Callable[[Array, Array], Array]
"""Which item ``[m, L, n]`` and which class ``[m, L, c]`` stands at a place from the end, to features ``[m, d]``."""

FAMILIES = (
    "number",
    "presence",
    "region",
    "last",
    "adjacency",
    "class share",
    "class region",
    "class last",
    "class adjacency",
)

REGION = 1.0
"""Length scale of "region" in the logarithm of places counted from 1 at the end: the 1st and 2nd are as near to each
other as the 5th and 10th."""

NUM_REGION = 0.25
"""Length scale of "number", as a share of the range of numbers."""

NUM_REFERENCES = 300
"""Random arrangements that centre and scale the features."""

MAX_FEATURES = 1_500
"""Of a family over all pools: a pool leaves out families that have more than its even share. A search of some hundred
calls sees few of the pairs of a pool of 50, and half of its time would go to them."""


class ArrangementFeatures:
    """Features of the arrangements of a space, in families.

    Each family has mean 0 and mean squared length 1 over random arrangements. Families in which these do not differ are
    left out, such as the number of items where it is fixed.

    Args:
        space: What is arranged.
        classes: For each pool the class of each of its items; None for no classes. Families of classes are left out
            where classes are more than two thirds as many as items.
        families: Which of `FAMILIES`: "number" (of items shown), "presence" (of an item), "region" (item near a place),
            "last" (the item at the end), "adjacency" (an item right before another), "class share" (of the items
            shown), "class region", "class last" (the classes of the last two items) and "class adjacency".

    Attributes:
        names: The families that there are.
        references: Random arrangements that centre and scale the features.

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
            raise ValueError(f"classes must name a class for each item of pools of {space.sizes} items")
        named = [None] * len(space.sizes) if classes is None else classes
        self._pools = [
            _Pool(size, most, codes, max_features=MAX_FEATURES // len(space.sizes))
            for size, (_, most), codes in zip(space.sizes, space.limits, named, strict=True)
        ]
        self.references = space.draw(NUM_REFERENCES, np.random.default_rng(0))
        self.names: list[str] = []
        self._means: list[Array] = []
        self._scales: list[float] = []
        for name, raw in self._raw(self.references, families).items():
            mean = raw.mean(axis=0)
            variance = float(((raw - mean) ** 2).sum(axis=1).mean())
            if variance > 1e-9:
                self.names.append(name)
                self._means.append(mean)
                self._scales.append(variance**-0.5)
        if not self.names:
            raise ValueError(
                f"none of the families {list(families)} tells arrangements of {space.sizes} items apart"
            )

    def __call__(self, arrangements: Sequence[Ordering]) -> list[Array]:
        """Features ``[m, d]`` of each family."""
        raws = self._raw(arrangements, self.names).values()
        return [
            (raw - mean) * scale for raw, mean, scale in zip(raws, self._means, self._scales, strict=True)
        ]

    def _raw(self, arrangements: Sequence[Ordering], families: Sequence[str]) -> dict[str, Array]:
        """Features of all pools side by side, of the families that some pool has."""
        parts: dict[str, list[Array]] = {name: [] for name in families}
        for number, pool in enumerate(self._pools):
            items, classes = pool.tables([arrangement[number] for arrangement in arrangements])
            for name in families:
                if name in pool.families:
                    parts[name].append(pool.families[name](items, classes))
        return {name: np.concatenate(tables, axis=1) for name, tables in parts.items() if tables}


class _Pool:
    """The families of one pool.

    Args:
        size: Number of items.
        most: The largest number of them that is shown.
        classes: Of its items; None for none.
        max_features: Families with more are left out.
    """

    def __init__(self, size: int, most: int, classes: Sequence[int] | None, *, max_features: int) -> None:
        self._most = most
        _, codes = np.unique(np.zeros(size) if classes is None else np.asarray(classes), return_inverse=True)
        number = int(codes.max(initial=0)) + 1
        # The last row stands for no item.
        self._items = np.eye(size + 1, size)
        self._classes = self._items @ np.eye(number)[codes]
        places = _smooth_basis(np.log1p(np.arange(most)), REGION)
        lengths = _smooth_basis(np.arange(most + 1) / max(most, 1), NUM_REGION)
        families: dict[str, tuple[int, Family]] = {
            "number": (lengths.shape[1], lambda items, _: lengths[items.sum(axis=(1, 2)).astype(int)]),
            "presence": (size, lambda items, _: items.sum(axis=1)),
            "region": (size * places.shape[1], lambda items, _: _near(items, places)),
            "last": (size, lambda items, _: items[:, :1].sum(axis=1)),
            "adjacency": (size**2, lambda items, _: _pairs(items)),
        }
        if 1 < number <= 2 * size / 3:
            families |= {
                "class share": (number, lambda _, classes: _shares(classes)),
                "class region": (number * places.shape[1], lambda _, classes: _near(classes, places)),
                "class last": (number**2 + number, lambda _, classes: _last_two(classes)),
                "class adjacency": (number**2, lambda _, classes: _pairs(classes)),
            }
        self.families = {name: family for name, (width, family) in families.items() if width <= max_features}

    def tables(self, subsets: Sequence[Sequence[int]]) -> tuple[Array, Array]:
        """Which item and which class stands at each place from the end, ``[m, L, n]`` and ``[m, L, c]``."""
        rows = [[*subset[::-1], *[-1] * (self._most - len(subset))] for subset in subsets]
        places = np.array(rows, dtype=np.int64).reshape(len(rows), self._most)
        return self._items[places], self._classes[places]


def _smooth_basis(points: Array, scale: float) -> Array:
    """``[points, r]`` with ``basis @ basis.T`` a Gaussian kernel over points on a line."""
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    kept = values > 1e-6 * values.max(initial=0.0)
    basis: Array = vectors[:, kept] * np.sqrt(values[kept])
    return basis


def _near(table: Array, places: Array) -> Array:
    """Where along the smooth basis of places each item or class stands."""
    near: Array = np.einsum("mli,lr->mir", table, places).reshape(len(table), -1)
    return near


def _pairs(table: Array) -> Array:
    """How often each item or class stands right before each."""
    return (table[:, 1:].transpose(0, 2, 1) @ table[:, :-1]).reshape(len(table), -1)


def _shares(classes: Array) -> Array:
    """The share of each class among the items shown; 0 of none."""
    counts = classes.sum(axis=1)
    shares: Array = counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True))
    return shares


def _last_two(classes: Array) -> Array:
    """The class of the last item, and its pair with that of the one before."""
    last = classes[:, :1].sum(axis=1)
    return np.concatenate([last, _pairs(classes[:, :2])], axis=1)
