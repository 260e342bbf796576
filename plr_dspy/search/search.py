"""Searches over orderings: what they have in common, one that learns nothing, the paper's, ours, and what ends them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from numbers import Integral

import numpy as np
import torch

from plr_dspy.plackett_luce.distribution import NOT_SHOWN, PlackettLuce, padded
from plr_dspy.plackett_luce.updates import UpdateRule, smoothing_of, update_rule
from plr_dspy.report.data import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate, Ordering, OrderingSpace, ScoreEstimate, Scores, WholeProgram, best_first

MAX_BATCHES, MAX_REDRAWS = 20, 50  # that draws take in the hope of enough that are allowed, and of new ones
NUM_CANDIDATES = 300  # new orderings each round chooses from, and those that climbing finds; of small spaces, all
NUM_CLIMBS, NUM_CLIMBERS, NUM_MOVES = 5, 10, 20  # steps of a climb, orderings that climb, moves tried from each
MIN_ELITES = 5
UNIFORM_SHARE = 0.05  # of the probability, at least, that all numbers of items have in equal parts: none dies out


class Search(ABC):
    """A search that is asked for orderings and told their scores (ask and tell); it knows nothing of language models.

    It holds a distribution for each block of its space, at first uniform. Where places count from the end, the item
    that a distribution draws first is shown last: then orderings of all lengths tell of the same logits. What is drawn
    and not allowed is shortened from its beginning until it is.

    Attributes:
        space, num_samples, elite_fraction: As in `CrossEntropySearch`.
        model: Says what scores tell of new examples; by itself a search has one that knows no features of orderings.
        distributions: The current distribution of each block.
        fitted: The model as it was fitted to the last scores that were told; None for searches without one.
    """

    def __init__(
        self,
        space: OrderingSpace,
        *,
        update: str | UpdateRule = "mle",
        num_samples: int = 15,
        elite_fraction: float = 0.2,
        seed: int = 0,
    ) -> None:
        if not isinstance(space, OrderingSpace):
            raise TypeError(f"space must be an OrderingSpace, such as OrderingSpace.of_sizes(8); got {space!r}")
        check_whole("num_samples", num_samples, 1)
        if not 0.0 < elite_fraction <= 1.0:
            raise ValueError(f"elite_fraction must lie in (0, 1]; got {elite_fraction!r}")
        self.space, self.num_samples, self.elite_fraction = space, num_samples, elite_fraction
        self.model = OrderingModel(space, with_features=False)
        self._rule, self._generator = update_rule(update), torch.Generator().manual_seed(seed)
        self._smoothing = smoothing_of(self._rule) if space.from_end else 0.0
        self.distributions = self._uniform()
        self.fitted: FittedModel | None = None

    @abstractmethod
    def ask(self) -> list[Candidate]:
        """Return what to score next, orderings and whole programs; empty when nothing is left to ask."""

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Learn from the scores of a round, where the search learns, and return the elites, best first.

        Args:
            orderings: Those of the round, repeats included.
            scores: All that are known, by ordering and example; a ValueError for those that are none, and then nothing
                is learnt.
        """
        if not orderings:
            raise ValueError("tell needs at least one ordering; got none")
        for ordering in orderings:
            if isinstance(ordering, WholeProgram):
                row = scores.get(ordering)
            else:
                row = scores.get(self.space.canonical(ordering))
            if not row:
                raise ValueError(
                    "scores must have those of each ordering by example, such as {ordering: {0: 1.0}}; "
                    f"got {row!r} for {ordering}"
                )
            for example, score in row.items():
                numbered = isinstance(example, Integral) and not isinstance(example, bool) and example >= 0
                if not numbered or not math.isfinite(score):
                    raise ValueError(
                        f"scores must be finite, of examples numbered from 0; got {score} on {example!r} for {ordering}"
                    )
        told = best_first((ordering, mean_score(scores[ordering])) for ordering in orderings)
        return told[: num_elites(len(told), self.elite_fraction)]

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Estimates of the orderings that have scores, best first; without a model of its own, the mean scores."""
        return best_first((ordering, mean_score(row)) for ordering, row in scores.items())

    def mode(self) -> Ordering:
        """The most probable ordering, shortened where it is not allowed; the identity where that does not help."""
        mode = self.space.canonical([self._read(d.mode.tolist()) for d in self.distributions])
        return self.space.shortened(mode) or self.space.identity

    def draw(self, num_draws: int, *, uniformly: bool = False) -> list[Ordering]:
        """Draws from the distributions, or uniform ones, repeats included; fewer where hardly any is allowed."""
        own = [each.copy(generator=self._generator) for each in (self._uniform() if uniformly else self.distributions)]
        found: list[Ordering] = []
        for _ in range(MAX_BATCHES):
            if len(found) >= num_draws:
                break
            for rankings in zip(*(each.sample((num_draws,)).tolist() for each in own), strict=True):
                fitted = self.space.shortened(self.space.canonical([*map(self._read, rankings)]))
                found += [] if fitted is None else [fitted]
        return found[:num_draws]

    def fresh(self, number: int, known: Container[Candidate]) -> list[Candidate]:
        """Random orderings that are not known, each once, after the identity and the whole programs; fewer when hardly
        any are left."""
        first: list[Candidate] = [self.space.identity, *self.space.programs]
        found = dict.fromkeys(candidate for candidate in first if candidate not in known)
        for _ in range(MAX_REDRAWS):
            if len(found) >= number:
                break
            for ordering in self.draw(number, uniformly=True):
                if len(found) < number and ordering not in known:
                    found[ordering] = None
        return list(found)

    def refit(self, elites: Sequence[ScoreEstimate], *, anew: bool = False) -> None:
        """Update the distributions, or uniform ones, by their rule, each on its block of the elites."""
        # Deviation: the paper's scores are accuracies; a share of a negative score has no meaning, and all count alike.
        scores = torch.tensor([elite.score for elite in elites], dtype=torch.float64)
        weights = scores / scores.mean() if self._rule.weighted and bool((scores > 0).all()) else None
        orderings = [elite.ordering for elite in elites if not isinstance(elite.ordering, WholeProgram)]
        updated = []
        with one_thread():
            for block, before in enumerate(self._uniform() if anew else self.distributions):
                rankings = padded([self._read(ordering[block]) for ordering in orderings], before.num_items)
                after, shares = self._rule.update(before, rankings, weights), before.length_probabilities
                if shares is not None:  # of numbers of items, which go part of the way to those of elites
                    lengths = (rankings != NOT_SHOWN).sum(dim=-1) - before.min_length
                    counts = torch.bincount(lengths, weights=weights, minlength=len(shares)).to(shares)
                    shares = (1.0 - self._smoothing) * shares + self._smoothing * counts / counts.sum()
                    shares = (1.0 - UNIFORM_SHARE) * shares + UNIFORM_SHARE / len(shares)
                    after = after.copy(length=before.length, length_probabilities=shares)
                updated.append(after)
        self.distributions = updated

    def _uniform(self) -> list[PlackettLuce]:
        found = [self._rule.initial(size) for size in self.space.sizes]
        if self.space.from_end:
            for block, (least, most) in enumerate(self.space.limits):
                shares = torch.ones(most - least + 1, dtype=torch.float64) / (most - least + 1)
                found[block] = found[block].copy(length=most, length_probabilities=shares)
        return found

    def _read(self, items: Sequence[int]) -> Sequence[int]:
        """The ranking that ordered items stand for, or the items that a ranking stands for."""
        if not self.space.from_end:
            return items
        return [item for item in reversed(items) if item != NOT_SHOWN]


class RandomSearch(Search):
    """Ask for random orderings, the identity first, each once, and so many in all; nothing is learnt."""

    def __init__(self, space: OrderingSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0) -> None:
        super().__init__(space, num_samples=num_samples, seed=seed)
        self._num_orderings = num_orderings
        self._asked: dict[Candidate, None] = {}  # a set that keeps its order

    def ask(self) -> list[Candidate]:
        wanted = max(0, min(self.num_samples, self._num_orderings - len(self._asked)))
        few = self.space.num_distinct <= self._num_orderings
        found = list(self.space.enumerate()) if few else self.fresh(self.num_samples, self._asked)
        batch = [ordering for ordering in found if ordering not in self._asked][:wanted]
        self._asked |= dict.fromkeys(batch)
        return batch


class CrossEntropySearch(Search):
    """Cross-entropy search with one distribution for each block (PLR Algorithm 1).

    Each round is made of independent draws, repeats included, and alone decides the refit.

    Args:
        space: What to order.
        update: Refits the distributions: "ema", "mle", "mixture" or an update object.
        num_samples: Orderings asked for in each round (B).
        elite_fraction: Share of them that refits the distributions (rho).
        seed: Of the search's own generator.

    Raises:
        TypeError, ValueError: for arguments out of range.
    """

    def ask(self) -> list[Candidate]:
        return list(self.draw(self.num_samples))

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        elites = super().tell(orderings, scores)
        self.refit(elites)
        return elites


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
        self._counts: dict[Candidate, int] = {}  # of the scores that orderings had in the last round
        self._finished: set[Candidate] = set()  # those that further examples could not be had for
        self._num_rounds = 0

    def ask(self) -> list[Candidate]:
        """Candidates to score on further examples, of each posterior draw the best one that those before did not take;
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
            programs = np.array([isinstance(candidate, WholeProgram) for candidate in pool]) & ~np.array(done)
            if self._by_logprobs and programs.any():
                # Log-probabilities tell of orderings alone: the few programs would hardly ever draw the most.
                draws[0, ~programs] = -np.inf
            chosen: list[Candidate] = []
            for draw in draws[: min(self.num_samples, done.count(False))]:
                best = int(draw.argmax())
                chosen.append(pool[best])
                draws[:, best] = -np.inf
            return chosen

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Fit the process to all scores, and the distributions to the elites, those that it deems best; returns these
        with estimates of their scores, best first, within what scores can be."""
        super().tell(orderings, scores)
        if any(e >= self._num_classed for o in orderings for e in scores[o]):
            raise ValueError(f"examples must have classes: example_classes names those of {self._num_classed}")
        counts = {ordering: len(row) for ordering, row in scores.items()}
        self._finished |= {o for o in orderings if counts[o] <= self._counts.get(o, 0)}
        self._counts = counts
        self._num_rounds += 1
        earlier = None if self.fitted is None else self.fitted.variances
        # Replaced whole, so that an interrupt finds one that fits together.
        self.fitted = self.model.fit(scores, earlier=earlier, kept=[self.space.identity])
        best = [estimate for estimate in self.fitted.estimates() if self.space.holds(estimate.ordering)]
        elites = best[: max(MIN_ELITES, num_elites(len(self.fitted.orderings), self.elite_fraction))]
        self._best = [estimate.ordering for estimate in best if self.space.holds(estimate.ordering)]
        self._num_elites = len(elites)
        self.refit(elites, anew=True)
        return self.model.clipped(elites, scores)

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """The process' estimates of the orderings that have scores, best first and within what scores can be; without
        those that it has ruled out, or was not told of."""
        estimates = [] if self.fitted is None else self.fitted.estimates()
        return self.model.clipped([each for each in estimates if each.ordering in scores], scores)

    def _candidates(self, fitted: FittedModel, rng: np.random.Generator) -> list[Candidate]:
        """New candidates; of a small space, all."""
        found: dict[Candidate, None] = {}
        if self.space.num_distinct <= NUM_CANDIDATES:
            found |= dict.fromkeys(self.space.enumerate())
        else:
            parents = self._best[: self._num_elites]
            beam = self._best[:NUM_CLIMBERS]
            found |= dict.fromkeys(self.draw(NUM_CANDIDATES // 3))
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


def reason_to_stop(history: Sequence[Iteration], *, stop_at_score: float | None, patience: int | None) -> Stop | None:
    """Return why the user's arguments end a search after these rounds; None if they do not."""
    if stop_at_score is not None and history and history[-1].best_score_so_far >= stop_at_score:
        return Stop(StopReason.STOP_AT_SCORE, f"stop_at_score={stop_at_score:g} reached")
    if patience is None or len(history) <= patience:
        return None
    best = {iteration.best_ordering for iteration in history[-1 - patience :]}
    if len(best) > 1:
        return None
    return Stop(StopReason.PATIENCE, f"patience={patience}: no better order")


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse with a ValueError what is no whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")


def mean_score(row: Mapping[int, float]) -> float:
    """The mean of scores by example, whatever their order."""
    return math.fsum(row.values()) / len(row)


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """ceil(rho B), at least 1, and safe against rounding: 0.07 of 100 is 7, not 8."""
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))
