"""The report of a compile: plain data that saves to JSON, a text, a figure, and a page of both."""

from __future__ import annotations

import os
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from plr_dspy.errors import UserError
from plr_dspy.report import text
from plr_dspy.report.stop import StopReason
from plr_dspy.runtime import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION: Literal[19] = 19  # the version of the JSON format


class Part(BaseModel):
    """A part of a report, which nothing changes; `model_copy` makes another one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Iteration(Part):
    """One ask, score, tell round of a search.

    Orderings were scored, `num_new` of them for the first time; `mean_score` and `best_score` are of this round, and
    `best_score_so_far` and `best_ordering`, a permutation for each block or the name of a whole program, of all rounds,
    as the search estimates it.
    `program_calls` are those since the start.
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
        ordering: Demo indices by position, for each slot; empty for a student without demos.
        score: Mean score on the selection split.
        expected_gain, probability, probability_worse: Of its score on new examples above the original's, and below it.
    """

    origin: str
    ordering: dict[str, list[int]]
    score: float
    expected_gain: float
    probability: float
    probability_worse: float = 0.0


class SlotReport(Part):
    """One slot: a predictor's demos and the order chosen for them.

    Attributes:
        num_demos: Of the predictor, those that no prompt shows included.
        ordering: Demo indices by position in the prompt, in which ``ordering[0]`` comes first, without demos that no
            prompt shows. Of a pool of demos, those chosen.
        blocks: Demo indices that can trade places; one block unless the adapter regroups demos.
        distributions: The final distribution of each block: logits ``[n]``, or of a mixture weights ``[k]`` and logits
            ``[k, n]``, over its demos. Of a pool the first demo is shown last, and there are "length_probabilities",
            the last one of the largest number of demos, "length", which is that of all unless it is said.
        demos, original: The demos as text, the start of long ones; and those that the student itself showed.
        origins: Of a pool, where each demo comes from, such as "trainset[3]" or "bootstrapped from trainset[3]".
        only_labels: By output, the label that all demos of the ordering have, if they are several and the examples have
            other labels, too.
    """

    predictor: str
    num_demos: int
    ordering: list[int]
    blocks: list[list[int]]
    distributions: list[dict[str, Any]]
    demos: list[dict[str, str]]
    origins: list[str] = []
    original: list[int] = []
    only_labels: dict[str, str] = {}


class Alternative(Part):
    """What one way to show demos is expected to score; or a vote, for which `interval` is None.

    Attributes:
        name: Such as "3 demos", "no demos", "the best fixed demos", "the nearest demos".
        score, interval: The mean that is expected on new examples, with its 95 % interval.
        num_examples, tokens: Examples that it was scored on, and tokens of the demos that it shows, about: those of all
            predictors together, as GPT-4o counts them.
        num_demos, ordering: Demos that it shows, and their indices by position, for each slot; of `best_by_number`.
        found_tokens: Tokens of demos that differ by input, so that no prefix cache serves them.
        cost: US dollars for these tokens in 1,000 predictions; None where the model's price is not known.
    """

    name: str
    score: float
    num_examples: int
    tokens: int
    interval: tuple[float, float] | None = None
    num_demos: int = 0
    ordering: dict[str, list[int]] = {}
    found_tokens: int = 0
    cost: float | None = None


class RetrievalReport(Part):
    """What was chosen where demos may be found for each input."""

    variation: str | None  # of the nearest demos that was chosen; None if all inputs are shown the same demos
    text: str  # the variation in words
    num_pooled: int  # demos that it finds some of, which lie in the program's file
    alternatives: list[Alternative]  # ways to show demos, the returned one included


class Comparison(Part):
    """Chosen against original order on the selection split.

    Attributes:
        original, chosen, gain: Mean scores on these examples, and the mean of the paired differences.
        interval, confidence: Interval of the gain and its level, widened for the number of orders (Bonferroni).
        num_examples, num_candidates: Examples and orders that were compared, the original included.
        expected_gain, gain_interval: On new examples, shrunk for few examples and for being the best of many orders,
            with its 95 % interval by the model of scores. It reaches as far above `gain` where that is larger, for what
            is shrunk may be more.
        probability, probability_worse: That the chosen order is better there, or worse; 0 where the original stayed.
        expected_original, expected_chosen: Scores on new examples, each with the ends of its 95 % interval, from its
            own calls and those of the original alone. The original is the user's program as it is.
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
    expected_original: tuple[float, float, float] | None = None
    expected_chosen: tuple[float, float, float] | None = None


class Evidence(Part):
    """What there was to tell orders apart by: examples that two orders or more were scored on (`num_met`), those of
    them where scores differed, and those that both the original and the most promising other order were scored on."""

    num_met: int
    num_differing: int
    num_compared: int


class ErrorCount(Part):
    """Cells that ended in one type of exception.

    Attributes:
        type, message: Name of the exception's class, and the first line of the first one's message.
        outcome: "counted as wrong" (the worst score seen, 0 unless the metric goes below); "not scored": the call
            failed; or "gave no demo": the teacher's reply could not be read, or the call failed.
        count, examples: Number of cells, and up to five of the examples, such as "trainset[12]".
    """

    type: str
    outcome: str
    count: int
    message: str
    examples: list[str]


class Signal(Part):
    """What the search learnt from a call.

    Attributes:
        used: "score", or "logprobs" where it was the log-probabilities of these labels as well.
        reason: Why it was scores alone; empty where that was asked for.
    """

    used: str
    reason: str
    labels: list[str]


