"""PLReorder: the DSPy optimizer that learns the order of a program's demos."""

from typing import Annotated, Any, Literal

from pydantic import Field

from plr_dspy.compiling.paper import paper_plan
from plr_dspy.compiling.plan import Plan, ProblemSize, make_plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.learning import LearningOptimizer
from plr_dspy.programs.checks import Count, Fraction, WholeNumber, arguments


@arguments
class PLReorder(LearningOptimizer):
    """Find the best order of a program's demos among those that a learnt Plackett-Luce distribution proposes.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and ``Prediction(score=...)`` count.
            Other parameters, such as ``trace``, get their defaults, or None.
        signal: What the search learns from: "score" is the metric's score; "logprobs" adds the
            log-probabilities of labels, so that it needs a fraction of the calls. They are available if
            exactly one output is a Literal, an enum or a bool, the metric needs only its value, and the
            endpoint returns them. "auto" uses them if available; otherwise, the report says why not.
        calibrate: Choose the order by calibrated answers, and return a `CalibratedProgram`
            (docs/calibration.md), without extra calls. It needs log-probabilities. True uses the label
            shares that score best; a dict gives the share of each label. Gains are over the unchanged
            student.
        update: "mle", "ema", "mixture", or an update object such as ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper" runs PLR
            Algorithm 1 with the paper's values. None takes `max_metric_calls`.
        max_metric_calls: Budget in program calls, which overrides `auto`; never exceeded.
        max_seconds: No program call starts later than this. The final comparison keeps its share.
        max_cost: Budget in US dollars, including calls in `log_dir`. No call starts that may exceed it,
            judging by the calls so far. Each model needs a price.
        stop_at_score: Estimated score of an order on the train split that ends the search.
        patience: Consecutive rounds without a better order that end the search.
        min_probability: Minimum probability of being better on new examples for an order to replace the
            original. None requires better to be three times as likely as worse; with auto="paper", it
            is 0.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR Algorithm 1; None leaves
            them to `auto`.
        num_demos: Labelled demos to add to a student without any; None makes that an error.
        num_threads: Maximum concurrent program calls; None uses DSPy's setting.
        max_errors: Number of failed program calls that ends the compile with the last one's exception.
            None uses DSPy's setting, or a twentieth of the calls made if that is more. Failures on the
            same example count once. Unparsable answers are wrong, not failures.
        seed: Random seed.
        log_dir: Folder for finished calls (``calls.jsonl``) and the report (``report.json``). A compile
            with the same program, metric, models and examples does not repeat these calls.
        accept_changes: Continue from a `log_dir` even if the program, the metric, a model or an example
            has changed, and repeat all calls that failed at the provider.
        display_progress: Show a progress bar and, without log handlers, a line for each round.

    Attributes:
        report: The `Report` of the last compile, even after an interrupt or an error.
        best_program: The last compile's program; after an interrupt or an error, the best so far.

    Raises:
        TypeError, ValueError: If an argument is out of range; the message says what to pass.
    """

    name = "PLReorder"

    auto: Literal["light", "medium", "heavy", "paper"] | None = "light"  # type: ignore[misc]
    num_iterations: Count | None = None
    num_samples: Count | None = None
    elite_fraction: Fraction | None = None
    num_final_draws: Annotated[WholeNumber, Field(ge=0)] | None = None

    def check_together(self) -> None:
        """Raise a ValueError if arguments conflict."""
        super().check_together()
        if self.auto == "paper" and self._needing_logprobs:
            argument = self._needing_logprobs
            raise UserError(f"auto='paper' learns from scores alone, as the paper does: leave out {argument}")

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        shape: dict[str, Any] = {
            "num_iterations": self.num_iterations,
            "num_samples": self.num_samples,
            "elite_fraction": self.elite_fraction,
            "num_final_draws": self.num_final_draws,
        }
        if self.auto == "paper":
            return paper_plan(size, self.max_metric_calls, **shape)
        return make_plan(self.auto, size, max_metric_calls=self.max_metric_calls, signal=signal, **shape)

    @property
    def balances_splits(self) -> bool:
        return self.auto != "paper"  # The paper only shuffles.
