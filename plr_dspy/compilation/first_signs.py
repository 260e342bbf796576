"""Ends a search whose first scores say that there is nothing to find, or that answers cannot be read."""

import logging
from collections import defaultdict
from collections.abc import Callable
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
    found: str = ""  # why more scores would be for nothing, as `check` said it last

    def check(self) -> str:
        """Say why more scores would be for nothing, or nothing; RuntimeError: hardly any answer could be parsed."""
        by_prompt: dict[str, list[Cell]] = defaultdict(list)
        by_example: dict[int, list[Cell]] = defaultdict(list)
        for (prompt, example), cell in self.scorer.cells_asked().items():
            if example < self.num_train and cell.outcome != FAILED:
                by_prompt[prompt].append(cell)
                by_example[example].append(cell)
        cells = [cell for row in by_prompt.values() for cell in row]
        unparsed = [cell for cell in cells if cell.outcome == WRONG and cell.label_logprobs is None]
        if len(cells) >= ENOUGH_ANSWERS and len(unparsed) >= MOSTLY_UNPARSED * len(cells):
            said = (
                f"{len(unparsed)} of {len(cells)} answers could not be parsed; one says: {unparsed[0].message}. Try "
                "another adapter (dspy.JSONAdapter(), or PlainTextAdapter for small and base models), a larger "
                "max_tokens, or a larger model"
            )
            readable = any(len(row) > 1 and not any(cell.outcome for cell in row) for row in by_prompt.values())
            if len(unparsed) >= UNPARSED * len(cells) and not readable:
                raise RuntimeError(said)
            if not self.warned:
                logger.warning("%s", said)
            self.warned = True
        # What a metric over a set reads beside scores tells answers apart, too.
        rows = [[(cell.score or 0.0, repr(cell.value)) for cell in row] for row in by_example.values()]
        # Labels that are all wrong, or all right, say it; what a function reads has no score by itself.
        scores = [score for row in rows for score, value in row if not value.startswith("{")]
        pairs = sum(len(row) - 1 for row in rows)
        if self.by_scores and len(scores) >= ENOUGH_SCORES and len(set(scores)) == 1:
            self.found = f"every score was {scores[0]:g} in {len(scores)} calls"
        elif self.by_scores and pairs >= ENOUGH_PAIRS and all(len(set(row)) == 1 for row in rows):
            self.found = f"no score differed between two prompts in {pairs} comparisons"
        if self.found:
            logger.warning(
                "%s: going on would pay for nothing. If this is not meant: check that the metric compares the right "
                "fields, and that the demos reach the model. One answer: %s",
                self.found,
                self.sample() or "not known",
            )
        return self.found
