"""Scores orderings by what their label probabilities look like, not by right answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Trial
from plr_dspy.scoring.cells import FAILED, Cell
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.search import as_ordering

Array = NDArray[np.float64]
Criterion = Callable[[Array], float]
"""Of a table ``[E, L]`` of label probabilities; larger is better (`plr_dspy.baselines.criteria`)."""


class ProbingInputs(Protocol):
    """The inputs that orderings are asked for label probabilities of.

    Attributes:
        num_written: Calls for each ordering that write inputs: the first of its examples.
        most: Examples there can be, those that write inputs included.
    """

    num_written: int
    most: int

    def read(self, written: Sequence[Any]) -> int:
        """Take what was written; returns the number of inputs that there are now.

        Args:
            written: Values of the cells that wrote inputs, None for failures.

        Raises:
            RuntimeError: when none can be used.
        """


class LabelObjective:
    """A criterion of the label probabilities that an ordering gives to inputs whose labels nobody need know.

    Inputs that failed for an ordering count for none, unless that leaves no input. Where no label is among the
    likeliest tokens, the probabilities are taken for equal.

    Args:
        scorer: Of the probing inputs followed by others; its cells hold distributions ``[L]``.
        inputs: The probing inputs.
        criterion: What makes one number of them.
        num_labels: L.

    Attributes:
        deadline: When to stop, by `time.monotonic`.
        means: Mean distribution ``[L]`` over the inputs, of each ordering scored.
    """

    def __init__(
        self, scorer: CellScorer, *, inputs: ProbingInputs, criterion: Criterion, num_labels: int
    ) -> None:
        self.deadline: float | None = None
        self.means: dict[Ordering, Array] = {}
        self._scorer = scorer
        self._inputs = inputs
        self._criterion = criterion
        self._uniform = np.full(num_labels, 1.0 / num_labels)

    @property
    def program_calls(self) -> int:
        """Program calls made on probing inputs."""
        return self._scorer.ledger.calls(range(self._inputs.most))

    def cost(self, orderings: Sequence[Ordering]) -> int:
        """Program calls that scoring these orderings would make, at most."""
        return self._scorer.cost(orderings, range(self._inputs.most))

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        """Score orderings; fewer trials than orderings when the time is up."""
        orderings = list(dict.fromkeys(orderings))
        self._cells(
            orderings[:1], range(1)
        )  # alone: if the LM gives no log-probabilities, no other call is made
        writing = range(self._inputs.num_written)
        written = self._cells(orderings, writing)
        if len(written) < len(orderings):
            return []
        count = self._inputs.read([row[example].value for row in written for example in writing])
        self._scorer.ledger.settle()  # an input that is written later would move the others
        first = self._inputs.num_written
        rows = self._cells(orderings, range(first, first + count))
        return self._trials(dict(zip(orderings, rows, strict=False))) if rows else []

    def _trials(self, rows: Mapping[Ordering, Mapping[int, Cell]]) -> list[Trial]:
        """Scores of the orderings, from their cells by input."""
        cells = [cell for row in rows.values() for cell in row.values()]
        if all(cell.outcome == FAILED for cell in cells):
            raise self._scorer.nothing_ran(cells, len(rows))
        if all(cell.value is None for cell in cells):
            told = next(cell for cell in cells if cell.outcome != FAILED)
            raise RuntimeError(
                f"none of {len(cells)} calls gave any label a probability, so no order can be told from another; one "
                f"said: {told.error}: {told.message}"
            )
        inputs = list(next(iter(rows.values())))
        kept = [e for e in inputs if all(row[e].outcome != FAILED for row in rows.values())]
        # Where calls failed on every input, orders that lack one are the worst of all.
        whole = {o for o, row in rows.items() if kept or all(c.outcome != FAILED for c in row.values())}
        if not whole:
            raise self._scorer.nothing_ran(cells, len(rows))
        scores = {}
        for ordering in whole:
            table = np.array([self._distribution(rows[ordering][example]) for example in kept or inputs])
            self.means[ordering] = table.mean(axis=0)
            scores[ordering] = float(self._criterion(table))
        worst = min(scores.values())
        return [Trial(o, scores.get(o, worst), len(kept or inputs)) for o in rows]

    def scores(self) -> dict[Ordering, dict[int, float]]:
        """None: the metric has scored no ordering."""
        return {}

    def salvage(self) -> list[Trial]:
        """Nothing: orderings are only comparable when all have met all inputs."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What decides how it goes on, as JSON data."""
        return {"means": [[ordering, mean.tolist()] for ordering, mean in self.means.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.means = {as_ordering(ordering): np.array(mean) for ordering, mean in state["means"]}

    def _cells(self, orderings: Sequence[Ordering], examples: Sequence[int]) -> list[dict[int, Cell]]:
        return self._scorer.cells_each(dict.fromkeys(orderings, examples), deadline=self.deadline)

    def _distribution(self, cell: Cell) -> Array:
        return self._uniform if cell.value is None else np.asarray(cell.value, dtype=np.float64)
