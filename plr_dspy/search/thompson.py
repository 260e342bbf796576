"""A search that learns from scores on few examples each, by a model of what makes an order good."""

import math
from collections.abc import Sequence

import numpy as np

from plr_dspy.plackett_luce.updates import UpdateRule
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.model.table import Scores
from plr_dspy.search.search import Search, check_whole, num_elites
from plr_dspy.search.space import Ordering, OrderingSpace, ScoreEstimate, is_rule

NUM_CANDIDATES = 300  # new orderings each round chooses from, and those that climbing finds; of small spaces, all
NUM_CLIMBS, NUM_CLIMBERS, NUM_MOVES = 5, 10, 20  # steps of a climb, orderings that climb, moves tried from each
MIN_ELITES = 5


class ThompsonSearch(Search):
    """Thompson sampling of orderings from a Gaussian process, with Plackett-Luce proposals.

    Each round fits the process (`AdditiveProcess`) to all scores, and the distributions to the orderings
    that it deems best. Candidates are draws of the distributions, good orderings after a move of their space
    (such as an item put elsewhere), the tops of short climbs on the process' mean, and random orderings. The
    orderings known compete with them: of each joint draw from the posterior the best ordering is asked for, be it
    new or to be scored on more examples. So good orderings are looked at ever more closely (a race), and no call is
    spent on those that a few examples have ruled out.

    Source: W. R. Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, "An empirical evaluation of Thompson
    sampling", NIPS 2011.

    Args:
        space: What to order.
        num_examples: Examples there are; an ordering that has been scored on all, or that asking for again
            brought nothing new of, is not asked for again.
        classes: For each block the class of each of its items, such as demos of one answer; None for none.
        example_classes: The class of each example, such as its answer, and of more that there may come
            to be scores of; None for none.
        update: As in `CrossEntropySearch`; fitted from the uniform distribution in every round.
        num_samples: Orderings asked for in each round, at most.
        num_initial: Random orderings of the first round, the identity among them.
        elite_fraction: Share of the orderings known that the distributions are fitted to.
        responses: The log-probabilities of labels of what has been scored; None for none.
        seed: Of everything random.

    Raises:
        ValueError: for numbers out of range, and classes that do not fit.
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
        self._num_classed = math.inf if example_classes is None else len(example_classes)
        if self._num_classed < num_examples:
            raise ValueError(
                f"example_classes must name the class of each of {num_examples} examples; got {self._num_classed}"
            )
        super().__init__(space, update=update, num_samples=num_samples, elite_fraction=elite_fraction, seed=seed)
        self.model = OrderingModel(space, classes=classes, example_classes=example_classes, responses=responses)
        self._num_examples, self._num_initial, self._seed = num_examples, num_initial, seed
        self._by_logprobs = responses is not None
        self._counts: dict[Ordering, int] = {}  # of the scores that orderings had in the last round
        self._finished: set[Ordering] = set()  # those that further examples could not be had for
        self._num_rounds = 0

    def ask(self) -> list[Ordering]:
        """Orderings to score on further examples, of each posterior draw the best one that those before did not take;
        empty when all there are have been scored on all."""
        with one_thread():
            if (fitted := self.fitted) is None:
                few = self.space.num_distinct <= self._num_initial
                return list(self.space.enumerate()) if few else self.fresh(self._num_initial, ())
            rng = np.random.default_rng([self._seed, self._num_rounds])
            candidates = self._candidates(fitted, rng)
            pool = [*fitted.orderings, *candidates]
            done = [o in self._finished or self._counts.get(o, 0) >= self._num_examples for o in pool]
            if all(done):
                return []
            draws = fitted.sample(candidates, 3 * min(self.num_samples, len(pool)), rng)
            draws[:, done] = -np.inf
            rules = np.array([is_rule(o) for o in pool]) & ~np.array(done)
            if self._by_logprobs and rules.any():
                # They tell of orderings alone: rules, of which there are few, would nearly never draw most.
                draws[0, ~rules] = -np.inf
            chosen: list[Ordering] = []
            for draw in draws[: min(self.num_samples, done.count(False))]:
                best = int(draw.argmax())
                chosen.append(pool[best])
                draws[:, best] = -np.inf
            return chosen

    def tell(self, orderings: Sequence[Ordering], scores: Scores) -> list[ScoreEstimate]:
        """Fit the process to all scores, and the distributions to the elites, those that it deems best; returns these
        with estimates of their scores, best first, within what scores can be."""
        self.check(orderings, scores)
        if any(e >= self._num_classed for o in orderings for e in scores[o]):
            raise ValueError(f"examples must have classes: example_classes names those of {self._num_classed}")
        counts = {ordering: len(row) for ordering, row in scores.items()}
        self._finished |= {o for o in orderings if counts[o] <= self._counts.get(o, 0)}
        self._counts = counts
        self._num_rounds += 1
        earlier = None if self.fitted is None else self.fitted.variances
        # Replaced whole, so that an interrupt finds one that fits together.
        self.fitted = self.model.fit(scores, earlier=earlier, kept=[self.space.identity])
        self._best = [each for each in self.fitted.estimates() if self.space.holds(each.ordering)]
        self._num_elites = max(MIN_ELITES, num_elites(len(self.fitted.orderings), self.elite_fraction))
        elites = self._best[: self._num_elites]
        self.refit(elites, anew=True)
        return self.model.shown(elites, scores)

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """The process' estimates of the orderings that have scores, best first and within what scores can be; without
        those that it has ruled out, or was not told of."""
        estimates = [] if self.fitted is None else self.fitted.estimates()
        return self.model.shown([each for each in estimates if each.ordering in scores], scores)

    def _candidates(self, fitted: FittedModel, rng: np.random.Generator) -> list[Ordering]:
        """New orderings; of a small space, all."""
        if self.space.num_distinct <= NUM_CANDIDATES:
            found = dict.fromkeys(self.space.enumerate())
        else:
            best = [estimate.ordering for estimate in self._best]
            parents, beam = best[: self._num_elites], best[:NUM_CLIMBERS]
            found = dict.fromkeys(self.draw(NUM_CANDIDATES // 3))
            for index in rng.integers(len(parents), size=NUM_CANDIDATES // 2):
                found[self.space.moved(parents[index], rng)] = None
            found |= dict.fromkeys(self.draw(NUM_CANDIDATES // 6, uniformly=True))
            # What a beam of orderings meets on its way up what the process expects, by random moves.
            for _ in range(NUM_CLIMBS):
                around = dict.fromkeys(beam)
                for ordering in beam:
                    around |= dict.fromkeys(self.space.moved(ordering, rng) for _ in range(NUM_MOVES))
                reached = list(around)
                beam = [reached[index] for index in np.argsort(-fitted.predict(reached), kind="stable")[:NUM_CLIMBERS]]
                found |= dict.fromkeys(beam)
        return [ordering for ordering in found if ordering not in self._counts]
