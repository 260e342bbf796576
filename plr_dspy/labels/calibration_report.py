"""The report on a calibration, to print or to store as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plr_dspy.labels.calibration import Calibration
from plr_dspy.report.formats import count, shares_by_label

AS_IT_IS = "as it is"  # name of the strategy without calibration


@dataclass(frozen=True)
class CalibrationReport:
    """A report on a calibration by `BatchCalibration`. `print()` shows a summary.

    Attributes:
        calibration: The chosen calibration, or None if the program keeps its own answers.
        metric: Criterion for comparing calibration strategies: "accuracy", or a metric over a set.
        mean_probabilities: Mean probability of each label before calibration.
        num_examples: Number of examples in the trainset.
        num_inputs: Number of inputs whose replies had label probabilities.
        program_calls, num_failed: Number of program calls, and number of calls that failed.
        scores: Accuracy or metric value, keyed by strategy. The strategies are "as it is"
            (uncalibrated), "calibrated to ..." with label shares, and the best constant answer,
            such as "always 'yes'". Empty if the examples' labels were not used.
        chosen: The best strategy apart from the constant answer, or None if `scores` is empty.
        gain_interval: 95% confidence interval for the chosen strategy's gain in accuracy over
            "as it is", or None if accuracies were not compared.
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
        """The target share of each label among answers, or None if there are no targets."""
        if self.calibration is None or not self.calibration.shares:
            return None
        return dict(zip(self.calibration.labels, self.calibration.shares, strict=True))

    def __str__(self) -> str:
        means = _by_label(self.mean_probabilities)
        result = "answers stay unchanged"
        if self.shares is not None:
            result = f"calibrated to {_by_label(self.shares)}"
        calls = count(self.program_calls, "program call")
        if self.num_inputs < self.program_calls:
            calls += f" ({self.num_failed} failed, {self.num_inputs} with label probabilities)"
        lines = [
            f"BatchCalibration: {result}; {calls}",
            f"mean probabilities before calibration, on {self.num_inputs} of {self.num_examples} examples: {means}",
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
            lines.append(f"  gain over the uncalibrated program: between {low:+.3f} and {high:+.3f}")
        return "\n  ".join(lines)


def _by_label(shares: Mapping[str, float]) -> str:
    return shares_by_label(list(shares), shares.values())
