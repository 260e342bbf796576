"""Counts the calls that failed, and decides when they are so many that the run ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from plr_dspy.lm.errors import HOPELESS
from plr_dspy.programs.calls import MetricTypeError

logger = logging.getLogger(__name__)


def is_milestone(count: int) -> bool:
    """Whether a count is worth a line: 1, 10, 100 and so on."""
    return str(count).strip("0") == "1"


GOING_ON = (
    "With log_dir, the same compile goes on from here when you run it again. If you change the program or the metric "
    "first, pass accept_changes=True if the scores in the log_dir are still right, or another log_dir if they are not."
)
"""What can be done after an error of the program or the metric."""


class Failures:
    """The failures of a run.

    An example that never runs is one failure, whatever the number of orders that meet it: unless nothing
    at all has run. A metric that returns no number ends the run at once, unless it has returned one before.

    Args:
        names: What messages call the examples.
        ran: Examples that ran before.
        scored: Whether the metric has returned a number before.
        max_errors: So many failures are too many.
        redact: Takes secrets out of messages.
        ways_out: What else can be done when there are too many.

    Attributes:
        first: The first exception.
        fatal: The one that ends the run.
    """

    def __init__(
        self,
        names: Sequence[str] | Mapping[int, str],
        *,
        ran: Iterable[int],
        scored: bool,
        max_errors: int,
        redact: Callable[[str], str],
        ways_out: str = "",
    ) -> None:
        self.first: BaseException | None = None
        self.fatal: BaseException | None = None
        self._names = names
        self._max_errors = max_errors
        self._redact = redact
        self._ways_out = ways_out
        self._counts: Counter[int] = Counter()
        self._kinds: Counter[str] = Counter()
        self._ran = set(ran)
        self._scored = scored

    def note_answer(self, example: int, *, scored: bool) -> None:
        """A call on the example ended with an answer, which the metric may have scored."""
        self._ran.add(example)
        self._scored = self._scored or scored

    def note(self, failure: BaseException, example: int) -> None:
        """A call on the example failed; that is logged the first time, the tenth, and so on."""
        name = self._names[example]
        what = f"{type(failure).__name__}: {self.first_line(failure)}"
        self._kinds[what] += 1
        if self._kinds[what] == 1:
            logger.warning("the call on %s failed: %s", name, what)
        elif is_milestone(self._kinds[what]):
            logger.warning("%d calls failed, the last of them on %s: %s", self._kinds[what], name, what)
        self._counts[example] += 1
        self.first = self.first or failure
        if self.fatal is not None:
            return
        dead = not self._ran
        count = sum(count if dead or e in self._ran else 1 for e, count in self._counts.items())
        if isinstance(failure, HOPELESS):
            self.fatal = self._explain(failure, f"{name}: every further call would fail like this")
        elif isinstance(failure, MetricTypeError) and not self._scored:
            self.fatal = self._explain(failure, f"{name}: the first value of the metric is no number")
        elif count >= self._max_errors:
            reason = f"{name}: the last of {count} failures (max_errors={self._max_errors})"
            self.fatal = self._explain(failure, reason + self._ways_out)

    def first_line(self, error: BaseException) -> str:
        """Of its message, in characters that can be written, without secrets."""
        try:
            text = str(error)
        except Exception as second:
            text = f"its message cannot be read: {type(second).__name__}"
        text = text.strip().split("\n", 1)[0].encode(errors="backslashreplace").decode()
        return self._redact(text)[:200]

    def _explain(self, error: BaseException, reason: str) -> BaseException:
        """The error with a note that says why it ends the compile, where Python knows notes (3.11)."""
        if not isinstance(error, Exception):  # SystemExit and the like would end more than the compile
            text = f"the program or the metric raised {type(error).__name__}: {self.first_line(error)}"
            wrapped = RuntimeError(text)
            wrapped.__cause__ = error
            error = wrapped
        if hasattr(error, "add_note"):
            error.add_note(f"plr_dspy ended the compile at {reason}. {GOING_ON}")
        return error
