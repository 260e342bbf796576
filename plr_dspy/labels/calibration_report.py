"""What a calibration found, as plain data and in words."""

from dataclasses import dataclass

from plr_dspy.report.text import count, shares_by_label

# Ways to answer without calibration.
AS_IT_IS = "as it is"
LIKELIEST = "likeliest label"


@dataclass(frozen=True)
class CalibrationReport:
    """What `BatchCalibration` did and found; `print` it for a summary.

    Attributes:
        result: The result in a few words.
        metric: What compared ways to answer: "accuracy", or a metric over a set.
        scores: Accuracy or metric of each way to answer that was compared: "as it is",
            "likeliest label", "calibrated to" some shares, and "always" one label, the
            most frequent one or the best by the metric. Empty if labels did not decide.
        chosen: The chosen way, if any were compared.
        gain_interval: Interval (95 %) of the accuracy of the chosen way minus that of
            the program as it is; None with a metric over a set.
        shares: Share of each label that answers are calibrated to, if any.
        mean_probabilities: Mean probability of each label before calibration.
        num_examples: Number of examples of the trainset.
        num_inputs: Number of inputs whose replies gave label probabilities.
        program_calls: Number of program calls.
        num_failed, num_unread, num_silent: Number of calls that failed, of replies
            that could not be read, and of replies that say nothing of labels.
    """

    result: str
    metric: str
    scores: dict[str, float]
    chosen: str | None
    gain_interval: tuple[float, float] | None
    shares: dict[str, float] | None
    mean_probabilities: dict[str, float]
    num_examples: int
    num_inputs: int
    program_calls: int
    num_failed: int
    num_unread: int
    num_silent: int

    def __str__(self) -> str:
        means = shares_by_label(list(self.mean_probabilities), self.mean_probabilities.values())
        lines = [
            f"BatchCalibration: {self.result}; {self._calls()}",
            f"mean probabilities before, over {self.num_inputs} of {self.num_examples} examples: {means}",
        ]
        if self.scores:
            lines.append(f"{self.metric} on {count(self.program_calls - self.num_failed, 'input')}:")
        for way, score in self.scores.items():
            line = f"  {way}: {score:.3f}"
            if way == self.chosen:
                line += " (chosen)"
            lines.append(line)
        if self.gain_interval is not None:
            low, high = self.gain_interval
            lines.append(f"  gain over the program as it is: between {low:+.3f} and {high:+.3f}")
        return "\n  ".join(lines)

    def _calls(self) -> str:
        notes = {
            "failed": self.num_failed,
            "with a reply that could not be read": self.num_unread,
            "with a reply that says nothing of labels": self.num_silent,
        }
        text = count(self.program_calls, "program call")
        details = ", ".join(f"{number:,} {note}" for note, number in notes.items() if number)
        return f"{text} ({details})" if details else text
