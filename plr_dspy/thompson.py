"""A search that learns from scores on few examples each, by a model of what makes an order good."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from plr_dspy.climbing import climb, moved
from plr_dspy.effects import score_table, shrunk_means
from plr_dspy.features import FAMILIES, NUM_REFERENCES, OrderingFeatures, random_orderings
from plr_dspy.records import Trial
from plr_dspy.search import MAX_REDRAWS, CrossEntropySearch, as_ordering
from plr_dspy.space import Ordering, OrderingSpace
from plr_dspy.surrogate import Array, Surrogate
from plr_dspy.updates import UpdateRule

NUM_CANDIDATES = 300
"""New orderings that each round chooses from, and those that climbing finds; of small spaces, all."""

MAX_MODELLED = 256
"""Orderings that the model is fitted to: the most promising. Bounds a round's time."""

MOST_SCORED = 32
"""As many of them are those with the most scores, whatever these are: the finalists are among them."""

MIN_ELITES = 5

SMALL_MATRICES = ThreadpoolController()
"""Threads of the linear algebra library: for matrices of some hundred rows they cost more than they bring."""


@dataclass(frozen=True)
class _Model:
    """The process as it was fitted last; replaced whole, so that an interrupt finds one that fits together.

    Attributes:
        orderings: Those that it was fitted to.
        surrogate: The process.
        earlier: The state of the surrogate that the fit went on from.
    """

    orderings: list[Ordering]
    surrogate: Surrogate
    earlier: dict[str, Any]


