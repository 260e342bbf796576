"""The parts of a report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """An ordering that reached the final comparison.

    Attributes:
        origin: "original", "mode", "best seen" or "draw".
        ordering: Demo indices by position, for each slot; empty for a student without demos.
        score: Mean score on the selection split.
        expected_gain: What chose among the candidates: the mean score above the original's that is expected on
            examples that nobody has seen.
        probability: That the score there is above the original's.
    """

    origin: str
    ordering: dict[str, list[int]]
    score: float
    expected_gain: float
    probability: float


@dataclass(frozen=True)
class SlotReport:
    """One slot: a predictor's demos and the order chosen for them.

    Attributes:
        predictor: Name of the predictor.
        num_demos: Number of demos, those that no prompt shows included.
        ordering: Demo indices by position; ``ordering[0]`` is shown first. Of a pool of demos, those chosen.
        blocks: Demo indices that can trade places; one block unless the adapter regroups demos.
        distributions: The final distribution of each block: logits ``[n]``, or of a mixture
            weights ``[k]`` and logits ``[k, n]``, over the block's demos. Of a pool, which demos are chosen from: such
            logits as its "ranking", whose first demo is shown last, and "length_probabilities" of each number of demos
            from "min_length" on.
        demos: The demos in their original order: fields that prompts show as text, the start of long ones.
        classes: A number for each demo, the same for those that give the same answer; None where answers
            are no classes, and for demos that cannot be moved.
        origins: Of a pool, where each demo comes from: "student", "trainset[3]", "bootstrapped from trainset[3]" or
            "candidates[0]".
        original: The demos that the student showed, by position; those that were added to one without any are not among
            them.
    """

    predictor: str
    num_demos: int
    ordering: list[int]
    blocks: list[list[int]]
    distributions: list[dict[str, Any]]
    demos: list[dict[str, str]]
    classes: list[int | None]
    origins: list[str] = field(default_factory=list)
    original: list[int] = field(default_factory=list)

    @property
    def is_pool(self) -> bool:
        """Whether demos were chosen, and not only ordered."""
        return any("ranking" in state for state in self.distributions)


@dataclass(frozen=True)
class BestOfNumber:
    """The best arrangement found of a number of demos.

    Attributes:
        num_demos: Shown by all predictors together.
        ordering: Demo indices by position, for each slot.
        score: Mean score that is expected of it on new examples: scores differ by the expected gains.
        num_examples: Examples that it was scored on.
        tokens: Of its demos, as GPT-4o counts them.
        interval: Of 95 % for the score, from these examples and those of the student alone; None where they are not
            known.
    """

    num_demos: int
    ordering: dict[str, list[int]]
    score: float
    num_examples: int
    tokens: int
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Comparison:
    """Chosen against original order on the selection split.

    Attributes:
        original, chosen: Mean scores, as fractions.
        gain: Mean of the paired differences.
        interval: Confidence interval of the gain, widened for the number of orders that were
            compared (Bonferroni): on pure noise, the winner's lies above 0 at most that seldom.
        confidence: Level of the interval.
        num_examples: Examples that the candidates were compared on.
        num_candidates: Orders that were compared, the original included.
        expected_gain: What the chosen order scores above the original one on examples that nobody has seen, as far as
            can be told: shrunk for few examples, and for being the best of many orders.
        probability: That the chosen order is better there; 0 where the original one stayed.
        gain_interval: 95 % interval of the expected gain, by the model of scores.
        expected_original, expected_chosen: Scores on new examples, each with the ends of its 95 % interval, which is as
            wide as so few calls of its own, and of the original, leave it. The original is what the user has, as it is:
            not calibrated unless it came so, and with its failed replies.
    """

    original: float
    chosen: float
    gain: float
    interval: tuple[float, float]
    confidence: float
    num_examples: int
    num_candidates: int
    expected_gain: float
    probability: float
    gain_interval: tuple[float, float] = (0.0, 0.0)
    expected_original: tuple[float, float, float] | None = None
    expected_chosen: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Evidence:
    """What there was to tell orders apart by.

    Attributes:
        num_met: Examples that two orders or more were scored on.
        num_differing: Those of them on which scores differed.
        num_compared: Examples that both the original order and the most promising other one were scored on.
    """

    num_met: int
    num_differing: int
    num_compared: int


@dataclass(frozen=True)
class ErrorCount:
    """Cells that ended in one type of exception.

    Attributes:
        type: Name of the exception's class.
        outcome: "counted as wrong" (the worst score seen, 0 unless the metric goes below); "not scored": the call
            failed; or "gave no demo": the teacher's reply could not be read, or the call failed.
        count: Number of cells.
        message: First line of the first one's message.
        examples: Up to five of the examples, such as "trainset[12]".
        of_original: Cells among them that are of the original order.
        calls_of_original: Cells of the original order in all, with and without exceptions.
    """

    type: str
    outcome: str
    count: int
    message: str
    examples: list[str]
    of_original: int = 0
    calls_of_original: int = 0


@dataclass(frozen=True)
class Leaning:
    """How often orders answer each label, over the examples that were looked at.

    Attributes:
        right: Share of the examples on which a label scores best, ``[L]``; where several do, each has its part.
        original, chosen: Share of the examples on which the order is expected to answer the label, ``[L]``.
    """

    right: list[float]
    original: list[float]
    chosen: list[float]


@dataclass(frozen=True)
class Signal:
    """What the search learnt from a call.

    Attributes:
        used: "score", or "logprobs" where it was the log-probabilities of labels as well.
        reason: Why it was scores alone; empty where that was asked for.
        labels: Those of the log-probabilities.
        leaning: How often the original order and the chosen one answer each of them; None where it is not known.
    """

    used: str
    reason: str
    labels: list[str]
    leaning: Leaning | None = None


@dataclass(frozen=True)
class LabelProbabilities:
    """How well the probabilities of labels hold, on the examples that the chosen order was called on.

    Attributes:
        num_examples: How many.
        brier_score: Mean squared distance of the probabilities from what is right, 0 (best) to 2.
        calibration_error: Expected calibration error: mean distance between how probable answers are and how often
            they are right.
        reliability: Of answers that are about as probable, those of small probability first: how many, their mean
            probability, and the share of them that is right.
    """

    num_examples: int
    brier_score: float
    calibration_error: float
    reliability: list[tuple[int, float, float]]


@dataclass(frozen=True)
class CalibrationEffect:
    """What calibration does, which needs no search: by the same calls, none of them made for this.

    Attributes:
        num_examples: Examples that the scores are expected on.
        original, original_calibrated: Scores of the original order as it is and calibrated, as log-probabilities let
            one expect them. Replies that say nothing of labels count as they were scored; not so in
            `original_calibrated` where answers are not calibrated, as it is not known which of them it would read.
        chosen, chosen_calibrated: The same of the chosen order.
        offsets: Of the labels, that calibrate the chosen order.
        before, after: How well its probabilities hold, as they are and calibrated.
        applied: Whether the returned program is calibrated.
        shares: Of the labels, that answers are calibrated to, ``[L]``; empty where the likeliest label as it is scores
            better than any calibration that was tried.
        always: Mean score of answering each label to all examples, ``[L]``.
    """

    num_examples: int
    original: float
    original_calibrated: float
    chosen: float
    chosen_calibrated: float
    offsets: list[float]
    before: LabelProbabilities | None
    after: LabelProbabilities | None
    applied: bool = False
    shares: list[float] = field(default_factory=list)
    always: list[float] = field(default_factory=list)
