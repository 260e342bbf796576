"""PLReorder: the DSPy optimizer that learns the order of a program's demos."""

from typing import Annotated, Any, Literal

from pydantic import Field

from plr_dspy.compilation.paper import paper_plan
from plr_dspy.compilation.plan import Plan, ProblemSize, make_plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.learning import LearningOptimizer
from plr_dspy.programs.checks import Count, Fraction, WholeNumber, arguments


@arguments
class PLReorder(LearningOptimizer):
    """Search the orders of a program's demos, which a learnt Plackett-Luce distribution proposes, and pick the best.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and ``Prediction(score=...)`` count.
            Further parameters, such as ``trace``, get their defaults, or None.
        signal: What the search learns from a call. "score" is the metric's score; "logprobs" also the
            log-probabilities of labels, which tell the same with a fraction of the calls. They come if exactly one
            output is a Literal, an enum or a bool, the metric needs nothing but its value, and the endpoint gives them.
            "auto" takes them if they come, and otherwise says why not in the report.
        calibrate: Choose the order by calibrated answers, and return a `CalibratedProgram` (docs/calibration.md), at no
            further call. It needs log-probabilities. True takes the shares of labels that score best; a dict gives the
            share of each label. Gains are over the student as it is.
        update: "mle", "ema", "mixture", or an update object such as ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper" runs PLR
            Algorithm 1 with the paper's values. None takes `max_metric_calls`.
        max_metric_calls: Budget in program calls instead; never exceeded.
        max_seconds: No program call begins later than this. The final comparison keeps its share.
        max_cost: US dollars, with what `log_dir` holds. No call begins that may exceed them, judged by the calls so
            far. Each model needs a price.
        stop_at_score: The search ends when it estimates this score on the train split for an order.
        patience: The search ends when this many rounds in a row found no better order.
        min_probability: An order replaces the original only if it is better on new examples with this probability.
            None asks that better is three times as likely as worse. With auto="paper" it is 0.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR Algorithm 1; None leaves
            them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: This many failed program calls end the compile with the exception of the last. None takes DSPy's
            setting, or a twentieth of the calls made if that is more. All failures on one example count once. Answers
            that cannot be parsed are wrong, not failures.
        seed: Of everything random.
        log_dir: Folder for every finished call (``calls.jsonl``), and the report (``report.json``). A compile with the
            same program, metric, models and examples makes no call again that it holds.
        accept_changes: Go on from a `log_dir` although the program, the metric, a model or an example has changed, and
            make all calls again that the provider failed.
        display_progress: Draw a progress bar, and without log handlers show a line for each round.

    Attributes:
        report: The `Report` of the last compile, also after an interrupt or an error.
        best_program: What the last compile returned; after an interrupt or an error, the best that it had seen.

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
        """Raise a ValueError if arguments do not go together."""
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
        return self.auto != "paper"  # The paper shuffles, no more.
