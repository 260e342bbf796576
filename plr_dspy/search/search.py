"""The base class of searches over orderings, a random search, and the PLR paper's cross-entropy search."""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from plr_dspy.plackett_luce.distribution import NOT_SHOWN, PlackettLuce, padded
from plr_dspy.plackett_luce.updates import UpdateRule, update_rule
from plr_dspy.report.schema import Iteration
from plr_dspy.report.stop import Stop, StopReason
from plr_dspy.search.model.ordering_model import FittedModel, OrderingModel, one_thread
from plr_dspy.search.space import (
    Candidate,
    Ordering,
    OrderingSpace,
    ScoreEstimate,
    Scores,
    WholeProgram,
    best_first,
)

MAX_BATCHES = 20  # maximum number of batches drawn to obtain enough allowed orderings
MAX_REDRAWS = 50  # maximum number of batches drawn to obtain enough new orderings

# Difference in length between successive beginnings of an ordering. With a difference of 1, a round
# would contain beginnings of fewer orderings, and show too few different items.
BEGINNING_STEP = 2
# Only one in `RANDOM_CHOICES_EVERY` random orderings gets random choices, such as a random
# instruction. All others get the first item of each choice, because a bad instruction would
# hide the effects of the demos.
RANDOM_CHOICES_EVERY = 4
UNIFORM_SHARE = 0.05  # probability spread evenly over all lengths, so that no length becomes impossible


