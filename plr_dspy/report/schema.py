"""The data of a report. Other modules calculate the data and write the text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, PlainSerializer

from plr_dspy.report.part import Part
from plr_dspy.report.prompts import InstructionReport, ProposalReport, RetrievalReport, SlotReport
from plr_dspy.report.stop import StopReason

SCHEMA_VERSION: Literal[25] = 25  # version of the JSON format
# Versions of the format that can be loaded. Fields that older versions lack have defaults.
READABLE_VERSIONS = (23, 24, 25)

# Maximum expected loss of a prompt that reports call as good as the returned prompt.
AS_GOOD = 0.01
# Outcomes of calls that returned no usable answer.
WRONG = "counted as wrong"
FAILED = "not scored"

PromptKind = Literal["original", "fixed", "retrieved", "program"]
ScoreRange = tuple[float, float, float]  # a score, and the ends of its 95% interval


def _current_if_readable(version: Any) -> Any:
    """Return the current schema version if files with `version` can be loaded, else `version` itself."""
    return SCHEMA_VERSION if version in READABLE_VERSIONS else version


class Iteration(Part):
    """One round of a search.

    Attributes:
        index: Index of the round, from 0.
        num_samples, num_new: Number of orderings scored, and number of orderings scored for the
            first time.
        mean_score, best_score: Mean and maximum of these orderings' mean scores.
        best_score_so_far, best_ordering: The best estimated score after this round, and the
            ordering with this score: the item order of each block, or the name of a whole
            program.
        program_calls: Number of program calls so far.
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
            f"{self.mean_score:.3f} on the examples so far, best estimate for all examples "
            f"{self.best_score_so_far:.3f}; "
            f"{self.program_calls} program calls"
        )


class Candidate(Part):
    """A candidate in the final comparison, or a program that finished a race.

    Attributes:
        ordering: For each predictor, the indices of its demos in prompt order. Empty lists for a
            whole program.
        instructions: Index of each predictor's instruction in the `alternatives` of
            `ReportData.instructions`.
        score: Mean score, or value of a metric over a set, on the compared examples.
        expected_gain, probability, probability_worse: Expected gain over the uncalibrated original
            on new examples, and the probabilities that the candidate is better or worse.
        over_calibrated, worse_than_calibrated: Probabilities that the candidate is better or worse
            than the calibrated original. Both are None if answers are not calibrated, or if the
            candidate is the original.
        name: The program's name in `programs`, or an empty string for all other candidates.
    """

    ordering: dict[str, list[int]]
    instructions: dict[str, int] = {}
    score: float
    expected_gain: float
    probability: float
    probability_worse: float
    over_calibrated: float | None = None
    worse_than_calibrated: float | None = None
    name: str = ""


class Alternative(Part):
    """The score of a program to compare with the returned program.

    The program may be a candidate in `front` or one of `programs`. The score may also be that of a
    simpler method, such as random demos.

    Attributes:
        score, interval: Expected score on new examples, and its 95% interval. The interval is None
            for simpler methods, and if it is unknown.
        num_examples: Number of examples that the score is estimated from.
        tokens: Total number of tokens in the demos, counted with GPT-4o's tokenizer, or 0 for
            the user's programs.
        num_demos: Total number of demos.
        ordering, instructions: As in `Candidate`, but empty for simpler methods.
        num_unread: As in `ProgramState`, but 0 for simpler methods.
    """

    name: str
    score: float
    num_examples: int
    tokens: int = 0
    interval: tuple[float, float] | None = None
    num_demos: int = 0
    ordering: dict[str, list[int]] = {}
    instructions: dict[str, int] = {}
    num_unread: int = 0


