"""The search among whole programs: score all of them on the same examples, and drop those that cannot win."""

import math
from collections.abc import Sequence

from plr_dspy.search.model.ordering_model import one_thread
from plr_dspy.search.model.paired import FittedPrograms, ProgramModel
from plr_dspy.search.search import Search
from plr_dspy.search.space import Candidate, OrderingSpace, ScoreEstimate, Scores, WholeProgram

# Expected gains that a race may forgo, over the standard error of a mean of all examples: by ending, and by dropping
# programs in a round.
LOST_BY_ENDING = 0.045
LOST_BY_DROPPING = 0.025


class EliminationSearch(Search):
    """Ask for the programs that may still win, and drop the others.

    Args:
        space: Has no demos to order; its programs are those after the first.
        first: The first program, which is never dropped, because all are compared with it.

    Attributes:
        alive: Programs in the race, the first one first.
    """

    fitted: FittedPrograms | None

    def __init__(self, space: OrderingSpace, first: WholeProgram) -> None:
        super().__init__(space)
        self.model: ProgramModel = ProgramModel(space)
        self.alive: list[Candidate] = [first, *space.programs]

    def ask(self) -> list[Candidate]:
        return list(self.alive)

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Fit the model to all scores, and return the best programs, best first."""
        elites = super().tell(orderings, scores)
        self.fitted = self.model.fit(scores)
        return elites

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Return the model's estimates of all programs, best first."""
        estimates = [] if self.fitted is None else self.fitted.estimates()
        return self.model.clipped([estimate for estimate in estimates if estimate.ordering in scores], scores)

    def eliminate(self, leader: Candidate, num_examples: int) -> bool:
        """Drop the programs that more examples would hardly put in the leader's place, but for the first one.

        Args:
            leader: The program that would be chosen now.
            num_examples: Number of examples that the programs can be scored on in the end.

        Returns:
            Whether more examples may gain enough by another choice.
        """
        fitted = self.fitted
        assert fitted is not None
        with one_thread():
            gains = fitted.process.improvements(fitted.orderings.index(leader), num_examples)
        improvements = dict(zip(fitted.orderings, (math.sqrt(num_examples) * gains).tolist(), strict=True))
        rivals = sorted((program for program in self.alive if program != leader), key=improvements.__getitem__)
        first = self.alive[0]
        if improvements[rivals[-1]] < LOST_BY_ENDING:
            return False
        lost = 0.0
        for program in rivals:
            lost += improvements[program]
            if lost > LOST_BY_DROPPING:
                break
            if program != first:
                self.alive.remove(program)
        return True
