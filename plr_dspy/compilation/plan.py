"""The shape of one compile: rounds, orderings and examples of each phase, and the calls that these make."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The shape of one compile.

    Attributes:
        num_iterations, num_samples, elite_fraction, num_final_draws: T, B, rho and K of PLR Algorithm 1.
        num_best_seen: Best orderings of the search, or winners of its race, that join the final comparison.
        num_train_examples: Examples that score a sample, the same ones for all samples; with `racing`, at most.
        num_selection_examples: Examples of the final comparison.
        exhaustive: Whether the search scores every distinct ordering on the whole train split.
        racing: Whether orderings are scored on few examples at first, and the good ones on more and more.
        max_metric_calls: Hard limit on program calls; None for none.
        by_criterion: Whether the search's best ordering is chosen whatever it scores on the selection split.
        with_mode: Whether the most probable ordering joins the final comparison.
        num_initial: Orderings of the first round.
        num_first_examples, num_more_examples: Examples that score an ordering at first, and each time it is
            asked for again; this and all below of racing plans only.
        num_entrants: Of the race that ends the search; of an exhaustive plan, all orderings.
        race_calls: Program calls kept for it.
    """

    num_iterations: int
    num_samples: int
    elite_fraction: float
    num_final_draws: int
    num_best_seen: int
    num_train_examples: int
    num_selection_examples: int
    exhaustive: bool
    racing: bool
    max_metric_calls: int | None
    by_criterion: bool = False
    with_mode: bool = True
    num_initial: int = 0
    num_first_examples: int = 0
    num_more_examples: int = 0
    num_entrants: int = 0
    race_calls: int = 0

    @property
    def num_finalists(self) -> int:
        """Orderings of the final comparison, at most: the original, the best seen, the mode, the draws.

        In a racing plan the mode and the draws run in the race.
        """
        return 1 + self.num_best_seen + (0 if self.racing else self.with_mode + self.num_final_draws)

    @property
    def final_calls(self) -> int:
        """Program calls of the final comparison, at most."""
        return self.num_finalists * self.num_selection_examples

    @property
    def search_calls(self) -> int:
        """Program calls of the search before the race, at most."""
        if self.exhaustive:
            return self.num_entrants * self.num_train_examples
        if self.racing and self.max_metric_calls is not None:
            return self.max_metric_calls - self.final_calls - self.race_calls
        return self.num_iterations * self.num_samples * self.num_train_examples

    @property
    def planned_calls(self) -> int:
        """Program calls of search, race and final comparison, at most."""
        return self.search_calls + self.race_calls + self.final_calls

    @property
    def program_calls(self) -> int:
        """Program calls of the compile, at most."""
        planned = self.planned_calls
        return planned if self.max_metric_calls is None else min(planned, self.max_metric_calls)

    @property
    def call_limit(self) -> int:
        """Program calls that are never exceeded, with those that failed and were made again in a later part.

        Without a limit these last come on top of `program_calls`.
        """
        return sys.maxsize if self.max_metric_calls is None else self.max_metric_calls


NOTHING_TO_DO = Plan(
    num_iterations=0,
    num_samples=1,
    elite_fraction=1.0,
    num_final_draws=0,
    num_best_seen=0,
    num_train_examples=0,
    num_selection_examples=0,
    exhaustive=True,
    racing=False,
    max_metric_calls=0,
)
"""The plan where all choices give the same prompt."""
