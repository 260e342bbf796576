"""Ends a search whose first scores say that there is nothing to find, or that answers cannot be read."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from plr_dspy.scoring.ledger import FAILED, WRONG, Cell
from plr_dspy.scoring.scorer import CellScorer

logger = logging.getLogger(__name__)

ENOUGH_ANSWERS = 20  # answers from which on most of them say something
UNPARSED, MOSTLY_UNPARSED = 0.9, 0.5  # shares of answers that could not be parsed: to stop at, and to warn of
ENOUGH_SCORES = 60  # scores, all of them the same, that say there is nothing to find
ENOUGH_PAIRS = 250  # pairs of scores of two orders on one example, each pair alike, that say so too


@dataclass
class FirstSigns:
    """Ends a search that can find nothing, before its budget does."""

    scorer: CellScorer  # makes the calls
    num_train: int  # those on so many first examples count
    sample: Callable[[], str] = str  # says one of the program's answers, for messages
    by_scores: bool = True  # whether scores that are all the same say that there is nothing to find
    warned: bool = False  # that many answers could not be parsed

    def check(self) -> str:
        """Say why more scores would be for nothing, or nothing; RuntimeError: hardly any answer could be parsed."""
        by_prompt: dict[str, list[Cell]] = defaultdict(list)
        by_example: dict[int, list[Cell]] = defaultdict(list)
        for (prompt, example), cell in self.scorer.cells_asked().items():
            if example < self.num_train and cell.outcome != FAILED:
                by_prompt[prompt].append(cell)
                by_example[example].append(cell)
        self._check_answers(by_prompt.values())
        return self._equal_scores(by_example.values()) if self.by_scores else ""

    def _check_answers(self, by_prompt: Collection[Sequence[Cell]]) -> None:
        """Raise where hardly any answer could be parsed, and warn where half of them could not."""
        cells = [cell for row in by_prompt for cell in row]
        unparsed = [cell for cell in cells if cell.outcome == WRONG and cell.label_logprobs is None]
        if len(cells) < ENOUGH_ANSWERS or len(unparsed) < MOSTLY_UNPARSED * len(cells):
            return
        said = (
            f"{len(unparsed)} of {len(cells)} answers could not be parsed; one says: {unparsed[0].message}. Try "
            "another adapter (dspy.JSONAdapter(), or PlainTextAdapter for small and base models), a larger max_tokens, "
            "or a larger model"
        )
        readable = any(len(row) > 1 and not any(cell.outcome for cell in row) for row in by_prompt)
        if len(unparsed) >= UNPARSED * len(cells) and not readable:
            raise RuntimeError(said)
        if not self.warned:
            logger.warning("%s", said)
        self.warned = True

    def _equal_scores(self, by_example: Collection[Sequence[Cell]]) -> str:
        """Say why scores, and what a metric over a set reads beside them, show no difference; empty where they do."""
        rows = [[(cell.score or 0.0, repr(cell.value)) for cell in cells] for cells in by_example]
        # Labels that are all wrong, or all right, say it; what a function reads has no score by itself.
        scores = [score for row in rows for score, value in row if not value.startswith("{")]
        pairs = sum(len(row) - 1 for row in rows)
        if len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            what = f"every score was {scores[0]:g} in {len(scores)} calls"
        elif pairs >= ENOUGH_PAIRS and all(len(set(row)) == 1 for row in rows):
            what = f"no score differed between two prompts in {pairs} comparisons"
        else:
            return ""
        logger.warning(
            "%s: going on would pay for nothing. If this is not meant: check that the metric compares the right "
            "fields, and that the demos reach the model. One answer: %s",
            what,
            self.sample() or "not known",
        )
        return what