class FrontEntry(Alternative):
    """The best candidate with a given kind, number of demos and instruction, or the returned candidate.

    Attributes:
        kind: "original" (the student), "fixed" or "retrieved" demos, or "program" (one of
            `programs`).
        prompt_tokens: Number of tokens in the candidate's prompts without inputs: the
            instructions and demos of all predictors, counted with GPT-4o's tokenizer.
        cost: Cost of 1,000 predictions in US dollars at litellm's list prices, or None if
            unknown. Answers are assumed to be as long, and prompts to be sent as often, as in scored
            calls. For the user's programs, these are the program's own calls. For other prompts, they
            are the calls of all of them. Instructions and fixed demos are priced as cached tokens if
            the model has a price for them.
        is_as_good: Whether the candidate qualifies for `program_with(within=.01)`.
        is_returned: Whether the candidate is the returned program.
    """

    kind: PromptKind
    prompt_tokens: int
    cost: float | None
    is_as_good: bool
    is_returned: bool


class Comparison(Part):
    """A comparison of the chosen order with the original order, on the selection split or in a race.

    Attributes:
        original, chosen, gain: Scores on the compared examples (mean scores, or the values of a
            metric over a set), and their difference.
        interval: 95% interval of `gain`, Bonferroni-corrected for the number of orders or
            raced programs. For a metric over a set, `gain` is also measured on the examples
            of the search, which favor the chosen order. In this case, use `gain_interval`.
        expected_gain, gain_interval: Expected gain on new examples and its 95% interval. The
            gain is shrunk, because the order was selected as the best of many.
        probability, probability_worse: Probabilities that the chosen order is better or worse than
            the uncalibrated original on new examples. Both are 0 if the original is kept.
        over_calibrated, worse_than_calibrated: As in `Candidate`, for the chosen order.
        expected_original, expected_chosen: Expected scores on new examples, with 95%
            intervals.
        unseen_labels: For a metric over a set, the labels without a compared example.
            Scores, gains and probabilities ignore these labels. The intervals of
            `expected_original` and `expected_chosen` treat answers to examples with these labels
            as unknown.
    """

    original: float
    chosen: float
    gain: float
    interval: tuple[float, float]
    num_examples: int
    num_candidates: int
    expected_gain: float
    gain_interval: tuple[float, float]
    probability: float
    probability_worse: float
    expected_original: ScoreRange
    expected_chosen: ScoreRange
    over_calibrated: float | None = None
    worse_than_calibrated: float | None = None
    unseen_labels: list[str] = []


class ProgramComparison(Comparison):
    """A comparison with one of the user's programs instead of the original.

    Attributes:
        name: The program's name.
    """

    name: str


class PairedGain(Part):
    """The gain of one program or method over another, measured on the examples that both answered.

    Attributes:
        gain, interval: The difference between the two scores, and its 95% interval.
        num_examples: Number of examples that both answered.
    """

    gain: float
    interval: tuple[float, float]
    num_examples: int


class Evidence(Part):
    """The numbers of examples on which scores can be compared."""

    num_met: int  # number of examples on which at least two orders were scored
    num_differing: int  # number of examples on which scores differed
    # Number of examples with scores of the original and the chosen or most promising order.
    num_compared: int


class ErrorCount(Part):
    """The calls that raised one type of exception and had the same outcome.

    Attributes:
        type, message: The name of the exception's class, and the first line of the first
            exception's message.
        outcome: The outcome of the calls: "counted as wrong", "not scored" (the calls failed),
            "gave no demo", or "gave no instruction".
        examples: Names of up to five examples, such as "trainset[12]".
    """

    type: str
    outcome: str
    count: int
    message: str
    examples: list[str]


class Signal(Part):
    """The signal that the search learned from."""

    used: str  # "score", or "logprobs" if the search also learned from log-probabilities of labels
    reason: str  # why log-probabilities could not be used; empty if they were used or not requested
    labels: list[str]


