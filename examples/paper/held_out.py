"""Scores a program's orders on examples that no optimizer has seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.scoring.run_log import FAILED, RunLog
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.space import Ordering


def digest(examples: Sequence[dspy.Example]) -> str:
    """A name for these examples, in this order."""
    text = json.dumps([example.toDict() for example in examples], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class HeldOut:
    """A program in the order chosen, and the calls on held-out examples; a folder keeps them, for one metric alone."""

    def __init__(
        self,
        program: dspy.Module,
        *,
        metric: Any,
        examples: Sequence[dspy.Example],
        num_threads: int,
        folder: Path | None = None,
    ) -> None:
        self.slots = ProgramSlots(program)
        self._examples = range(len(examples))
        self._path = None if folder is None else folder / f"held_out-{digest(examples)}.jsonl"
        self._work, self._num_threads = MetricWork(metric, examples), num_threads

    def scores(self) -> list[float]:
        """Scores of the program as it is, one for each example."""
        return self.rows([self.slots.space.identity])[0]

    def rows(self, orderings: Sequence[Ordering]) -> list[list[float]]:
        """Score each ordering on each example, ``[orderings, examples]``; the next run repeats calls that failed."""
        log, names = RunLog(self._path), [str(number) for number in self._examples]
        log.number_examples(names)
        evaluator = ProgramEvaluator(self.slots, self._work, names=names, log=log, num_threads=self._num_threads)
        try:
            cells = CellScorer(evaluator).cells(dict.fromkeys(orderings, self._examples))
            failed = [cell for row in cells.values() for cell in row.values() if cell.outcome == FAILED]
            if failed:
                log.repeat_failed()
                raise RuntimeError(
                    f"{len(failed)} held-out calls failed, the first by {failed[0].error}: {failed[0].message}; "
                    "run the same again to repeat them"
                )
            return [[cell.score or 0.0 for cell in row.values()] for row in cells.values()]
        finally:
            log.close()
