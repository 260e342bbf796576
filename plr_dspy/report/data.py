"""The report of a compile: plain data that saves to JSON, a text, a figure, and a page."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from plr_dspy.report import page, text
from plr_dspy.report.iteration import Iteration
from plr_dspy.runtime.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = 11
"""The version of the JSON format."""


class Part(BaseModel):
    """A part of a report, which nothing changes; `model_copy` makes another one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Candidate(Part):
    """An ordering that reached the final comparison.

    Attributes:
        origin: "original", "calibrated" (the original with calibrated answers), "mode", "best seen" or "draw".
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


class SlotReport(Part):
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
    origins: list[str] = []
    original: list[int] = []

    @property
    def is_pool(self) -> bool:
        """Whether demos were chosen, and not only ordered."""
        return any("ranking" in state for state in self.distributions)


class BestOfNumber(Part):
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


class Comparison(Part):
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


class Evidence(Part):
    """What there was to tell orders apart by.

    Attributes:
        num_met: Examples that two orders or more were scored on.
        num_differing: Those of them on which scores differed.
        num_compared: Examples that both the original order and the most promising other one were scored on.
    """

    num_met: int
    num_differing: int
    num_compared: int


class ErrorCount(Part):
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


class Leaning(Part):
    """How often orders answer each label, over the examples that were looked at.

    Attributes:
        right: Share of the examples on which a label scores best, ``[L]``; where several do, each has its part.
        original, chosen: Share of the examples on which the order is expected to answer the label, ``[L]``.
    """

    right: list[float]
    original: list[float]
    chosen: list[float]


class Signal(Part):
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


class LabelProbabilities(Part):
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


class CalibrationEffect(Part):
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
    shares: list[float] = []
    always: list[float] = []


class ProgramState(Part):
    """What the prompts of a program show, and how the calls that scored it ended.

    Attributes:
        num_demos: Demos that all predictors together show.
        demo_tokens: Their tokens, as GPT-4o counts them; None where demos were not chosen, but ordered.
        num_calls: Calls that scored the program.
        num_failed: Those that failed, or whose reply could not be read.
    """

    num_demos: int
    demo_tokens: int | None
    num_calls: int
    num_failed: int


class Report(Part):
    """What a compile did and found; `print` says the most important, `details` all of it.

    Attributes:
        original, returned: Your program as it was, and the one that the compile returned.
        slots: The predictors whose demos were ordered.
        distinct_prompts: Number of orderings that render to different prompts.
        comparison: Chosen against original order; None if there was nothing to order, or no time for it.
        candidates: Orderings of the final comparison.
        evidence: What there was to tell orders apart by; None where the metric did not score them.
        signal: What the search learnt from a call; None where the metric did not score orders.
        calibration: What calibration does to the original order and to the chosen one; None where the calls brought no
            log-probabilities. With ``calibrate`` in the settings, all scores are those of calibrated answers, but for
            those of the history.
        history: Rounds of the search.
        program_calls: Program calls made: those that made demos ("bootstrap"), those by the "search", by the "race" of
            its best orders, by the final comparison ("final") beside those of the "original" order there, and in
            "total"; and those of the total that `log_dir` held from before: "resumed".
        tokens: Billed tokens by model, as the provider reports them.
        cost: US dollars for them, by the list prices that come with litellm; None where no price is known for a model.
        seconds: Wall-clock time of the compile; of the last part of it, where it was resumed.
        errors: Cells that raised, by type.
        stopped: Why the search ended; "interrupted", or "ended by" an exception, where the compile did.
        settings: Everything that decides the run, the seed included.
        plr_dspy_version, dspy_version, schema_version: What wrote this.
        best_by_number: Where demos were chosen, the best arrangement found of each number of them.
    """

    original: ProgramState
    returned: ProgramState
    slots: list[SlotReport]
    distinct_prompts: float
    comparison: Comparison | None
    candidates: list[Candidate]
    evidence: Evidence | None
    signal: Signal | None
    calibration: CalibrationEffect | None
    history: list[Iteration]
    program_calls: dict[str, int]
    tokens: dict[str, dict[str, int]]
    cost: float | None
    seconds: float
    errors: list[ErrorCount]
    stopped: str
    settings: dict[str, Any]
    plr_dspy_version: str
    dspy_version: str
    schema_version: int = SCHEMA_VERSION
    best_by_number: list[BestOfNumber] = []

    @property
    def chosen_of_number(self) -> BestOfNumber | None:
        """The chosen arrangement among `best_by_number`; None where demos were not chosen."""
        chosen = {slot.predictor: slot.ordering for slot in self.slots}
        return next((best for best in self.best_by_number if best.ordering == chosen), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data (dicts, lists, strings, numbers)."""
        return self.model_dump()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Make a report from what `to_dict` returned.

        Raises:
            ValueError: when the data are no report, or one of another schema version.
        """
        version = data.get("schema_version")
        if version is None:
            raise ValueError("expected a plr_dspy report; got data without a schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"expected a report of schema version {SCHEMA_VERSION}; got {version!r}: "
                "read it with the plr_dspy version that wrote it"
            )
        return cls.model_validate(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; the file appears whole or not at all."""
        write_atomically(Path(path), self.model_dump_json(indent=2).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that `save` wrote.

        Raises:
            ValueError: when the file holds no report, or one of another schema version.
        """
        try:
            return cls.from_dict(TypeAdapter(dict[str, Any]).validate_json(Path(path).read_bytes()))
        except ValueError as error:
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            message = f"{os.fspath(path)} holds no plr_dspy report that can be read: {told}"
            raise ValueError(message) from error

    def details(self) -> str:
        """Write all that the report says, a line for each statement."""
        return text.details(self)

    def plot(self) -> Figure:
        """Draw the scores by program calls and by number of demos, and where each predictor's demos should stand.

        Returns:
            A figure that no window knows; notebooks show it, `savefig` writes it.

        Raises:
            ImportError: without matplotlib, which is in the extra `plots`.
        """
        from plr_dspy.report.figure import figure

        return figure(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of the text, the figure and the demos; the file appears whole or not at all.

        It needs nothing else: no script, and nothing from any other address.

        Raises:
            ImportError: without matplotlib, which is in the extra `plots`.
        """
        write_atomically(Path(path), page.page(self).encode())

    def _repr_html_(self) -> str:
        """Write what notebooks show."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Report of {self.settings.get('method', 'PLReorder')}: {text.result(self)}>"

    def __str__(self) -> str:
        return text.summary(self)
