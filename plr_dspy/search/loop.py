"""The loop of every search: ask for orderings, score them, tell the search."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import Iteration, ScoreEstimate, Trial
from plr_dspy.report.text import BUDGET
from plr_dspy.search.search import Search, as_ordering
from plr_dspy.search.stopping import Stopper
from plr_dspy.statistics.comparisons import agreement

TIME_LIMIT = "time limit"
NOTHING_LEFT, ALL_ROUNDS = "no new ordering left", "all iterations done"

MIN_SHARE = 0.5
"""Share of a round, but the first, that must be scored for a refit: fewer orderings would have too few elites."""


class Objective(Protocol):
    """What scores orderings, and knows what that would cost."""

    @property
    def program_calls(self) -> int:
        """Program calls that the search has made so far."""

    def cost(self, orderings: Sequence[Ordering]) -> int:
        """Program calls that scoring these orderings would make."""

    def __call__(self, orderings: Sequence[Ordering]) -> list[Trial]:
        """Score orderings; the trials come in the same order, fewer of them when the time is up."""


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

    def best(self, search: Search, count: int) -> list[ScoreEstimate]:
        """The best orderings by the search's estimates, best first; the earlier of equals comes first."""
        return search.ranked(list(self.trials.values()))[:count]

    def note(
        self, search: Search, trials: Sequence[Trial], elites: Sequence[ScoreEstimate], calls: int
    ) -> None:
        """Add a round that the search has been told."""
        num_new = len({trial.ordering for trial in trials} - self.trials.keys())
        self.trials.update({trial.ordering: trial for trial in trials})
        scores = [trial.score for trial in trials]
        best = self.best(search, 1)[0]
        self.history.append(
            Iteration(
                index=len(self.history),
                num_samples=len(trials),
                num_new=num_new,
                mean_score=sum(scores) / len(scores),
                best_score=max(scores),
                elite_score=elites[-1].score,
                best_score_so_far=best.score,
                best_ordering=best.ordering,
                program_calls=calls,
                mode_probability=search.proposal.mode_probabilities(),
                num_elites=len(elites),
                agreement=agreement([elite.ordering for elite in elites], search.space.sizes),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """The rounds and trials as JSON data."""
        return {
            "trials": [[t.ordering, t.score, t.num_examples] for t in self.trials.values()],
            "history": [asdict(iteration) for iteration in self.history],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        """What `state_dict` was taken of."""
        trials = [Trial(as_ordering(ordering), score, count) for ordering, score, count in state["trials"]]
        history = [
            Iteration(**{**iteration, "best_ordering": as_ordering(iteration["best_ordering"])})
            for iteration in state["history"]
        ]
        return cls({trial.ordering: trial for trial in trials}, history)


def run(
    search: Search,
    objective: Objective,
    *,
    num_iterations: int,
    max_program_calls: int | None = None,
    stoppers: Sequence[Stopper] = (),
    on_iteration: Callable[[Iteration], None] | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Drive a search until its iterations, the orderings, the budget or the time end, or a stopper says so.

    Args:
        search: Proposes orderings and learns.
        objective: Scores them.
        num_iterations: Rounds at most (T), those of `progress` included.
        max_program_calls: A round that would take the objective past this many is cut short, or not begun.
        stoppers: Asked before each round.
        on_iteration: Called after each round that was scored whole.
        progress: Of the rounds that the search has been told before; filled round by round.

    Returns:
        The progress, with the reason for which the search ended.
    """
    progress = Progress() if progress is None else progress

    def reason() -> str:
        while True:
            for stopper in stoppers:
                if stop := stopper(progress.history):
                    return stop
            if len(progress.history) >= num_iterations:
                return ALL_ROUNDS
            if not (orderings := search.ask()):
                return NOTHING_LEFT
            affordable = orderings
            if max_program_calls is not None:
                left = max_program_calls - objective.program_calls
                affordable = orderings[: num_affordable(orderings, objective.cost, left)]
            if len(affordable) < MIN_SHARE * len(orderings):
                return BUDGET
            trials = objective(affordable)
            if trials and (len(trials) >= MIN_SHARE * len(orderings) or not progress.history):
                progress.note(search, trials, search.tell(trials), objective.program_calls)
            else:
                progress.trials.update({trial.ordering: trial for trial in trials})
            if len(trials) < len(orderings):
                return TIME_LIMIT if len(trials) < len(affordable) else BUDGET
            if on_iteration is not None:
                on_iteration(progress.history[-1])

    progress.stopped = reason()
    return progress


def num_affordable(
    orderings: Sequence[Ordering], cost: Callable[[Sequence[Ordering]], int], left: int
) -> int:
    """How many of the first orderings the calls left pay for; what is known costs nothing.

    Args:
        orderings: In the order wanted.
        cost: Program calls of some of them.
        left: Program calls left; none if negative.
    """
    return bisect_right(range(1, len(orderings) + 1), max(0, left), key=lambda n: cost(orderings[:n]))
