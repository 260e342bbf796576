"""Scores for orders of a program's demos, on examples that no optimizer has seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import dspy
import torch

from plr_dspy import PlackettLuce, Report
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import FAILED, CallRecord, RunLog
from plr_dspy.search.space import Ordering, WholeProgram

from .results import Ranking


def digest(examples: Sequence[dspy.Example]) -> str:
    """Return a digest of the examples in this order."""
    text = json.dumps([example.toDict() for example in examples], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class HeldOut:
    """A program and the held-out examples on which it is scored.

    If `folder` is given, finished calls are saved in this folder and never repeated. Use a separate
    folder for each metric, because the folder contains scores.
    """

    def __init__(
        self,
        program: dspy.Module,
        *,
        metric: Callable[..., float],
        examples: Sequence[dspy.Example],
        num_threads: int,
        folder: Path | None = None,
    ) -> None:
        self.slots = ProgramSlots(program)
        self._work = MetricWork(metric, examples)
        self._examples = range(len(examples))
        self._num_threads = num_threads
        self._path = None
        if folder is not None:
            self._path = folder / f"held_out-{digest(examples)}.jsonl"

    def scores(self) -> list[float]:
        """Return the score of the program on each example."""
        return self.rows([self.slots.space.identity])[0]

    def rows(self, orderings: Sequence[Ordering]) -> list[list[float]]:
        """Return the scores of orderings on all examples, ``[orderings, examples]``.

        Raises:
            RuntimeError: If any call failed. The next run repeats only the failed calls.
        """
        log = RunLog(self._path)
        names = [str(number) for number in self._examples]
        log.number_examples(names)
        evaluator = ProgramEvaluator(
            self.slots, self._work, names=names, log=log, num_threads=self._num_threads
        )
        try:
            rows = Evaluator(evaluator).evaluate(dict.fromkeys(orderings, self._examples))
            failed = []
            for row in rows.values():
                failed += [cell for cell in row.values() if cell.outcome == FAILED]
            if failed:
                raise RuntimeError(
                    f"{len(failed)} of the held-out calls failed, the first with {failed[0].error}: "
                    f"{failed[0].message}. Run the command again to repeat them."
                )
            return [_scores(row.values()) for row in rows.values()]
        finally:
            log.close()


def rank_orders(report: Report, held_out: HeldOut) -> Ranking:
    """Return all distinct orders, with their final log-probabilities and held-out accuracies."""
    orderings = [order for order in held_out.slots.space.enumerate() if not isinstance(order, WholeProgram)]
    distributions = [
        PlackettLuce.from_state(state) for slot in report.slots for state in slot.distributions
    ]
    orders = []
    log_probabilities = []
    for ordering in orderings:
        order: list[int] = []
        for permutation in held_out.slots.permutations(ordering).values():
            order += permutation
        orders.append(tuple(order))
        parts = zip(distributions, ordering, strict=True)
        log_probabilities.append(sum(float(part.log_prob(torch.tensor(block))) for part, block in parts))
    accuracies = [sum(row) / len(row) for row in held_out.rows(orderings)]
    return Ranking(tuple(orders), tuple(log_probabilities), tuple(accuracies))


def _scores(records: Iterable[CallRecord]) -> list[float]:
    """Return the scores of call records. A reply that could not be parsed scores 0."""
    return [record.score or 0.0 for record in records]
