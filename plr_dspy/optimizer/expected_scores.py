"""Expected scores of all candidates, for the report's comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.run import CompileRun
from plr_dspy.programs.slots import PoolSlots, PromptSlots
from plr_dspy.report.schema import Alternative, PromptKind, RetrievalReport, ScoreRange
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate, WholeProgram


@dataclass(frozen=True)
class ExpectedScore:
    """A candidate's expected score on new examples."""

    candidate: Candidate
    kind: PromptKind
    revision: Revision | None  # revision of its answers; None if they are unchanged
    score: float
    interval: tuple[float, float]
    num_examples: int  # examples that it was scored on
    num_demos: int
    tokens: int  # tokens of its demos
    prompt_tokens: int = 0  # tokens of its prompts without inputs, once counted
    cost: float | None = None  # dollars for 1,000 predictions; None if unknown

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


def fitted_model(run: CompileRun, outcome: Outcome) -> FittedModel | None:
    """Return the model fitted to all scores; None if there are none."""
    scores = run.scores()
    if not scores:
        return None
    decision = outcome.decision
    return decision.fitted or run.search.model.fit(scores, kept=[run.original, decision.ordering])


def expected_scores(
    slots: PromptSlots, run: CompileRun, outcome: Outcome, fitted: FittedModel | None
) -> list[ExpectedScore]:
    """Return the expected scores of all scored candidates, best first.

    A score is the unchanged original's score plus the expected gain, so its interval covers
    the errors of both.
    """
    original = run.original
    decision = outcome.decision
    if fitted is None:
        return []
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.counted_scores)).sum(axis=1).tolist(), strict=True))
    candidates = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else candidates[0]
    to_metric_scale = decision.scale_of_metric(reference) if run.evaluator.influence is not None else float
    means = fitted.expected_scores(reference)
    uncalibrated_score = to_metric_scale(fitted.as_it_is(reference))
    compared = _compared(outcome, original)
    expected = []
    for candidate in candidates:
        score = to_metric_scale(means[candidate])
        revision = fitted.revision(candidate)
        # List the original uncalibrated if calibration does not improve it, or if it was
        # returned unchanged.
        if candidate == reference and (uncalibrated_score >= score or decision.chosen == 0):
            score = uncalibrated_score
            revision = None
        interval = fitted.interval(candidate, score, reference=reference)
        metric = run.evaluator.influence
        if metric is not None:
            score = metric.clip(score)
            interval = (metric.clip(interval[0]), metric.clip(interval[1]))
        if candidate in compared and (candidate != original or revision is None):
            score, low, high = compared[candidate]
            interval = (low, high)
        expected.append(
            ExpectedScore(
                candidate,
                _kind_of(slots, original, candidate),
                revision,
                score,
                interval,
                num_examples=counts[candidate],
                num_demos=slots.num_demos(candidate),
                tokens=slots.tokens(candidate) if isinstance(slots, PoolSlots) else 0,
            )
        )
    return sorted(expected, key=lambda entry: -entry.score)


def _compared(outcome: Outcome, original: Candidate) -> dict[Candidate, ScoreRange]:
    """Return the expected scores in the final comparison, so that a report shows one score for each program."""
    comparison = outcome.decision.comparison
    scores: dict[Candidate, ScoreRange] = {}
    if comparison is not None and comparison.expected_chosen is not None:
        scores[outcome.decision.ordering] = comparison.expected_chosen
    if comparison is not None and comparison.expected_original is not None:
        scores[original] = comparison.expected_original
    return scores


def _kind_of(slots: PromptSlots, original: Candidate, candidate: Candidate) -> PromptKind:
    """Return what a candidate is."""
    if candidate == original:
        return "original"
    if candidate in slots.rivals:
        return "program"
    if isinstance(slots, RetrievalSlots) and slots.variation(candidate) is not None:
        return "retrieved"
    return "fixed"


def best_of_each(slots: PoolSlots, expected: Sequence[ExpectedScore], chosen: Candidate) -> list[ExpectedScore]:
    """Return the best candidate for each number of demos, instruction and kind; the chosen one takes precedence."""
    best: dict[Any, ExpectedScore] = {}
    for score in sorted(expected, key=lambda score: score.candidate != chosen):
        name = score.candidate if score.kind == "program" else score.kind
        instructions = slots.instructions(score.candidate)
        best.setdefault((name, score.num_demos, *instructions.values()), score)
    return list(best.values())


def program_scores(slots: PromptSlots, run: CompileRun, outcome: Outcome) -> list[Alternative]:
    """Return the expected scores of the user's programs, best first."""
    if not slots.rivals:
        return []
    entries = []
    for score in expected_scores(slots, run, outcome, fitted_model(run, outcome)):
        if score.candidate in slots.rivals:  # In a race, this includes the original.
            entries.append(score.alternative(slots.rivals[score.candidate].name))
    return entries


def compare_ways(slots: RetrievalSlots, expected: Sequence[ExpectedScore], chosen: Candidate) -> RetrievalReport:
    """Compare fixed, retrieved and no demos by the best candidate of each kind."""
    best: dict[str, ExpectedScore] = {}
    for score in expected:
        if score.kind != "program":
            best.setdefault(_way_of(score), score)
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


def _way_of(expected: ExpectedScore) -> str:
    """Return the report's name for the kind of demos that a candidate shows."""
    if expected.kind == "original":
        return "your program" if expected.revision is None else "your program, calibrated"
    if expected.kind == "retrieved":
        return "the best retrieved demos"
    return "the best fixed demos" if expected.num_demos else "no demos"
