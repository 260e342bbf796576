"""The expected scores of all candidates, for the report's comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plr_dspy.compiling.choice import Decision, Outcome
from plr_dspy.compiling.run import CompileRun
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.slots import PoolSlots, PromptSlots
from plr_dspy.report.formats import count
from plr_dspy.report.prompts import InstructionReport, InstructionScore
from plr_dspy.report.schema import Alternative, PromptKind, ScoreRange
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.scoring.causes import cause_of
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import WRONG
from plr_dspy.search.model.answers import Revision
from plr_dspy.search.model.ordering_model import FittedModel
from plr_dspy.search.space import Candidate, WholeProgram


@dataclass(frozen=True)
class ExpectedScore:
    """A candidate's expected score on new examples.

    Attributes:
        kind: The kind of prompt, such as "original" or "retrieved".
        revision: The revision of the candidate's answers, such as calibration. None if the
            answers are unchanged.
        entry: The candidate's entry in the report.
    """

    candidate: Candidate
    kind: PromptKind
    revision: Revision | None
    entry: Alternative


def fitted_model(run: CompileRun, outcome: Outcome) -> FittedModel | None:
    """Return the score model fitted to all scores, or None if there are no scores."""
    scores = run.scores_for_search()
    if not scores:
        return None
    return outcome.decision.fitted or run.search.model.fit(scores)


def expected_scores(
    slots: PromptSlots, run: CompileRun, outcome: Outcome, fitted: FittedModel | None
) -> list[ExpectedScore]:
    """Return the expected scores of all scored candidates, best first."""
    if fitted is None:
        return []
    scores = _CandidateScores(run, outcome, fitted)
    counts = dict(
        zip(fitted.orderings, (~np.isnan(fitted.counted_scores)).sum(axis=1).tolist(), strict=True)
    )
    expected = []
    for candidate, _ in fitted.estimates():
        score, interval, revision = scores.of(candidate)
        kind = _kind_of(slots, run.original, candidate)
        entry = Alternative(
            name=_name(slots, candidate, kind, revision),
            score=round(score, 6),
            interval=interval,
            num_examples=counts[candidate],
            num_demos=slots.num_demos(candidate),
            tokens=slots.tokens(candidate) if isinstance(slots, PoolSlots) else 0,
            ordering=slots.shown(candidate),
            instructions=slots.instructions(candidate),
            num_unread=num_unread(run.evaluator, candidate, calibrated=revision is not None),
        )
        expected.append(ExpectedScore(candidate, kind, revision, entry))
    return sorted(expected, key=lambda score: -score.entry.score)


class _CandidateScores:
    """The candidates' expected scores with their 95% intervals, on the metric's scale.

    A candidate's score is the score of the unchanged original plus the candidate's expected gain.
    The interval reflects the uncertainty of both.
    """

    def __init__(self, run: CompileRun, outcome: Outcome, fitted: FittedModel) -> None:
        self._original = run.original
        self._decision = outcome.decision
        self._fitted = fitted
        self._metric = run.evaluator.confusion_scores
        self._compared = _compared(outcome, run.original)
        # If the original has no scores, gains are relative to the best candidate.
        is_scored = run.original in fitted.orderings
        self._reference = run.original if is_scored else fitted.estimates()[0].ordering
        self._to_metric_scale: Callable[[float], float] = float
        if self._metric is not None:
            self._to_metric_scale = self._decision.scale_of_metric(self._reference)
        self._means = fitted.expected_scores(self._reference)
        self._uncalibrated_score = self._to_metric_scale(fitted.as_it_is(self._reference))

    def of(self, candidate: Candidate) -> tuple[float, tuple[float, float], Revision | None]:
        """Return a candidate's expected score, its interval, and the revision of the candidate's answers."""
        revision = None if self._is_listed_uncalibrated(candidate) else self._fitted.revision(candidate)
        # For the original, the final comparison contains only the uncalibrated score.
        fits_comparison = revision is None or candidate != self._original
        if fits_comparison and candidate in self._compared:
            score, low, high = self._compared[candidate]
            return score, (low, high), revision
        score = self._score(candidate)
        low, high = self._fitted.interval(candidate, score, reference=self._reference)
        if self._metric is None:
            return score, (low, high), revision
        return self._metric.clip(score), (self._metric.clip(low), self._metric.clip(high)), revision

    def _score(self, candidate: Candidate) -> float:
        """Return a candidate's expected score. For the best user program, take it from the decision."""
        if candidate == self._decision.best_user_program:
            return _score_of_best_user_program(self._decision)
        if self._is_listed_uncalibrated(candidate):
            return self._uncalibrated_score
        return self._to_metric_scale(self._means[candidate])

    def _is_listed_uncalibrated(self, candidate: Candidate) -> bool:
        """Return whether a candidate is the reference and is listed with its uncalibrated score.

        The reference is listed this way if calibration does not improve its score, or if the
        original was returned unchanged.
        """
        if candidate != self._reference:
            return False
        calibrated_score = self._to_metric_scale(self._means[candidate])
        return self._uncalibrated_score >= calibrated_score or self._decision.chosen == 0


