"""The additive Gaussian process: how scores on single examples depend on features of orderings.

    score of ordering o on example e  =  effect of e + f(o) + leaning of o towards the class of e + g_e(o) + noise

The effects of examples are shrunk means. f is a sum of linear functions of feature families with a variance each, of a
smooth function of the leaning, and of an effect of every ordering's own. g_e is what one example prefers, so that f
alone says what orderings score on examples not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize

from plr_dspy.search.model.gains import KINDS, Array, Families, Gains, Mask, Numbers, expected_gains
from plr_dspy.search.space import Ordering, OrderingSpace

Earlier: TypeAlias = Sequence[float] | None  # variances of an earlier fit, which a fit may go on from
Worth: TypeAlias = Callable[[Mask, Numbers], Array]  # of scores known, [m, E], on numbered examples, [E], to [m]
Family = Callable[[Numbers], Array]  # items at places from the end, the block's size for none, to features
FAMILIES = ("number", "presence", "region", "last", "adjacency", "class region", "class adjacency")
"""The number of items shown; which; an item near a place; which is at the end; which stands right before which; and the
same by the classes of items, such as demos that give the same answer."""

REGION = 1.0  # length scale of regions in the logarithm of places from the end: 1 and 2 are as near as 5 and 10
NUM_REGION = 0.25  # length scale of "number", as a share of the largest number
NUM_REFERENCES = 300  # random orderings that centre and scale the features
# Pairs of items that "adjacency" may have over all blocks; a block with more than its even share goes without: a search
# of some hundred calls sees few of the pairs of 50 items, and half of its time would go to them.
MAX_PAIRS = 1_500

PRIOR_VARIANCE = 0.02  # prior mean of orderings' variance over the noise's: of accuracy .6, orders that differ by .06
PRIOR_SHRINKAGE = 3.0  # noise variance over that of examples' effects, as long as little is known of them
PRIOR_EXAMPLES = 10.0  # that this prior counts as much as
MIN_SHRINKAGE, MAX_SHRINKAGE = 0.05, 30.0
NUM_ALTERNATIONS = 10  # of the two-way fit

PRIOR_SHAPE = 0.3  # of the Gamma prior of each variance; small lets components vanish
NUM_STEPS, NUM_FIRST_STEPS = 3, 15  # of a fit of variances that goes on from an earlier one, and of the first

# Variance of the effect of a program that is not one of the orderings, over the noise's: little is known of it.
APART_VARIANCE = 1.0
PRIOR_SHARE, MAX_SHARE = 0.2, 0.95  # of the residual variance, that examples' preferences have: prior mean, and most
PRIOR_PRECISION = 40.0  # of each kernel's share about its prior mean, over that of one pair of scores on one example
CENTRES = np.arange(-4.0, 4.01, 0.5)  # of bumps, which add up to a function of the leaning, in its deviations at random


class ScoreTable:
    """Scores ``[m, E]`` of orderings on numbered examples, NaN where there is none, and their crossed effects: means
    that know how easy the examples were. Each score of an ordering is worth so many of examples drawn at random, 1
    where nothing else is said, `worth`, ``[m]``. Its mean, of scores worth `sizes`, is trusted the more the larger
    these are: by `trust` its true distance from the mean of all is smaller, ``[m]``."""

    def __init__(self, scores: Array, examples: Numbers | None = None, worth: Array | None = None) -> None:
        self.scores, self.known = scores, ~np.isnan(scores)
        self.examples = np.arange(scores.shape[1]) if examples is None else examples
        self._shown, self._values = self.known.astype(np.float64), np.where(self.known, scores, 0.0)
        self.counts, self._on_examples = self.known.sum(axis=1), self.known.sum(axis=0)
        self.seen = self._on_examples > 0
        self._sums, self._sums_on_examples = self._values.sum(axis=1), self._values.sum(axis=0)
        self.worth = np.ones(len(scores)) if worth is None else worth
        self.sizes = self.counts * self.worth
        self.trust: Array = self.sizes / (self.sizes + 0.5 / PRIOR_VARIANCE)

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[int, float]], worth: Worth | None = None) -> ScoreTable:
        """The table of the scores by example of each ordering; its columns are the examples in ascending order."""
        examples = np.array(sorted(set().union(*rows)), dtype=np.int64)
        table = np.full((len(rows), len(examples)), np.nan)
        for line, row in zip(table, rows, strict=True):
            line[np.searchsorted(examples, [*row])] = [*row.values()]
        return cls(table, examples, None if worth is None else worth(~np.isnan(table), examples))

    @cached_property
    def shrinkage(self) -> float:
        """Noise variance over the variance of examples' effects, by the analysis of variance of the examples that have
        two scores or more, and a prior. The mean of all counts as so many scores of an example's own."""
        several = self._on_examples >= 2
        if not several.any():
            return PRIOR_SHRINKAGE
        counts, number = self._on_examples[several], int(several.sum())
        means = self._sums_on_examples[several] / counts
        rest = np.where(self.known[:, several], self._values[:, several] - means, 0.0)
        within = float(self.worth @ (rest * rest).sum(axis=1) / (counts - 1).sum())
        if within <= 0.0:
            return MIN_SHRINKAGE if means.var() > 0.0 else PRIOR_SHRINKAGE
        between = float(means.var(ddof=min(1, number - 1)) - within * (1.0 / counts).mean())
        share = number * max(between, 0.0) / within + PRIOR_EXAMPLES / PRIOR_SHRINKAGE
        return float(np.clip((number + PRIOR_EXAMPLES) / share, MIN_SHRINKAGE, MAX_SHRINKAGE))

    @cached_property
    def num_example_parameters(self) -> float:
        """Parameters that the shrunk effects of examples use up."""
        return float((self._on_examples / (self._on_examples + self.shrinkage)).sum())

    def example_effects(self, effects: Array) -> Array:
        """Shrunk mean of each example over its scores, less the effects ``[m]`` of the orderings, ``[E]``."""
        rest = self._sums_on_examples - effects @ self._shown
        mean = rest.sum() / max(1, self._on_examples.sum())
        return np.asarray((rest + self.shrinkage * mean) / (self._on_examples + self.shrinkage))

    def ordering_effects(self, effects: Array) -> Array:
        """Mean of each ordering above the effects that its examples have beside these of orderings, ``[m]``."""
        return np.asarray((self._sums - self._shown @ self.example_effects(effects)) / np.maximum(1, self.counts))

    def residuals(self, effects: Array) -> Array:
        """What effects of orderings and of examples leave of the scores, ``[m, E]``; 0 where there is none."""
        return (self._values - self.example_effects(effects) - effects[:, None]) * self._shown

    @cached_property
    def adjusted_means(self) -> Array:
        """Mean of each ordering as if all had been scored on all examples, less the mean example, ``[m]``: a two-way
        additive fit with shrunk effects, by alternation."""
        means = effects = np.zeros(len(self.scores))
        for _ in range(NUM_ALTERNATIONS):
            means = self.ordering_effects(effects)
            effects = means * self.trust
        return means


