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
    """An optimizer that finds the best order of a program's demos with a learned Plackett-Luce distribution.

    Demos, instructions and weights do not change, so choose the demos with another optimizer
    first. Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples",
    arXiv:2603.21373.

    Args:
        metric: A function ``metric(example, prediction)`` that returns a bool, a number or a
            ``Prediction(score=...)``; higher is better. Any other parameters, such as
            ``trace``, get their defaults or None. Metrics over a set, such as
            ``F1("positive")``, are also accepted.
        signal: The signal that the search learns from. "score" is the metric's score. "logprobs"
            adds the log-probabilities of labels, so that far fewer calls are needed. The endpoint
            must return log-probabilities, and exactly one output must be a Literal, an enum or a
            bool. The metric must depend only on this output. "auto" uses log-probabilities if these
            conditions are met; if they are not, the report says why.
        calibrate: Whether to compare orders by their calibrated answers and return the best as a
            `CalibratedProgram` (docs/calibration.md). Calibration needs log-probabilities, but
            no extra calls. True tries several shares of labels and uses the best; a dict
            specifies the share of each label. Gains are relative to the unchanged student.
        update: "mle", "ema", "mixture", or an update object such as
            ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000).
            "paper" runs PLR Algorithm 1 with the paper's settings. None requires
            `max_metric_calls`.
        max_metric_calls: Maximum number of program calls; overrides `auto`.
        max_seconds: Time limit in seconds, after which no program call starts. Part of this
            time is reserved for the final comparison.
        max_cost: Maximum cost in US dollars, including calls in `log_dir`. No call starts if it
            might exceed this limit, judging by the cost of earlier calls. The price of each model
            must be known.
        stop_at_score: Target score. The search ends once an order's estimated score on the train
            split reaches this target.
        patience: Number of consecutive rounds without a better order after which the search ends.
        min_probability: Minimum probability of a gain on new examples that another order needs to
            replace the original order. None requires a gain to be three times as likely as a
            loss, or 1.5 times as likely for one of `programs`. With auto="paper", None means 0.
        num_iterations, num_samples, elite_fraction, num_final_draws: The parameters T, B, rho and
            K of PLR Algorithm 1. If an argument is None, `auto` determines its value.
        num_demos: Number of labeled demos to add to a student without demos. If None, such a
            student raises an error.
        num_threads: Maximum number of concurrent program calls; None uses DSPy's setting.
        max_errors: Number of failed program calls after which `compile` raises the last call's
            exception. None uses the larger of DSPy's setting and 5% of the calls made.
            Failures on the same example count once. Unparsable answers count as incorrect
            answers, not as failures.
        seed: Random seed.
        log_dir: Folder for finished calls (``calls.jsonl``) and the report (``report.json``).
            A later run reuses these calls if the program, metric, models and examples are the
            same.
        accept_changes: Whether to reuse the calls in `log_dir` even if the program, the
            metric, a model or an example has changed. Calls that failed at the provider are
            repeated.
        display_progress: Whether to show a progress bar and, if there are no log handlers, a
            line for each round.

    Attributes:
        report: The `Report` on the last call to `compile`, even if the call was interrupted or
            raised an error. None before the first call, and if a call ended before the search.
        best_program: The program that the last call to `compile` returned. If the call was
            interrupted or raised an error, this is the best program found by then.

    Raises:
        TypeError, ValueError: If an argument is invalid. The message says what to pass.
    """

    name = "PLReorder"

    auto: Literal["light", "medium", "heavy", "paper"] | None = "light"  # type: ignore[misc]
    num_iterations: Count | None = None
    num_samples: Count | None = None
    elite_fraction: Fraction | None = None
    num_final_draws: Annotated[WholeNumber, Field(ge=0)] | None = None

    def check_together(self) -> None:
        super().check_together()
        if self.auto == "paper" and self._needing_logprobs:
            argument = self._needing_logprobs
            raise UserError(
                f"auto='paper' learns only from scores, as in the paper, but {argument} needs "
                f"log-probabilities: omit {argument}, or pass another budget, such as auto='light'"
            )

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
        return self.auto != "paper"  # The splits in the paper are not stratified.
