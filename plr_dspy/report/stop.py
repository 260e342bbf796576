"""Reasons why a search or a compile run ended."""

from dataclasses import dataclass
from enum import Enum


class StopReason(str, Enum):
    """A reason why a search or a compile run ended. The value is a message for the user."""

    BUDGET = "budget used up"
    TIME = "time limit"
    COST = "cost limit"
    NOTHING_NEW = "no new orders left"
    ALL_ROUNDS = "all iterations done"
    ALL_ASKED = "all orders scored"
    ALL_EXAMPLES = "all examples used"
    DECIDED = "further examples are unlikely to change the choice"
    STOP_AT_SCORE = "stop_at_score reached"
    PATIENCE = "no better order for several rounds"
    NO_DIFFERENCE = "no score differed"
    ONE_PROMPT = "all choices give the same prompt"
    NO_CALLS = "no calls planned"
    UNREADABLE = "almost no reply could be parsed"
    INTERRUPTED = "interrupted"
    ERROR = "ended by an error"


@dataclass(frozen=True)
class Stop:
    """The reason why a run ended, with an optional message that replaces the reason's value."""

    reason: StopReason
    detail: str = ""

    def __str__(self) -> str:
        return self.detail or self.reason.value
