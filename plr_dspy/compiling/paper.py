"""PLR Algorithm 1 and random search, which score each order on all train examples."""

from dataclasses import dataclass
from typing import Any, ClassVar

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.plan import Plan, ProblemSize
from plr_dspy.compiling.run import CompileRun
from plr_dspy.errors import UserError
from plr_dspy.report.stop import StopReason
from plr_dspy.scoring.evaluator import SEARCH
from plr_dspy.scoring.observations import CallRecords, Observations
from plr_dspy.search.space import Candidate


@dataclass(frozen=True)
class PaperPlan(Plan):
    """The plan of a compile run that scores each order once, on all train examples.

    In the notation of PLR Algorithm 1, T is `num_iterations`, B is `num_samples`, rho is
    `elite_fraction`, and K is `num_final_draws`.

    Attributes:
        with_mode: Whether the distribution's most probable ordering joins the final comparison.
    """

    racing: ClassVar[bool] = False

    with_mode: bool = True

    @property
    def num_finalists(self) -> int:
        return 1 + self.num_best_seen + int(self.with_mode) + self.num_final_draws

    @property
    def search_calls(self) -> int:
        return self.num_iterations * self.num_samples * self.num_train_examples


NOTHING_TO_DO = PaperPlan(max_metric_calls=0)  # plan of a compile run that needs no calls


def paper_plan(size: ProblemSize, max_metric_calls: int | None = None, **shape: float | None) -> PaperPlan:
    """Return the plan of PLR Algorithm 1.

    Args:
        max_metric_calls: Budget in program calls, or None for no limit.
        shape: `num_iterations`, `num_samples`, `elite_fraction` and `num_final_draws`. Settings
            that are missing or None have the paper's values.

    Raises:
        ValueError: If the budget is too small.
    """
    values: dict[str, Any] = {
        "num_iterations": 15,
        "num_samples": 15,
        "elite_fraction": 0.2,
        "num_final_draws": 10,
    }
    values |= {name: value for name, value in shape.items() if value is not None}
    plan = PaperPlan(
        **values,
        num_best_seen=1,
        num_train_examples=size.num_train,
        num_first_examples=size.num_train,
        num_selection_examples=size.num_selection,
        max_metric_calls=max_metric_calls,
    )
    least = plan.comparison_calls + plan.num_samples * plan.num_train_examples
    if max_metric_calls is not None and max_metric_calls < least:
        raise UserError(
            f"max_metric_calls must be at least {least} with auto='paper', for one iteration and the final comparison "
            f"on these splits; got {max_metric_calls}: increase max_metric_calls, or use auto='light'"
        )
    return plan


def random_plan(
    num_orders: int,
    *,
    num_examples: int,
    num_best: int,
    num_compared: int,
    budget: int | None,
    batch: int = 0,
) -> PaperPlan:
    """Return the plan of a random search.

    Args:
        num_orders: Maximum number of orders, including the original.
        num_examples: Number of examples on which each order is scored.
        num_best: Number of the search's best orders that enter the final comparison.
        num_compared: Number of examples in the final comparison.
        budget: Budget in program calls, or None for no limit.
        batch: Maximum number of orders in each round, or 0 for a single round.
    """
    batch = min(batch or num_orders, num_orders)
    return PaperPlan(
        num_iterations=-(-num_orders // batch),
        num_samples=batch,
        num_best_seen=num_best,
        num_train_examples=num_examples,
        num_selection_examples=num_compared,
        num_first_examples=num_examples,
        max_metric_calls=budget,
        with_mode=False,
        num_initial=num_orders,
    )


@dataclass(kw_only=True)
class PaperRun(CompileRun):
    """A compile run that uses PLR Algorithm 1 or a random search.

    In a random search, the distribution is not refitted to scores.

    Deviation: In the paper, only draws from the final distribution enter the final comparison.
    All draws may be worse than the original order or another order that the search scored. So this
    class also compares the original, the best scored orders and, if planned, the distribution's mode.
    """

    decides_by_score: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_probability is None:
            self.min_probability = 0.0

    def run(self) -> Outcome:
        """Sample and score orders, refit the distribution, and choose the best finalist."""
        stop = self.reason_not_to_begin()
        if stop is not None:
            return self.outcome(stop=stop)
        plan = self.plan
        self.evaluator.begin_phase(SEARCH, reserved=plan.comparison_calls, planned=plan.program_calls)
        while stop is None:  # Repeat for t = 1..T.
            orderings = self.search.ask()  # Sample B orderings.
            stop = self.score_round(orderings)  # Score them, and refit the distribution to the elites.
            if stop is None:
                stop = self.check_stoppers()
        self.stop = stop
        if self.found_no_difference():
            return self.outcome_without_difference()
        # Draw K orderings, and choose the finalist that scores best on the selection split.
        num_compared = plan.num_selection_examples
        if stop.reason is not StopReason.ALL_ROUNDS:
            num_compared = self.remaining_calls().num_compared
        return self.decide(self.compare(self.finalists(), num_compared))

    def deciding_observations(self, all_observations: Observations, compared: CallRecords) -> Observations:
        """Return the calls of the comparison alone, because Algorithm 1 decides by their scores."""
        observations = Observations(self.evaluator.effective_scores)
        observations.add(compared)
        return observations

    def finalists(self) -> list[Candidate]:
        """Return the original, the best orders and, if planned, the distribution's mode and draws from it."""
        plan = self.plan
        assert isinstance(plan, PaperPlan)
        best = [candidate for candidate in self.best() if candidate != self.original]
        finalists = [self.original, *best[: plan.num_best_seen]]
        if plan.with_mode:
            finalists.append(self.search.mode())
        finalists += self.search.draw(plan.num_final_draws)
        return list(dict.fromkeys(finalists))