class Search(ABC):
    """A search that proposes candidates in `ask()` and learns from their scores in `tell()`.

    If the space counts positions from the end, the first item drawn from a distribution is
    shown last. If a draw is not allowed, items are dropped from the beginning of its blocks.

    Attributes:
        model: The model that predicts scores on new examples. By default, the model has no
            features, so it does not assume that similar orderings have similar scores.
        distributions: The current distribution of each block.
        fitted: The model fitted to the latest scores. None before the first scores, and always
            None in searches that fit no model.
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
            raise TypeError(
                f"space must be an OrderingSpace, such as OrderingSpace.of_sizes(8); got {space!r}"
            )
        check_whole("num_samples", num_samples, 1)
        if not 0.0 < elite_fraction <= 1.0:
            raise ValueError(f"elite_fraction must be above 0 and at most 1; got {elite_fraction!r}")
        self.space = space
        self.num_samples = num_samples
        self.elite_fraction = elite_fraction
        self.model = OrderingModel(space, with_features=False)
        self._rule = update_rule(update)
        self._generator = torch.Generator().manual_seed(seed)
        self.distributions = self._uniform()
        self.fitted: FittedModel | None = None

    @abstractmethod
    def ask(self) -> list[Candidate]:
        """Return the candidates to score next, or an empty list if no candidates are left."""

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        """Learn from the scores of a round, and return the elites, best first.

        Args:
            orderings: The candidates of the round, including duplicates.
            scores: For each candidate, a dict of all its known scores, keyed by example index.

        Raises:
            ValueError: If `orderings` is empty, an ordering does not fit the space, or a candidate's
                scores are missing or not finite. The search's state does not change.
        """
        if not orderings:
            raise ValueError(
                "orderings must contain at least one ordering; got none: pass the candidates that ask() returned"
            )
        estimates = []
        for candidate in orderings:
            ordering = candidate if isinstance(candidate, WholeProgram) else self.space.canonical(candidate)
            row = scores.get(ordering)
            if not row or not all(map(math.isfinite, row.values())):
                raise ValueError(
                    "scores must map each candidate to a dict of finite scores, keyed by example, such as {0: 1.0}; "
                    f"got {row!r} for {candidate}: pass only finite scores, and at least one for each candidate"
                )
            estimates.append((candidate, mean_score(row)))
        return best_first(estimates)[: num_elites(len(estimates), self.elite_fraction)]

    def ranked(self, scores: Scores) -> list[ScoreEstimate]:
        """Return the fitted model's estimates for the candidates in `scores`, best first.

        If no model is fitted, the estimates are the mean scores.
        """
        if self.fitted is None:
            return best_first((ordering, mean_score(row)) for ordering, row in scores.items())
        ranked = []
        for ordering, score in self.fitted.estimates():
            if ordering in scores:
                ranked.append(ScoreEstimate(ordering, self.fitted.clip(score)))
        return ranked

    def mode(self) -> Ordering:
        """Return the most probable ordering under the current distributions.

        If this ordering is not allowed, drop items until it is. If that fails, return the identity.
        """
        modes = [self._reverse(distribution.mode.tolist()) for distribution in self.distributions]
        return self.space.shortened(self.space.canonical(modes)) or self.space.identity

    def draw(self, num_draws: int, *, uniformly: bool = False) -> list[Ordering]:
        """Draw allowed orderings with replacement from the current distributions.

        If `uniformly` is true, draw from uniform distributions instead. If few orderings are
        allowed, the result may contain fewer than `num_draws` orderings.
        """
        distributions = self._uniform() if uniformly else self.distributions
        distributions = [distribution.copy(generator=self._generator) for distribution in distributions]
        orderings: list[Ordering] = []
        for _ in range(MAX_BATCHES):
            if len(orderings) >= num_draws:
                break
            samples = [distribution.sample((num_draws,)).tolist() for distribution in distributions]
            for rankings in zip(*samples, strict=True):
                blocks = list(map(self._reverse, rankings))
                ordering = self.space.shortened(self.space.canonical(blocks))
                if ordering is not None:
                    orderings.append(ordering)
        return orderings[:num_draws]

    def fresh(self, number: int, known: Container[Candidate]) -> list[Candidate]:
        """Return up to `number` candidates that are not in `known`.

        The result begins with the space's `first_candidates`, followed by random orderings. At most
        ``number // 2`` first candidates are included. The identity and the whole programs are
        included even if they exceed this limit or `number`.
        """
        candidates = self._first(number, known)
        for _ in range(MAX_REDRAWS):
            if len(candidates) >= number:
                break
            for draw_number, drawn in enumerate(self.draw(number, uniformly=True)):
                ordering = drawn
                if draw_number % RANDOM_CHOICES_EVERY:
                    ordering = self.space.with_first_choices(drawn)
                if len(candidates) < number and ordering not in known:
                    candidates[ordering] = None
        return list(candidates)

    def nested(self, number: int) -> list[Candidate]:
        """Return about `number` candidates, many of which are beginnings of other candidates.

        The result begins with the space's `first_candidates`, followed by random orderings and some
        of their beginnings. In each block, successive beginnings differ by two items, so a server
        with a prefix cache processes only two new items per prompt. The random orderings are
        consecutive parts of shuffled items, so that all items are tried about equally often.
        """
        candidates = self._first(number, ())
        num_first = len(candidates)
        # Count orderings across deals, because a single deal may contain only one ordering.
        num_dealt = 0
        for _ in range(MAX_REDRAWS):
            if len(candidates) >= number:
                break
            for dealt in self._deal():
                ordering = dealt
                if num_dealt % RANDOM_CHOICES_EVERY:
                    ordering = self.space.with_first_choices(dealt)
                candidates |= dict.fromkeys(self._beginnings(ordering, num_dealt % BEGINNING_STEP))
                num_dealt += 1
        chosen = list(candidates)[: max(number, num_first)]
        # Shuffle the orderings. Otherwise, similar orderings would be scored on the same examples,
        # and the effects of examples and orderings would be confounded.
        shuffled = self._permutation(len(chosen) - num_first)
        return [*chosen[:num_first], *(chosen[num_first + place] for place in shuffled)]

    def _permutation(self, size: int) -> list[int]:
        """Draw a permutation of ``range(size)``."""
        permutation: list[int] = torch.randperm(size, generator=self._generator).tolist()
        return permutation

    def _first(self, number: int, known: Container[Candidate]) -> dict[Candidate, None]:
        """Return the candidates with which `fresh()` and `nested()` begin, as the keys of a dict."""
        num_first = max(1 + len(self.space.programs), number // 2)
        first = self.space.first_candidates[:num_first]
        return dict.fromkeys(candidate for candidate in first if candidate not in known)

    def _deal(self) -> Iterator[Ordering]:
        """Shuffle the items of each block, and divide them into orderings of the maximum allowed length.

        Stop when a block has too few items left for another ordering.
        """
        parts = []
        for size, (_, upper) in zip(self.space.sizes, self.space.limits, strict=True):
            items = self._permutation(size)
            starts = range(0, size - upper + 1, max(1, upper))
            parts.append([items[start : start + upper] for start in starts])
        for blocks in zip(*parts, strict=False):
            ordering = self.space.shortened(self.space.canonical(blocks))
            if ordering is not None:
                yield ordering

    def _beginnings(self, ordering: Ordering, num_dropped: int) -> Iterator[Ordering]:
        """Yield allowed, nonempty beginnings of an ordering, longest first.

        The first beginning omits the last `num_dropped` items of the longest block. Each further
        beginning is `BEGINNING_STEP` items shorter.
        """
        num_blocks = self.space.num_lists
        longest = max(map(len, ordering[:num_blocks]), default=0)
        for length in range(longest - num_dropped, 0, -BEGINNING_STEP):
            beginning = tuple(items[:length] for items in ordering)
            if self.space.contains(beginning) and self.space.allows(beginning):
                yield beginning

    def refit(self, elites: Sequence[ScoreEstimate], *, from_uniform: bool = False) -> None:
        """Refit the distributions to the elites.

        Start from uniform distributions if `from_uniform` is true, else from the current ones.
        Ignore whole programs. Do nothing if all elites are whole programs, for example because a
        limit prevented the scoring of orderings.
        """
        orderings: list[Ordering] = []
        scores_of_orderings: list[float] = []
        for ordering, score in elites:
            if not isinstance(ordering, WholeProgram):
                orderings.append(ordering)
                scores_of_orderings.append(score)
        if not orderings:
            return
        scores = torch.tensor(scores_of_orderings, dtype=torch.float64)
        weights = None
        # Unlike PLR, give all orderings the same weight if any score is 0 or less: scores can be
        # weights only if all of them are positive.
        if self._rule.weighted and bool((scores > 0).all()):
            weights = scores / scores.mean()
        updated = []
        with one_thread():
            for block, previous in enumerate(self._uniform() if from_uniform else self.distributions):
                rows = [self._reverse(ordering[block]) for ordering in orderings]
                rankings = padded(rows, previous.num_items)
                distribution = self._rule.update(previous, rankings, weights)
                if previous.length_probabilities is not None:
                    probabilities = self._length_probabilities(previous, rankings, weights)
                    distribution = distribution.copy(
                        length=previous.length, length_probabilities=probabilities
                    )
                updated.append(distribution)
        self.distributions = updated

    def _length_probabilities(
        self, previous: PlackettLuce, rankings: Tensor, weights: Tensor | None
    ) -> Tensor:
        """Return the previous length probabilities, moved towards the elites' length frequencies.

        The result is mixed with a uniform distribution, so that no length becomes impossible.
        """
        probabilities = previous.length_probabilities
        assert probabilities is not None
        extra = (rankings != NOT_SHOWN).sum(dim=-1) - previous.min_length
        counts = torch.bincount(extra, weights=weights, minlength=len(probabilities)).to(probabilities)
        smoothing = self._rule.smoothing
        probabilities = (1.0 - smoothing) * probabilities + smoothing * counts / counts.sum()
        return (1.0 - UNIFORM_SHARE) * probabilities + UNIFORM_SHARE / len(probabilities)

    def _uniform(self) -> list[PlackettLuce]:
        distributions = [self._rule.initial(size) for size in self.space.sizes]
        if not self.space.from_end:
            return distributions
        with_lengths = []
        for distribution, (min_length, max_length) in zip(distributions, self.space.limits, strict=True):
            num_lengths = max_length - min_length + 1
            probabilities = torch.ones(num_lengths, dtype=torch.float64) / num_lengths
            with_lengths.append(distribution.copy(length=max_length, length_probabilities=probabilities))
        return with_lengths

    def _reverse(self, items: Sequence[int]) -> Sequence[int]:
        """Convert a block's items to a ranking, or a ranking to items.

        If the space counts positions from the end, a ranking begins with the item shown last, so
        the items are reversed.
        """
        if not self.space.from_end:
            return items
        return [item for item in reversed(items) if item != NOT_SHOWN]


class RandomSearch(Search):
    """A search that scores up to `num_orderings` different random candidates, starting with the identity."""

    def __init__(
        self, space: OrderingSpace, *, num_orderings: int, num_samples: int = 15, seed: int = 0
    ) -> None:
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
        space: The orderings to search.
        update: Rule that refits the distributions: "ema", "mle", "mixture" or an update
            object.
        num_samples: Number of orderings per round (B).
        elite_fraction: Fraction of a round's orderings to which the distributions are refitted
            (rho).
        seed: Seed for the search's random numbers.
    """

    def ask(self) -> list[Candidate]:
        return list(self.draw(self.num_samples))

    def tell(self, orderings: Sequence[Candidate], scores: Scores) -> list[ScoreEstimate]:
        elites = super().tell(orderings, scores)
        self.refit(elites)
        return elites


def reason_to_stop(
    history: Sequence[Iteration], *, stop_at_score: float | None, patience: int | None
) -> Stop | None:
    """Return why `stop_at_score` or `patience` ends the search, or None if neither ends it."""
    if stop_at_score is not None and history and history[-1].best_score_so_far >= stop_at_score:
        return Stop(StopReason.STOP_AT_SCORE, f"stop_at_score={stop_at_score:g} reached")
    if patience is None or len(history) <= patience:
        return None
    best = {iteration.best_ordering for iteration in history[-1 - patience :]}
    if len(best) > 1:
        return None
    return Stop(StopReason.PATIENCE, f"patience={patience}: no better order")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise a ValueError unless the value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")


def mean_score(row: Mapping[int, float]) -> float:
    """Return a candidate's mean score. The sum is exact, so the order of the scores does not matter."""
    return math.fsum(row.values()) / len(row)


def num_elites(num_trials: int, elite_fraction: float) -> int:
    """Return the number of elites among `num_trials` candidates, at least 1.

    The result is ``elite_fraction * num_trials``, rounded up as in PLR. Rounding errors are
    ignored, so 0.07 * 100 is treated as 7.
    """
    return max(1, math.ceil(elite_fraction * num_trials - 1e-9))