class Features:
    """Features of the orderings of a space, in families, the `names` of those that there are. Each has mean 0 and mean
    squared length 1 over random orderings, the `references`; those in which these do not differ are left out."""

    def __init__(self, space: OrderingSpace, *, classes: Sequence[Sequence[int]] | None = None) -> None:
        if classes is not None and tuple(map(len, classes)) != space.sizes:
            raise ValueError(f"classes must name a class for each item of blocks of {space.sizes} items")
        self._space = space
        named = [None] * len(space.sizes) if classes is None else classes
        self._families = [_families(space, block, codes) for block, codes in enumerate(named)]
        drawn = space.draw(NUM_REFERENCES, np.random.default_rng(0))
        there = [name for name in FAMILIES if any(name in families for families in self._families)]
        self._moments: dict[str, tuple[Array | float, float]] = dict.fromkeys(there, (0.0, 1.0))
        means = [(name, raw, raw.mean(axis=0)) for name, raw in zip(there, self(drawn), strict=False)]
        spreads = {name: (mean, float(((raw - mean) ** 2).sum(axis=1).mean())) for name, raw, mean in means}
        self._moments = {name: (mean, spread**-0.5) for name, (mean, spread) in spreads.items() if spread > 1e-9}
        self.names, self.references = list(self._moments), self(drawn)

    def __call__(self, orderings: Sequence[Ordering]) -> list[Array]:
        """Features ``[m, d]`` of each family, those of all blocks side by side; of a space whose orderings do not
        differ one family without any."""
        parts: dict[str, list[Array]] = {name: [] for name in self._moments}
        blocks = zip(self._space.sizes, self._space.limits, self._families, strict=True)
        for block, (size, (_, most), families) in enumerate(blocks):
            rows = [[*o[block][::-1], *[size] * (most - len(o[block]))] for o in orderings]
            places = np.array(rows, dtype=np.int64).reshape(len(rows), most)
            for name in parts.keys() & families.keys():
                parts[name].append(families[name](places).reshape(len(rows), -1))
        moments = self._moments.values()
        found = [(np.concatenate(p, axis=1) - m) * scale for p, (m, scale) in zip(parts.values(), moments, strict=True)]
        return found or [np.zeros((len(orderings), 0))]


