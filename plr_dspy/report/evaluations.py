"""The results of `evaluate_programs`: the scores of programs on the same examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plr_dspy.report.formats import unread_note


@dataclass(frozen=True)
class ProgramScore:
    """A program's score according to a metric.

    Attributes:
        score, interval: The metric's value on the examples, and its 95% confidence interval.
        difference, difference_interval: The gain over the first program, and the gain's 95%
            confidence interval. Both are None for the first program.
        num_unread: Number of unparsable replies. They are scored as incorrect answers.
    """

    score: float
    interval: tuple[float, float]
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    num_unread: int = 0

    def __str__(self) -> str:
        parts = ["{:.3f} [{:.3f}, {:.3f}]".format(self.score, *self.interval)]
        if self.difference is not None and self.difference_interval is not None:
            parts.append(
                "{:+.3f} [{:+.3f}, {:+.3f}] over the first program".format(
                    self.difference, *self.difference_interval
                )
            )
        return "; ".join(parts) + unread_note(self.num_unread)


@dataclass(frozen=True)
class ConstantScore:
    """The score of a program that always answers with the same label."""

    label: str
    score: float


@dataclass(frozen=True)
class Evaluation:
    """The scores of programs on the same examples. `print()` shows them in a table.

    Attributes:
        programs: The programs' scores, keyed by program name.
        num_examples: Number of examples that every program answered.
        num_failed: Number of examples that were omitted because a call failed.
        constant: A label as the answer to all inputs, and its score. The label is the better of
            the two most frequent labels or, for a metric over a set, the best label. None if the
            first program has no label output, or if the metric cannot score such an answer.
    """

    programs: Mapping[str, ProgramScore]
    num_examples: int
    num_failed: int = 0
    constant: ConstantScore | None = None

    def __str__(self) -> str:
        rows = {name: str(score) for name, score in self.programs.items()}
        if self.constant is not None:
            rows[f"always {self.constant.label!r}"] = f"{self.constant.score:.3f}, without any calls"
        width = max(map(len, rows))
        lines = [f"  {name:{width}}  {row}" for name, row in rows.items()]
        title = f"{self.num_examples} examples"
        if self.num_failed:
            title += f" (omitted because of failed calls: {self.num_failed})"
        return "\n".join([title, *lines])


class Evaluations(dict[str, Evaluation]):
    """Evaluations with several metrics, keyed by metric name. `print()` shows a table for each metric."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {evaluation}" for name, evaluation in self.items())
