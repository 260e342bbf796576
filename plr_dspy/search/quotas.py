"""The minimum number of items of each class, such as demos with a certain label, that a block must show."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quotas:
    """The minimum number of items of each class that one block must show.

    Attributes:
        classes: The class index of each item, or -1 for an item without a class. Empty if the
            block has no classes.
        minimums: The minimum number of items of each class.
    """

    classes: tuple[int, ...] = ()
    minimums: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The sum of the minimums."""
        return sum(self.minimums)

    def are_met(self, items: Sequence[int]) -> bool:
        """Return whether `items` includes the minimum number of items of each class."""
        counts = Counter(self.classes[item] for item in items) if self.minimums else {}
        return all(counts[number] >= minimum for number, minimum in enumerate(self.minimums))

    def first(self, ranking: Sequence[int], length: int) -> tuple[int, ...]:
        """Return `length` items from a ranking of all items, chosen so that they meet the quotas.

        Items that would leave too few places to meet the quotas are skipped. `length` must be at
        least `total`, and the ranking must contain the minimum number of items of each class.

        If the ranking is drawn from a Plackett-Luce distribution, the result is distributed as if
        items were drawn one by one. Each draw would choose only among items that leave enough
        places, with probabilities proportional to ``exp(logit)``.
        """
        if not self.minimums:
            return tuple(ranking[:length])
        num_missing = Counter(dict(enumerate(self.minimums)))
        num_free = length - self.total  # places that any item may take
        items = []
        for item in ranking:
            number = self.classes[item]
            if num_missing[number] > 0:
                num_missing[number] -= 1
            elif num_free > 0:
                num_free -= 1
            else:
                continue
            items.append(item)
        return tuple(items)

    def spare(self, items: Sequence[int]) -> Sequence[int]:
        """Return the positions of the items that can each be removed without violating a quota."""
        if not self.minimums:
            return range(len(items))
        num_spare = Counter(self.classes[item] for item in items)
        num_spare.subtract(dict(enumerate(self.minimums)))
        return [position for position, item in enumerate(items) if num_spare[self.classes[item]] > 0]

    def replacements(self, items: Sequence[int], unused: Sequence[int]) -> Sequence[int]:
        """Return the codes of all replacements after which the quotas are still met.

        A replacement puts ``unused[index]`` in place of the item at `position`. The code of this
        replacement is ``position * len(unused) + index``.
        """
        if not self.minimums:
            return range(len(items) * len(unused))
        indices_of_class = defaultdict(list)
        for index, item in enumerate(unused):
            indices_of_class[self.classes[item]].append(index)
        spare = set(self.spare(items))
        numbers = []
        for position, item in enumerate(items):
            indices: Sequence[int] = indices_of_class[self.classes[item]]
            if position in spare:
                indices = range(len(unused))
            numbers += [position * len(unused) + index for index in indices]
        return numbers

    def of_kinds(self, kinds: Sequence[int]) -> dict[int, tuple[int, list[int]]]:
        """Return the minimum and the items' kinds for each class, keyed by class index.

        `kinds` holds the kind of each item, as in `OrderingSpace`. Items without a class form the
        class -1, whose minimum is 0. If there are no quotas, this class contains all items.
        """
        kinds_of_class = defaultdict(list)
        for item, kind in enumerate(kinds):
            kinds_of_class[self.classes[item] if self.minimums else -1].append(kind)
        return {
            number: (self.minimums[number] if number >= 0 else 0, members)
            for number, members in kinds_of_class.items()
        }
