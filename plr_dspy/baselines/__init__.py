"""The published alternatives to `PLReorder`, to be used and compared in its place.

Here are the order given, and the best of many random ones; methods that look at label probabilities have another file.
"""

from typing import Annotated

from pydantic import Field

from plr_dspy.baselines.label_methods import COMPARED_SHARE, PDO, DEmO, GlobalE, LocalE, PerInputOrder
from plr_dspy.compilation.plan import MIN_EXAMPLES, NOTHING_TO_DO, Plan, random_plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.programs.checks import Count, WholeNumber, arguments

__all__ = ["PDO", "DEmO", "GlobalE", "LocalE", "PerInputOrder", "StaticOrder", "TopKOrder"]

BATCH = 15  # orders scored between two lines of the log


class StaticOrder(Reorderer):
    """Leaves the demos as they are, and makes no program call.

    The place of a method in a comparison: the program comes back with a report, as from the others.

    All arguments are as in `PLReorder`.
    """

    name = "StaticOrder"
    chooses_by_score = False

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Plan no call."""
        return NOTHING_TO_DO


@arguments
class TopKOrder(Reorderer):
    """Random search with as many orders as Plackett-Luce search has: "Top-K" of arXiv:2603.21373.

    Random orders are scored on the whole train split; the best of them meet on the selection split.

    Deviation: the original order is one of the candidates, takes part in the final comparison, and wins
    ties. The paper compares the best random orders alone.

    Args:
        metric: As in `PLReorder`.
        num_candidates: Random orders; the paper's T x B.
        num_finalists: The best of them that reach the selection split; the paper's K.
        max_metric_calls: Budget in program calls, never exceeded: as many orders as it pays for. None takes
            all: at most ``num_candidates * train + (num_finalists + 1) * selection`` calls.
        all others: As in `PLReorder`.
    """

    name = "TopKOrder"

    num_candidates: Annotated[WholeNumber, Field(ge=2)] = 225
    num_finalists: Count = 10

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """As many orders as the budget pays for, each on the whole train split."""
        num_candidates, num_best = min(self.num_candidates, num_distinct), self.num_finalists
        budget, num_compared = self.max_metric_calls, num_selection
        if budget is not None:
            least = 2 * num_train + 2 * MIN_EXAMPLES
            if budget < least:
                fewer = ", or pass fewer examples" if budget >= 2 + 2 * MIN_EXAMPLES else ""
                raise UserError(
                    f"max_metric_calls must be at least {least}, for two orders on {num_train} train examples and a "
                    f"comparison; got {budget}: raise it{fewer} (PLReorder scores orders on some of them)"
                )
            left = min(max(int(COMPARED_SHARE * budget), 2 * MIN_EXAMPLES), budget - 2 * num_train)
            num_best = max(1, min(num_best, left // num_selection - 1))
            num_compared = min(num_selection, left // (1 + num_best))
            affordable = (budget - (1 + num_best) * num_compared) // num_train
            num_candidates = min(num_candidates, affordable)
        return random_plan(
            num_candidates,
            batch=BATCH,
            num_examples=num_train,
            num_best=num_best,
            num_compared=num_compared,
            budget=budget,
        )
