"""Expected scores of all candidates, for the report's comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.run import CompileRun
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots, PromptSlots
from plr_dspy.report.schema import Alternative, RetrievalReport
from plr_dspy.report.stop import StopReason
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.space import Candidate, WholeProgram


@dataclass(frozen=True)
class ExpectedScore:
    """A candidate's expected score on new examples."""

    candidate: Candidate
    revision: Revision | None  # revision of its answers; None if they are unchanged
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


def expected_scores(slots: PromptSlots, run: CompileRun, outcome: Outcome) -> list[ExpectedScore]:
    """Return the expected scores of all scored candidates, best first.

    A score is the unchanged original's score plus the expected gain, so its interval covers the errors of both.
    """
    original = run.original
    decision = outcome.decision
    scores = run.scores()
    if not scores:
        return []
    fitted = decision.fitted or run.search.model.fit(scores, kept=[original, decision.ordering])
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.counted_scores)).sum(axis=1).tolist(), strict=True))
    candidates = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else candidates[0]
    to_metric_scale = decision.scale_of_metric(reference) if run.evaluator.influence is not None else float
    means = fitted.expected_scores(reference)
    uncalibrated_score = to_metric_scale(fitted.as_it_is(reference))
    expected = []
    for candidate in candidates:
        score = to_metric_scale(means[candidate])
        revision = fitted.revision(candidate)
        # List the original uncalibrated if calibration does not improve it, or if it was returned unchanged.
        if candidate == reference and (uncalibrated_score >= score or decision.chosen == 0):
            score = uncalibrated_score
            revision = None
        interval = fitted.interval(candidate, score, reference=reference)
        metric = run.evaluator.influence
        if metric is not None:
            score = metric.clip(score)
            interval = (metric.clip(interval[0]), metric.clip(interval[1]))
        expected.append(
            ExpectedScore(
                candidate,
                revision,
                score,
                interval,
                num_examples=counts[candidate],
                num_demos=slots.num_demos(candidate),
                tokens=slots.tokens(candidate) if isinstance(slots, PoolSlots) else 0,
            )
        )
    return expected


def best_by_number(
    setup: CompileSetup, slots: PoolSlots, expected: Sequence[ExpectedScore], outcome: Outcome
) -> dict[int, ExpectedScore]:
    """Return the best arrangement for each number of demos; the chosen one takes precedence."""
    if outcome.stop.reason is StopReason.ERROR:  # Some scores may come from failed calls.
        return {}
    best: dict[int, ExpectedScore] = {}
    for candidate_score in sorted(expected, key=lambda score: score.candidate != outcome.decision.ordering):
        candidate = candidate_score.candidate
        if candidate == setup.original or slots.space.contains(candidate):
            best.setdefault(candidate_score.num_demos, candidate_score)
    return dict(sorted(best.items()))


def program_scores(slots: PromptSlots, run: CompileRun, outcome: Outcome) -> list[Alternative]:
    """Return the expected scores of the user's programs, best first."""
    if not slots.rivals:
        return []
    entries = []
    for score in expected_scores(slots, run, outcome):
        if score.candidate in slots.rivals:
            entries.append(score.alternative(slots.rivals[score.candidate].name))
    return entries


def compare_ways(
    setup: CompileSetup, slots: RetrievalSlots, expected: Sequence[ExpectedScore], chosen: Candidate
) -> RetrievalReport:
    """Compare fixed, retrieved and no demos by the best candidate of each kind."""
    best: dict[str, ExpectedScore] = {}
    for score in expected:
        if score.candidate in slots.rivals:
            continue
        best.setdefault(_kind_of(setup, slots, score), score)
    variation = None
    text = ""
    if isinstance(chosen, WholeProgram) and slots.variation(chosen) is not None:
        variation = chosen.name
        text = str(slots.variation(chosen))
    return RetrievalReport(
        variation=variation,
        text=text,
        num_pooled=sum(len(pool.demos) for pool in slots.found.values()),
        alternatives=[score.alternative(kind) for kind, score in best.items()],
    )


def _kind_of(setup: CompileSetup, slots: RetrievalSlots, expected: ExpectedScore) -> str:
    """Return the report's name for the kind of demos that a candidate shows."""
    if expected.candidate == setup.original:
        return "your program" if expected.revision is None else f"your program, {expected.revision.adjective}"
    if slots.variation(expected.candidate) is not None:
        return "the best retrieved demos"
    return "the best fixed demos" if expected.num_demos else "no demos"
