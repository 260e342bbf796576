"""Scores a program's orders on examples that no optimizer has seen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import torch

from plr_dspy.orderings.plackett_luce import distribution_from_state
from plr_dspy.orderings.space import Ordering
from plr_dspy.programs.calls import Metric
from plr_dspy.programs.digest.description import digest
from plr_dspy.programs.evaluator import program_scorer
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.report.report import Report
from plr_dspy.scoring.cells import FAILED
from plr_dspy.scoring.ledger import Ledger


class HeldOut:
    """Held-out examples, and the calls on them.

    Args:
        program: In the order chosen.
        metric: As the optimizer's.
        examples: The held-out ones.
        num_threads: Calls under way at once.
        folder: Keeps the calls; None keeps none.
    """

    def __init__(
        self,
        program: dspy.Module,
        *,
        metric: Metric,
        examples: Sequence[dspy.Example],
        num_threads: int,
        folder: Path | None = None,
    ) -> None:
        self.slots = ProgramSlots(program)
        self._examples = range(len(examples))
        # Of other examples, or by another metric, the scores of a file would be others.
        name = f"held_out-{digest([list(examples), metric]).removeprefix('#')}.jsonl"
        self._ledger_path = None if folder is None else folder / name
        self._new_scorer = functools.partial(
            program_scorer, program, self.slots, metric=metric, examples=examples, num_threads=num_threads
        )

    def scores(self) -> list[float]:
        """Of the program as it is, by example."""
        return self.rows([self.slots.space.identity])[0]

    def rows(self, orderings: Sequence[Ordering]) -> list[list[float]]:
        """Scores by example of each ordering; a wrong answer counts 0.

        Raises:
            RuntimeError: when a call failed: the next run of the same makes it again.
        """
        ledger = Ledger(self._ledger_path)
        try:
            scorer = self._new_scorer(ledger=ledger)
            cells = scorer.cells_each(dict.fromkeys(orderings, self._examples))
            failed = [cell for row in cells for cell in row.values() if cell.outcome == FAILED]
            if failed:
                ledger.retry()
                raise RuntimeError(
                    f"{len(failed)} held-out calls failed, the first by {failed[0].error}: {failed[0].message}; "
                    "run the same again to repeat them"
                )
            return [[cell.score or 0.0 for cell in row.values()] for row in cells]
        finally:
            ledger.close()


def ranked_orders(report: Report, held_out: HeldOut) -> dict[str, Any]:
    """All orders that can be told apart, by the probability that a search gave them.

    Args:
        report: Of the search.
        held_out: Scores the orders of the program that was searched.

    Returns:
        As plain data: "orders", demo indices by position; "log_probs", of the learnt distribution; "accuracies", on
        the held-out examples; "original", the index of the order given.
    """
    orderings = list(held_out.slots.space.enumerate())
    states = [state for slot in report.slots for state in slot.distributions]
    distributions = [distribution_from_state(state) for state in states]
    log_probs = [
        sum(
            float(distribution.log_prob(torch.tensor(permutation)))
            for distribution, permutation in zip(distributions, ordering, strict=True)
        )
        for ordering in orderings
    ]
    accuracies = [sum(row) / len(row) for row in held_out.rows(orderings)]
    return {
        "orders": [
            [i for order in held_out.slots.permutations(ordering).values() for i in order]
            for ordering in orderings
        ],
        "log_probs": log_probs,
        "accuracies": accuracies,
        "original": orderings.index(held_out.slots.space.identity),
    }
