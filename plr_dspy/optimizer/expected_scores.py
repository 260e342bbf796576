"""What all scores let one expect of the arrangements of demos, and of the ways to show them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.run import CompileRun
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.schema import Alternative, RetrievalReport
from plr_dspy.report.stop import StopReason
from plr_dspy.retrieval.slots import NEAREST_LAST, RetrievalSlots
from plr_dspy.scoring.budget import price_of
from plr_dspy.search.space import Candidate, WholeProgram


class ExpectedScore(NamedTuple):
    """What a candidate is expected to score on new examples."""

    candidate: Candidate
    offsets: Sequence[float]  # of labels, which calibrate it
    score: float
    interval: tuple[float, float]
    num_examples: int  # that it was scored on
    tokens: int  # of its demos

    def alternative(self, name: str) -> Alternative:
        """Return the part of a report that says so."""
        return Alternative(
            name=name,
            score=round(self.score, 6),
            interval=self.interval,
            num_examples=self.num_examples,
            tokens=self.tokens,
        )


def expected_scores(slots: PoolSlots, run: CompileRun, outcome: Outcome) -> list[ExpectedScore]:
    """Return what all scored candidates are expected to score, best first.

    A score is that of the original as it is and the expected gain over it, so that its interval has the error of both
    means.
    """
    original = run.original
    decision = outcome.decision
    scores = run.scores()
    if not scores:
        return []
    fitted = decision.fitted or run.search.model.fit(scores, kept=[original, decision.ordering])
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.table)).sum(axis=1).tolist(), strict=True))
    candidates = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else candidates[0]
    before = fitted.as_it_is(reference)
    means = fitted.expected_scores(reference)
    metric = run.evaluator.influence
    if metric is not None:
        scaled = decision.scale_of_metric(reference)
        means = {candidate: scaled(mean) for candidate, mean in means.items()}
        before = scaled(before)
    expected = []
    for candidate in candidates:
        score = means[candidate]
        offsets: Sequence[float] = ()
        # The original is not calibrated if that is not better, or it was returned as it was.
        if candidate == reference and (before >= score or decision.chosen == 0):
            score = before
        elif fitted.calibrating:
            calibration = fitted.calibration(candidate)
            offsets = calibration.offsets if calibration else ()
        interval = fitted.interval(candidate, score, reference=reference)
        if metric is not None:
            score = metric.clip(score)
            interval = (metric.clip(interval[0]), metric.clip(interval[1]))
        expected.append(ExpectedScore(candidate, offsets, score, interval, counts[candidate], slots.tokens(candidate)))
    return expected


def best_by_number(
    setup: CompileSetup, slots: PoolSlots, expected: Sequence[ExpectedScore], outcome: Outcome
) -> dict[int, ExpectedScore]:
    """Return the best arrangement of each number of demos; the chosen one comes before all with as many demos."""
    if outcome.stop.reason is StopReason.ERROR:  # Scores may be those of failures.
        return {}
    best: dict[int, ExpectedScore] = {}
    for each in sorted(expected, key=lambda each: each.candidate != outcome.decision.ordering):
        if each.candidate == setup.original or slots.space.contains(each.candidate):
            best.setdefault(slots.num_demos(each.candidate), each)
    return dict(sorted(best.items()))


def alternative_of_number(slots: PoolSlots, number: int, best: ExpectedScore) -> Alternative:
    """Return the part of a report for the best arrangement of a number of demos."""
    ordering = slots.shown(best.candidate)
    return best.alternative(f"{number} demos").model_copy(update={"num_demos": number, "ordering": ordering})


def compare_ways(
    setup: CompileSetup, slots: RetrievalSlots, expected: Sequence[ExpectedScore], chosen: Candidate
) -> RetrievalReport:
    """Compare the ways to show demos by the best of each."""
    best: dict[str, ExpectedScore] = {}
    for each in expected:
        best.setdefault(_way_of(setup, slots, each), each)
        if _name_of(each.candidate) == NEAREST_LAST:
            best["the nearest demos, nearest last"] = each
    models = {str(lm.model) for lm in setup.models}
    price = price_of(*models) if len(models) == 1 else None
    alternatives = []
    for way, each in best.items():
        found_tokens = slots.found_tokens(each.candidate)
        cost = None if price is None else 1_000 * each.tokens * price["prompt"]
        alternatives.append(each.alternative(way).model_copy(update={"found_tokens": found_tokens, "cost": cost}))
    variation = slots.variation(chosen)
    return RetrievalReport(
        variation=None if variation is None else _name_of(chosen),
        text="" if variation is None else str(variation),
        num_pooled=sum(len(pool.demos) for pool in slots.found.values()),
        alternatives=alternatives,
    )


def _way_of(setup: CompileSetup, slots: RetrievalSlots, expected: ExpectedScore) -> str:
    """Return the way in which a candidate shows demos."""
    candidate = expected.candidate
    if candidate == setup.original:
        return "your program, calibrated" if expected.offsets else "your program"
    if slots.variation(candidate) is not None:
        return "the best found demos"
    return "the best fixed demos" if slots.num_demos(candidate) else "no demos"


def _name_of(candidate: Candidate) -> str:
    """Return the name of a whole program; empty for an arrangement."""
    return candidate.name if isinstance(candidate, WholeProgram) else ""
