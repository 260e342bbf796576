"""What an ordering looks like to a linear model: tables of numbers, a family for each kind of effect by which a real
model's accuracy varies over orders."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.model.table import Array
from plr_dspy.search.space import Ordering, OrderingSpace

Family = Callable[[NDArray[np.int64]], Array]  # items at places from the end, the block's size for none, to features
FAMILIES = ("number", "presence", "region", "last", "adjacency", "class region", "class adjacency")
"""The number of items shown; which; an item near a place; which is at the end; which stands right before which; and the
same by the classes of items, such as demos that give the same answer."""

REGION = 1.0  # length scale of regions in the logarithm of places from the end: 1 and 2 are as near as 5 and 10
NUM_REGION = 0.25  # length scale of "number", as a share of the largest number
NUM_REFERENCES = 300  # random orderings that centre and scale the features
# Pairs of items that "adjacency" may have over all blocks; a block with more than its even share goes without: a search
# of some hundred calls sees few of the pairs of 50 items, and half of its time would go to them.
MAX_PAIRS = 1_500


class Features:
    """Features of the orderings of a space, in families, the `names` of those that there are. Each has mean 0 and mean
    squared length 1 over random orderings, the `references`; those in which these do not differ are left out."""

    def __init__(self, space: OrderingSpace, *, classes: Sequence[Sequence[int]] | None = None) -> None:
        if classes is not None and tuple(map(len, classes)) != space.sizes:
            raise ValueError(f"classes must name a class for each item of blocks of {space.sizes} items")
        self._space = space
        named = [None] * len(space.sizes) if classes is None else classes
        self._families = [_families(space, block, codes) for block, codes in enumerate(named)]
        self._moments: dict[str, tuple[Array, float]] = {}
        drawn = space.draw(NUM_REFERENCES, np.random.default_rng(0))
        for name, raw in self._raw(drawn).items():
            mean = raw.mean(axis=0)
            variance = float(((raw - mean) ** 2).sum(axis=1).mean())
            if variance > 1e-9:
                self._moments[name] = mean, variance**-0.5
        self.names, self.references = list(self._moments), self(drawn)

    def __call__(self, orderings: Sequence[Ordering]) -> list[Array]:
        """Features ``[m, d]`` of each family; of a space whose orderings do not differ one family without any."""
        raw = self._raw(orderings)
        found = [(raw[name] - mean) * scale for name, (mean, scale) in self._moments.items()]
        return found or [np.zeros((len(orderings), 0))]

    def _raw(self, orderings: Sequence[Ordering]) -> dict[str, Array]:
        """Features of all blocks side by side, of the families that some block has."""
        parts: dict[str, list[Array]] = {name: [] for name in FAMILIES}
        blocks = zip(self._space.sizes, self._space.limits, self._families, strict=True)
        for block, (size, (_, most), families) in enumerate(blocks):
            rows = [[*o[block][::-1], *[size] * (most - len(o[block]))] for o in orderings]
            places = np.array(rows, dtype=np.int64).reshape(len(rows), most)
            for name, family in families.items():
                parts[name].append(family(places).reshape(len(rows), -1))
        return {name: np.concatenate(tables, axis=1) for name, tables in parts.items() if tables}


def _families(space: OrderingSpace, block: int, classes: Sequence[int] | None) -> dict[str, Family]:
    """The families of one block."""
    size, (_, most) = space.sizes[block], space.limits[block]
    codes = np.unique(np.zeros(size) if classes is None else np.asarray(classes), return_inverse=True)[1]
    number = int(codes.max(initial=0)) + 1
    items = np.eye(size + 1, size)  # the last row stands for no item
    classed = items @ np.eye(number)[codes]
    near = _smooth(np.log1p(np.arange(most)), REGION)
    numbers = _smooth(np.arange(most + 1) / max(most, 1), NUM_REGION)
    families: dict[str, Family] = {
        "number": lambda places: numbers[(places < size).sum(axis=1)],
        "presence": lambda places: items[places].sum(axis=1),
        "region": lambda places: items[places].transpose(0, 2, 1) @ near,
        "last": lambda places: items[places[:, :1]].sum(axis=1),
    }
    if size**2 <= MAX_PAIRS // len(space.sizes):
        families["adjacency"] = lambda places: items[places[:, 1:]].transpose(0, 2, 1) @ items[places[:, :-1]]
    if 1 < number <= 2 * size / 3:  # Of more classes they would say hardly more than items do.
        families["class region"] = lambda places: classed[places].transpose(0, 2, 1) @ near
        families["class adjacency"] = lambda places: classed[places[:, 1:]].transpose(0, 2, 1) @ classed[places[:, :-1]]
    return families


def _smooth(points: Array, scale: float) -> Array:
    """``[points, r]``, which times its transpose is a Gaussian kernel over points on a line."""
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    kept = values > 1e-6 * values.max(initial=0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))
