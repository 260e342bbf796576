"""The shape of a compile that scores random orders, each once."""

from __future__ import annotations

from plr_dspy.compilation.plan import Plan
from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.search.enumeration import RandomSearch


def random_plan(
    num_orders: int,
    *,
    batch: int,
    num_examples: int,
    num_best: int,
    num_compared: int,
    max_metric_calls: int | None,
    by_criterion: bool = False,
) -> Plan:
    """So many orders, on so many examples each; then the best of them beside the original one.

    Args:
        num_orders: In all.
        batch: Orders scored in a round.
        num_examples: That score an order.
        num_best: Orders that are compared with the original one.
        num_compared: Examples of the comparison.
        max_metric_calls: Hard limit on program calls; None for none.
        by_criterion: As in `Plan`.
    """
    return Plan(
        num_iterations=-(-num_orders // batch),
        num_samples=min(batch, num_orders),
        elite_fraction=1.0,
        num_final_draws=0,
        num_best_seen=num_best,
        num_train_examples=num_examples,
        num_selection_examples=num_compared,
        exhaustive=False,
        racing=False,
        max_metric_calls=max_metric_calls,
        with_mode=False,
        num_initial=num_orders,
        by_criterion=by_criterion,
    )


def random_search(plan: Plan, space: SearchSpace, *, seed: int) -> RandomSearch:
    """The search of such a plan: the original order first."""
    return RandomSearch(space, num_orderings=plan.num_initial, num_samples=plan.num_samples, seed=seed)
