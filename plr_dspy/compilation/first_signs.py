"""Ends a search whose first scores say that there is nothing to find, or that answers cannot be read."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from plr_dspy.report.data import Evidence, Iteration
from plr_dspy.scoring.cells import FAILED, WRONG, Cell
from plr_dspy.scoring.scorer import CellScorer

logger = logging.getLogger(__name__)

ENOUGH_ANSWERS = 20
"""Answers from which on most of them say something."""

UNPARSED, MOSTLY_UNPARSED = 0.9, 0.5
"""Shares of answers that could not be parsed: to stop at, and to warn of."""

ENOUGH_SCORES = 60
"""Scores, all of them the same, that say there is nothing to find."""

ENOUGH_PAIRS = 250
"""Pairs of scores of two orders on one example, each pair alike, that say so too."""


class FirstSigns:
    """Ends a search that can find nothing, before its budget does; a stopper of a search.

    Args:
        scorer: Makes the calls.
        num_train: Examples of the train split, the first ones.
        sample: Says one of the program's answers, for messages.
        by_scores: Whether scores that are all the same say that there is nothing to find.

    Attributes:
        nothing_found: Why the search was ended by this; empty if it was not.
    """

    def __init__(
        self,
        scorer: CellScorer,
        *,
        num_train: int,
        sample: Callable[[], str] = str,
        by_scores: bool = True,
    ) -> None:
        self._by_scores = by_scores
        self.nothing_found = ""
        self._scorer = scorer
        self._num_train = num_train
        self._sample = sample
        self._warned = False

    def __call__(self, history: Sequence[Iteration]) -> str | None:
        """Say why to end, or None.

        Raises:
            RuntimeError: when hardly any answer could be parsed, with whatever demos.
        """
        return (self.of_scores() or None) if history else None

    def of_scores(self) -> str:
        """Say why more scores would be for nothing; empty where they would not.

        Raises:
            RuntimeError: when hardly any answer could be parsed.
        """
        by_example = self._by_example()
        self._check_answers()
        if not self._by_scores:
            return ""
        self.nothing_found = self._equal_scores(
            [[cell.score or 0.0 for cell in cells] for cells in by_example.values()]
        )
        return self.nothing_found

    def evidence(self) -> Evidence:
        """What there was to tell orders apart by."""
        met = [[cell.score for cell in cells] for cells in self._by_example().values() if len(cells) > 1]
        return Evidence(
            num_met=len(met), num_differing=sum(len(set(scores)) > 1 for scores in met), num_compared=0
        )

    def _by_example(self) -> dict[int, list[Cell]]:
        by_example: dict[int, list[Cell]] = defaultdict(list)
        for _, example, cell in self._told():
            by_example[example].append(cell)
        return by_example

    def _told(self) -> list[tuple[str, int, Cell]]:
        """The prompt, the example and the cell of each call of the train split that did not fail."""
        cells = self._scorer.cells_asked().items()
        return [(p, e, cell) for (p, e), cell in cells if e < self._num_train and cell.outcome != FAILED]

    def _check_answers(self) -> None:
        by_prompt: dict[str, list[Cell]] = defaultdict(list)
        for prompt, _, cell in self._told():
            by_prompt[prompt].append(cell)
        cells = [cell for row in by_prompt.values() for cell in row]
        unparsed = [cell for cell in cells if cell.outcome == WRONG and cell.label_logprobs is None]
        if len(cells) < ENOUGH_ANSWERS or len(unparsed) < MOSTLY_UNPARSED * len(cells):
            return
        said = (
            f"{len(unparsed)} of {len(cells)} answers could not be parsed; one says: {unparsed[0].message}. Try "
            "another adapter (dspy.JSONAdapter(), or PlainTextAdapter for small and base models), a larger max_tokens, "
            "or a larger model"
        )
        readable = any(len(row) > 1 and not any(cell.outcome for cell in row) for row in by_prompt.values())
        if len(unparsed) >= UNPARSED * len(cells) and not readable:
            raise RuntimeError(said)
        if not self._warned:
            logger.warning("%s", said)
        self._warned = True

    def _equal_scores(self, rows: Sequence[Sequence[float]]) -> str:
        """Why nothing can be found by scores that are equal; empty where they are not."""
        scores = {score for row in rows for score in row}
        num_scores, pairs = sum(map(len, rows)), sum(len(row) - 1 for row in rows)
        if len(scores) == 1 and num_scores >= ENOUGH_SCORES:
            what = f"every score was {scores.pop():g} in {num_scores} calls"
        elif pairs >= ENOUGH_PAIRS and all(len(set(row)) == 1 for row in rows):
            what = f"no score differed between two prompts in {pairs} comparisons"
        else:
            return ""
        logger.warning(
            "%s: going on would pay for nothing. If this is not meant: check that the metric compares the right "
            "fields, and that the demos reach the model. One answer: %s",
            what,
            self._sample() or "not known",
        )
        return what
