"""The data of a report. Nothing here computes scores, prints or draws."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer

from plr_dspy.report.stop import StopReason

SCHEMA_VERSION: Literal[20] = 20  # the version of the JSON format

ScoreRange = tuple[float, float, float]  # a score, then the ends of its 95 % interval


class Part(BaseModel):
    """A part of a report. It is immutable; use `model_copy` to change a copy."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Iteration(Part):
    """One round of a search: ask, evaluate, tell.

    Attributes:
        num_samples, num_new: Orderings scored, and those scored for the first time.
        best_score_so_far, best_ordering: The best of all rounds as the search estimates it. The ordering is a
            permutation for each block, or the name of a whole program.
        program_calls: Calls since the start.
    """

    index: int
    num_samples: int
    num_new: int
    mean_score: float
    best_score: float
    best_score_so_far: float
    best_ordering: tuple[tuple[int, ...], ...] | str
    program_calls: int

    def __str__(self) -> str:
        return (
            f"round {self.index + 1}: {self.num_samples} scored, {self.num_new} of them new; mean score "
            f"{self.mean_score:.3f}, estimated best so far {self.best_score_so_far:.3f}; "
            f"{self.program_calls} program calls"
        )


class Candidate(Part):
    """An ordering that reached the final comparison.

    Attributes:
        origin: "original", "calibrated" (the original with calibrated answers), "mode", "best seen" or "draw".
        score: Mean score on the selection split.
        expected_gain, probability, probability_worse: Gain over the original on new examples, and the probabilities
            that it scores above, or below, the original there.
    """

    origin: str
    ordering: dict[str, list[int]]
    score: float
    expected_gain: float
    probability: float
    probability_worse: float = 0.0


class SlotReport(Part):
    """A predictor's demos and the order chosen for them.

    Attributes:
        ordering, original: Indices of the shown demos by position in the prompt, and of those that the student showed.
        blocks: Demo indices that can trade places. One block, unless the adapter regroups demos.
        distributions: States of the final distribution of each block, for `PlackettLuce.from_state`. For a pool the
            first demo of a draw is shown last.
        demos, origins: All demos as text, and their sources if they are from a pool, such as "trainset[3]".
    """

    predictor: str
    num_demos: int
    ordering: list[int]
    blocks: list[list[int]]
    distributions: list[dict[str, Any]]
    demos: list[dict[str, str]]
    origins: list[str] = []
    original: list[int] = []


class Alternative(Part):
    """The score of another way to answer, such as random demos.

    Attributes:
        score, interval: Expected score on new examples and its 95 % interval, if known.
        tokens: Tokens of all its demos, as GPT-4o counts them.
        num_demos, ordering: In `best_by_number`, number and indices of its demos for each slot.
    """

    name: str
    score: float
    num_examples: int
    tokens: int = 0
    interval: tuple[float, float] | None = None
    num_demos: int = 0
    ordering: dict[str, list[int]] = {}


class RetrievalReport(Part):
    """The choice between fixed demos and demos that are found for each input, and its `alternatives`.

    Attributes:
        variation, text: The chosen variation of the nearest demos, and its description. None if demos are fixed.
        num_pooled: Demos in the program's file that it selects from.
    """

    variation: str | None
    text: str
    num_pooled: int
    alternatives: list[Alternative]