def _families(space: OrderingSpace, block: int, classes: Sequence[int] | None) -> dict[str, Family]:
    """The families of one block."""
    size, (_, most) = space.sizes[block], space.limits[block]
    codes = np.unique(np.zeros(size) if classes is None else np.asarray(classes), return_inverse=True)[1]
    number = int(codes.max(initial=0)) + 1
    items = np.eye(size + 1, size)  # the last row stands for no item
    classed = items @ np.eye(number)[codes]
    near = _smooth(np.log1p(np.arange(most)), REGION)
    numbers = _smooth(np.arange(most + 1) / max(most, 1), NUM_REGION)
    families: dict[str, Family] = {
        "number": lambda places: numbers[(places < size).sum(axis=1)],
        "presence": lambda places: items[places].sum(axis=1),
        "region": lambda places: items[places].transpose(0, 2, 1) @ near,
        "last": lambda places: items[places[:, :1]].sum(axis=1),
    }
    if size**2 <= MAX_PAIRS // len(space.sizes):
        families["adjacency"] = lambda places: items[places[:, 1:]].transpose(0, 2, 1) @ items[places[:, :-1]]
    if 1 < number <= 2 * size / 3:  # Of more classes they would say hardly more than items do.
        families["class region"] = lambda places: classed[places].transpose(0, 2, 1) @ near
        families["class adjacency"] = lambda places: classed[places[:, 1:]].transpose(0, 2, 1) @ classed[places[:, :-1]]
    return families


