"""Scores a program's orders on examples that no optimizer has seen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import dspy
import torch

from plr_dspy.experiments.runs.ranking import Ranking
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
        program: The program, in the order chosen.
        metric: The metric of the optimizer.
        examples: The held-out examples.
        num_threads: Calls under way at once.
        folder: Folder that keeps the calls; None keeps none.
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
        # The digest keeps a file from being read for other examples or another metric.
        name = f"held_out-{digest([list(examples), metric]).removeprefix('#')}.jsonl"
        self._ledger_path = None if folder is None else folder / name
        self._new_scorer = functools.partial(
            program_scorer, program, self.slots, metric=metric, examples=examples, num_threads=num_threads
        )

    def scores(self) -> list[float]:
        """Scores of the program as it is, one for each example."""
        return self.rows([self.slots.space.identity])[0]

    def rows(self, orderings: Sequence[Ordering]) -> list[list[float]]:
        """Score each ordering on each example, ``[orderings, examples]``; a wrong answer counts 0.

        Raises:
            RuntimeError: when a call failed: the next run of the same makes it again.
        """
        ledger = Ledger(self._ledger_path)
        try:
            cells = self._new_scorer(ledger=ledger).cells_each(dict.fromkeys(orderings, self._examples))
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


def ranked_orders(report: Report, held_out: HeldOut) -> Ranking:
    """Rank all orders that can be told apart by the probability that a search gave them.

    Args:
        report: Report of the search.
        held_out: Scores the orders of the program that was searched.
    """
    slots = held_out.slots
    orderings = list(slots.space.enumerate())
    distributions = [distribution_from_state(state) for slot in report.slots for state in slot.distributions]
    log_probs = tuple(
        sum(
            float(distribution.log_prob(torch.tensor(permutation)))
            for distribution, permutation in zip(distributions, ordering, strict=True)
        )
        for ordering in orderings
    )
    orders = tuple(
        tuple(demo for order in slots.permutations(ordering).values() for demo in order)
        for ordering in orderings
    )
    return Ranking(orders, log_probs, tuple(sum(row) / len(row) for row in held_out.rows(orderings)))