class Comparison(Part):
    """The chosen and the original order on the selection split.

    Attributes:
        original, chosen, gain: Mean scores on these examples, and their difference.
        interval, confidence: Interval of the gain and its level, widened for the number of orders (Bonferroni).
        expected_gain, gain_interval: Gain on new examples, shrunk because the order is the best of many, and its 95 %
            interval by the model of scores.
        probability, probability_worse: Probability that the chosen order is better, or worse, on new examples; 0 if
            the original stayed.
        expected_original, expected_chosen: Scores on new examples, with 95 % intervals.
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
    probability_worse: float = 0.0
    gain_interval: tuple[float, float] = (0.0, 0.0)
    expected_original: ScoreRange | None = None
    expected_chosen: ScoreRange | None = None


class Evidence(Part):
    """The examples that can tell orders apart."""

    num_met: int  # on which two orders or more were scored
    num_differing: int  # where their scores differed
    num_compared: int  # on which the original and the most promising other order were both scored


class ErrorCount(Part):
    """Calls that ended in one type of exception.

    Attributes:
        type, message: Name of the exception's class, and the first line of the first message.
        outcome: "counted as wrong", "not scored" (the call failed), or "gave no demo" (of a teacher).
        examples: Up to five of the examples, such as "trainset[12]".
    """

    type: str
    outcome: str
    count: int
    message: str
    examples: list[str]


class Signal(Part):
    """What the search learnt from a call."""

    used: str  # "score", or "logprobs" if it also used the log-probabilities of these labels
    reason: str  # why it used scores alone; empty if that was asked for
    labels: list[str]


class CalibrationEffect(Part):
    """What calibration does without a search, estimated from the calls of the search.

    Attributes:
        original, original_calibrated, chosen, chosen_calibrated: Expected scores of both orders. Replies without a
            label count as scored; in `original_calibrated` only if answers are calibrated.
        offsets: Offsets of the labels that calibrate the chosen order.
        applied: Whether the returned program is calibrated.
        shares: Shares of labels that answers are calibrated to, ``[L]``. Empty if no calibration scores better.
        always: Mean score of answering each label to all examples, ``[L]``.
    """

    num_examples: int
    original: float
    original_calibrated: float
    chosen: float
    chosen_calibrated: float
    offsets: list[float]
    applied: bool = False
    shares: list[float] = []
    always: list[float] = []


class ProgramState(Part):
    """What the prompts of a program show, and how the calls that scored it ended.

    Attributes:
        num_demos, demo_tokens: Demos that all predictors together show, and their tokens if demos were chosen.
        num_failed, num_unread: Calls without a score, and those of them whose reply could not be read.
    """

    num_demos: int
    demo_tokens: int | None
    num_calls: int
    num_failed: int
    num_unread: int = 0


class ReportData(Part):
    """The data of a report.

    Attributes:
        original, returned: The student, and the returned program.
        comparison: None if there was nothing to order, or no time for it.
        evidence, signal: None if the metric did not score orders.
        calibration: None if the calls brought no log-probabilities.
        program_calls: Calls by phase: "bootstrap" (of demos), "search", "race" of the best orders, "final"
            comparison, "total", and those that `log_dir` held ("resumed").
        tokens, cost: Billed tokens by model, and US dollars for them by litellm's list prices, if known.
        seconds: Wall-clock time of the compile, or of its last run.
        stopped, stop_reason: Why the search ended, or the exception that ended the compile.
        settings: Everything that decides the run, the seed included.
        best_by_number: The best arrangement of each number of demos, if demos were chosen.
        random: Expected score of random demos, or of the same demos in a random order.
        constant: Score of the most frequent answer to all examples; by a metric over a set, of the best frequent one.
        vote: Score of the most frequent label of the nearest examples, as many as demos may be shown.
    """

    original: ProgramState
    returned: ProgramState
    slots: list[SlotReport]
    comparison: Comparison | None = None
    candidates: list[Candidate] = []
    evidence: Evidence | None = None
    signal: Signal | None = None
    calibration: CalibrationEffect | None = None
    history: list[Iteration] = []
    program_calls: dict[str, int]
    tokens: dict[str, dict[str, int]] = {}
    cost: float | None = None
    seconds: float
    errors: list[ErrorCount] = []
    stopped: str
    stop_reason: Annotated[StopReason, PlainSerializer(lambda reason: reason.value)]
    settings: dict[str, Any]
    plr_dspy_version: str
    dspy_version: str
    schema_version: Literal[20] = SCHEMA_VERSION
    best_by_number: list[Alternative] = []
    retrieval: RetrievalReport | None = None
    random: Alternative | None = None
    constant: Alternative | None = None
    vote: Alternative | None = None

    @property
    def retrieves(self) -> bool:
        """Whether the chosen program finds demos for each input."""
        return self.retrieval is not None and self.retrieval.variation is not None

    @property
    def is_calibrated(self) -> bool:
        """Whether the returned program is calibrated."""
        return self.calibration is not None and self.calibration.applied

    @property
    def original_stays(self) -> bool:
        """Whether the returned program is the student as it was."""
        if self.is_calibrated or self.retrieves or self.returned.num_demos != self.original.num_demos:
            return False
        return all(slot.ordering == slot.original for slot in self.slots)

    @property
    def chosen_of_number(self) -> Alternative | None:
        """The chosen arrangement among `best_by_number`. None if no fixed demos were chosen."""
        if self.retrieves:
            return None
        chosen = {slot.predictor: slot.ordering for slot in self.slots}
        return next((best for best in self.best_by_number if best.ordering == chosen), None)
