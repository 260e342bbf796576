"""A search that scores whole programs on the same examples and drops programs unlikely to be best."""

import math
from collections.abc import Sequence

from plr_dspy.search.model.ordering_model import one_thread
from plr_dspy.search.model.paired import FittedPrograms, ProgramModel
from plr_dspy.search.search import Search
from plr_dspy.search.space import Candidate, OrderingSpace, ScoreEstimate, Scores, WholeProgram

# Maximum expected improvement that the search may forgo by ending or by dropping programs. The unit
# is the standard error of a program's final mean score.
MAX_LOSS_BY_ENDING = 0.045
MAX_LOSS_BY_DROPPING = 0.025  # limit for the sum over all programs dropped in one round


class EliminationSearch(Search):
    """A search that proposes all remaining programs in each round and drops those unlikely to be best.

    Args:
        space: A space without demos to order. Its `programs` do not include the baseline.
        first: The baseline. It is never dropped, because all other programs are compared with it.

    Attributes:
        alive: Programs that have not been dropped, starting with the baseline.
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

    def can_change(self, leader: Candidate, num_examples: int) -> bool:
        """Return whether any program's expected improvement over the leader justifies more calls.

        The leader is the program that would be chosen now. The improvement is what the search
        expects to gain if it scores each program on `num_examples` examples before it chooses.
        """
        return max(self._improvements(leader, num_examples).values()) >= MAX_LOSS_BY_ENDING

    def drop(self, leader: Candidate, num_examples: int) -> None:
        """Drop the least promising programs while their total expected improvement is negligible.

        The arguments are as in `can_change()`. The leader, the baseline and the program with the
        largest expected improvement are never dropped.
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
        """Return each remaining program's expected improvement over the leader.

        The unit is the standard error of a mean score after `num_examples` examples.
        """
        fitted = self.fitted
        assert fitted is not None
        with one_thread():
            values = fitted.process.improvements(fitted.orderings.index(leader), num_examples)
        improvements = dict(zip(fitted.orderings, (math.sqrt(num_examples) * values).tolist(), strict=True))
        return {program: improvements[program] for program in self.alive if program != leader}
