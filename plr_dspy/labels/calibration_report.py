"""What a calibration found, as plain data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plr_dspy.report.schema import Part
from plr_dspy.report.text import count, shares_by_label

# Ways to answer that change no probabilities.
AS_IT_IS = "as it is"
LIKELIEST = "likeliest label"

# Reasons for which examples are left out.
GIVEN_TWICE = "given twice"
SHOWN = "shown by demos"
WITHOUT_LABEL = "without a label"
NOT_NEEDED = "beyond num_inputs"
REPLACED = "replaced by inputs without content"


class CalibrationReport(Part):
    """What `BatchCalibration` did and found; printed, it is a few lines.

    Attributes:
        method, metric: How the calibration was found, and what compared the ways to answer.
        output: Name of the output that is calibrated.
        label_counts: Examples of the trainset with each label, by label; all 0 where none has a label.
        num_examples: Examples of the trainset.
        num_inputs: Inputs whose replies tell how probable each label is; the calibration was found from these.
        left_out: Examples of the trainset that were not used, by reason. The first reason that applies counts:
            "given twice", "shown by demos", "without a label" (where labels decide), "beyond num_inputs". With
            method="contextual" all are "replaced by inputs without content".
        mean_probabilities: Of the labels, before calibration, over these inputs.
        shares: Of the labels, that answers are calibrated to; None where they are calibrated to no shares.
        shares_from: Where these shares come from, or why there are none.
        calibrated: Whether calibration changes the probabilities of labels.
        scores: Accuracy or metric of each way that was compared, by its name; empty where labels did not decide.
        chosen: The way that was chosen; None where none were compared.
        num_scored: Inputs that the scores are of: those whose calls did not fail.
        always, always_score: The most frequent label, and the score of answering it to all of these inputs. With a
            metric, the label that is best for it. None where nothing was compared.
        program_calls, num_failed, num_unread, num_silent: Program calls; those of them that failed, those whose reply
            could not be read, and those whose reply says nothing of labels.
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
        """The labels, as demos call them."""
        return list(self.label_counts)

    @property
    def result(self) -> str:
        """What became of the answers, in a few words."""
        if self.shares is not None:
            return f"calibrated to {_by_label(self.shares)}"
        if self.calibrated:
            return "calibrated"
        if self.chosen == LIKELIEST:
            return "the likeliest label is the answer, as it is"
        return "answers stay as they are"

    def line(self) -> str:
        """Say in a line what came of it."""
        ways = dict(self.scores)
        if self.always_score is not None:
            ways[f"always {self.always!r}"] = self.always_score
        inputs = f"{self.num_inputs} of {self.num_examples} examples of trainset"
        if self.method == "contextual":
            inputs = f"{self.num_inputs} inputs without content"
        parts = [
            f"{self.result}, by {inputs}",
            f"mean probabilities before: {_by_label(self.mean_probabilities)}",
            *(f"{way}: {score:.3f}" for way, score in ways.items()),
        ]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return self.model_dump()

    def __repr__(self) -> str:
        return f"<CalibrationReport: {self.result}>"

    def __str__(self) -> str:
        notes = {
            "failed": self.num_failed,
            "with a reply that could not be read": self.num_unread,
            "with a reply that says nothing of labels": self.num_silent,
        }
        noted = [f"{number:,} {what}" for what, number in notes.items() if number]
        ended = f" ({', '.join(noted)})" if noted else ""
        lines = [
            f"BatchCalibration: {self.result}; {count(self.program_calls, 'program call')}{ended}",
            f"shares: {self.shares_from}",
            f"examples: {self._examples()}",
        ]
        num_labelled = sum(self.label_counts.values())
        if num_labelled:
            shares = {label: number / num_labelled for label, number in self.label_counts.items()}
            labelled = "labelled " if num_labelled < self.num_examples else ""
            lines.append(f"labels of the {num_labelled} {labelled}examples of trainset: {_by_label(shares)}")
        means = _by_label(self.mean_probabilities)
        lines.append(f"mean probabilities before, over {count(self.num_inputs, 'input')}: {means}")
        if self.scores:
            lines.append(f"{self.metric} on {count(self.num_scored, 'input')}:")
        for way, score in self.scores.items():
            chosen = " (chosen)" if way == self.chosen else ""
            lines.append(f"  {way}: {score:.3f}{chosen}")
        if self.always_score is not None:
            lines.append(f"  always {self.always!r}: {self.always_score:.3f}")
        return "\n  ".join(lines)

    def _examples(self) -> str:
        """Say how many examples were used, and why the others were not."""
        num_used = self.num_examples - sum(self.left_out.values())
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.left_out.items() if number)
        others = f"; left out: {reasons}" if reasons else ""
        return f"{num_used:,} of {self.num_examples:,} of trainset were used{others}"


def _by_label(shares: Mapping[str, float]) -> str:
    return shares_by_label(list(shares), shares.values())
