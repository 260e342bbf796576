"""Expected scores of the arrangements of demos, and of the ways to show them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.run import CompileRun
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.schema import Alternative, RetrievalReport
from plr_dspy.report.stop import StopReason
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.search.space import Candidate, WholeProgram


@dataclass(frozen=True)
class ExpectedScore:
    """A candidate's expected score on new examples."""

    candidate: Candidate
    offsets: Sequence[float]  # label offsets that calibrate its answers
    score: float
    interval: tuple[float, float]
    num_examples: int  # examples that it was scored on
    num_demos: int
    tokens: int  # tokens of its demos

    def alternative(
        self, name: str, ordering: dict[str, list[int]] | None = None, instructions: dict[str, int] | None = None
    ) -> Alternative:
        """Return the report's entry for the candidate."""
        return Alternative(
            name=name,
            score=round(self.score, 6),
            interval=self.interval,
            num_examples=self.num_examples,
            num_demos=self.num_demos,
            tokens=self.tokens,
            ordering=ordering or {},
            instructions=instructions or {},
        )


def expected_scores(slots: PoolSlots, run: CompileRun, outcome: Outcome) -> list[ExpectedScore]:
    """Return the expected scores of all scored candidates, best first.

    A score is the unchanged original's plus the expected gain, so its interval includes both errors.
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
    scaled = decision.scale_of_metric(reference) if run.evaluator.influence is not None else float
    means = fitted.expected_scores(reference)
    before = scaled(fitted.as_it_is(reference))
    expected = []
    for candidate in candidates:
        score = scaled(means[candidate])
        offsets: Sequence[float] = ()
        # Do not calibrate the original if that is no better, or if it was returned unchanged.
        if candidate == reference and (before >= score or decision.chosen == 0):
            score = before
        elif fitted.calibrating:
            calibration = fitted.calibration(candidate)
            offsets = calibration.offsets if calibration else ()
        interval = fitted.interval(candidate, score, reference=reference)
        metric = run.evaluator.influence
        if metric is not None:
            score = metric.clip(score)
            interval = (metric.clip(interval[0]), metric.clip(interval[1]))
        expected.append(
            ExpectedScore(
                candidate,
                offsets,
                score,
                interval,
                num_examples=counts[candidate],
                num_demos=slots.num_demos(candidate),
                tokens=slots.tokens(candidate),
            )
        )
    return expected


def best_by_number(
    setup: CompileSetup, slots: PoolSlots, expected: Sequence[ExpectedScore], outcome: Outcome
) -> dict[int, ExpectedScore]:
    """Return the best arrangement for each number of demos; the chosen one takes precedence."""
    if outcome.stop.reason is StopReason.ERROR:  # Scores may come from failures.
        return {}
    best: dict[int, ExpectedScore] = {}
    for candidate_score in sorted(expected, key=lambda score: score.candidate != outcome.decision.ordering):
        candidate = candidate_score.candidate
        if candidate == setup.original or slots.space.contains(candidate):
            best.setdefault(candidate_score.num_demos, candidate_score)
    return dict(sorted(best.items()))


def compare_ways(
    setup: CompileSetup, slots: RetrievalSlots, expected: Sequence[ExpectedScore], chosen: Candidate
) -> RetrievalReport:
    """Compare the ways to show demos by the best candidate of each."""
    best: dict[str, ExpectedScore] = {}
    for score in expected:
        best.setdefault(_way_of(setup, slots, score), score)
    variation = None
    text = ""
    if isinstance(chosen, WholeProgram) and slots.variation(chosen) is not None:
        variation = chosen.name
        text = str(slots.variation(chosen))
    return RetrievalReport(
        variation=variation,
        text=text,
        num_pooled=sum(len(pool.demos) for pool in slots.found.values()),
        alternatives=[score.alternative(way) for way, score in best.items()],
    )


def _way_of(setup: CompileSetup, slots: RetrievalSlots, expected: ExpectedScore) -> str:
    """Name the way in which a candidate shows demos."""
    if expected.candidate == setup.original:
        return "your program, calibrated" if expected.offsets else "your program"
    if slots.variation(expected.candidate) is not None:
        return "the best found demos"
    return "the best fixed demos" if expected.num_demos else "no demos"