class CalibrationEffect(Part):
    """What calibration does, which needs no search: by the same calls, none of them made for this.

    Attributes:
        num_examples: Examples that the scores are expected on.
        original, original_calibrated, chosen, chosen_calibrated: Scores of both orders as they are and calibrated, as
            log-probabilities let one expect them. Replies that say nothing of labels count as they were scored, but not
            in `original_calibrated` where answers are not calibrated. By a metric over a set they are its values for
            the answers that the calls gave, as they are and calibrated.
        offsets: Of the labels, that calibrate the chosen order.
        applied: Whether the returned program is calibrated.
        shares: Of the labels, that answers are calibrated to, ``[L]``; empty where no calibration scores better.
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


class Confusion(Part):
    """How often each label was answered to the examples of each, ``[L, L + 1]``, by both programs; the last column
    counts the answers that are none of the labels."""

    labels: list[str]
    original: list[list[int]]
    returned: list[list[int]]


class ProgramState(Part):
    """What the prompts of a program show, and how the calls that scored it ended.

    Attributes:
        num_demos: Demos that all predictors together show.
        demo_tokens: Their tokens as GPT-4o counts them; None if no demos were chosen.
        num_calls: Calls that scored the program.
        num_failed: Those of them that brought no score: the call failed, or its reply could not be read.
        num_unread: Those of them whose reply could not be read.
    """

    num_demos: int
    demo_tokens: int | None
    num_calls: int
    num_failed: int
    num_unread: int = 0


class Report(Part):
    """What a compile did and found; `print` says the most important, `details` all of it.

    Attributes:
        original, returned: Your program as it was, and the one that the compile returned.
        distinct_prompts: Number of orderings that render to different prompts.
        comparison: Chosen against original order; None if there was nothing to order, or no time for it.
        evidence, signal: What there was to tell orders apart by, and what the search learnt from a call; None where the
            metric did not score them.
        calibration: What calibration does to the original order and to the chosen one; None where the calls brought no
            log-probabilities. With ``calibrate`` in the settings, all scores but those of the history are calibrated.
        program_calls: Program calls by what they were made for: "bootstrap" (of demos), "search", "race" of the best
            orders, "final" comparison, in "total", and those of them that `log_dir` held ("resumed").
        tokens, cost: Billed tokens by model, as the provider reports them, and US dollars for them by litellm's list
            prices; None where no price is known for a model, or replies did not say how many tokens they took.
        seconds: Wall-clock time of the compile; if it was resumed, of the last run.
        stopped: Why the search ended, or an exception that ended the compile, in words.
        stop_reason: The kind of reason; exceptions are `ERROR`, but for those of Ctrl-C and SIGTERM (`INTERRUPTED`).
        settings: Everything that decides the run, the seed included.
        best_by_number: Where demos were chosen, the best arrangement found of each number of them.
        retrieval: Where demos may be found for each input, what was chosen.
        random: What random demos are expected to score on new examples, or the same demos in a random order: the mean
            that the search's model of scores expects, with its 95 % interval. None if nothing was compared.
        constant: What one answer to all examples scores: the most frequent one, or by a metric over a set the best of
            the most frequent ones. None if outputs are no labels, or a model scores them.
        vote: Where demos were chosen, the most frequent label of as many neighbours as demos may be shown, without a
            language model; None where outputs are no labels, or a model scores them.
        confusion: Of a metric of labels over a set, the answers to all examples that both programs have answered.
    """

    original: ProgramState
    returned: ProgramState
    slots: list[SlotReport]
    distinct_prompts: float
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
    schema_version: Literal[19] = SCHEMA_VERSION
    best_by_number: list[Alternative] = []
    retrieval: RetrievalReport | None = None
    random: Alternative | None = None
    constant: Alternative | None = None
    vote: Alternative | None = None
    confusion: Confusion | None = None

    @property
    def retrieves(self) -> bool:
        """Whether demos that are found for each input were chosen."""
        return self.retrieval is not None and self.retrieval.variation is not None

    @property
    def chosen_of_number(self) -> Alternative | None:
        """The chosen arrangement among `best_by_number`; None where no fixed demos were chosen."""
        if self.retrieves:
            return None
        chosen = {slot.predictor: slot.ordering for slot in self.slots}
        return next((best for best in self.best_by_number if best.ordering == chosen), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return self.model_dump()

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
            return cls.model_validate_json(Path(path).read_bytes())
        except ValidationError as error:
            found = error.errors()[0]
            what = ": ".join(filter(None, (".".join(map(str, found["loc"])), found["msg"])))
            raise UserError(
                f"{os.fspath(path)} holds no plr_dspy report of schema version {SCHEMA_VERSION} ({what}): pass a file "
                "that report.save wrote, and read it with the plr_dspy version that wrote it"
            ) from error

    def details(self) -> str:
        """Write all that the report says, a line for each statement."""
        return text.details(self)

    def plot(self) -> Figure:
        """Draw the scores by program calls, and by number of demos.

        Notebooks show the figure, `savefig` writes it. It needs matplotlib, which is in the extra `plots`.
        """
        from plr_dspy.report.figure import figure

        return figure(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of the details and the figure, in one file without scripts; it needs matplotlib, as `plot`."""
        drawn: Any = self.plot()
        picture = b64encode(drawn._repr_png_()).decode()
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>plr_dspy report</title>\n'
            f'<pre style="white-space: pre-wrap">{escape(self.details())}</pre>\n'
            f'<img alt="scores" style="max-width: 100%" src="data:image/png;base64,{picture}"></html>\n'
        )
        write_atomically(Path(path), page.encode())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Report of {self.settings.get('method', 'PLReorder')}: {text.result(self)}>"

    def __str__(self) -> str:
        return "\n  ".join([*text.claims(self), "all else: print(report.details())"])
