"""Thompson sampling of orderings, with scores drawn from the posterior of a model."""

from collections.abc import Sequence

import numpy as np

from plr_dspy.plackett_luce.updates import UpdateRule
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.prefixes import num_new_items
from plr_dspy.search.search import Search, check_whole, num_elites
from plr_dspy.search.space import Candidate, Ordering, OrderingSpace, ScoreEstimate, Scores, WholeProgram
from plr_dspy.statistics.arrays import Array, Mask

# Approximate number of candidates generated per round. A space of at most this size is enumerated.
NUM_CANDIDATES = 300
NUM_CLIMBS = 5  # number of steps in the hill climb
NUM_CLIMBERS = 10  # beam width of the hill climb
NUM_MOVES = 20  # number of random moves to try from each ordering in the beam
NUM_TRIES = 3  # number of random moves to compare by the number of items after the shared prefixes
MIN_ELITES = 5


class ThompsonSearch(Search):
    """Thompson sampling of orderings from a Gaussian process, with Plackett-Luce proposals.

    Each round fits a Gaussian process to all scores, and Plackett-Luce distributions to the
    orderings with the best estimates. The candidates are the orderings scored so far, draws from
    the distributions, random orderings, and random variations of good orderings. A hill climb on
    the posterior mean adds more candidates. `ask()` draws scores from the joint posterior of all
    candidates, and returns the best candidate in each draw. An ordering with a few bad scores is
    rarely the best in a draw, so the search spends few further calls on it.

    Source: W. R. Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, "An empirical
    evaluation of Thompson sampling", NIPS 2011.

    Args:
        space: The orderings to search.
        num_examples: Number of examples. An ordering is finished once it is scored on all examples,
            or once it is requested in a round but gets no new scores. `ask()` does not return
            finished orderings.
        classes: For each block, the class of each item, such as a demo's answer.
        example_classes: The class of each example, such as its answer.
        update: Rule that fits the distributions: "ema", "mle", "mixture" or an update object. Each
            round starts from uniform distributions.
        num_samples: Maximum number of orderings per round after the first.
        num_initial: Approximate number of candidates in the first round: first candidates of the
            space, beginning with the identity, and random orderings.
        elite_fraction: Fraction of the scored candidates that are elites. The distributions are
            fitted to at least `MIN_ELITES` elites, if available.
        responses: Access to the log-probabilities of labels, or None if they are unavailable.
        seed: Seed for the search's random numbers.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        num_examples: int,
        classes: Sequence[Sequence[int]] | None = None,
        example_classes: Sequence[int] | None = None,
        update: str | UpdateRule = "mle",
        num_samples: int = 24,
        num_initial: int = 60,
        elite_fraction: float = 0.125,
        responses: LabelResponses | None = None,
        seed: int = 0,
    ) -> None:
        check_whole("num_examples", num_examples, 1)
        check_whole("num_initial", num_initial, 1)
        check_whole("seed", seed, 0)
        if example_classes is not None and len(example_classes) < num_examples:
            raise ValueError(
                f"the length of example_classes must be at least {num_examples}, with a class for each "
                f"example; got {len(example_classes)}: add the missing classes"
            )
        super().__init__(
            space, update=update, num_samples=num_samples, elite_fraction=elite_fraction, seed=seed
        )
        self.model = OrderingModel(
            space, classes=classes, example_classes=example_classes, responses=responses
        )
        self._num_examples = num_examples
        self._num_initial = num_initial
        self._seed = seed
        self._has_responses = responses is not None
        self._counts: dict[Candidate, int] = {}  # number of scores for each candidate after the last round
        self._finished: set[Candidate] = set()  # candidates that got no new scores in a round
        self._num_rounds = 0

    def ask(self) -> list[Candidate]:
        """Return the best unfinished candidate in each of several posterior draws, without duplicates.

        In the first round, return the initial candidates. If all candidates are finished, return an
        empty list.
        """
        with one_thread():
            if self.fitted is None:
                return self._first_round()
            rng = np.random.default_rng([self._seed, self._num_rounds])
            candidates = self._propose(self.fitted, rng)
            pool = [*self.fitted.orderings, *candidates]
            is_unfinished = np.array([not self._is_done(candidate) for candidate in pool])
            if not is_unfinished.any():
                return []
            draws = self.fitted.sample(candidates, 3 * min(self.num_samples, len(pool)), rng)
            is_allowed_first = is_unfinished
            is_program = is_unfinished & [isinstance(candidate, WholeProgram) for candidate in pool]
            if self._has_responses and is_program.any():
                # Reserve the first draw for whole programs, because log-probabilities do not
                # predict the scores of whole programs.
                is_allowed_first = is_program
            num_samples = min(self.num_samples, int(is_unfinished.sum()))
            chosen = _best_of_each_draw(draws[:num_samples], is_unfinished, is_allowed_first)
            return [pool[index] for index in chosen]

    def _first_round(self) -> list[Candidate]:
        """Return the initial candidates, or all candidates if the space is small enough."""
        if self.space.num_distinct <= self._num_initial:
            return list(self.space.enumerate())
        # If log-probabilities are available, a varied first round helps more than cached prefixes do.
        if self.space.from_end and not self._has_responses:
            return self.nested(self._num_initial)
        return self.fresh(self._num_initial, ())

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Fit the process to all scores and the distributions to the elites.

        Return the elites, best first.
        """
        super().tell(orderings, scores)
        counts = {ordering: len(row) for ordering, row in scores.items()}
        self._finished |= {
            ordering for ordering in orderings if counts[ordering] <= self._counts.get(ordering, 0)
        }
        self._counts = counts
        self._num_rounds += 1
        # Assign the model after the fit, so that the old model is kept if the user interrupts the fit.
        self.fitted = self.model.fit(scores)
        best = [estimate for estimate in self.fitted.estimates() if self.space.contains(estimate.ordering)]
        elites = best[: max(MIN_ELITES, num_elites(len(self.fitted.orderings), self.elite_fraction))]
        self._best = [estimate.ordering for estimate in best if self.space.contains(estimate.ordering)]
        self._num_elites = len(elites)
        self.refit(elites, from_uniform=True)
        return [ScoreEstimate(ordering, self.fitted.clip(score)) for ordering, score in elites]

    def _is_done(self, candidate: Candidate) -> bool:
        return candidate in self._finished or self._counts.get(candidate, 0) >= self._num_examples

    def _propose(self, fitted: FittedModel, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates without scores: all of them if the space is small, otherwise a selection."""
        candidates: dict[Candidate, None] = {}
        if self.space.num_distinct <= NUM_CANDIDATES:
            candidates |= dict.fromkeys(self.space.enumerate())
        else:
            elites = self._best[: self._num_elites]
            candidates |= dict.fromkeys(self.draw(NUM_CANDIDATES // 3))
            for index in rng.integers(len(elites), size=NUM_CANDIDATES // 2):
                candidates[self._moved(elites[index], rng)] = None
            candidates |= dict.fromkeys(self.draw(NUM_CANDIDATES // 6, uniformly=True))
            candidates |= dict.fromkeys(self._climb(fitted, rng))
        return [candidate for candidate in candidates if candidate not in self._counts]

    def _moved(self, ordering: Ordering, rng: np.random.Generator) -> Ordering:
        """Return the ordering after a random move.

        If the space counts positions from the end, draw several moves, and make the move after which
        the fewest items follow the shared prefixes.
        """
        if not self.space.from_end:
            return self.space.moved(ordering, rng)
        moved = [self.space.moved(ordering, rng) for _ in range(NUM_TRIES)]
        return min(moved, key=lambda other: num_new_items(ordering, other))

    def _climb(self, fitted: FittedModel, rng: np.random.Generator) -> list[Ordering]:
        """Search for the highest posterior mean, and return the beams of all steps.

        Each step makes random moves from the orderings in the beam. The next beam contains the best
        orderings from before and after these moves.
        """
        beam = self._best[:NUM_CLIMBERS]
        kept: list[Ordering] = []
        for _ in range(NUM_CLIMBS):
            neighbors = dict.fromkeys(beam)
            for ordering in beam:
                neighbors |= dict.fromkeys(self._moved(ordering, rng) for _ in range(NUM_MOVES))
            orderings = list(neighbors)
            ranked = np.argsort(-fitted.predict(orderings), kind="stable")
            beam = [orderings[index] for index in ranked[:NUM_CLIMBERS]]
            kept += beam
        return kept


def _best_of_each_draw(draws: Array, is_allowed: Mask, is_allowed_first: Mask) -> list[int]:
    """Return the index of the best candidate in each draw, without duplicates.

    Args:
        draws: Scores drawn for the m candidates, ``[draws, m]``.
        is_allowed: The candidates that may be chosen, ``[m]``.
        is_allowed_first: The candidates that may be chosen in the first draw, ``[m]``.
    """
    best_indices: list[int] = []
    is_left = is_allowed_first
    for draw in draws:
        best_indices.append(int(np.where(is_left, draw, -np.inf).argmax()))
        is_left = is_allowed.copy()
        is_left[best_indices] = False
    return best_indices
