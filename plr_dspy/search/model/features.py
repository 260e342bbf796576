"""Features of orderings, grouped into families."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plr_dspy.search.space import Ordering, OrderingSpace
from plr_dspy.statistics.arrays import Array

FAMILIES = ("number", "presence", "region", "last", "adjacency", "class region", "class adjacency")
"""What each family in `FAMILIES` and `CHOICE_FAMILIES` encodes:

- "number": how many items are shown
- "presence": which items are shown
- "region": which items are near each position
- "last": which item is last
- "adjacency": which items are neighbors, and which of the two comes first
- "class region", "class adjacency": "region" and "adjacency" of items' classes, such as demos' answers
- "none": whether a block is empty, in spaces with choices
- "choice": which item is chosen in a block that shows exactly one item
- "choice and none", "choice and number": products of "choice" and another block's "none" or "number"
"""

CHOICE_FAMILIES = ("none", "choice", "choice and none", "choice and number")

# Length scale of "region", in natural logarithms of positions. On this log scale, positions 1 and 2
# are as close as positions 5 and 10.
REGION = 1.0
NUM_REGION = 0.25  # length scale of "number", relative to the maximum number of items
NUM_REFERENCES = 300  # number of random orderings used to center and scale the features

# Maximum number of pairs of items in "adjacency", divided equally among the blocks. Blocks with
# more pairs than their share do not have this family. For example, 50 items have 2,500 pairs. A
# search with a few hundred calls would see few of these pairs but spend half of its time on them.
MAX_PAIRS = 1_500


class Features:
    """A callable that maps orderings to their features.

    Each family has mean 0 and mean squared norm 1 over random orderings.

    Attributes:
        names: Names of the families in which random orderings differ. Other families are not used.
        references: Features of the random orderings.
    """

    def __init__(self, space: OrderingSpace, *, classes: Sequence[Sequence[int]] | None = None) -> None:
        if classes is None:
            classes = [[0 for _ in range(size)] for size in space.sizes]
        if tuple(map(len, classes)) != space.sizes:
            raise ValueError(
                f"classes must have a class for each item; got lists of lengths {tuple(map(len, classes))} "
                f"for blocks of sizes {space.sizes}: pass one list per block, as long as the block"
            )
        num_lists = space.num_lists
        self._blocks = [
            _Block(space, number, classes[number], num_blocks=num_lists) for number in range(num_lists)
        ]
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
        """Return the features ``[m, d]`` of each family.

        If no features vary among random orderings, return one family without features.
        """
        if not self._moments:
            return [np.zeros((len(orderings), 0))]
        values = self._unscaled(orderings)
        return [(values[name] - mean) * scale for name, (mean, scale) in self._moments.items()]

    def _unscaled(self, orderings: Sequence[Ordering]) -> dict[str, Array]:
        """Return the unscaled features of each family, with the features of all blocks side by side."""
        blocks = [block(orderings) for block in self._blocks]
        blocks += [choice(orderings, blocks) for choice in self._choices]
        families = {}
        for name in (*FAMILIES, *CHOICE_FAMILIES):
            parts = [block[name].reshape(len(orderings), -1) for block in blocks if name in block]
            if parts:
                families[name] = np.concatenate(parts, axis=1)
        return families


class _Block:
    """A callable that maps orderings to the features of one block."""

    def __init__(
        self, space: OrderingSpace, number: int, classes: Sequence[int], *, num_blocks: int
    ) -> None:
        self._number = number
        self._size = space.sizes[number]
        self._max_length = space.limits[number][1]
        codes = np.unique(np.asarray(classes), return_inverse=True)[1]
        num_classes = int(codes.max(initial=0)) + 1
        self._items = np.eye(self._size + 1, self._size)  # The last row encodes an empty position.
        self._classes = self._items @ np.eye(num_classes)[codes]
        self._numbers = _smooth(np.arange(self._max_length + 1) / max(self._max_length, 1), NUM_REGION)
        self._near = _smooth(np.log1p(np.arange(self._max_length)), REGION)
        self._has_pairs = self._size**2 <= MAX_PAIRS // num_blocks
        # Ignore classes if there is only one, or more than two for every three items, because they
        # would add hardly any information.
        self._has_classes = 1 < num_classes <= 2 * self._size / 3
        # If there are no choices, only one ordering shows no items. The model gives that ordering an
        # individual effect, so no feature is needed.
        self._may_be_empty = bool(space.choices)

    def __call__(self, orderings: Sequence[Ordering]) -> dict[str, Array]:
        """Return the unscaled features of each family, with one row for each ordering."""
        rows = []
        for ordering in orderings:
            from_end = ordering[self._number][::-1]
            empty_places = [self._size for _ in range(self._max_length - len(from_end))]
            rows.append([*from_end, *empty_places])
        items = np.array(rows, dtype=np.int64).reshape(len(rows), self._max_length)
        is_item = self._items[items]
        families = {
            "number": self._numbers[(items < self._size).sum(axis=1)],
            "presence": is_item.sum(axis=1),
            "region": is_item.transpose(0, 2, 1) @ self._near,
            "last": is_item[:, :1].sum(axis=1),
        }
        if self._has_pairs:
            families["adjacency"] = is_item[:, 1:].transpose(0, 2, 1) @ is_item[:, :-1]
        if self._has_classes:
            is_class = self._classes[items]
            families["class region"] = is_class.transpose(0, 2, 1) @ self._near
            families["class adjacency"] = is_class[:, 1:].transpose(0, 2, 1) @ is_class[:, :-1]
        if self._may_be_empty:
            families["none"] = (items == self._size).all(axis=1)[:, None].astype(np.float64)
        return families


class _Choice:
    """A callable that maps orderings to the features of a block from which one item is chosen.

    Args:
        number: Index of the block.
        partner: Index of the block whose effect may depend on the choice, or None.
    """

    def __init__(self, space: OrderingSpace, number: int, partner: int | None) -> None:
        self._number = number
        self._partner = partner
        size = space.sizes[number]
        self._items = np.eye(size) - 1.0 / size

    def __call__(
        self, orderings: Sequence[Ordering], blocks: Sequence[dict[str, Array]]
    ) -> dict[str, Array]:
        """Return the unscaled features of each family, given the features of non-choice `blocks`."""
        chosen = self._items[[ordering[self._number][0] for ordering in orderings]]
        families = {"choice": chosen}
        if self._partner is not None:
            of_partner = blocks[self._partner]
            for name in ("none", "number"):
                families[f"choice and {name}"] = chosen[:, :, None] * of_partner[name][:, None]
        return families


def _smooth(points: Array, scale: float) -> Array:
    """Return `r` features of each point on a line, ``[points, r]``.

    The inner product of two points' features approximates the points' Gaussian kernel.
    """
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    is_large = values > 1e-6 * values.max(initial=0.0)
    return np.asarray(vectors[:, is_large] * np.sqrt(values[is_large]))