def _smooth(points: Array, scale: float) -> Array:
    """``[points, r]``, which times its transpose is a Gaussian kernel over points on a line."""
    kernel = np.exp(-0.5 * ((points[:, None] - points) / scale) ** 2)
    values, vectors = np.linalg.eigh(kernel)
    kept = values > 1e-6 * values.max(initial=0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


class Components(NamedTuple):
    """A sum of independent Gaussian processes, fitted to what was measured of m orderings, in units of the noise."""

    variances: Array  # of the components
    covariance: Array  # prior covariance of the values, [m, m]
    fixed: Array  # the part of it that was given, [m, m]
    inverse: Array  # inverse covariance of what was measured, [m, m]
    solved: Array  # it times what was measured less its mean, [m, ...]
    noise: float  # its variance
    weights: list[Array]  # of the features in the posterior mean, [d, ...] of each family

    def left(self, before: Array, covariance: Array) -> Array:
        """Posterior variances of values, from prior ones ``[c]`` and covariances ``[c, m]`` with those fitted."""
        explained = ((covariance @ self.inverse) * covariance).sum(axis=1)
        return np.asarray(self.noise * np.maximum(before - explained, 1e-9))


def linear(features: Families, weights: Families) -> Array:
    """The function of orderings' features, ``[c, d]`` of each family, that has these weights, ``[c]``."""
    return np.asarray(sum(f @ w for f, w in zip(features, weights, strict=True)))


def fit_components(
    features: Families,  # of all components but the last, [m, d]
    kernels: Families,  # covariances of the components at variance 1, [m, m] each
    errors: Array,  # covariance of what was measured beside the values, [m, m]
    measure: Callable[[Array, Array], tuple[Array, float]],
    *,
    earlier: Earlier = None,  # that of a fit of the same components counts
    total: float = PRIOR_VARIANCE,  # sum of the variances that the first fit begins with
    noise: float = 1.0,
    fixed: Array | float = 0.0,  # further prior covariance, [m, m]
    extra_variances: Array | float = 0.0,  # further prior variances in the values' own unit, [m]
) -> Components:
    """Maximise the restricted likelihood under a Gamma prior, by fixed-point steps (D. A. Harville, JASA 72, 1977).

    `measure` goes from the prior covariance, and the inverse covariance of what was measured, to that itself, less its
    mean, ``[m]`` or of several outputs ``[m, k]``, and to the variance of the noise, which begins with `noise`.
    """
    stacked, number, size = np.stack(kernels), len(kernels), len(errors)
    variances, num_steps = np.full(number, total / number), NUM_FIRST_STEPS
    if earlier is not None and len(earlier) == number:
        variances, num_steps = np.array(earlier), NUM_STEPS
    for step in range(num_steps + 1):
        given = fixed + np.diag(np.zeros(size) + extra_variances / noise)
        covariance = np.tensordot(variances, stacked, axes=1) + given
        inverse: Any = np.linalg.inv(covariance + errors)
        values, left = measure(covariance, inverse)
        solved = inverse @ values
        if step < num_steps:
            noise = left
            explained = np.array([np.vdot(solved, k @ solved) for k in kernels]) / (noise * solved.size / size)
            traces = stacked.reshape(number, -1) @ inverse.ravel()
            variances = 0.5 * variances * explained + PRIOR_SHAPE
            variances = np.maximum(variances / (0.5 * traces + PRIOR_SHAPE * number / total), 1e-9)
    weights = [v * (f.T @ solved) for v, f in zip(variances[:-1], features, strict=True)]
    return Components(variances, covariance, given, inverse, solved, noise, weights)


def fit_leaning(
    features: Families, kernels: Families, table: ScoreTable, classes: Numbers, references: Families, earlier: Earlier
) -> tuple[Callable[[Families], list[Array]], Array, list[float]]:
    """How far an ordering leans towards some classes of examples at the cost of the others.

        rest of the score of ordering o on an example of class c  =  b_c l(o) + noise

    The order of demos moves a model towards one answer or another (T. Zhao et al., "Calibrate before use", ICML 2021).
    How far is close to linear in the features of an ordering; accuracy is best somewhere between the extremes. So the
    leaning l, a Gaussian process, is learnt first, and what accuracy does with it afterwards. b is the direction in
    which the orderings' profiles over the classes differ most. Returned are what adds to features a family of bumps
    ``[m, d]``, of which a linear function is a smooth one of the leaning, what it explains of scores, ``[m, E]``, and
    its variances.
    """
    rest = table.residuals(table.adjusted_means * table.trust)
    of_class = np.eye(classes.max() + 1)[classes]
    sums, counts = rest @ of_class, table.known @ of_class
    profiles = sums / (counts + PRIOR_SHRINKAGE)
    profiles -= profiles.mean(axis=1, keepdims=True)
    direction = np.linalg.svd(profiles, full_matrices=False)[2][0]
    shares = counts.sum(axis=0) / counts.sum()
    direction = direction - direction @ shares  # mean 0 and mean square 1 over the scores
    direction = direction / np.sqrt(direction**2 @ shares + 1e-12)
    along = sums @ direction
    precisions = np.maximum(counts @ direction**2, 1e-3)
    means = along / precisions
    centre = float(np.average(means, weights=precisions))
    total, free = float(np.vdot(rest, rest)), table.counts.sum() - table.num_example_parameters

    def measure(covariance: Array, inverse: Array) -> tuple[Array, float]:
        leaning = covariance @ (inverse @ (means - centre)) + centre
        left = total - 2 * float(along @ leaning) + float(precisions @ leaning**2)
        used = float(np.vdot(covariance, inverse))
        return means - centre, max(left / max(free - used, 0.25 * free), 1e-9)

    fit = fit_components(features, kernels, np.diag(1.0 / precisions), measure, earlier=earlier)
    at_random = linear(references, fit.weights)
    middle, spread = float(at_random.mean()), float(at_random.std()) + 1e-9

    def added_to(features: Families, mean: Array | float = 0.0, scale: float = 1.0) -> list[Array]:
        standard = (linear(features, fit.weights) - middle) / spread
        return [*features, (np.exp(-0.5 * (standard[:, None] - CENTRES) ** 2) - mean) * scale]

    bumps = added_to(references)[-1]
    mean = bumps.mean(axis=0)
    scale = float(1.0 / np.sqrt(((bumps - mean) ** 2).sum(axis=1).mean() + 1e-12))
    explained = (fit.covariance @ fit.solved + centre)[:, None] * direction[classes]
    return partial(added_to, mean=mean, scale=scale), explained, fit.variances.tolist()


def covariance_of_means(kernels: Families, table: ScoreTable) -> Array:
    """Covariance of what mean scores have beside true scores, over the variance of one score, ``[m, m]``.

    Orderings that look alike do well on the same examples, by kernels ``[m, m]`` with diagonals of about 1: scores on n
    examples tell of others only up to the variance of such preferences over n. In a real model's answers a third to a
    half of the variance that orderings and examples do not explain by themselves is of this kind.
    """
    # Orderings that are nearly the same agree more than any that are linear in their features would: third powers of
    # correlations.
    lengths = [np.sqrt(np.diag(kernel)) + 1e-12 for kernel in kernels]
    kernels = [*kernels, *(k * (k / np.outer(n, n)) ** 2 for k, n in zip(kernels, lengths, strict=True))]
    alike = np.sqrt(table.worth)[:, None]  # by which residuals of all are equally noisy
    shares = preference_shares(kernels, table.residuals(table.adjusted_means) * alike, table.known)
    parts = [share * kernel for share, kernel in zip(shares, kernels, strict=True)]
    preferences: Array = sum(parts, start=np.zeros((len(table.counts), len(table.counts))))
    single = np.maximum(1.0 - np.diag(preferences), 1.0 - MAX_SHARE)
    of_examples = table.known / np.maximum(1, table.counts)[:, None] / alike
    return np.asarray(preferences * (of_examples @ of_examples.T) + np.diag(single / table.sizes))


def preference_shares(kernels: Families, rest: Array, known: Mask) -> Array:
    """The share of the residual variance, of `rest` ``[m, E]``, that examples' preferences along each kernel have.

    Least squares on the products of two orderings' residuals on one example (J. K. Haseman and R. C. Elston, Behavior
    Genetics 2, 1972), none below 0.
    """
    total, number = float(np.vdot(rest, rest)), len(kernels)
    if total <= 0.0 or not kernels:
        return np.zeros(number)
    shown = known.astype(np.float64)
    both, counts = shown @ shown.T, shown.sum(axis=1)
    # What taking off the orderings' own means leaves of the covariance of two of them; one alone is no pair.
    left = 1.0 - 1.0 / counts - 1.0 / counts[:, None] + both / np.outer(counts, counts)
    np.fill_diagonal(left, 0.0)
    # Of the kernels less their means over the orderings: example effects take these.
    centred = [k - k.mean(axis=0) - k.mean(axis=0)[:, None] + k.mean(axis=0).mean() for k in kernels]
    seen = np.stack([(left * kernel).ravel() for kernel in centred])
    products = (rest @ rest.T).ravel() * (shown.sum() / total)
    # Each pair was met from both sides.
    gram = (seen * (0.5 * both).ravel()) @ seen.T + PRIOR_PRECISION * np.eye(number)
    moments = 0.5 * (seen @ products) + PRIOR_PRECISION * PRIOR_SHARE / number
    factor = np.linalg.cholesky(gram)
    shares: Array = optimize.nnls(factor.T, np.linalg.solve(factor, moments))[0]
    return shares * min(1.0, MAX_SHARE / max(float(shares.sum()), 1e-12))


class AdditiveProcess:
    """The process f over orderings, fitted to their scores on examples.

    Attributes:
        mean, variances: Of the posterior of the orderings' scores on a mean example, ``[m]``.
        unshrunk: What orderings score there by their own scores alone, ``[m]``.
        state: The variances of f and of the leaning, as JSON data.
    """

    def __init__(
        self,
        features: Families,  # of the orderings, [m, d] for each family
        table: ScoreTable,  # of one score at least of each
        *,
        classes: Numbers | None = None,  # of the examples, numbers from 0 without gaps, [E]
        references: Families | None = None,  # of random orderings; without them no leaning is modelled
        apart: Mask | None = None,  # whether each is a program that is not one of the orderings, [m]; None for none
        extra_variances: Array | float = 0.0,  # prior variances beside those that are estimated, [m]
        earlier: Mapping[str, Any] | None = None,  # `state` of the process that this one goes on from
    ) -> None:
        earlier = earlier or {}
        self._unit = float(np.nanmax(np.abs(table.scores))) or 1.0
        table = ScoreTable(table.scores / self._unit, worth=table.worth)
        apart = np.zeros(len(table.counts), dtype=bool) if apart is None else apart
        own = np.diag((~apart).astype(np.float64))
        self._apart: Array = APART_VARIANCE * np.diag(apart.astype(np.float64))
        kernels = [family @ family.T for family in features]
        effects = table.adjusted_means * table.trust
        self._with_leaning: Callable[[Families], list[Array]] = list
        of_leaning = earlier.get("leaning")
        if classes is not None and classes.max() > 0 and references is not None:
            found = fit_leaning(features, [*kernels, own], table, classes, references, of_leaning)
            self._with_leaning, explained, of_leaning = found
            table = ScoreTable(table.scores - explained, worth=table.worth)
        self._features, self._num_examples = self._with_leaning(features), int(table.seen.sum())
        self._errors = covariance_of_means(kernels, table)
        kernels += [family @ family.T for family in self._features[len(kernels) :]]
        spread = float(table.scores[table.known].var())
        varies = spread > 1e-18 * float(np.nanmax(np.abs(table.scores))) ** 2
        means, centre = effects, 0.0

        def measure(covariance: Array, inverse: Array) -> tuple[Array, float]:
            nonlocal means, centre, effects
            means = table.ordering_effects(effects)
            centre = float(inverse.sum(axis=0) @ means / inverse.sum())  # generalised least squares
            effects = covariance @ (inverse @ (means - centre)) + centre
            rest, total = table.residuals(effects), table.counts.sum()
            used = float(np.vdot(covariance, inverse)) + table.num_example_parameters
            left = float(table.worth @ (rest * rest).sum(axis=1)) / max(total - used, 0.25 * total)
            return means - centre, max(left, 1e-6 * spread) if varies else 1.0

        fit = fit_components(
            self._features,
            [*kernels, own],
            self._errors,
            measure,
            earlier=earlier.get("variances"),
            noise=max(spread, 1e-12),
            fixed=self._apart,
            extra_variances=extra_variances / self._unit**2,
        )
        self._fit, self._means, self._deviation = fit, means, float(np.sqrt(fit.noise))
        examples = float(table.example_effects(effects)[table.seen].mean())
        self.unshrunk, self._level = self._unit * (means + examples), examples + centre
        self.mean: Array = self._unit * (fit.covariance @ fit.solved + self._level)
        self.variances = self._unit**2 * fit.left(np.diag(fit.covariance), fit.covariance)
        self.state = {"variances": fit.variances.tolist(), "leaning": of_leaning}

    def predict(self, features: Families) -> Array:
        """Posterior mean scores of other orderings, ``[c]``."""
        return self._unit * (linear(self._with_leaning(features), self._fit.weights) + self._level)

    def gains(self, reference: int, *, kinds: Sequence[float] = KINDS, may_differ: bool = False) -> Gains:
        """What the orderings fitted score on new examples above one of them, given by its number, which `may_differ`
        from all others, or not; `kinds` as of `expected_gains`."""
        means, covariance = self._means / self._deviation, self._fit.covariance - self._fit.fixed
        apart = self._apart.copy()
        apart[reference, reference] = max(apart[reference, reference], APART_VARIANCE * may_differ)
        return expected_gains(
            means,
            covariance=covariance,
            apart=apart,
            noise=self._errors,
            reference=reference,
            num_examples=self._num_examples,
            kinds=kinds,
        ).times(self._unit * self._deviation)

    def sample(
        self, features: Families, num_draws: int, rng: np.random.Generator, extra_variances: Array | float = 0.0
    ) -> Array:
        """Joint posterior draws of the scores of the orderings fitted and of others, ``[draws, m + c]``.

        By Matheron's rule: draws from the prior, corrected by what they miss of the scores (J. T. Wilson et al.,
        "Efficiently sampling functions from Gaussian process posteriors", ICML 2020). The others have further prior
        variances, their `extra_variances`, ``[c]``.
        """
        fit, number, count = self._fit, len(self.mean), len(features[0]) if features else 0
        features, families = self._with_leaning(features), list(zip(fit.variances, self._features, strict=False))
        own, further = fit.variances[-1], extra_variances / (self._unit * self._deviation) ** 2
        alone = own * np.eye(number) + fit.fixed
        slopes = [np.sqrt(v) * rng.normal(size=(f.shape[1], num_draws)) for v, f in families]
        drawn = rng.normal(size=(number + count, num_draws))
        drawn[:number] = np.linalg.cholesky(alone) @ drawn[:number]
        drawn[number:] *= np.sqrt(own + further + np.zeros(count))[:, None]
        noise = np.linalg.cholesky(self._errors) @ rng.normal(size=(number, num_draws))
        seen = drawn[:number] + noise + linear(self._features, slopes)
        missed = fit.solved[:, None] / self._deviation - fit.inverse @ seen
        slopes = [slope + v * (f.T @ missed) for slope, (v, f) in zip(slopes, families, strict=True)]
        drawn[:number] += linear(self._features, slopes) + alone @ missed
        drawn[number:] += linear(features, slopes)
        return np.asarray(self._unit * (self._level + self._deviation * drawn.T))
