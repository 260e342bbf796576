"""The search among whole programs: score all of them on the same examples, and drop those that cannot win."""

import math
from collections.abc import Sequence

from plr_dspy.search.model.ordering_model import one_thread
from plr_dspy.search.model.paired import FittedPrograms, ProgramModel
from plr_dspy.search.search import Search
from plr_dspy.search.space import Candidate, OrderingSpace, ScoreEstimate, Scores, WholeProgram

# Expected improvements that a race may forgo, in standard errors of a program's final mean
# score.
MAX_LOSS_BY_ENDING = 0.045
MAX_LOSS_BY_DROPPING = 0.025  # in one round


class EliminationSearch(Search):
    """A search that proposes the programs that may still win, and drops the others.

    Args:
        space: A space without demos to order, whose `programs` exclude the baseline.
        first: The baseline, which is never dropped, because the others are compared with it.

    Attributes:
        alive: Programs still in the race, the baseline first.
    """

    fitted: FittedPrograms | None

    def __init__(self, space: OrderingSpace, first: WholeProgram) -> None:
        super().__init__(space)
        self.model: ProgramModel = ProgramModel(space)
        self.alive: list[Candidate] = [first, *space.programs]

    def ask(self) -> list[Candidate]:
        return list(self.alive)

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        elites = super().tell(orderings, scores)
        self.fitted = self.model.fit(scores)
        return elites

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        estimates = [] if self.fitted is None else self.fitted.estimates()
        return self.model.clipped([estimate for estimate in estimates if estimate.ordering in scores], scores)

    def can_change(self, leader: Candidate, num_examples: int) -> bool:
        """Return whether some program's expected improvement on the leader is worth further examples.

        The leader is the program to choose now. At the end of the race, a program has been
        scored on at most `num_examples`.
        """
        return max(self._improvements(leader, num_examples).values()) >= MAX_LOSS_BY_ENDING

    def drop(self, leader: Candidate, num_examples: int) -> None:
        """Drop the programs whose expected improvement on the leader is negligible.

        The baseline stays, and so does the most promising other program.
        """
        improvements = self._improvements(leader, num_examples)
        baseline = self.alive[0]
        loss = 0.0
        for program in sorted(improvements, key=improvements.__getitem__)[:-1]:
            loss += improvements[program]
            if loss > MAX_LOSS_BY_DROPPING:
                return
            if program != baseline:
                self.alive.remove(program)

    def _improvements(self, leader: Candidate, num_examples: int) -> dict[Candidate, float]:
        """Return each other program's expected improvement over the leader, in standard errors of its mean score."""
        fitted = self.fitted
        assert fitted is not None
        with one_thread():
            values = fitted.process.improvements(fitted.orderings.index(leader), num_examples)
        improvements = dict(zip(fitted.orderings, (math.sqrt(num_examples) * values).tolist(), strict=True))
        return {program: improvements[program] for program in self.alive if program != leader}
