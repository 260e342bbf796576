"""The order given: what every other method is compared with."""

from __future__ import annotations

from plr_dspy.compilation.plan import NOTHING_TO_DO, Plan
from plr_dspy.optimizer.base import Reorderer
from plr_dspy.optimizer.job import Job, Setup, by_metric
from plr_dspy.search.enumeration import RandomSearch


class StaticOrder(Reorderer):
    """Leaves the demos as they are, and makes no program call.

    The place of a method in a comparison: the program comes back with a report, as from the others.

    Args:
        metric, max_metric_calls, max_seconds, num_demos, num_threads, max_errors, seed, log_dir,
            accept_changes, track_stats, display_progress: As in `PLReorder`.
    """

    name = "StaticOrder"
    judges = False

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int) -> Plan:
        """Plan no call."""
        return NOTHING_TO_DO

    def setup(self, job: Job) -> Setup:
        """Make a search that is not asked."""
        return by_metric(job, RandomSearch(job.slots.space, num_orderings=0))
