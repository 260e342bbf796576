"""The parts of a report that describe prompts: demos, instructions, proposals and retrieval."""

from __future__ import annotations

from typing import Any

from plr_dspy.report.part import Part


class SlotReport(Part):
    """A predictor's demos and the order chosen for them.

    Attributes:
        ordering, original: Indices of the demos in prompt order, for the returned program and
            for the student.
        blocks: Groups of demo indices. Only demos in the same group can swap places. Demos from
            a pool form one group. The groups of other demos depend on the adapter.
        distributions: Each block's final distribution, as a state to pass to
            `PlackettLuce.from_state`. If demos come from a pool, the first demo drawn is shown
            last.
        demos: All demos as text. Long fields are shortened.
        origins: The source of each demo, such as "trainset[3]". Empty unless demos come from a
            pool.
    """

    predictor: str
    ordering: list[int]
    blocks: list[list[int]]
    distributions: list[dict[str, Any]]
    demos: list[dict[str, str]]
    origins: list[str] = []
    original: list[int] = []


class InstructionScore(Part):
    """An instruction, and the score of the best arrangement that uses it.

    Attributes:
        origin: The source of the instruction: "student", or the name of another program. For the
            user's instructions, "instructions[2]" or ``instructions['name'][2]``. For proposed
            instructions, "proposed[0]" or, if written during the search, "from failures[0]".
        reason: Why the instruction was excluded from the search. Empty if it was not excluded.
        score, interval, num_examples: As in `Alternative`, for the best arrangement. If no
            arrangement was scored, the score and the interval are None.
    """

    text: str
    origin: str
    reason: str = ""
    score: float | None = None
    interval: tuple[float, float] | None = None
    num_examples: int = 0


class InstructionReport(Part):
    """A predictor's instructions.

    Attributes:
        chosen: Index of the returned program's instruction in `alternatives`. 0 means the
            student's own instruction, or that one of the user's programs was returned.
        dropped: Instructions excluded from the search.
        distribution: The final distribution, as a state to pass to `PlackettLuce.from_state`.
            The prompt shows the first instruction of a draw.
    """

    predictor: str
    chosen: int
    alternatives: list[InstructionScore]
    dropped: list[InstructionScore] = []
    distribution: dict[str, Any] = {}


class ProposalReport(Part):
    """The calls that proposed instructions. The report's `tokens` and `cost` include them.

    Attributes:
        model: Name of the model that proposed the instructions.
        num_texts: Number of proposed instructions, including unusable ones.
    """

    model: str
    num_texts: int


class RetrievalReport(Part):
    """The choice between fixed demos and demos retrieved for each input.

    Attributes:
        variation: Name of the chosen retrieval method, or None if no retrieval was chosen.
        text: Description of this method, or an empty string if there is none.
        num_pooled: Number of demos to retrieve from. A retrieving program is saved with all of them.
    """

    variation: str | None
    text: str
    num_pooled: int
