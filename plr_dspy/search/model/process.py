"""The additive Gaussian process: how scores on single examples depend on the features of orderings.

y[o, e]  =  a_e  +  f(o)  +  b_c(e) l(o)  +  g_e(o)  +  noise

symbol  code             shape   meaning
y       table            [m, E]  scores of orderings o on examples e
a       example_effects  [E]     effects of examples, shrunk means
f       AdditiveProcess  [m]     what orderings score on unseen examples
l       LabelBias        [m]     label bias of orderings
c       classes          [E]     classes of examples, from 0 without gaps
b       direction        [C]     effect of the label bias on each class
g       preferences      [m, E]  preferences of single examples

f is a linear function of features and a quadratic one of l, plus an own effect of each
ordering. Candidates without features ("outsiders") have an own effect alone.
"""

from __future__ import annotations

import numpy as np

from plr_dspy.search.model.gains import Array, Families, Gains, Mask, Numbers, expected_gains
from plr_dspy.search.model.gaussian_process import GaussianProcess
from plr_dspy.search.model.score_table import PRIOR_NOISE_RATIO, ScoreTable

OUTSIDER_VARIANCE = 1.0  # of an outsider's effect, over the noise's: little is known of it
PREFERENCES = 0.35  # share of the residual variance that is what single examples prefer


class LabelBias:
    """How strongly an ordering favours some classes of examples at the cost of the others.

    It is nearly linear in the features of an ordering, but accuracy is best between the
    extremes (T. Zhao et al., "Calibrate before use", ICML 2021).

    Attributes:
        explained: What the label bias adds to scores, ``[m, E]``.
    """

    def __init__(
        self,
        features: Families,
        has_own: Mask,
        table: ScoreTable,
        classes: Numbers,
        references: Families,  # features of random orderings
    ) -> None:
        of_class = np.eye(classes.max() + 1)[classes]
        residuals = table.residuals(table.shrunk_means)
        sums = residuals @ of_class
        counts = table.known @ of_class
        direction = _class_direction(sums, counts)
        precisions = np.maximum(counts @ direction**2, 1e-3)
        values = (sums @ direction / precisions)[:, None]
        rest = residuals - values * direction[classes] * table.known
        self._process = GaussianProcess(
            features, has_own, values=values, errors=np.diag(1.0 / precisions), noise=table.noise(rest, len(values))
        )
        self.explained: Array = self._process.means * direction[classes]
        at_random = self._process.predict(references)
        self._middle = float(at_random.mean())
        self._spread = float(at_random.std()) + 1e-9

    def add_to(self, features: Families) -> list[Array]:
        """Add a family whose linear functions are quadratic functions of l."""
        standard = (self._process.predict(features) - self._middle) / self._spread
        return [*features, np.hstack([standard, standard**2 - 1.0]) / np.sqrt(3.0)]


def _class_direction(sums: Array, counts: Array) -> Array:
    """Return b, given sums and numbers of residuals by class ``[m, C]``.

    Orderings differ most in it, and it has mean 0 and mean square 1 over the scores.
    """
    profiles = sums / (counts + PRIOR_NOISE_RATIO)
    profiles -= profiles.mean(axis=1, keepdims=True)
    direction = np.linalg.svd(profiles, full_matrices=False)[2][0]
    shares = counts.sum(axis=0) / counts.sum()
    direction = direction - direction @ shares
    return np.asarray(direction / np.sqrt(direction**2 @ shares + 1e-12))


def covariance_of_means(features: Families, table: ScoreTable) -> Array:
    """Return the covariance ``[m, m]`` of the errors of mean scores, over the noise of one score.

    Similar orderings do well on the same examples, so their errors on these are alike.
    """
    size = len(table.counts)
    alike = np.zeros((size, size))
    for family in features:
        alike += family @ family.T / len(features)
    weights = table.known / np.maximum(1, table.counts)[:, None]
    preferences = PREFERENCES * alike * (weights @ weights.T)
    of_one_call = np.maximum(1.0 / table.counts - np.diag(preferences), 0.0)
    return np.asarray(preferences + np.diag(of_one_call))


class AdditiveProcess:
    """The process f, fitted to scores of orderings on examples.

    Args:
        features: Of the orderings, ``[m, d]`` for each family.
        table: Has at least one score of each ordering and on each example.
        references: Features of random orderings; without them or classes, there is no
            label bias.
        extra_variances: Prior variances in addition to the estimated ones, ``[m]``.

    Attributes:
        mean: Posterior mean scores on a mean example, ``[m]``.
        unshrunk: Scores on a mean example by the ordering's own scores alone, ``[m]``.
    """

    def __init__(
        self,
        features: Families,
        table: ScoreTable,
        *,
        is_outsider: Mask,
        classes: Numbers | None = None,
        references: Families | None = None,
        extra_variances: Array | float = 0.0,
    ) -> None:
        self._label_bias: LabelBias | None = None
        if classes is not None and classes.max() > 0 and references is not None:
            self._label_bias = LabelBias(features, ~is_outsider, table, classes, references)
            table = ScoreTable(table.scores - self._label_bias.explained)
        self._is_outsider = is_outsider
        self._num_examples = table.scores.shape[1]

        def remeasure(effects: Array, num_parameters: float) -> tuple[Array, float]:
            # Effects of examples are shrunk means without the effects of orderings, and the other way round.
            noise = table.noise(table.residuals(effects[:, 0]), num_parameters)
            return table.ordering_effects(effects[:, 0])[:, None], noise

        noise = table.noise(table.residuals(table.shrunk_means), table.shrinkage.sum())
        process = GaussianProcess(
            self._with_bias(features),
            ~is_outsider,
            values=table.adjusted_means[:, None],
            errors=covariance_of_means(features, table),
            noise=noise,
            fixed=np.asarray(OUTSIDER_VARIANCE * noise * is_outsider + extra_variances),
            remeasure=remeasure,
        )
        self._process = process
        self._level = table.example_effects(process.means[:, 0]).mean()
        self.mean: Array = process.means[:, 0] + self._level
        self.unshrunk: Array = process.values[:, 0] + self._level

    def _with_bias(self, features: Families) -> Families:
        if self._label_bias is None:
            return features
        return self._label_bias.add_to(features)

    def predict(self, features: Families) -> Array:
        """Return the posterior mean scores of other orderings, ``[c]``."""
        return np.asarray(self._process.predict(self._with_bias(features))[:, 0] + self._level)

    def gains(self, reference: int, *, may_differ: bool) -> Gains:
        """Return the gains of the fitted orderings over one of them on new examples, which may be unlike all others."""
        outsiders = OUTSIDER_VARIANCE * self._is_outsider
        if may_differ:
            outsiders[reference] = OUTSIDER_VARIANCE
        deviation = float(np.sqrt(self._process.noise))
        gains = expected_gains(
            self._process.values[:, 0] / deviation,
            covariance=self._process.covariance,
            outsiders=np.diag(outsiders),
            noise=self._process.errors,
            reference=reference,
            num_examples=self._num_examples,
        )
        return gains.times(deviation)

    def sample(
        self, features: Families, num_draws: int, rng: np.random.Generator, extra_variances: Array | float = 0.0
    ) -> Array:
        """Draw as `GaussianProcess.sample`; others have extra prior variances."""
        draws = self._process.sample(self._with_bias(features), extra_variances, num_draws, rng)
        return np.asarray(self._level + draws)