def num_unread(evaluator: Evaluator, candidate: Candidate, *, calibrated: bool) -> int:
    """Return how many of a candidate's replies are unparsable, for the report.

    If the candidate is calibrated, replies with log-probabilities are not counted. A calibrated
    program answers with the likeliest label, without parsing the reply.
    """
    number = 0
    for record in evaluator.records_of(candidate).values():
        is_unread = record.outcome == WRONG and cause_of(record.error) is None
        number += is_unread and not (calibrated and record.label_logprobs is not None)
    return number


def _compared(outcome: Outcome, original: Candidate) -> dict[Candidate, ScoreRange]:
    """Return the final comparison's expected scores of the chosen candidate and the original.

    The report shows these scores everywhere, so that each program has only one score. If there was
    no comparison, return an empty dict.
    """
    comparison = outcome.decision.comparison
    if comparison is None:
        return {}
    return {outcome.decision.candidate: comparison.expected_chosen, original: comparison.expected_original}


def _score_of_best_user_program(decision: Decision) -> float:
    """Return the best user program's score, computed to agree with the reported gain over this program."""
    assert decision.comparison is not None
    assert decision.over_best_user_program is not None
    return decision.comparison.expected_chosen[0] - decision.over_best_user_program.expected_gain


def _kind_of(slots: PromptSlots, original: Candidate, candidate: Candidate) -> PromptKind:
    """Return the kind of a candidate's prompt, as stated in the report."""
    if candidate in slots.rivals:  # In a race of programs, the original is one of the rivals.
        return "program"
    if candidate == original:
        return "original"
    if isinstance(slots, RetrievalSlots) and slots.variation(candidate) is not None:
        return "retrieved"
    return "fixed"


def _name(slots: PromptSlots, candidate: Candidate, kind: PromptKind, revision: Revision | None) -> str:
    """Return the name that the report uses for a candidate."""
    if kind == "program":
        return slots.rivals[candidate].name
    num_demos = slots.num_demos(candidate)
    name = count(num_demos, f"{kind} demo") if num_demos else "no demos"
    if kind == "original":
        name = f"your program, {count(num_demos, 'demo')}"
    for predictor, number in slots.instructions(candidate).items():
        if number:
            name += f", instruction {number} of {predictor}"
    if revision is not None:
        name += ", calibrated"
    return name


def program_scores(slots: PromptSlots, expected: Sequence[ExpectedScore]) -> list[Alternative]:
    """Return the report's entries on the user's programs, best first."""
    return [score.entry for score in expected if score.candidate in slots.rivals]


def compare_instructions(
    setup: CompileSetup, slots: PoolSlots, expected: Sequence[ExpectedScore], outcome: Outcome
) -> list[InstructionReport]:
    """Return the report's comparison of each predictor's instructions.

    Each instruction gets the score of the best arrangement that uses it. The chosen arrangement may
    score lower than others, because an arrangement is chosen only if its gain is likely enough.
    """
    chosen = slots.instructions(outcome.decision.candidate)
    best: dict[tuple[str, int], Alternative] = {}
    for score in expected:
        if not isinstance(score.candidate, WholeProgram):
            for key in score.entry.instructions.items():
                best.setdefault(key, score.entry)
    states = [distribution.state_dict() for distribution in outcome.distributions[len(slots.slots) :]]
    by_predictor = dict(zip(slots.alternatives, states, strict=True))
    reports = []
    for name in {**slots.alternatives, **setup.dropped_instructions}:
        instructions = slots.alternatives.get(name, ())
        report = InstructionReport(
            predictor=name,
            chosen=chosen.get(name, 0),
            alternatives=[
                _scored(text, best.get((name, number))) for number, text in enumerate(instructions)
            ],
            dropped=[
                _scored(instruction, None) for instruction in setup.dropped_instructions.get(name, ())
            ],
            distribution=by_predictor.get(name, {}),
        )
        reports.append(report)
    return reports


def _scored(instruction: Instruction, best: Alternative | None) -> InstructionScore:
    """Return the report's entry on an instruction, with the score of the best arrangement that uses it.

    `best` is the entry on this arrangement. If it is None, the instruction's entry has no score.
    """
    scores: dict[str, Any] = {}
    if best is not None:
        scores = {"score": best.score, "interval": best.interval, "num_examples": best.num_examples}
    return InstructionScore(**vars(instruction), **scores)
