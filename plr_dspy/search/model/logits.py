"""Logits of labels, used to predict programs' answers without the scores of calls.

The contrasts z = p B^T are the projections of the labels' log-probabilities p onto an orthonormal
basis B, ``[d, L]``. They are predicted from the effects in Eq. 3 (`effects.py`). The logits are z B.
"""

import numpy as np
from scipy.linalg import helmert

from plr_dspy.search.model.components import kernels_of, linear
from plr_dspy.search.model.effects import EffectProcess, ResponseEffects
from plr_dspy.search.model.gains import Families
from plr_dspy.search.model.process import covariance_of_means
from plr_dspy.search.model.responses import Calls
from plr_dspy.search.model.score_table import ScoreTable
from plr_dspy.statistics.arrays import Array, Mask, Numbers

MAX_CONTRAST = 8.0  # maximum absolute value of a contrast; at this value, a label is practically impossible


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, ``[..., L]``.

    For short rows, this function is three times as fast as SciPy's softmax.
    """
    by_label = np.moveaxis(logits, -1, 0).copy()
    odds = np.exp(by_label - by_label.max(axis=0))
    return np.moveaxis(odds / odds.sum(axis=0), 0, -1)


def mean_probabilities(logits: Array, variances: Array) -> Array:
    """Return the mean probabilities of labels, given logits with normal noise.

    The means are calculated with the probit approximation (D. MacKay, Neural Computation 4, 1992).
    """
    return softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None])


def likeliest_chances(logits: Array, variances: Array) -> Array:
    """Return each label's probability of the highest logit under Gumbel noise with these variances."""
    return softmax(logits * (np.pi / np.sqrt(6.0 * variances))[..., None])


class LabelLogits:
    """The logits of labels, predicted from effects that are fitted to log-probabilities.

    No effects are fitted for whole programs, because their prompts may contain different demos for
    each example.

    Attributes:
        known: A mask of the calls whose log-probabilities are used, ``[m, E]``.
        effects, effect_variances: Effects of orderings, ``[m, d + 1]``, and posterior variances of
            the label bias and the slope, ``[m, 2]``.
        is_mute: A mask of the candidates without usable log-probabilities, ``[m]``.
    """

    def __init__(self, calls: Calls, features: Families) -> None:
        labels = calls.labels
        self.basis = helmert(labels.scores.shape[1])
        directions = labels.scores @ self.basis.T
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        self._directions = np.where(lengths > 1e-9, directions / np.maximum(lengths, 1e-9), 0.0)
        logs = np.where(calls.is_program[:, None, None], np.nan, labels.logs)
        self._contrasts = np.clip(logs @ self.basis.T, -MAX_CONTRAST, MAX_CONTRAST)
        self.known = ~np.isnan(self._contrasts[..., 0])
        self._cells = ResponseEffects(self._contrasts, self._directions, is_outsider=calls.is_outsider)
        self.is_mute = calls.is_program | (self._cells.num_cells <= 0)
        self._features = features
        self._kernels = kernels_of(features)
        self._processes = []
        for posterior in (self._cells.label_bias, self._cells.slope):
            process = EffectProcess(features, self._kernels, posterior, unit=self._cells.noise)
            self._processes.append(process)
        self.effects = np.concatenate([process.means for process in self._processes], axis=1)
        self.effect_variances = np.stack([process.variances for process in self._processes], axis=1)

    def under(self, effects: Array, examples: Numbers) -> tuple[Array, Array]:
        """Return the logits ``[m, n, L]`` predicted from effects (Eq. 3), and their variances ``[n]``."""
        label_bias = effects[:, None, :-1]
        slopes = effects[:, -1:, None]
        means = self._cells.examples[examples] + label_bias + slopes * self._directions[examples]
        return means @ self.basis, self._cells.noise + self._cells.example_variances[examples]

    def leave_one_out(self) -> tuple[Array, Array]:
        """Return the logits ``[m, E, L]`` of known cells, and their variances ``[m, E]``.

        Each cell is predicted from all other cells.
        """
        rest = 1.0 - self._cells.leverage
        logits = np.nan_to_num(self._contrasts - self._cells.residuals / rest[..., None]) @ self.basis
        return logits, self._cells.noise / rest

    def predict(self, features: Families) -> tuple[Array, Array]:
        """Return the effects of new orderings, ``[c, d + 1]``, and their variances, ``[c, 2]``."""
        products = [other @ fitted.T for other, fitted in zip(features, self._features, strict=True)]
        squares = np.stack([(other**2).sum(axis=1) for other in features], axis=1)
        variances = [process.predict_variances(products, squares) for process in self._processes]
        return self.predict_effects(features), np.stack(variances, axis=1)

    def predict_effects(self, features: Families) -> Array:
        """Return the effects of new orderings, ``[c, d + 1]``."""
        effects = [linear(features, process.fit.weights) + process.level for process in self._processes]
        return np.concatenate(effects, axis=1)

    def effect_errors(self, measured: Mask) -> tuple[Array, Array]:
        """Return the covariances of the errors in the label bias and of the errors in the slope.

        Both have the shape ``[c, c]``, for the `c` orderings in the mask `measured`.
        """
        contrasts = self._contrasts[measured]
        contrasts = contrasts[:, ~np.isnan(contrasts[..., 0]).all(axis=0)]
        kernels = [kernel[np.ix_(measured, measured)] for kernel in self._kernels]
        tables = [ScoreTable(column) for column in np.moveaxis(contrasts, 2, 0)]
        noise = np.mean([covariance_of_means(kernels, table) for table in tables], axis=0)
        of_label_bias, of_slope = (process.errors(noise, measured) for process in self._processes)
        return of_label_bias, of_slope
