"""The report of a calibration, as plain data and text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plr_dspy.labels.calibration import Calibration
from plr_dspy.report.text import count, shares_by_label

# Names of the strategies without calibration, as printed in reports.
AS_IT_IS = "as it is"
LIKELIEST = "likeliest label"


@dataclass(frozen=True)
class CalibrationReport:
    """Report of `BatchCalibration`; `print` it for a summary.

    Attributes:
        calibration: The calibration; None if answers stay unchanged.
        metric: Criterion for comparing strategies: "accuracy", or a metric over a set.
        mean_probabilities: Mean probability of each label before calibration.
        num_examples: Number of examples in the trainset.
        num_inputs: Number of inputs whose replies gave label probabilities.
        program_calls, num_failed: Numbers of program calls, and of those that failed.
        scores: Accuracy or metric of each strategy: "as it is", "likeliest label",
            "calibrated to" given shares, and the best of "always" one label. Empty if the
            examples' labels were not used; `chosen` is then None.
        chosen: The best strategy.
        gain_interval: 95 % confidence interval of its gain in accuracy over "as it is".
    """

    calibration: Calibration | None
    metric: str
    mean_probabilities: dict[str, float]
    num_examples: int
    num_inputs: int
    program_calls: int
    num_failed: int
    scores: dict[str, float] = field(default_factory=dict)
    chosen: str | None = None
    gain_interval: tuple[float, float] | None = None

    @property
    def shares(self) -> dict[str, float] | None:
        """The target shares of the labels among answers, if any."""
        if self.calibration is None or not self.calibration.shares:
            return None
        return dict(zip(self.calibration.labels, self.calibration.shares, strict=True))

    @property
    def result(self) -> str:
        if self.calibration is None:
            return "answers stay as they are"
        if self.shares is None:
            return "the likeliest label is the answer, as it is"
        return f"calibrated to {_by_label(self.shares)}"

    def __str__(self) -> str:
        means = _by_label(self.mean_probabilities)
        calls = count(self.program_calls, "program call")
        if self.num_inputs < self.program_calls:
            calls += f" ({self.num_failed} failed, {self.num_inputs} with label probabilities)"
        lines = [
            f"BatchCalibration: {self.result}; {calls}",
            f"mean probabilities before, over {self.num_inputs} of {self.num_examples} examples: {means}",
        ]
        if self.scores:
            lines.append(f"{self.metric} on {count(self.program_calls - self.num_failed, 'input')}:")
        for strategy, score in self.scores.items():
            line = f"  {strategy}: {score:.3f}"
            if strategy == self.chosen:
                line += " (chosen)"
            lines.append(line)
        if self.gain_interval is not None:
            low, high = self.gain_interval
            lines.append(f"  gain over the program as it is: between {low:+.3f} and {high:+.3f}")
        return "\n  ".join(lines)


def _by_label(shares: Mapping[str, float]) -> str:
    return shares_by_label(list(shares), shares.values())
