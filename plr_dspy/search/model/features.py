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

from plr_dspy.search.model.gains import Array
from plr_dspy.search.space import Ordering, OrderingSpace

FAMILIES = ("number", "presence", "region", "last", "adjacency", "class region", "class adjacency")
"""How many items are shown; which ones; which one near a place; which one last; which one right before which; and the
last two for the classes of items, such as demos with the same answer."""

CHOICE_FAMILIES = ("none", "choice", "choice and none", "choice and number")
"""If one item is chosen from some blocks: whether no other items are shown; which item is chosen; and the choice
together with no items in its block, or with their number."""

REGION = 1.0  # length scale of regions in the logarithm of places: 1 and 2 are as near as 5 and 10
NUM_REGION = 0.25  # length scale of "number", as a share of the largest number
NUM_REFERENCES = 300  # random orderings that centre and scale the features
# Pairs of items that "adjacency" may have over all blocks. A block above its even share has no such family: a search
# of some hundred calls sees few of the pairs of 50 items, and half of its time would go to them.
MAX_PAIRS = 1_500


class Features:
    """Features of the orderings of a space.

    Each family has mean 0 and mean squared length 1 over random orderings.

    Attributes:
        names: Families in which random orderings differ.
        references: Features of the random orderings.
    """

    def __init__(self, space: OrderingSpace, *, classes: Sequence[Sequence[int]] | None = None) -> None:
        if classes is None:
            classes = [[0 for _ in range(size)] for size in space.sizes]
        if tuple(map(len, classes)) != space.sizes:
            raise ValueError(f"classes must name a class for each item of blocks of {space.sizes} items; got {classes}")
        num_lists = len(space.sizes) - len(space.choices)
        self._blocks = [_Block(space, number, classes[number], num_blocks=num_lists) for number in range(num_lists)]
        self._choices = [_Choice(space, num_lists + i, block) for i, block in enumerate(space.choices)]
        orderings = space.draw(NUM_REFERENCES, np.random.default_rng(0))
        self._moments: dict[str, tuple[Array, float]] = {}
        for name, values in self._unscaled(orderings).items():
            mean = values.mean(axis=0)
            variance = float(((values - mean) ** 2).sum(axis=1).mean())
            if variance > 1e-9:
                self._moments[name] = (mean, variance**-0.5)
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
        blocks = [block(orderings) for block in self._blocks]
        blocks += [choice(orderings, blocks) for choice in self._choices]
        families = {}
        for name in (*FAMILIES, *CHOICE_FAMILIES):
            parts = [block[name].reshape(len(orderings), -1) for block in blocks if name in block]
            if parts:
                families[name] = np.concatenate(parts, axis=1)
        return families


class _Block:
    """The features of one block."""

    def __init__(self, space: OrderingSpace, number: int, classes: Sequence[int], *, num_blocks: int) -> None:
        self._number = number
        self._size = space.sizes[number]
        self._most = space.limits[number][1]
        codes = np.unique(np.asarray(classes), return_inverse=True)[1]
        num_classes = int(codes.max(initial=0)) + 1
        self._items = np.eye(self._size + 1, self._size)  # the last row stands for no item
        self._classes = self._items @ np.eye(num_classes)[codes]
        self._numbers = _smooth(np.arange(self._most + 1) / max(self._most, 1), NUM_REGION)
        self._near = _smooth(np.log1p(np.arange(self._most)), REGION)
        self._has_pairs = self._size**2 <= MAX_PAIRS // num_blocks
        # More classes would hardly add anything to items.
        self._has_classes = 1 < num_classes <= 2 * self._size / 3
        # Without choices, there is only one ordering of no items, and the model gives it an effect of its own.
        self._may_be_empty = bool(space.choices)

    def __call__(self, orderings: Sequence[Ordering]) -> dict[str, Array]:
        """Return the features of each family, of any shape after ``[m]``."""
        rows = []
        for ordering in orderings:
            items = ordering[self._number][::-1]
            rows.append([*items, *[self._size] * (self._most - len(items))])
        places = np.array(rows, dtype=np.int64).reshape(len(rows), self._most)
        placed = self._items[places]
        families = {
            "number": self._numbers[(places < self._size).sum(axis=1)],
            "presence": placed.sum(axis=1),
            "region": placed.transpose(0, 2, 1) @ self._near,
            "last": placed[:, :1].sum(axis=1),
        }
        if self._has_pairs:
            families["adjacency"] = placed[:, 1:].transpose(0, 2, 1) @ placed[:, :-1]
        if self._has_classes:
            classed = self._classes[places]
            families["class region"] = classed.transpose(0, 2, 1) @ self._near
            families["class adjacency"] = classed[:, 1:].transpose(0, 2, 1) @ classed[:, :-1]
        if self._may_be_empty:
            families["none"] = (places == self._size).all(axis=1)[:, None].astype(np.float64)
        return families


class _Choice:
    """The features of a block from which one item is chosen.

    Args:
        number: Number of the block.
        partner: Number of the block whose items the choice may interact with; None if there is none.
    """

    def __init__(self, space: OrderingSpace, number: int, partner: int | None) -> None:
        self._number = number
        self._partner = partner
        size = space.sizes[number]
        self._items = np.eye(size) - 1.0 / size

    def __call__(self, orderings: Sequence[Ordering], blocks: Sequence[dict[str, Array]]) -> dict[str, Array]:
        """Return the features of each family, given those of the other blocks."""
        chosen = self._items[[ordering[self._number][0] for ordering in orderings]]
        families = {"choice": chosen}
        if self._partner is not None:
            of_partner = blocks[self._partner]
            for name in ("none", "number"):
                families[f"choice and {name}"] = chosen[:, :, None] * of_partner[name][:, None]
        return families


def _smooth(points: Array, scale: float) -> Array:
    """Return R, ``[points, r]``, so that R R^T is a Gaussian kernel over points on a line."""
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    is_large = values > 1e-6 * values.max(initial=0.0)
    return np.asarray(vectors[:, is_large] * np.sqrt(values[is_large]))
