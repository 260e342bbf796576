"""A search that learns from scores on few examples each, by a model of what makes an order good."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plr_dspy.orderings.arrangement_space import SearchSpace
from plr_dspy.orderings.space import Ordering
from plr_dspy.orderings.trials import ScoreEstimate, Trial
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.runtime.threads import one_thread
from plr_dspy.search.cross_entropy import MAX_REDRAWS
from plr_dspy.search.hill_climbing import climb
from plr_dspy.search.search import Search, as_ordering, num_elites
from plr_dspy.search.surrogate.fitted_model import FittedModel
from plr_dspy.search.surrogate.label_responses import LabelResponses
from plr_dspy.search.surrogate.model import OrderingModel

NUM_CANDIDATES = 300
"""New orderings that each round chooses from, and those that climbing finds; of small spaces, all."""

MIN_ELITES = 5


class ThompsonSearch(Search):
    """Thompson sampling of orderings from a Gaussian process, with Plackett-Luce proposals.

    Each round fits the process (`gaussian_process`) to all scores, and the distributions to the orderings
    that it deems best. Candidates are draws of the distributions, good orderings after a move of their space
    (such as an item put elsewhere), the tops of short climbs on the process' mean, and random orderings. The
    orderings known compete with them: of each joint draw from the posterior the best ordering is asked for, be it
    new or to be scored on more examples. So good orderings are looked at ever more closely (a race), and no call is
    spent on those that a few examples have ruled out.

    Source: W. R. Thompson, Biometrika 25, 1933; O. Chapelle and L. Li, "An empirical evaluation of Thompson
    sampling", NIPS 2011.

    Args:
        space: What to order, or to arrange.
        num_examples: Examples there are; an ordering that has been scored on all, or that asking for again
            brought nothing new of, is not asked for again.
        classes: For each block the class of each of its items, such as demos of one answer; None for none.
        example_classes: The class of each example, such as its answer, and of more that trials may come to
            have scores of; None for none.
        update: As in `CrossEntropySearch`; fitted from the uniform distribution in every round.
        num_samples: Orderings asked for in each round, at most.
        num_initial: Random orderings of the first round, the identity among them.
        elite_fraction: Share of the orderings known that the distributions are fitted to.
        families: Names of one or more families of features, as in `OrderingModel`; None takes all.
        propose_known: Off, no ordering is asked for twice.
        responses: The log-probabilities of labels of what has been scored; None for none.
        seed: Of everything random.

    Raises:
        ValueError: for numbers out of range, and classes that do not fit.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        num_examples: int,
        classes: Sequence[Sequence[int]] | None = None,
        example_classes: Sequence[int] | None = None,
        update: str | UpdateRule = "mle",
        num_samples: int = 24,
        num_initial: int = 60,
        elite_fraction: float = 0.125,
        families: Sequence[str] | None = None,
        propose_known: bool = True,
        responses: LabelResponses | None = None,
        seed: int = 0,
    ) -> None:
        for name, value, least in (
            ("num_examples", num_examples, 1),
            ("num_initial", num_initial, 1),
            ("seed", seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")
        if example_classes is not None and len(example_classes) < num_examples:
            raise ValueError(
                f"example_classes must name the class of each of {num_examples} examples; got {len(example_classes)}"
            )
        if families is not None and not families:
            raise ValueError(
                "families must name one or more families of features, or be None for all; got none"
            )
        super().__init__(
            space,
            update=update,
            num_samples=num_samples,
            elite_fraction=elite_fraction,
            model=OrderingModel(
                space,
                classes=classes,
                example_classes=example_classes,
                families=families,
                responses=responses,
            ),
            seed=seed,
        )
        self._num_classed = None if example_classes is None else len(example_classes)
        self._num_examples = num_examples
        self._num_initial = num_initial
        self._propose_known = propose_known
        self._seed = seed
        self._scores: dict[Ordering, dict[int, float]] = {}
        self._fitted: FittedModel = self.model.fit({})
        self._finished: set[Ordering] = set()  # those that further examples could not be had for
        self._num_rounds = 0

    def ask(self) -> list[Ordering]:
        """Orderings to score on further examples; empty when all there are have been scored on all."""
        with one_thread():
            return self._sample_posterior() if self._scores else self._first_round()

    def tell(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """Fit the process to all scores, and the distributions to the orderings it deems best.

        Returns:
            These elites with the process' estimates of their scores, best first, within what scores can be.

        Raises:
            ValueError: when there are no trials, or one has no finite scores by example; nothing is learnt then.
        """
        if not trials:
            raise ValueError("tell needs at least one trial; got none")
        for ordering, scores in [self._checked(trial) for trial in trials]:
            known = self._scores.setdefault(ordering, {})
            if scores.keys() <= known.keys():
                self._finished.add(ordering)
            known.update(scores)
        self._num_rounds += 1
        self._fit(self._fitted.variances)
        best = self._fitted.estimates()
        elites = best[: self._num_elites(len(best))]
        self.proposal.reset()
        self.proposal.refit(elites)
        return self.model.shown(elites, self._scores)

    def _fit(self, earlier: Mapping[str, Any]) -> None:
        """Replace the fit whole, so that an interrupt finds one that fits together."""
        self._fitted = self.model.fit(self._scores, earlier=earlier, kept=[self.space.identity])

    def _checked(self, trial: Trial) -> tuple[Ordering, dict[int, float]]:
        """The ordering of a trial, and its scores by example."""
        ordering = self.space.canonical(trial.ordering)
        scores = {}
        for example, score in trial.scores:
            if isinstance(example, bool) or not isinstance(example, (int, np.integer)) or example < 0:
                raise ValueError(f"examples must be numbered from 0; got {example!r} in {trial}")
            if self._num_classed is not None and example >= self._num_classed:
                raise ValueError(f"example {example} has no class: example_classes names {self._num_classed}")
            if not math.isfinite(score):
                raise ValueError(f"trials must have finite scores by example; got {trial}")
            scores[int(example)] = float(score)
        if not scores:
            raise ValueError(
                "trials must have scores by example, such as Trial(ordering, .5, 2, scores=((0, 1.), (1, 0.))); "
                f"got {trial}"
            )
        return ordering, scores

    def ranked(self, trials: Sequence[Trial]) -> list[ScoreEstimate]:
        """The process' estimates of the trials' orderings, best first and within what scores can be.

        Those that it has ruled out are missing.
        """
        asked = {trial.ordering for trial in trials}
        found = [estimate for estimate in self._fitted.estimates() if estimate.ordering in asked]
        return self.model.shown(found, self._scores)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.proposal.state_dict(),
            "scores": [[ordering, list(scores.items())] for ordering, scores in self._scores.items()],
            "surrogate": self._fitted.earlier,
            "finished": sorted(self._finished),
            "seed": self._seed,
            "num_rounds": self._num_rounds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.proposal.load_state_dict(state)
        self._scores = {
            as_ordering(o): {int(e): float(s) for e, s in scores} for o, scores in state["scores"]
        }
        self._fit(state["surrogate"])
        self._finished = {as_ordering(ordering) for ordering in state["finished"]}
        self._num_rounds, self._seed = int(state["num_rounds"]), int(state["seed"])

    def _num_elites(self, num_trials: int) -> int:
        return max(MIN_ELITES, num_elites(num_trials, self.elite_fraction))

    def _sample_posterior(self) -> list[Ordering]:
        """The best candidates of posterior draws."""
        rng = np.random.default_rng([self._seed, self._num_rounds])
        candidates = self._candidates(rng)
        pool = [*self._fitted.orderings, *candidates]
        eligible = [self._may_be_asked(ordering) for ordering in pool]
        if not any(eligible):
            return []
        draws = self._fitted.sample(candidates, 3 * min(self.num_samples, len(pool)), rng)
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

    def _first_round(self) -> list[Ordering]:
        asked = dict.fromkeys([self.space.identity])
        number = min(self._num_initial, self.space.num_distinct)
        if number == self.space.num_distinct:
            return list(self.space.enumerate())
        for _ in range(MAX_REDRAWS):
            asked |= dict.fromkeys(self.proposal.draw(number, sharpness=0.0))
            if len(asked) >= number:
                break
        return list(asked)[:number]

    def _may_be_asked(self, ordering: Ordering) -> bool:
        known = self._scores.get(ordering)
        if known is None:
            return True
        return self._propose_known and len(known) < self._num_examples and ordering not in self._finished

    def _candidates(self, rng: np.random.Generator) -> list[Ordering]:
        """New orderings."""
        if self.space.num_distinct <= NUM_CANDIDATES:
            found = dict.fromkeys(itertools.islice(self.space.enumerate(), NUM_CANDIDATES))
        else:
            best = [estimate.ordering for estimate in self._fitted.estimates()]
            parents = best[: self._num_elites(len(best))]
            found = dict.fromkeys(self.draw(NUM_CANDIDATES // 3))
            for index in rng.integers(len(parents), size=NUM_CANDIDATES // 2):
                found[self.space.moved(parents[index], rng)] = None
            found |= dict.fromkeys(self.proposal.draw(NUM_CANDIDATES // 6, sharpness=0.0))
            found |= dict.fromkeys(climb(self.space, best, self._fitted.predict, rng))
        return [ordering for ordering in found if ordering not in self._scores]
