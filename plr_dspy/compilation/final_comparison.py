"""The final comparison: a few orderings meet the original one on the selection split, and the best may replace it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate
from plr_dspy.report.schema import Comparison
from plr_dspy.report.text import MIN_PROBABILITY
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.search import Search
from plr_dspy.search.surrogate.fitted_model import DEVIATIONS, FittedModel, Gain, Scores
from plr_dspy.statistics.comparisons import paired_interval

logger = logging.getLogger(__name__)

CONFIDENCE = 0.95

MIN_COMPARED = 8
"""Examples of the final comparison, at least, where there are so many."""


@dataclass(frozen=True)
class Finalist:
    """An ordering that meets the others on the selection split.

    Attributes:
        origin: "original", "best seen" (in a racing plan, in the race), "mode" or "draw"; or "calibrated", which is the
            original with its answers calibrated, where it is scored without.
    """

    origin: str
    ordering: Ordering


@dataclass(frozen=True)
class Result:
    """What a finalist came to.

    Attributes:
        finalist: The ordering and where it comes from.
        score: Its mean score on the selection split.
        gain: What is expected of it beside the original one on new examples; of the original itself, nothing. It
            reaches no further than the highest and the lowest score.
        beyond: How much further the estimate of the gain reaches; it counts where gains are compared.
        offsets: Of the labels, that calibrate it; empty where it is not to be calibrated.
    """

    finalist: Finalist
    score: float
    gain: Gain
    offsets: tuple[float, ...] = ()
    beyond: float = 0.0


def finalists(
    search: Search,
    best_seen: Sequence[ScoreEstimate],
    *,
    original: Ordering,
    num_draws: int,
    with_mode: bool = True,
) -> list[Finalist]:
    """The original order, the best orders seen, the mode, and draws; each ordering once.

    Deviation: PLR Algorithm 1 compares the draws alone, and can end with an order worse than the
    original or than one it has seen.

    Args:
        search: After its last round.
        best_seen: What it takes for its best orderings.
        original: What the user has.
        num_draws: Draws from the final distribution (K).
        with_mode: Whether the mode is one of them.
    """
    entries = [
        Finalist("original", original),
        *(Finalist("best seen", trial.ordering) for trial in best_seen),
        *([Finalist("mode", search.mode())] if with_mode else []),
        *(Finalist("draw", ordering) for ordering in search.draw(num_draws)),
    ]
    distinct: dict[Ordering, Finalist] = {}
    for entry in entries:
        distinct.setdefault(entry.ordering, entry)
    return list(distinct.values())


def affordable_examples(
    examples: Sequence[int], cost: Callable[[Sequence[int]], int], left: int
) -> list[int]:
    """The examples that the calls left pay for, in their order; of too many, those that cost least.

    Args:
        examples: Of the comparison.
        cost: Program calls that comparing all orderings on some of them would make.
        left: Program calls left.
    """
    if cost(examples) <= left:
        return list(examples)
    costs = {example: cost([example]) for example in examples}
    cheapest = sorted(examples, key=lambda example: costs[example])
    total = itertools.accumulate(costs[example] for example in cheapest)
    kept = {example for example, spent in zip(cheapest, total, strict=True) if spent <= left}
    return [example for example in examples if example in kept]


class Compared(NamedTuple):
    """What the final comparison has scored.

    Attributes:
        examples: Those on which any ordering was scored.
        rows: Scores on them of each ordering; of the first ones only where the time was up.
        cut: Whether the time was up before all orderings were scored.
    """

    examples: list[int]
    rows: list[list[float]]
    cut: bool


def compare(
    scorer: CellScorer,
    orderings: Sequence[Ordering],
    examples: Sequence[int],
    *,
    max_program_calls: int,
    deadline: float | None,
) -> Compared:
    """Score orderings on as many of the examples as the calls left pay for.

    Args:
        scorer: Of the program's orderings.
        orderings: The original first: its failed calls count as the best score of the others.
        examples: Of the comparison.
        max_program_calls: Of the scorer's, those made before included.
        deadline: No call begins when `time.monotonic` has come to this.

    Returns:
        The scores; no rows where the calls pay for no example.
    """
    left = max(0, max_program_calls - scorer.program_calls)
    affordable = affordable_examples(examples, lambda some: scorer.cost(orderings, some), left)
    if not affordable:
        return Compared([], [], cut=False)
    ran, rows = scorer.table(orderings, affordable, favoured=0, deadline=deadline)
    cut = len(rows) < len(orderings)
    if cut:
        logger.warning("%d of %d finalists could be compared before the end", len(rows), len(orderings))
    else:
        scorer.ledger.settle()
    return Compared(ran, rows, cut)


def merge_scores(known: Scores, compared: Scores) -> Scores:
    """Scores by example of all orderings: those known before, and those of the comparison."""
    return {
        ordering: {**known.get(ordering, {}), **compared.get(ordering, {})}
        for ordering in {**known, **compared}
    }


def make_results(
    entries: Sequence[Finalist], rows: Sequence[Sequence[float]], fitted: FittedModel
) -> list[Result]:
    """What the first entries came to, those that have rows of scores.

    Args:
        entries: The original first.
        rows: Of scores, one for each of the first entries.
        fitted: To all scores known.
    """
    original = entries[0].ordering
    estimates, expected = fitted.gains(original), fitted.expected_scores(original)
    before = fitted.as_it_is(original)

    def result(entry: Finalist, row: Sequence[float]) -> Result:
        as_it_is = entry is entries[0] and fitted.calibrating
        estimate = Gain(0.0, 0.0) if as_it_is else estimates[entry.ordering]
        gain = 0.0 if as_it_is else round(expected[entry.ordering] - before, 9)
        found = None if as_it_is else fitted.calibration(entry.ordering)
        return Result(
            entry,
            math.fsum(row) / len(row),
            replace(estimate, expected=gain),
            () if found is None else found.offsets,
            beyond=round(estimate.expected - gain, 9),
        )

    return [result(entry, row) for entry, row in zip(entries, rows, strict=False)]


def choose(results: Sequence[Result], *, min_probability: float = MIN_PROBABILITY) -> int:
    """The number of the result that is expected to score best on new examples; among equals the first.

    Args:
        results: Of the finalists, the original first.
        min_probability: Of being better than the original as it is, and than the original calibrated where answers are
            calibrated: those with less of either are not chosen.
    """
    gains = [result.gain for result in results]
    sure = [
        i
        for i, gain in enumerate(gains)
        if not i or min(gain.probability, gain.probability_calibrated) >= min_probability
    ]
    return max(sure, key=lambda i: (results[i].gain.expected + results[i].beyond, -i))


def comparison(
    original: Sequence[float],
    chosen: Sequence[float],
    *,
    num_candidates: int,
    gain: Gain,
    expected_original: tuple[float, float, float] | None = None,
    expected_chosen: tuple[float, float, float] | None = None,
) -> Comparison:
    """Compare two orderings by their scores on the same examples.

    Args:
        original, chosen: Scores by example.
        num_candidates: Orderings among which the chosen one was the best, the original included.
        gain: What is expected of the chosen one on new examples.
        expected_original, expected_chosen: As attributes of a `Comparison`.
    """
    gains = [b - a for a, b in zip(original, chosen, strict=True)]
    margin = DEVIATIONS * gain.deviation
    scores = [0.0, 1.0, *original, *chosen]
    largest = max(scores) - min(scores)
    low, high = paired_interval(gains, CONFIDENCE, num_comparisons=max(1, num_candidates - 1))
    return Comparison(
        original=sum(original) / len(original),
        chosen=sum(chosen) / len(chosen),
        gain=sum(gains) / len(gains),
        interval=(max(low, -largest), min(high, largest)),
        confidence=CONFIDENCE,
        num_examples=len(gains),
        num_candidates=num_candidates,
        expected_gain=gain.expected,
        probability=gain.probability,
        gain_interval=(round(gain.expected - margin, 6), round(gain.expected + margin, 6)),
        expected_original=expected_original,
        expected_chosen=expected_chosen,
    )
