"""Searches over orderings: random search, the paper's, Thompson sampling, and what ends a search."""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from plr_dspy.plackett_luce.distribution import NOT_SHOWN, PlackettLuce, padded
from plr_dspy.plackett_luce.updates import UpdateRule, smoothing_of, update_rule
from plr_dspy.report.schema import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import Candidate, Ordering, OrderingSpace, ScoreEstimate, Scores, WholeProgram, best_first

MAX_BATCHES = 20  # of draws in search of enough that are allowed
MAX_REDRAWS = 50  # in search of enough that are new
NUM_CANDIDATES = 300  # new orderings that a round chooses from; all of a smaller space
NUM_CLIMBS = 5  # steps of a climb
NUM_CLIMBERS = 10  # orderings that climb
NUM_MOVES = 20  # moves tried from each
MIN_ELITES = 5
# All but one in this many random orderings have the first item of each choice: other instructions may all be worse, and
# then hardly anything would be learnt of the demos.
FIRST_CHOICES_IN = 4
UNIFORM_SHARE = 0.05  # of the probability is spread evenly over all numbers of items, so that none dies out


class Search(ABC):
    """A search that is asked for orderings and told their scores.

    If places count from the end, the item that a distribution draws first is shown last. Draws that are not allowed are
    shortened from the beginning.

    Attributes:
        model: Says what scores tell of new examples; without features unless the search sets another one.
        distributions: The current distribution of each block.
        fitted: The model as it was fitted to the last scores; None for searches without one.
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
        self.space = space
        self.num_samples = num_samples
        self.elite_fraction = elite_fraction
        self.model = OrderingModel(space, with_features=False)
        self._rule = update_rule(update)
        self._generator = torch.Generator().manual_seed(seed)
        self._smoothing = smoothing_of(self._rule) if space.from_end else 0.0
        self.distributions = self._uniform()
        self.fitted: FittedModel | None = None

    @abstractmethod
    def ask(self) -> list[Candidate]:
        """Return the candidates to score next; empty if nothing is left to ask."""

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Learn from the scores of a round, and return the elites, best first.

        Args:
            orderings: Those of the round, repeats included.
            scores: All known scores by ordering and example.

        Raises:
            ValueError: If scores are missing or not finite. Nothing is learnt then.
        """
        if not orderings:
            raise ValueError("tell needs at least one ordering; got none")
        estimates = []
        for candidate in orderings:
            ordering = candidate if isinstance(candidate, WholeProgram) else self.space.canonical(candidate)
            row = scores.get(ordering)
            if not row or not all(map(math.isfinite, row.values())):
                raise ValueError(
                    "scores must have finite ones of each ordering by example, such as {ordering: {0: 1.0}}; "
                    f"got {row!r} for {candidate}"
                )
            estimates.append((candidate, mean_score(row)))
        return best_first(estimates)[: num_elites(len(estimates), self.elite_fraction)]

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Return estimates of the orderings that have scores, best first; mean scores without a model."""
        return best_first((ordering, mean_score(row)) for ordering, row in scores.items())

    def mode(self) -> Ordering:
        """Return the most probable ordering, shortened if it is not allowed; else the identity."""
        modes = [self._reversed(distribution.mode.tolist()) for distribution in self.distributions]
        return self.space.shortened(self.space.canonical(modes)) or self.space.identity

    def draw(self, num_draws: int, *, uniformly: bool = False) -> list[Ordering]:
        """Draw orderings, repeats included, from the current or from uniform distributions.

        There are fewer if hardly any is allowed.
        """
        distributions = self._uniform() if uniformly else self.distributions
        distributions = [distribution.copy(generator=self._generator) for distribution in distributions]
        orderings: list[Ordering] = []
        for _ in range(MAX_BATCHES):
            if len(orderings) >= num_draws:
                break
            samples = [distribution.sample((num_draws,)).tolist() for distribution in distributions]
            for rankings in zip(*samples, strict=True):
                drawn = self.space.canonical([self._reversed(ranking) for ranking in rankings])
                allowed = self.space.shortened(drawn)
                if allowed is not None:
                    orderings.append(allowed)
        return orderings[:num_draws]

    def fresh(self, number: int, known: Container[Candidate]) -> list[Candidate]:
        """Return the first candidates of the space, then random orderings, without known ones and repeats.

        At least half are random, identity and whole programs aside. There are fewer if hardly any are left.
        """
        num_first = max(1 + len(self.space.programs), number // 2)
        first = self.space.first_candidates[:num_first]
        candidates = dict.fromkeys(candidate for candidate in first if candidate not in known)
        for _ in range(MAX_REDRAWS):
            if len(candidates) >= number:
                break
            for draw_number, drawn in enumerate(self.draw(number, uniformly=True)):
                ordering = drawn
                if draw_number % FIRST_CHOICES_IN:
                    ordering = self.space.with_first_choices(drawn)
                if len(candidates) < number and ordering not in known:
                    candidates[ordering] = None
        return list(candidates)

    def refit(self, elites: Sequence[ScoreEstimate], *, anew: bool = False) -> None:
        """Update the distributions, or uniform ones, by the elites."""
        orderings = [elite.ordering for elite in elites if not isinstance(elite.ordering, WholeProgram)]
        scores = torch.tensor([elite.score for elite in elites], dtype=torch.float64)
        weights = None
        # Deviation: a share of a negative score has no meaning, so all elites weigh the same then.
        if self._rule.weighted and bool((scores > 0).all()):
            weights = scores / scores.mean()
        updated = []
        with one_thread():
            for block, before in enumerate(self._uniform() if anew else self.distributions):
                rows = [self._reversed(ordering[block]) for ordering in orderings]
                rankings = padded(rows, before.num_items)
                after = self._rule.update(before, rankings, weights)
                if before.length_probabilities is not None:
                    shares = self._length_probabilities(before, rankings, weights)
                    after = after.copy(length=before.length, length_probabilities=shares)
                updated.append(after)
        self.distributions = updated

    def _length_probabilities(self, before: PlackettLuce, rankings: Tensor, weights: Tensor | None) -> Tensor:
        """Move the probabilities of numbers of items part of the way to those of the elites."""
        shares = before.length_probabilities
        assert shares is not None
        extra = (rankings != NOT_SHOWN).sum(dim=-1) - before.min_length
        counts = torch.bincount(extra, weights=weights, minlength=len(shares)).to(shares)
        shares = (1.0 - self._smoothing) * shares + self._smoothing * counts / counts.sum()
        return (1.0 - UNIFORM_SHARE) * shares + UNIFORM_SHARE / len(shares)

    def _uniform(self) -> list[PlackettLuce]:
        distributions = [self._rule.initial(size) for size in self.space.sizes]
        if not self.space.from_end:
            return distributions
        with_lengths = []
        for distribution, (least, most) in zip(distributions, self.space.limits, strict=True):
            num_lengths = most - least + 1
            shares = torch.ones(num_lengths, dtype=torch.float64) / num_lengths
            with_lengths.append(distribution.copy(length=most, length_probabilities=shares))
        return with_lengths

    def _reversed(self, items: Sequence[int]) -> Sequence[int]:
        """Turn ordered items into a ranking, or a ranking into ordered items."""
        if not self.space.from_end:
            return items
        return [item for item in reversed(items) if item != NOT_SHOWN]


class RandomSearch(Search):
    """Ask for up to `num_orderings` random orderings, the identity first, each once; nothing is learnt."""

    def __init__(self, space: OrderingSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0) -> None:
        super().__init__(space, num_samples=num_samples, seed=seed)
        self._num_orderings = num_orderings
        self._asked: set[Candidate] = set()

    def ask(self) -> list[Candidate]:
        if self.space.num_distinct <= self._num_orderings:
            candidates = [ordering for ordering in self.space.enumerate() if ordering not in self._asked]
        else:
            candidates = self.fresh(self.num_samples, self._asked)
        num_left = self._num_orderings - len(self._asked)
        batch = candidates[: max(0, min(self.num_samples, num_left))]
        self._asked.update(batch)
        return batch


class CrossEntropySearch(Search):
    """Cross-entropy search with one distribution for each block (PLR Algorithm 1).

    Args:
        space: What to order.
        update: Refits the distributions: "ema", "mle", "mixture" or an update object.
        num_samples: Orderings asked for in each round (B).
        elite_fraction: Share of them that refits the distributions (rho).
        seed: Seeds the search's own generator.
    """

    def ask(self) -> list[Candidate]:
        return list(self.draw(self.num_samples))

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        elites = super().tell(orderings, scores)
        self.refit(elites)
        return elites


class ThompsonSearch(Search):
    """Thompson sampling of orderings from a Gaussian process, with Plackett-Luce proposals.

    Each round fits the process to all scores, and the distributions to the orderings with the best estimates.
    Candidates are draws of the distributions, good orderings after a random move, results of short climbs on the
    process' mean, random orderings, and known ones, to be scored on more examples. The best of each joint draw from the
    posterior is asked for. So no call is spent on orderings that a few examples have ruled out.

    Source: W. R. Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, "An empirical evaluation of Thompson
    sampling", NIPS 2011.

    Args:
        space: What to order.
        num_examples: An ordering with this many scores, or without new ones in the last round, is not asked for again.
        classes: For each block the class of each of its items, such as demos with the same answer.
        example_classes: The class of each example, such as its answer.
        update: As in `CrossEntropySearch`; it starts from the uniform distribution in every round.
        num_samples: Orderings asked for in each round, at most.
        num_initial: Random orderings of the first round, the identity among them.
        elite_fraction: Share of the known orderings that the distributions are fitted to.
        responses: The log-probabilities of labels; None if there are none.
        seed: As in `CrossEntropySearch`.
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
                f"example_classes must name the class of each of {num_examples} examples; got {len(example_classes)}"
            )
        super().__init__(space, update=update, num_samples=num_samples, elite_fraction=elite_fraction, seed=seed)
        self.model = OrderingModel(space, classes=classes, example_classes=example_classes, responses=responses)
        self._num_examples = num_examples
        self._num_initial = num_initial
        self._seed = seed
        self._has_responses = responses is not None
        self._counts: dict[Candidate, int] = {}  # scores of each ordering after the last round
        self._finished: set[Candidate] = set()  # orderings that get no scores on further examples
        self._num_rounds = 0

    def ask(self) -> list[Candidate]:
        """Return the best candidate of each posterior draw, each once; empty if all were scored on all examples."""
        with one_thread():
            if self.fitted is None:
                if self.space.num_distinct <= self._num_initial:
                    return list(self.space.enumerate())
                return self.fresh(self._num_initial, ())
            rng = np.random.default_rng([self._seed, self._num_rounds])
            candidates = self._candidates(self.fitted, rng)
            pool = [*self.fitted.orderings, *candidates]
            is_done = np.array([self._is_done(candidate) for candidate in pool])
            if is_done.all():
                return []
            draws = self.fitted.sample(candidates, 3 * min(self.num_samples, len(pool)), rng)
            draws[:, is_done] = -np.inf
            is_program = np.array([isinstance(candidate, WholeProgram) for candidate in pool]) & ~is_done
            if self._has_responses and is_program.any():
                # Log-probabilities tell of orderings alone, so the few programs would hardly ever be best.
                draws[0, ~is_program] = -np.inf
            batch = []
            for draw in draws[: min(self.num_samples, int((~is_done).sum()))]:
                best = int(draw.argmax())
                batch.append(pool[best])
                draws[:, best] = -np.inf
            return batch

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Fit the process to all scores and the distributions to the elites, and return the elites, best first."""
        super().tell(orderings, scores)
        counts = {ordering: len(row) for ordering, row in scores.items()}
        self._finished |= {ordering for ordering in orderings if counts[ordering] <= self._counts.get(ordering, 0)}
        self._counts = counts
        self._num_rounds += 1
        earlier = None if self.fitted is None else self.fitted.variances
        # One assignment, so that an interrupt leaves a consistent model.
        self.fitted = self.model.fit(scores, earlier=earlier, kept=[self.space.identity])
        best = [estimate for estimate in self.fitted.estimates() if self.space.contains(estimate.ordering)]
        elites = best[: max(MIN_ELITES, num_elites(len(self.fitted.orderings), self.elite_fraction))]
        self._best = [estimate.ordering for estimate in best if self.space.contains(estimate.ordering)]
        self._num_elites = len(elites)
        self.refit(elites, anew=True)
        return self.model.clipped(elites, scores)

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Return the process' estimates of the orderings that have scores, best first, without those ruled out."""
        estimates = [] if self.fitted is None else self.fitted.estimates()
        return self.model.clipped([estimate for estimate in estimates if estimate.ordering in scores], scores)

    def _is_done(self, candidate: Candidate) -> bool:
        return candidate in self._finished or self._counts.get(candidate, 0) >= self._num_examples

    def _candidates(self, fitted: FittedModel, rng: np.random.Generator) -> list[Candidate]:
        """Return new candidates; all of a small space."""
        candidates: dict[Candidate, None] = {}
        if self.space.num_distinct <= NUM_CANDIDATES:
            candidates |= dict.fromkeys(self.space.enumerate())
        else:
            elites = self._best[: self._num_elites]
            candidates |= dict.fromkeys(self.draw(NUM_CANDIDATES // 3))
            for number in rng.integers(len(elites), size=NUM_CANDIDATES // 2):
                candidates[self.space.moved(elites[number], rng)] = None
            candidates |= dict.fromkeys(self.draw(NUM_CANDIDATES // 6, uniformly=True))
            candidates |= dict.fromkeys(self._climbed(fitted, rng))
        return [candidate for candidate in candidates if candidate not in self._counts]

    def _climbed(self, fitted: FittedModel, rng: np.random.Generator) -> list[Ordering]:
        """Return the orderings on the way of a beam that climbs the process' mean by random moves."""
        beam = self._best[:NUM_CLIMBERS]
        climbed = []
        for _ in range(NUM_CLIMBS):
            reached = dict.fromkeys(beam)
            for ordering in beam:
                reached |= dict.fromkeys(self.space.moved(ordering, rng) for _ in range(NUM_MOVES))
            orderings = list(reached)
            ranked = np.argsort(-fitted.predict(orderings), kind="stable")
            beam = [orderings[number] for number in ranked[:NUM_CLIMBERS]]
            climbed += beam
        return climbed


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
    """Raise a ValueError unless the value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")


def mean_score(row: Mapping[int, float]) -> float:
    """Return the mean of scores by example, whatever their order."""
    return math.fsum(row.values()) / len(row)


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """Return ceil(rho B), at least 1, safe against rounding: 0.07 of 100 is 7, not 8."""
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))
