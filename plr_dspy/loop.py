"""The loop of every search: ask for orderings, score them, tell the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from plr_dspy.distributions import mode_probability
from plr_dspy.records import Iteration, Trial
from plr_dspy.search import Search
from plr_dspy.space import Ordering


class Objective(Protocol):
    """What scores orderings, and knows what that would cost."""

    @property
    def program_calls(self) -> int:
        """Distinct program calls made so far."""

    def cost(self, orderings: Sequence[Ordering]) -> int:
        """Program calls that scoring these orderings would make."""

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        """Score orderings; the trials come in the same order."""


def run(
    search: Search,
    objective: Objective,
    *,
    num_iterations: int,
    max_program_calls: int | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
) -> tuple[list[Trial], list[Iteration], str]:
    """Drive a search until its iterations, the orderings or the budget end.

    Args:
        search: Proposes orderings and learns.
        objective: Scores them.
        num_iterations: Rounds at most (T).
        max_program_calls: A round that would take the objective past this many is not begun.
        on_iteration: Called after each round.

    Returns:
        All distinct trials in order of scoring, the rounds, and why the search ended.
    """
    trials: dict[Ordering, Trial] = {}
    history: list[Iteration] = []
    for index in range(num_iterations):
        orderings = search.ask()
        if not orderings:
            return list(trials.values()), history, "no new ordering left"
        if (
            max_program_calls is not None
            and objective.program_calls + objective.cost(orderings) > max_program_calls
        ):
            return list(trials.values()), history, "budget"
        scored = objective(orderings)
        elites = search.tell(scored)
        num_new = len({trial.ordering for trial in scored} - trials.keys())
        trials |= {trial.ordering: trial for trial in scored}
        scores = [trial.score for trial in scored]
        iteration = Iteration(
            index=index,
            num_samples=len(scored),
            num_new=num_new,
            mean_score=sum(scores) / len(scores),
            best_score=max(scores),
            elite_score=elites[-1].score,
            best_score_so_far=max(trial.score for trial in trials.values()),
            program_calls=objective.program_calls,
            mode_probability=[mode_probability(d) for d in search.distributions],
        )
        history.append(iteration)
        if on_iteration is not None:
            on_iteration(iteration)
    return list(trials.values()), history, "all iterations done"