class CalibrationEffect(Part):
    """The effect of calibration, estimated from the search's calls.

    Attributes:
        original, original_calibrated: Expected scores of the original without calibration and
            with calibration.
        offsets: For each label, the offset added to its log-probability to calibrate the chosen
            order.
        applied: Whether the returned program is calibrated.
        shares: For each label, the share of answers that calibration aims for. Empty if
            calibration does not improve a metric over a set.
        probability: Probability that calibration increases the original's score.
    """

    original: float
    original_calibrated: float
    offsets: list[float]
    applied: bool = False
    shares: list[float] = []
    probability: float = 0.0


class ProgramState(Part):
    """The demos in a program's prompts, and the outcomes of the calls that scored the program.

    Attributes:
        num_demos: Total number of demos in all predictors.
        demo_tokens: Total number of tokens in these demos, or None if the run chose no demos from
            pools.
        prompt_tokens: As in `FrontEntry`, or None if the run chose no demos from pools.
        num_calls: Number of calls that scored the program.
        num_failed: Number of calls without a score, including those with an unparsable reply.
        num_unread: Number of calls with an unparsable reply. If the program is calibrated, replies
            with label probabilities do not count, because their likeliest label is the answer.
        num_truncated: Number of calls with a reply cut off at `max_tokens`, or 0 if DSPy's
            history was disabled.
        name: The program's name in `programs`, or an empty string for all other programs.
    """

    # Files of older versions have fields that reports no longer contain.
    model_config = ConfigDict(extra="ignore")

    num_demos: int
    demo_tokens: int | None
    prompt_tokens: int | None = None
    num_calls: int
    num_failed: int
    num_unread: int = 0
    num_truncated: int = 0
    name: str = ""


