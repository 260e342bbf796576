"""One round of a search, as reports keep it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """One ask, score, tell round.

    Attributes:
        index: 0 for the first.
        num_samples: Orderings scored.
        num_new: How many of those had not been scored before.
        mean_score, best_score: Over this round's orderings.
        elite_score: Score of the last ordering that became an elite.
        best_score_so_far: Over all rounds; as the search estimates it, where it has a model. Like `elite_score`, it
            never lies outside of what single scores can be.
        best_ordering: The ordering with that score, one permutation for each block.
        program_calls: Distinct program calls made since the start.
        mode_probability: Probability of each block's most probable ordering after the round.
        num_elites: Orderings that the distributions were refitted to.
        agreement: Kendall's W of these, the mean over blocks: 1 where all agree, `1 / num_elites` by chance.
    """

    index: int
    num_samples: int
    num_new: int
    mean_score: float
    best_score: float
    elite_score: float
    best_score_so_far: float
    best_ordering: tuple[tuple[int, ...], ...]
    program_calls: int
    mode_probability: list[float]
    num_elites: int
    agreement: float

    def __str__(self) -> str:
        return (
            f"iteration {self.index + 1}: {self.num_samples} orders, {self.num_new} new; mean score "
            f"{self.mean_score:.3f}, estimated best so far {self.best_score_so_far:.3f}; "
            f"{self.program_calls} program calls"
        )
