"""The loop of every search: ask for orderings, score them, tell the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Progress:
    """What a search has found so far; whoever holds it has that even if the search is interrupted.

    Attributes:
        trials: The last trial of each ordering, in order of scoring.
        history: The rounds.
        stopped: Why the search ended; "interrupted" until it has.
    """

    trials: dict[Ordering, Trial] = field(default_factory=dict)
    history: list[Iteration] = field(default_factory=list)
    stopped: str = "interrupted"

    def best(self, count: int) -> list[Trial]:
        """The best trials, best first; the earlier of equals comes first."""
        return sorted(self.trials.values(), key=lambda trial: -trial.score)[:count]


def run(
    search: Search,
    objective: Objective,
    *,
    num_iterations: int,
    max_program_calls: int | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Drive a search until its iterations, the orderings or the budget end.

    Args:
        search: Proposes orderings and learns.
        objective: Scores them.
        num_iterations: Rounds at most (T).
        max_program_calls: A round that would take the objective past this many is not begun.
        on_iteration: Called after each round.
        progress: Filled round by round; a new one if None.

    Returns:
        The progress, with the reason for which the search ended.
    """
    progress = Progress() if progress is None else progress
    progress.stopped = _run(search, objective, num_iterations, max_program_calls, on_iteration, progress)
    return progress


def _run(
    search: Search,
    objective: Objective,
    num_iterations: int,
    max_program_calls: int | None,
    on_iteration: Callable[[Iteration], None] | None,
    progress: Progress,
) -> str:
    """The rounds of `run`; returns the reason for their end."""
    trials = progress.trials
    for index in range(num_iterations):
        orderings = search.ask()
        if not orderings:
            return "no new ordering left"
        if (
            max_program_calls is not None
            and objective.program_calls + objective.cost(orderings) > max_program_calls
        ):
            return "budget"
        scored = objective(orderings)
        elites = search.tell(scored)
        num_new = len({trial.ordering for trial in scored} - trials.keys())
        trials.update({trial.ordering: trial for trial in scored})
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
        progress.history.append(iteration)
        if on_iteration is not None:
            on_iteration(iteration)
    return "all iterations done"
