"""Alternatives to `PLReorder`: the original order, random search, and published methods."""

from typing import Annotated

from pydantic import Field

from plr_dspy.baselines.label_methods import PDO, DEmO, GlobalE, LocalE
from plr_dspy.compiling.paper import NOTHING_TO_DO, random_plan
from plr_dspy.compiling.plan import MIN_EXAMPLES, Plan, ProblemSize
from plr_dspy.errors import UserError
from plr_dspy.labels.per_input_order import PerInputOrder
from plr_dspy.optimizer.base import DemoOptimizer
from plr_dspy.programs.checks import Count, WholeNumber, arguments

__all__ = ["PDO", "DEmO", "GlobalE", "LocalE", "PerInputOrder", "StaticOrder", "TopKOrder"]

BATCH = 15  # maximum number of orders in a round; each round logs one line
COMPARED_SHARE = 0.2  # maximum budget share of the final comparison, unless `MIN_EXAMPLES` needs more


class StaticOrder(DemoOptimizer):
    """An optimizer that keeps the original order of demos and makes no program calls.

    Compiling still creates a report. All arguments are as in `PLReorder`.
    """

    name = "StaticOrder"
    chooses_by_score = False

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        return NOTHING_TO_DO


@arguments
class TopKOrder(DemoOptimizer):
    """Random search over orders, called "Top-K" in arXiv:2603.21373.

    Random orders are scored on the train split. The best of them, the finalists, are then scored
    on the selection split.

    Deviation from the paper: The original order is also a candidate and a finalist, and wins
    ties. In the paper, only the best random orders are compared.

    Args:
        metric: As in `PLReorder`.
        num_candidates: Maximum number of orders to score on the train split (T x B in the paper).
        num_finalists: Maximum number of orders to score on the selection split in addition to
            the original (K in the paper).
        max_metric_calls: Maximum number of program calls. None allows
            ``num_candidates * train + (num_finalists + 1) * selection`` calls, where `train`
            and `selection` are the sizes of the splits.
        all others: As in `PLReorder`.
    """

    name = "TopKOrder"

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 225
    num_finalists: Count = 10

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        """Return a plan that scores up to `num_candidates` affordable orders on the whole train split."""
        num_train = size.num_train
        num_selection = size.num_selection
        num_orders = min(self.num_candidates, size.num_distinct)
        num_best = self.num_finalists
        num_compared = num_selection
        budget = self.max_metric_calls
        if budget is not None:
            least = 2 * num_train + 2 * MIN_EXAMPLES
            if budget < least:
                raise UserError(
                    f"max_metric_calls must be at least {least} to score two orders on {num_train} train examples and "
                    f"compare the two; got {budget}: increase max_metric_calls, or use PLReorder, which scores orders "
                    "on fewer examples"
                )
            share = max(int(COMPARED_SHARE * budget), 2 * MIN_EXAMPLES)
            comparison_calls = min(share, budget - 2 * num_train)
            num_best = max(1, min(num_best, comparison_calls // num_selection - 1))
            num_compared = min(num_selection, comparison_calls // (1 + num_best))
            search_calls = budget - (1 + num_best) * num_compared
            num_orders = min(num_orders, search_calls // num_train)
        return random_plan(
            num_orders,
            batch=BATCH,
            num_examples=num_train,
            num_best=num_best,
            num_compared=num_compared,
            budget=budget,
        )
