"""The log-probabilities of labels that calls have brought along, as a table for the model of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plr_dspy.search.space import Ordering

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LabelResponses:
    """Where the log-probabilities of labels are found, and what the labels score.

    Attributes:
        scores: What the metric gives for each label on each example, ``[E, L]``.
        log_probabilities: Of the labels, by ordering and example; None where they are not known.
        unseen: Numbers of the labels that were not among the likeliest tokens, by ordering and example.
        shares: Share of the examples that each label is right for, ``[L]``, or some guesses, ``[S, L]``; None for the
            same share each.
        calibrating: Whether answers are calibrated to it, or taken as they are.
    """

    scores: Array
    log_probabilities: Callable[[Ordering, int], Sequence[float] | None]
    unseen: Callable[[Ordering, int], Sequence[int]] = lambda ordering, example: ()
    shares: Array | None = None
    calibrating: bool = False
    _rows: dict[Ordering, tuple[tuple[int, ...], list[int], Array, NDArray[np.bool_]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def table(
        self, rows: Mapping[Ordering, Collection[int]], examples: Sequence[int]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """The log-probabilities of labels, of each ordering on its examples.

        Args:
            rows: The examples of each ordering.
            examples: The columns, which hold all of them.

        Returns:
            Numbers ``[m, E, L]``, NaN where they are not known; and where a label was not among the likeliest tokens.
        """
        columns = {example: i for i, example in enumerate(examples)}
        table = np.full((len(rows), len(examples), self.scores.shape[1]), np.nan)
        hidden = np.zeros(table.shape, dtype=bool)
        for row, mask, (ordering, asked) in zip(table, hidden, rows.items(), strict=True):
            numbers, known, unseen = self._row(ordering, asked)
            places = [columns[number] for number in numbers]
            row[places], mask[places] = known, unseen
        return table, hidden

    def _row(self, ordering: Ordering, asked: Collection[int]) -> tuple[list[int], Array, NDArray[np.bool_]]:
        """What is known of an ordering: examples ``[n]``, log-probabilities and what was unseen, ``[n, L]``."""
        kept = self._rows.get(ordering)
        if kept is None or kept[0] != tuple(asked):
            found = {e: told for e in asked if (told := self.log_probabilities(ordering, e)) is not None}
            unseen = np.zeros((len(found), self.scores.shape[1]), dtype=bool)
            for mask, example in zip(unseen, found, strict=True):
                mask[list(self.unseen(ordering, example))] = True
            known = np.array(list(found.values())).reshape(unseen.shape)
            kept = self._rows[ordering] = (tuple(asked), list(found), known, unseen)
        return kept[1:]
