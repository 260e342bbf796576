"""What a calibration found, as plain data and in words."""

from __future__ import annotations

from collections.abc import Mapping

from plr_dspy.report.schema import Part
from plr_dspy.report.text import count, shares_by_label

# Ways to answer without calibration.
AS_IT_IS = "as it is"
LIKELIEST = "likeliest label"

# Reasons to leave examples out.
GIVEN_TWICE = "given twice"
SHOWN = "shown by demos"
WITHOUT_LABEL = "without a label"
NOT_NEEDED = "beyond num_inputs"
REPLACED = "replaced by inputs without content"


class CalibrationReport(Part):
    """What `BatchCalibration` did and found; `print` it for a summary.

    Attributes:
        method, metric: How the calibration was found, and what compared ways to answer.
        output: Name of the calibrated output.
        label_counts: Number of examples of the trainset with each label.
        num_examples: Number of examples of the trainset.
        num_inputs: Number of inputs whose replies gave label probabilities.
        left_out: Number of unused examples by the first reason that applies.
        mean_probabilities: Mean probability of each label before calibration.
        shares: Share of each label that answers are calibrated to, if any.
        shares_from: Where these shares come from, or why there are none.
        calibrated: Whether calibration changes the probabilities of labels.
        scores: Score of each way to answer; empty if labels did not decide.
        chosen: The chosen way, if any were compared.
        num_scored: Number of inputs behind the scores: those whose calls did not fail.
        always, always_score: The most frequent label, or the best by the metric, and
            the score of always answering it; None if nothing was compared.
        program_calls: Number of program calls.
        num_failed, num_unread, num_silent: Number of calls that failed, of replies
            that could not be read, and of replies that say nothing of labels.
    """

    method: str
    metric: str
    output: str
    label_counts: dict[str, int]
    num_examples: int
    num_inputs: int
    left_out: dict[str, int]
    mean_probabilities: dict[str, float]
    shares: dict[str, float] | None
    shares_from: str
    calibrated: bool
    scores: dict[str, float]
    chosen: str | None = None
    num_scored: int
    always: str | None = None
    always_score: float | None = None
    program_calls: int
    num_failed: int
    num_unread: int
    num_silent: int

    @property
    def labels(self) -> list[str]:
        """The labels, as in demos."""
        return list(self.label_counts)

    @property
    def result(self) -> str:
        """The result in a few words."""
        if self.shares is not None:
            return f"calibrated to {_by_label(self.shares)}"
        if self.calibrated:
            return "calibrated"
        if self.chosen == LIKELIEST:
            return "the likeliest label is the answer, as it is"
        return "answers stay as they are"

    def line(self) -> str:
        """Summarize the report in one line."""
        inputs = f"{self.num_inputs} of {self.num_examples} examples of trainset"
        if self.method == "contextual":
            inputs = f"{self.num_inputs} inputs without content"
        parts = [
            f"{self.result}, by {inputs}",
            f"mean probabilities before: {_by_label(self.mean_probabilities)}",
            *(f"{way}: {score:.3f}" for way, score in self.scores.items()),
        ]
        if self.always_score is not None:
            parts.append(self._always())
        return "; ".join(parts)

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return self.model_dump()

    def __repr__(self) -> str:
        return f"<CalibrationReport: {self.result}>"

    def __str__(self) -> str:
        lines = [
            f"BatchCalibration: {self.result}; {self._calls()}",
            f"shares: {self.shares_from}",
            f"examples: {self._examples()}",
        ]
        num_labelled = sum(self.label_counts.values())
        if num_labelled:
            shares = {label: number / num_labelled for label, number in self.label_counts.items()}
            examples = "labelled examples" if num_labelled < self.num_examples else "examples"
            lines.append(f"labels of the {num_labelled} {examples} of trainset: {_by_label(shares)}")
        means = _by_label(self.mean_probabilities)
        lines.append(f"mean probabilities before, over {count(self.num_inputs, 'input')}: {means}")
        if self.scores:
            lines.append(f"{self.metric} on {count(self.num_scored, 'input')}:")
        for way, score in self.scores.items():
            line = f"  {way}: {score:.3f}"
            if way == self.chosen:
                line += " (chosen)"
            lines.append(line)
        if self.always_score is not None:
            lines.append(f"  {self._always()}")
        return "\n  ".join(lines)

    def _always(self) -> str:
        return f"always {self.always!r}: {self.always_score:.3f}"

    def _calls(self) -> str:
        notes = {
            "failed": self.num_failed,
            "with a reply that could not be read": self.num_unread,
            "with a reply that says nothing of labels": self.num_silent,
        }
        text = count(self.program_calls, "program call")
        details = ", ".join(f"{number:,} {note}" for note, number in notes.items() if number)
        return f"{text} ({details})" if details else text

    def _examples(self) -> str:
        num_used = self.num_examples - sum(self.left_out.values())
        text = f"{num_used:,} of {self.num_examples:,} of trainset were used"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.left_out.items() if number)
        return f"{text}; left out: {reasons}" if reasons else text


def _by_label(shares: Mapping[str, float]) -> str:
    return shares_by_label(list(shares), shares.values())
