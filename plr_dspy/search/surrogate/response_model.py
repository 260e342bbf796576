"""What orderings score, as the log-probabilities that they give to labels let one expect.

The effects of orderings and examples (`response_effects`) say which label an ordering would answer on each example, and
the metric what that label scores there. The effects of an ordering that was not looked at follow from its features
(`effect_process`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from plr_dspy.search.surrogate.effect_process import EffectProcess
from plr_dspy.search.surrogate.expected_scores import ExpectedScores
from plr_dspy.search.surrogate.gains import Gains, independent_gains
from plr_dspy.search.surrogate.interactions import covariance_of_means
from plr_dspy.search.surrogate.label_offsets import LabelOffsets
from plr_dspy.search.surrogate.response_effects import APART, SLOPES_APART, ResponseEffects

Array = NDArray[np.float64]

MOST_EXAMPLES = 128
"""Examples that expected scores are means of, at most."""

LEAST = -1e3
"""Log-probabilities count as no smaller than this: a probability of 0 has none, and servers write -9999 for one."""

LARGEST = 8.0
"""Contrasts count no further than this from 0: a label that is out of the question says little by how far it is."""

UNDERSTATED = 1.6
"""Error variances of effects over what the fit says, which takes each kind of effect in turn for known: in worlds that
are made as it believes them to be, 1.0 to 1.9."""

STEP = 0.05
"""Of an effect, to see what it does to a score."""

APART_SCORE = 0.25
"""Variance of the mean score of a program that is not one of the orderings."""


class ResponseModel:
    """Expected scores of orderings from log-probabilities.

    Args:
        features: Of the orderings, ``[m, d]`` for each family; None takes their effects as they were measured, which is
            quick, and says nothing of other orderings.
        log_probabilities: Of labels, ``[m, E, L]``, NaN where there are none.
        label_scores: What the metric gives for each label, ``[E, L]``.
        apart: Whether a row is no ordering of the others' kind, ``[m]``.
        earlier: `components` of the fit before; None for none.
        unseen: Where a label was not among the likeliest tokens, ``[m, E, L]``; None for nowhere.
        shares: Share of the examples that each label is right for, or some guesses, of which that is taken by which
            calibrated answers score best, ``[L]`` or ``[S, L]``; None for the same share each. NaN stands for answers
            that are not calibrated.
        calibrating: Whether answers are calibrated to these shares.

    Attributes:
        calibrating: The same.
        components: Variances of the three processes of orderings' effects.
        means: Expected mean scores of the orderings, ``[m]``.
        doubts: Variances of them, as far as the orderings' effects are not known, ``[m]``.
        expected: Expected scores on each example as if the cell itself were not known, ``[m, E]``.
        offsets: Of the labels, that calibrate the orderings, ``[m, L]``.
    """

    def __init__(
        self,
        features: Sequence[Array] | None,
        log_probabilities: Array,
        label_scores: Array,
        *,
        apart: NDArray[np.bool_],
        earlier: Sequence[Sequence[float]] | None,
        unseen: NDArray[np.bool_] | None = None,
        shares: Array | None = None,
        calibrating: bool = False,
    ) -> None:
        self._scores, self._apart, self.calibrating = label_scores, apart, calibrating
        log_probabilities = np.maximum(log_probabilities, LEAST)
        num_labels = label_scores.shape[1]
        self._label_offsets = LabelOffsets(
            log_probabilities,
            np.zeros(log_probabilities.shape, dtype=bool) if unseen is None else unseen,
            np.full((1, num_labels), 1.0 / num_labels) if shares is None else np.atleast_2d(shares),
        )
        self._basis = helmert(label_scores.shape[1])  # [d, L]
        directions = label_scores @ self._basis.T
        lengths = np.sqrt((directions**2).sum(axis=1, keepdims=True))
        self._directions = np.where(lengths > 1e-9, directions / np.maximum(lengths, 1e-9), 0.0)
        self._contrasts = np.clip(log_probabilities @ self._basis.T, -LARGEST, LARGEST)
        known = ~np.isnan(self._contrasts[..., 0])
        self._effects = ResponseEffects(self._contrasts, self._directions, apart=apart)
        self._expect = ExpectedScores(
            self._effects,
            label_scores,
            directions=self._directions,
            basis=self._basis,
            offsets=self._label_offsets,
            calibrating=calibrating,
        )
        self._shown = _spread_out(known.any(axis=0), MOST_EXAMPLES)
        self.leanings, self.slopes = self._effects.leanings, self._effects.slopes
        self._leaning_variances = self._effects.leaning_variances
        self._slope_covariances = self._effects.slope_covariances
        if features is not None:
            self._fit_processes(features, earlier)
        everywhere = np.arange(len(label_scores))
        contrasts, variances = self._expect.contrasts(self.leanings, self.slopes, everywhere)
        self._label_offsets.settle(contrasts @ self._basis, variances, label_scores)
        self.offsets = self._label_offsets.of_cells(contrasts @ self._basis, variances)
        table = self._expect.table(self.leanings, self.slopes, everywhere)
        self.means: Array = table[:, self._shown].mean(axis=1)
        drawn = self._expect.drawn(
            self.leanings,
            self.slopes,
            self._shown,
            variances=self._leaning_variances,
            covariances=self._slope_covariances,
        )
        self.doubts: Array = drawn.var(axis=0, ddof=1)
        self.expected: Array = np.where(known, self._expected_alone(), table)

    def _fit_processes(self, features: Sequence[Array], earlier: Sequence[Sequence[float]] | None) -> None:
        """Fit a process to each of the three effects of orderings; what it says of one replaces what was measured."""
        effects, apart = self._effects, self._apart.astype(np.float64)
        self._features = features
        self._kernels = [family @ family.T for family in features]
        spreads = np.diagonal(effects.slope_covariances, axis1=1, axis2=2)
        measured = [
            (
                effects.leanings,
                effects.leaning_variances,
                effects.mean,
                effects.leaning_variance + APART * apart,
            )
        ]
        for i, variance in enumerate(effects.slope_variances):
            prior = float(variance) + SLOPES_APART * apart
            measured.append((effects.slopes[:, [i]], spreads[:, i], np.zeros(1), prior))
        self._processes = [
            EffectProcess(
                self._kernels,
                means=means,
                variances=variances,
                prior_mean=level,
                prior_variances=prior,
                unit=effects.noise,
                earlier=None if earlier is None else np.array(earlier[i]),
            )
            for i, (means, variances, level, prior) in enumerate(measured)
        ]
        leaning, *slopes = self._processes
        self.components = [process.components.tolist() for process in self._processes]
        self.leanings, self._leaning_variances = leaning.means, leaning.variances
        self.slopes = np.concatenate([process.means for process in slopes], axis=1)
        surer = np.sqrt(np.stack([process.variances for process in slopes], axis=1) / spreads)
        self._slope_covariances = effects.slope_covariances * surer[:, :, None] * surer[:, None]

    def predict(self, features: Sequence[Array]) -> tuple[Array, Array]:
        """Expected mean scores of other orderings, and the variances of these, ``[c]`` each."""
        leanings, leaning_variances, slopes, slope_variances = self._predicted(features)
        covariances = slope_variances[:, :, None] * np.eye(2)
        drawn = self._expect.drawn(
            leanings, slopes, self._shown, variances=leaning_variances, covariances=covariances
        )
        return drawn.mean(axis=0), drawn.var(axis=0, ddof=1)

    def predict_means(self, features: Sequence[Array]) -> Array:
        """Expected mean scores of other orderings, about as `predict` says but in less time, ``[c]``."""
        leanings, variances, slopes, _ = self._predicted(features)
        table = self._expect.table(leanings, slopes, self._shown, variances)
        means: Array = table.mean(axis=1)
        return means

    def _predicted(self, features: Sequence[Array]) -> tuple[Array, Array, Array, Array]:
        """Means and variances of the leanings and of the slopes of other orderings."""
        across = [other @ known.T for other, known in zip(features, self._features, strict=True)]
        squares = np.stack([(other**2).sum(axis=1) for other in features], axis=1)
        (leanings, variances), *slopes = [process.predict(across, squares) for process in self._processes]
        means = np.concatenate([mean for mean, _ in slopes], axis=1)
        return leanings, variances, means, np.stack([variance for _, variance in slopes], axis=1)

    def answers(self, number: int) -> Array:
        """Share of the examples on which one of the orderings fitted is expected to answer each label, ``[L]``."""
        row = slice(number, number + 1)
        means, variances = self._expect.contrasts(self.leanings[row], self.slopes[row], self._shown)
        shares: Array = self._expect.answers(means, variances)[0].mean(axis=0)
        return shares

    @property
    def calibrated_to(self) -> list[float]:
        """The shares of labels that answers are calibrated to, ``[L]``; empty where they are not."""
        offsets = self._label_offsets
        return np.round(offsets.shares, 6).tolist() if offsets.calibrates else []

    @property
    def always(self) -> list[float]:
        """The mean score of answering each label to all examples, ``[L]``."""
        means: list[float] = np.round(self._scores.mean(axis=0), 6).tolist()
        return means

    @property
    def num_examples(self) -> int:
        """Examples that expected scores are means of."""
        return len(self._shown)

    def counted(self, table: Array) -> Array:
        """Return the scores ``[m, E]`` of orderings as they count: where answers are calibrated, those of these."""
        if not self.calibrating:
            return table
        counted = table.copy()
        for number, offsets in enumerate(self.offsets):
            examples, _, told = self._label_offsets.told(number, offsets)
            counted[number, examples] = self._scores[examples, told.argmax(axis=1)]
        return counted

    def told(self, number: int) -> tuple[NDArray[np.int64], Array, Array, Array]:
        """What an ordering's cells say: examples, and of labels log-probabilities, calibrated ones, and scores."""
        examples, raw, told = self._label_offsets.told(number, self.offsets[number])
        return examples, raw, told, self._scores[examples]

    def expected_of(self, number: int, examples: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Scores that are expected of an ordering on examples, as it is and calibrated, ``[n]`` each.

        Its own cells count as far as they tell its effects, and no further: an ordering that was chosen for its cells
        is not as good as these.

        Args:
            number: Of the ordering.
            examples: Their numbers; None for all, or as many as means are of.
        """
        on = self._shown if examples is None else examples
        row = slice(number, number + 1)
        means, variances = self._expect.contrasts(self.leanings[row], self.slopes[row], on)
        before, after = (
            np.asarray((self._expect.answers(each, variances)[0] * self._scores[on]).sum(axis=1))
            for each in (means, self._expect.moved(means, self.offsets[row]))
        )
        return before, after

    def right(self) -> Array:
        """Share of the examples on which each label scores best, ``[L]``; those with several count for each in part."""
        scores = self._scores[self._shown]
        best = scores == scores.max(axis=1, keepdims=True)
        shares: Array = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
        return shares

    def gains(self, reference: int) -> Gains:
        """What the orderings fitted score on new examples above one of them, as far as log-probabilities say.

        Args:
            reference: The number of that ordering.
        """
        seen = self._effects.weights > 0
        if not seen[reference] or seen.sum() < 2:
            return Gains.none(len(seen))
        apart = APART_SCORE * self._apart[seen]
        found = independent_gains(
            self.means[seen], self._errors(seen), apart=apart, reference=int(seen[:reference].sum())
        )
        return found.among(seen)

    def _errors(self, seen: NDArray[np.bool_]) -> Array:
        """Covariance of the errors of expected mean scores on new examples, of some orderings, ``[m, m]``.

        It has two sources: the examples are a sample, and the orderings' effects are measured on some of them.
        """
        leanings, slopes = self.leanings[seen], self.slopes[seen]
        table = self._expect.table(leanings, slopes, self._shown)
        kinds = np.unique(self._scores[self._shown], axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        centred = table - (table @ of_kind / of_kind.sum(axis=0)) @ of_kind.T
        errors: Array = centred @ centred.T / max(1, table.shape[1] - of_kind.shape[1]) / table.shape[1]

        contrasts = self._contrasts[seen]
        contrasts = contrasts[:, ~np.isnan(contrasts[..., 0]).all(axis=0)]
        kernels = [kernel[np.ix_(seen, seen)] for kernel in self._kernels]
        alike = np.mean(
            [covariance_of_means(kernels, column) for column in np.moveaxis(contrasts, 2, 0)], axis=0
        )
        num = leanings.shape[1]
        for i, step in enumerate(STEP * np.eye(num + 2)):
            process = self._processes[max(0, i - num + 1)]
            change = self._change(seen, step[:num], step[num:])
            errors += UNDERSTATED * np.outer(change, change) * process.errors(alike, seen)
        return errors

    def _change(self, seen: NDArray[np.bool_], leaning: Array, slope: Array) -> Array:
        """Derivative of the orderings' mean scores along a step of their effects, ``[m]``."""
        leanings, slopes = self.leanings[seen], self.slopes[seen]
        up = self._expect.table(leanings + leaning, slopes + slope, self._shown)
        down = self._expect.table(leanings - leaning, slopes - slope, self._shown)
        change: Array = (up - down).mean(axis=1) / (2.0 * STEP)
        return change

    def _expected_alone(self) -> Array:
        """Expected scores in the cells known, each from all other cells, ``[m, E]``."""
        effects = self._effects
        left_out = 1.0 - effects.leverage
        missed = np.nan_to_num(self._contrasts - effects.residuals / left_out[..., None])
        if self.calibrating:
            missed = self._expect.moved(missed, self.offsets)
        table: Array = (self._expect.answers(missed, effects.noise / left_out) * self._scores).sum(axis=-1)
        return table


def _spread_out(seen: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """The numbers of the examples seen; where these are more than the most, so many of them, evenly spread."""
    numbers = np.flatnonzero(seen)
    if len(numbers) > most:
        numbers = numbers[np.linspace(0, len(numbers) - 1, most).round().astype(np.int64)]
    return numbers
