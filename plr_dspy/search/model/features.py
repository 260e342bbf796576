"""Features of orderings, in families.

symbol  code     shape      meaning
n, k                        items of a block, and places, counted from the end
p       places   [m, k]     item at each place, n if none
x       placed   [m, k, n]  whether an item stands at a place
c       classed  [m, k, C]  whether an item of a class stands at a place
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plr_dspy.search.model.gains import Array, Numbers
from plr_dspy.search.space import Ordering, OrderingSpace

FAMILIES = ("number", "presence", "region", "last", "adjacency", "class region", "class adjacency")
"""How many items are shown; which ones; which one near a place; which one last; which one right before which; and the
last two for the classes of items, such as demos with the same answer."""

REGION = 1.0  # length scale of regions in the logarithm of places: 1 and 2 are as near as 5 and 10
NUM_REGION = 0.25  # length scale of "number", as a share of the largest number
NUM_REFERENCES = 300  # random orderings that centre and scale the features
MAX_PAIRS = 1_500  # of items that "adjacency" may have in a block: a search sees few of the pairs of 50 items


class Features:
    """Features of the orderings of a space.

    Each family has mean 0 and mean squared length 1 over random orderings.

    Attributes:
        names: Families in which random orderings differ.
        references: Features of the random orderings.
    """

    def __init__(self, space: OrderingSpace, *, classes: Sequence[Sequence[int]] | None = None) -> None:
        if classes is None:
            classes = [np.zeros(size, dtype=np.int64).tolist() for size in space.sizes]
        if tuple(map(len, classes)) != space.sizes:
            raise ValueError(f"classes must name a class for each item of blocks of {space.sizes} items; got {classes}")
        self._space = space
        self._classes = [
            np.unique(np.asarray(of_items), return_inverse=True)[1].astype(np.int64) for of_items in classes
        ]
        orderings = space.draw(NUM_REFERENCES, np.random.default_rng(0))
        self._moments: dict[str, tuple[Array, float]] = {}
        for name, values in self._unscaled(orderings).items():
            variance = float(values.var(axis=0).sum())
            if variance > 1e-9:
                self._moments[name] = (values.mean(axis=0), variance**-0.5)
        self.names = list(self._moments)
        self.references = self(orderings)

    def __call__(self, orderings: Sequence[Ordering]) -> list[Array]:
        """Return the features ``[m, d]`` of each family; one empty family if orderings cannot differ."""
        if not self._moments:
            return [np.zeros((len(orderings), 0))]
        values = self._unscaled(orderings)
        return [(values[name] - mean) * scale for name, (mean, scale) in self._moments.items()]

    def _unscaled(self, orderings: Sequence[Ordering]) -> dict[str, Array]:
        """Return the features of all blocks side by side."""
        blocks = []
        for number, (size, (_, most)) in enumerate(zip(self._space.sizes, self._space.limits, strict=True)):
            rows = []
            for ordering in orderings:
                items = ordering[number][::-1]
                rows.append([*items, *[size] * (most - len(items))])
            places = np.array(rows, dtype=np.int64).reshape(len(rows), most)
            blocks.append(_features_of_block(places, self._classes[number]))
        families = {}
        for name in FAMILIES:
            parts = [block[name].reshape(len(orderings), -1) for block in blocks if name in block]
            if parts:
                families[name] = np.concatenate(parts, axis=1)
        return families


def _features_of_block(places: Numbers, classes: Numbers) -> dict[str, Array]:
    """Return the features of each family, of any shape after ``[m]``, given the classes of items ``[n]``."""
    size = len(classes)
    most = places.shape[1]
    num_classes = int(classes.max(initial=0)) + 1
    items = np.eye(size + 1, size)  # the last row stands for no item
    placed = items[places]
    near = _smooth(np.log1p(np.arange(most)), REGION)
    numbers = _smooth(np.arange(most + 1) / max(most, 1), NUM_REGION)
    families = {
        "number": numbers[(places < size).sum(axis=1)],
        "presence": placed.sum(axis=1),
        "region": placed.transpose(0, 2, 1) @ near,
        "last": placed[:, :1].sum(axis=1),
    }
    if size**2 <= MAX_PAIRS:
        families["adjacency"] = placed[:, 1:].transpose(0, 2, 1) @ placed[:, :-1]
    # More classes would hardly add anything to items.
    if 1 < num_classes <= 2 * size / 3:
        classed = placed @ np.eye(num_classes)[classes]
        families["class region"] = classed.transpose(0, 2, 1) @ near
        families["class adjacency"] = classed[:, 1:].transpose(0, 2, 1) @ classed[:, :-1]
    return families


def _smooth(points: Array, scale: float) -> Array:
    """Return R, ``[points, r]``, so that R R^T is a Gaussian kernel over points on a line."""
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    is_large = values > 1e-6 * values.max(initial=0.0)
    return np.asarray(vectors[:, is_large] * np.sqrt(values[is_large]))