class ReportData(Part):
    """The data of a report.

    In attribute names, "own" refers to the user's `programs`, as opposed to results of the search.

    Attributes:
        original, returned: The student, and the returned program.
        slots: The demos of each predictor and their chosen order.
        comparison: The comparison of the returned program with the student, or None if nothing
            was compared.
        over_best_own: The comparison of the returned program with the best of the user's
            `programs`. None if the best of them is the student or the returned program.
        candidates: The orderings that reached the final comparison, or the programs that
            finished a race. The original is first. If answers are calibrated, the calibrated
            original is second, and all later candidates are also calibrated.
        evidence: The numbers of examples on which orders were compared, or None if the metric
            did not score orders.
        signal: The signal that the search learned from, or None if the metric did not score
            orders.
        calibration: The effect of calibration, or None if it is unknown, for example because
            calls returned no log-probabilities.
        history: The rounds of the search.
        program_calls: Number of calls in each phase: "bootstrap" (for demos), "search", "race"
            (of the best orders) and "final" (the comparison). "total" is the number of all calls,
            and "resumed" is the number of calls read from `log_dir`.
        tokens: For each model, the number of billed tokens of each kind. Calls from `log_dir` are
            included only if this run requested them.
        cost: Cost of all billed tokens in US dollars at litellm's list prices, or None if
            unknown. Cached tokens are billed at their own price if there is one.
        new_prompt_tokens: Approximate number of prompt tokens that a server must read for the
            scoring calls, or None if unknown. The server's prefix cache is assumed to hold only
            the previous prompt.
        seconds: Wall-clock time of this compile run, without earlier runs that it resumed.
        errors: The exceptions that calls raised, grouped by type and outcome.
        stopped, stop_reason: Why the search ended, or the exception that ended the run.
        settings: Everything that determines the run, including the seed.
        schema_version: Version of the JSON format. A report that is loaded from a file with an
            older version gets the current version.
        front: The best candidate for each combination of kind, number of demos and instruction,
            cheapest first. Empty after an error, if nothing was scored, or if the run chose no demos
            from pools.
        programs: The user's programs that were scored, best first.
        instructions: The instructions of each predictor with alternatives to its own instruction,
            including alternatives that cannot be used.
        proposals: The calls that proposed instructions, or None if there were no such calls.
        retrieval: The choice between fixed and retrieved demos, or None if retrieved demos were
            not tried.
        random: Expected score of random demos, or of the same demos in a random order. None if
            unknown.
        constant: Score of the same answer to all inputs: the better of the two most frequent
            labels, or the best label for a metric over a set. If no output is a label, it is the
            most frequent answer. None if unknown.
        vote: Score of answering with the most frequent label among the `max_demos` nearest
            examples, or None if unknown.
        vote_gain: The gain of `vote` over the returned program, or None if unknown.
    """

    # Files of older versions have fields that reports no longer contain.
    model_config = ConfigDict(extra="ignore")

    original: ProgramState
    returned: ProgramState
    slots: list[SlotReport]
    comparison: Comparison | None = None
    over_best_own: ProgramComparison | None = None
    candidates: list[Candidate] = []
    evidence: Evidence | None = None
    signal: Signal | None = None
    calibration: CalibrationEffect | None = None
    history: list[Iteration] = []
    program_calls: dict[str, int]
    tokens: dict[str, dict[str, int]] = {}
    cost: float | None = None
    new_prompt_tokens: int | None = None
    seconds: float
    errors: list[ErrorCount] = []
    stopped: str
    stop_reason: Annotated[StopReason, PlainSerializer(lambda reason: reason.value)]
    settings: dict[str, Any]
    plr_dspy_version: str
    dspy_version: str
    schema_version: Annotated[Literal[25], BeforeValidator(_current_if_readable)] = SCHEMA_VERSION
    front: list[FrontEntry] = []
    programs: list[Alternative] = []
    instructions: list[InstructionReport] = []
    proposals: ProposalReport | None = None
    retrieval: RetrievalReport | None = None
    random: Alternative | None = None
    constant: Alternative | None = None
    vote: Alternative | None = None
    vote_gain: PairedGain | None = None

    @property
    def retrieves(self) -> bool:
        """Whether the chosen program retrieves demos for each input."""
        return self.retrieval is not None and self.retrieval.variation is not None

    @property
    def has_set_metric(self) -> bool:
        """Whether the metric is computed over a set of examples."""
        # Only the names of such metrics contain arguments.
        return "(" in str(self.settings.get("metric"))

    @property
    def is_calibrated(self) -> bool:
        """Whether the returned program is calibrated."""
        return self.calibration is not None and self.calibration.applied

    @property
    def other_instructions(self) -> list[InstructionReport]:
        """The entries in `instructions` whose chosen instruction is not the student's own."""
        return [instruction for instruction in self.instructions if instruction.chosen]

    @property
    def original_stays(self) -> bool:
        """Whether the returned program is the unchanged student."""
        if self.other_instructions or self.is_calibrated or self.retrieves:
            return False
        if (self.returned.num_demos, self.returned.name) != (self.original.num_demos, self.original.name):
            return False
        return all(slot.ordering == slot.original for slot in self.slots)

    @property
    def is_unfinished(self) -> bool:
        """Whether an interrupt or an error ended the run, so that no program was returned."""
        return self.stop_reason in (StopReason.INTERRUPTED, StopReason.UNREADABLE, StopReason.ERROR)

    @property
    def best_by_number(self) -> list[FrontEntry]:
        """The best arrangement for each number of fixed demos.

        The returned arrangement is always listed as the best for its number of demos.
        """
        best: dict[int, FrontEntry] = {}
        for entry in sorted(self.front, key=lambda entry: (not entry.is_returned, -entry.score)):
            if entry.kind in ("original", "fixed"):
                best.setdefault(entry.num_demos, entry)
        return [best[number] for number in sorted(best)]

    @property
    def undominated(self) -> list[FrontEntry]:
        """The entries in `front` that score higher than all cheaper entries."""
        undominated: list[FrontEntry] = []
        for entry in self.front:
            if not undominated or entry.score > undominated[-1].score:
                undominated.append(entry)
        return undominated