class ThompsonSearch(CrossEntropySearch):
    """Thompson sampling of orderings from a Gaussian process, with Plackett-Luce proposals.

    Each round fits the process (`plr_dspy.surrogate`) to all scores, and the distributions to the orderings
    that it deems best. Candidates are draws of the distributions, insertions of an item elsewhere in a good
    ordering, the tops of short climbs on the process' mean, and random orderings. The orderings known
    compete with them: of each joint draw from the posterior the best ordering is asked for, be it new or to
    be scored on more examples. So good orderings are looked at ever more closely (a race), and no call is
    spent on those that a few examples have ruled out.

    Source: W. R. Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, "An empirical evaluation of Thompson
    sampling", NIPS 2011.

    Args:
        space: What to order.
        num_examples: Examples there are; an ordering that has been scored on all, or that asking for again
            brought nothing new of, is not asked for again.
        classes: For each block the class of each of its items, such as demos of one answer; None for none.
        example_classes: The class of each example, such as its answer; None for none.
        update: As in `CrossEntropySearch`; fitted from the uniform distribution in every round.
        num_samples: Orderings asked for in each round, at most.
        num_initial: Random orderings of the first round, the identity among them.
        elite_fraction: Share of the orderings known that the distributions are fitted to.
        families: Of features (`plr_dspy.features.FAMILIES`).
        propose_known: Off, no ordering is asked for twice.
        seed: Of everything random.
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
        families: Sequence[str] = FAMILIES,
        propose_known: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(
            space,
            update=update,
            num_samples=num_samples,
            elite_fraction=elite_fraction,
            archive=True,
            seed=seed,
        )
        self._num_examples = num_examples
        self._num_initial = num_initial
        self._propose_known = propose_known
        self._seed = seed
        self._features = OrderingFeatures(space, classes=classes, families=families)
        self._references = self._features(random_orderings(space, NUM_REFERENCES))
        self._example_classes = example_classes
        self._scores: dict[Ordering, dict[int, float]] = {}
        self._finished: set[Ordering] = set()  # those that further examples could not be had for
        self._model = _Model([], Surrogate(), {})
        self._num_rounds = 0

    def ask(self) -> list[Ordering]:
        """Orderings to score on further examples; empty when all there are have been scored on all."""
        with SMALL_MATRICES.limit(limits=1, user_api="blas"):
            return self._sampled() if self._scores else self._initial()

    def tell(self, trials: Sequence[Trial]) -> list[Trial]:
        """Fit the process to all scores, and the distributions to the orderings it deems best.

        Returns:
            These elites with the process' estimates of their scores, best first.

        Raises:
            ValueError: when there are no trials, or one has no finite scores by example.
        """
        if not trials:
            raise ValueError("tell needs at least one trial; got none")
        for trial in trials:
            self.space.canonical(trial.ordering)
            if not trial.scores or not all(math.isfinite(score) for _, score in trial.scores):
                raise ValueError(f"trials must have finite scores by example; got {trial}")
        for trial in trials:
            known = self._scores.setdefault(trial.ordering, {})
            if len(known) == len(known | dict(trial.scores)):
                self._finished.add(trial.ordering)
            known.update(trial.scores)
        self._num_rounds += 1
        self._fit()
        best = self._estimates()
        elites = best[: self._num_elites(len(best))]
        self.distributions = [self.update.initial(size) for size in self.space.sizes]
        self._refit(elites)
        return elites

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Trials with the process' estimates of their scores, best first; without those it has ruled out."""
        estimates = {trial.ordering: trial for trial in self._estimates()}
        known = [estimates[trial.ordering] for trial in trials if trial.ordering in estimates]
        return sorted(known, key=lambda trial: -trial.score)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "scores": [[ordering, list(scores.items())] for ordering, scores in self._scores.items()],
            "finished": sorted(self._finished),
            "seed": self._seed,
            "surrogate": self._model.earlier,
            "num_rounds": self._num_rounds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._scores = {as_ordering(o): {int(e): s for e, s in scores} for o, scores in state["scores"]}
        self._finished = {as_ordering(ordering) for ordering in state["finished"]}
        self._num_rounds, self._seed = int(state["num_rounds"]), int(state["seed"])
        self._model = _Model([], Surrogate(earlier=state["surrogate"]), {})
        if self._scores:
            self._fit()

    def _num_elites(self, num_trials: int) -> int:
        return max(MIN_ELITES, super()._num_elites(num_trials))

    def _sampled(self) -> list[Ordering]:
        """The best candidates of posterior draws."""
        rng = np.random.default_rng([self._seed, self._num_rounds])
        candidates = self._candidates(rng)
        pool = [*self._model.orderings, *candidates]
        eligible = [self._may_be_asked(ordering) for ordering in pool]
        if not any(eligible):
            return []
        draws = self._model.surrogate.sample(self._features_of(candidates), 3 * self.num_samples, rng)
        draws[:, ~np.array(eligible)] = -np.inf
        chosen: dict[int, None] = {}
        for draw in draws:
            for index in np.argsort(-draw, kind="stable"):
                if draw[index] == -np.inf or index not in chosen:
                    break
            if draw[index] > -np.inf:
                chosen[int(index)] = None
            if len(chosen) == self.num_samples:
                break
        return [pool[index] for index in chosen]

    def _initial(self) -> list[Ordering]:
        asked = dict.fromkeys([self.space.identity])
        number = min(self._num_initial, self.space.num_distinct)
        for _ in range(MAX_REDRAWS):
            asked |= dict.fromkeys(self._draw(number, 0.0))
            if len(asked) >= number:
                break
        return list(asked)[:number]

    def _may_be_asked(self, ordering: Ordering) -> bool:
        known = self._scores.get(ordering)
        if known is None:
            return True
        return self._propose_known and len(known) < self._num_examples and ordering not in self._finished

    def _fit(self) -> None:
        """Fit the process to the identity, the orderings that were scored most, and those that promise most."""
        orderings = list(self._scores)
        if len(orderings) > MAX_MODELLED:
            means = shrunk_means(self._table(orderings))
            counts = [len(self._scores[ordering]) for ordering in orderings]
            means[np.argsort(counts, kind="stable")[-MOST_SCORED:]] = np.inf
            means[[ordering == self.space.identity for ordering in orderings]] = np.inf
            kept = np.sort(np.argsort(-means, kind="stable")[:MAX_MODELLED])
            orderings = [orderings[index] for index in kept]
        earlier = self._model.surrogate.state_dict()
        surrogate = Surrogate(self._references, earlier=earlier)
        with SMALL_MATRICES.limit(limits=1, user_api="blas"):
            surrogate.fit(self._features(orderings), self._table(orderings), self._classes_of(orderings))
        self._model = _Model(orderings, surrogate, earlier)

    def _estimates(self) -> list[Trial]:
        """The orderings modelled with the process' estimates of their scores, best first."""
        model = self._model
        if not model.orderings:
            return []
        estimates = [
            Trial(ordering, float(mean), len(self._scores[ordering]))
            for ordering, mean in zip(model.orderings, model.surrogate.mean, strict=True)
        ]
        return sorted(estimates, key=lambda trial: -trial.score)

    def _predicted(self, orderings: list[Ordering]) -> Array:
        return self._model.surrogate.predict(self._features(orderings))

    def _table(self, orderings: Sequence[Ordering]) -> Array:
        """Scores ``[m, E]`` with NaN where there is none."""
        return score_table([self._scores[ordering] for ordering in orderings])

    def _classes_of(self, orderings: Sequence[Ordering]) -> NDArray[np.int64] | None:
        """The classes of the examples that are columns of `_table`, numbered anew."""
        if self._example_classes is None:
            return None
        examples = sorted({example for ordering in orderings for example in self._scores[ordering]})
        codes = np.unique([self._example_classes[example] for example in examples], return_inverse=True)[1]
        return np.asarray(codes, dtype=np.int64)

    def _features_of(self, orderings: Sequence[Ordering]) -> list[Array]:
        if orderings:
            return self._features(orderings)
        return [family[:0] for family in self._features([self.space.identity])]

    def _candidates(self, rng: np.random.Generator) -> list[Ordering]:
        """New orderings."""
        if self.space.num_distinct <= NUM_CANDIDATES:
            found = dict.fromkeys(itertools.islice(self.space.enumerate(), NUM_CANDIDATES))
        else:
            best = [trial.ordering for trial in self._estimates()]
            parents = best[: self._num_elites(len(best))]
            found = dict.fromkeys(self._draw(NUM_CANDIDATES // 3, 1.0))
            for index in rng.integers(len(parents), size=NUM_CANDIDATES // 2):
                found[moved(self.space, parents[index], rng)] = None
            found |= dict.fromkeys(self._draw(NUM_CANDIDATES // 6, 0.0))
            found |= dict.fromkeys(climb(self.space, best, self._predicted, rng))
        return [ordering for ordering in found if ordering not in self._scores]
