"""PLReorder: the DSPy optimizer that learns the order of a program's demos."""

from typing import Annotated, Literal

from pydantic import Field

from plr_dspy.compilation.plan import Plan, ProblemSize, make_plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.learning import LearningOptimizer
from plr_dspy.programs.checks import Count, Fraction, WholeNumber, arguments


@arguments
class PLReorder(LearningOptimizer):
    """Searches the orders of a program's demos, which a learnt Plackett-Luce distribution proposes, and picks the best.

    Demos, instructions and weights stay as they are: run it after an optimizer that chooses demos.
    Source: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.

    Args:
        metric: ``metric(example, prediction)``; larger is better. Bools, numbers and ``Prediction(score=...)`` count.
            Further parameters, such as ``trace``, get their defaults, or None.
        signal: What the search learns from a call. "score" is the metric's score alone; "logprobs" the
            log-probabilities of labels as well, which tell the same with a fraction of the calls; "auto" takes them
            where they come with the calls that are made anyway, and says in the report why it did not. They do where
            exactly one output of the program is a Literal, an enum or a bool, the metric needs nothing but its
            value, and the endpoint gives them (OpenAI's chat models, vLLM, llama.cpp). The metric is asked once for
            each example and label, before any call.
        calibrate: Score orders by calibrated answers, and return a `CalibratedProgram` in the chosen order: then an
            order is chosen for what calibration cannot give (docs/calibration.md). It costs no further call, and
            needs what signal="logprobs" needs. True calibrates to the shares that labels have in the examples, if these
            are clearly uneven, or to the same share each, or not at all, by what scores best; a dict from labels to
            shares says them. Gains are over the student as it is, which returns as it was where nothing is better.
        update: "mle", "ema", "mixture", or an update object such as ``MixtureEM(num_components=2)``.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper"
            runs PLR Algorithm 1 with the paper's values, every sample on the whole train split: at
            most 15 x 15 x train + 13 x selection examples. None takes `max_metric_calls`.
        max_metric_calls: Budget in program calls instead; never exceeded.
        max_seconds: No program call begins later than this; those under way end. The search gives the
            final comparison its share of the time.
        max_cost: US dollars. No call begins that may take the sum past them, by what calls have cost so far; race and
            final comparison get their share. What `log_dir` holds counts. It needs a price for each model.
        stop_at_score: The search ends after the round in which an order has this score on the train split,
            as the search estimates it.
        patience: The search ends when so many rounds in a row left the best order what it was.
        min_probability: Of the orders that are better on new examples with this probability or more, the one with the
            largest expected gain replaces the original one; with none of them the original stays. 0.9 changes only what
            is sure, and 0 whatever is expected to gain at all. None takes those that are at least three times as likely
            to be better as to be worse. With auto="paper" it is 0, and of these orders the best on the selection split
            is taken.
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR
            Algorithm 1; None leaves them to `auto`.
        num_demos: Labelled demos for a student that has none at all; None makes that an error.
        num_threads: Program calls under way at once; None takes DSPy's setting.
        max_errors: So many failed program calls end the compile, with the exception of the last; None
            takes DSPy's setting, or a twentieth of the calls made if that is more. An example that runs for no order
            counts once. Answers that cannot be parsed are wrong answers, not failures. A metric whose first value is no
            number ends it at once.
        seed: Of everything random.
        log_dir: Folder that keeps every finished call and every round (``calls.jsonl``), and the report
            (``report.json``). A compile with the same program, metric, models and examples goes on from there: no
            finished call is made again, and the search begins anew only if arguments changed that decide its course. As
            long as it holds no score, and no demo of a teacher, any other compile may start there, with its whole
            budget. None keeps nothing.
        accept_changes: Go on from a `log_dir` although the program, the metric, a model or an example is not
            what it was, because the scores paid for there hold all the same.
        display_progress: Draw a progress bar; where you have set up no log handlers, also show a line for each
            round and one at the end, as DSPy does.

    Attributes:
        report: The `Report` of the last compile, also when it was interrupted or ended in an error.
        best_program: What the last compile returned; after an interrupt or an error, the program in
            the best order that the search had seen.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
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
        return make_plan(
            self.auto,
            num_train=size.num_train,
            num_selection=size.num_selection,
            num_distinct=size.num_distinct,
            max_metric_calls=self.max_metric_calls,
            signal=signal,
            searched="orders",
            num_iterations=self.num_iterations,
            num_samples=self.num_samples,
            elite_fraction=self.elite_fraction,
            num_final_draws=self.num_final_draws,
        )
