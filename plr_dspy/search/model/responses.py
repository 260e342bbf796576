"""What orderings score, as the log-probabilities that they give to labels let one expect.

The effects of orderings and examples on log-probabilities (`effects`) say which label an ordering would answer on each
example, and the metric what that label scores there. Without log-probabilities nothing is expected (`NoResponses`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from plr_dspy.report.data import Leaning
from plr_dspy.search.model.effects import NUM_QUICK_SWEEPS, NUM_SWEEPS, EffectProcess, ResponseEffects
from plr_dspy.search.model.gains import Gains, independent_gains
from plr_dspy.search.model.offsets import Calibrated, LabelOffsets, softmax_of
from plr_dspy.search.model.process import covariance_of_means
from plr_dspy.search.model.table import Array, Mask, ScoreTable
from plr_dspy.search.space import Ordering

MOST_EXAMPLES = 128
"""Examples that expected scores are means of, at most."""

LEAST = -1e3
"""Log-probabilities count as no smaller than this: a probability of 0 has none, and servers write -9999 for one."""

LARGEST = 8.0
"""Contrasts count no further than this from 0: a label that is out of the question says little by how far it is."""

NUM_DRAWS = 8
"""Draws of an ordering's effects that say how sure its expected score is; an even number."""

UNDERSTATED = 1.6
"""Error variances of effects over what the fit says, which takes each kind of effect in turn for known: in worlds that
are made as it believes them to be, 1.0 to 1.9."""

STEP = 0.05
"""Of an effect, to see what it does to a score."""

APART_SCORE = 0.25
"""Variance of the mean score of a program that is not one of the orderings."""


@dataclass(frozen=True)
class LabelResponses:
    """Where the log-probabilities of labels are found, and what the labels score.

    Attributes:
        scores: What the metric gives for each label on each example, ``[E, L]``.
        log_probabilities: Of the labels, by ordering and example; None where they are not known.
        unseen: Numbers of the labels that were not among the likeliest tokens, by ordering and example.
        shares: Share of the examples that each label is right for, ``[L]``, or some guesses, ``[S, L]``; None for the
            same share each.
        calibrating: Whether answers are calibrated to it, or taken as they are.
    """

    scores: Array
    log_probabilities: Callable[[Ordering, int], Sequence[float] | None]
    unseen: Callable[[Ordering, int], Sequence[int]] = lambda ordering, example: ()
    shares: Array | None = None
    calibrating: bool = False
    _rows: dict[Ordering, tuple[tuple[int, ...], list[int], Array, Mask]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def table(
        self, rows: Mapping[Ordering, Collection[int]], examples: NDArray[np.int64]
    ) -> tuple[Array, Mask]:
        """The log-probabilities of labels, of each ordering on its examples.

        Args:
            rows: The examples of each ordering, as keys of scores for instance.
            examples: The columns, which hold all of them.

        Returns:
            Numbers ``[m, E, L]``, NaN where they are not known; and where a label was not among the likeliest tokens.
        """
        columns = {example: i for i, example in enumerate(examples.tolist())}
        table = np.full((len(rows), len(examples), self.scores.shape[1]), np.nan)
        hidden = np.zeros(table.shape, dtype=bool)
        for row, mask, (ordering, asked) in zip(table, hidden, rows.items(), strict=True):
            numbers, known, unseen = self._row(ordering, asked)
            places = [columns[number] for number in numbers]
            row[places], mask[places] = known, unseen
        return table, hidden

    def _row(self, ordering: Ordering, asked: Collection[int]) -> tuple[list[int], Array, Mask]:
        """What is known of an ordering: examples ``[n]``, log-probabilities and what was unseen, ``[n, L]``."""
        kept = self._rows.get(ordering)
        if kept is None or kept[0] != tuple(asked):
            found = {e: told for e in asked if (told := self.log_probabilities(ordering, e)) is not None}
            unseen = np.zeros((len(found), self.scores.shape[1]), dtype=bool)
            for mask, example in zip(unseen, found, strict=True):
                mask[list(self.unseen(ordering, example))] = True
            known = np.array(list(found.values())).reshape(unseen.shape)
            kept = self._rows[ordering] = (tuple(asked), list(found), known, unseen)
        return kept[1:]


class NoResponses:
    """What is expected without log-probabilities: nothing, of any ordering.

    Attributes:
        calibrating: Whether answers are calibrated.
        components: Variances of the processes of orderings' effects, as JSON data; None without any.
        means: Expected mean scores of the orderings, ``[m]``; None without any.
        doubts: Variances of them, as far as the orderings' effects are not known, ``[m]``.
        expected: Expected scores on each example as if the cell itself were not known, ``[m, E]``.
        num_examples: Examples that expected scores are means of.
        calibrated_to: Shares of labels that answers are calibrated to, ``[L]``; empty where they are not.
        always: The mean score of answering each label to all examples, ``[L]``.
    """

    calibrating = False
    components: list[list[float]] | None = None
    means: Array | None = None
    doubts: Array | float = 0.0
    expected: Array | float = 0.0
    num_examples = 0
    calibrated_to: Sequence[float] = ()
    always: Sequence[float] = ()

    def counted(self, table: Array) -> Array:
        """Return the scores ``[m, E]`` of orderings as they count: where answers are calibrated, those of these."""
        return table

    def predict(self, features: Sequence[Array]) -> tuple[Array | float, Array | float]:
        """Expected mean scores of other orderings, and the variances of these, ``[c]`` each."""
        return 0.0, 0.0

    def predict_means(self, features: Sequence[Array]) -> Array | float:
        """Expected mean scores of other orderings, about as `predict` says but in less time, ``[c]``."""
        return 0.0

    def gains(self, reference: int) -> Gains | None:
        """What the orderings fitted score on new examples above one of them, as far as log-probabilities say."""
        return None

    def leaning(self, original: int, chosen: int) -> Leaning | None:
        """How often two of the orderings fitted, given by number, answer each label."""
        return None

    def calibration(self, number: int, told: Array) -> Calibrated | None:
        """What calibration does to an ordering fitted, with these scores of its calls ``[E]``, NaN for none."""
        return None


class ResponseModel(NoResponses):
    """Expected scores of orderings from log-probabilities.

    The effects of an ordering are one row: its leanings, ``[d]``, and its slope.

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
    """

    def __init__(
        self,
        features: Sequence[Array] | None,
        log_probabilities: Array,
        label_scores: Array,
        *,
        apart: Mask,
        earlier: Sequence[Sequence[float]] | None = None,
        unseen: Mask | None = None,
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
        self._basis = helmert(num_labels)  # from labels to contrasts, [d, L]
        directions = label_scores @ self._basis.T
        lengths = np.sqrt((directions**2).sum(axis=1, keepdims=True))
        self._directions = np.where(lengths > 1e-9, directions / np.maximum(lengths, 1e-9), 0.0)
        self._contrasts = np.clip(log_probabilities @ self._basis.T, -LARGEST, LARGEST)
        self._known = ~np.isnan(self._contrasts[..., 0])
        self._shown = _spread_out(self._known.any(axis=0), MOST_EXAMPLES)
        self.num_examples = len(self._shown)
        sweeps = NUM_QUICK_SWEEPS if features is None else NUM_SWEEPS
        self._cells = cells = ResponseEffects(
            self._contrasts, self._directions, apart=apart, num_sweeps=sweeps
        )
        self._effects = np.column_stack([cells.leanings, cells.slopes])
        self._variances = np.column_stack([cells.leaning_variances, cells.slope_variances])
        if features is not None:
            self._fit_processes(features, earlier)
        contrasts, variances = self._contrasts_of(self._effects, np.arange(len(label_scores)))
        self._label_offsets.settle(contrasts @ self._basis, variances, label_scores)
        self._expected_cells = contrasts @ self._basis, variances
        table = self._score(contrasts, variances, self._scores)
        self.means: Array = table[:, self._shown].mean(axis=1)
        self.always = np.round(label_scores.mean(axis=0), 6).tolist()
        if self._label_offsets.calibrates:
            self.calibrated_to = np.round(self._label_offsets.shares, 6).tolist()
        if features is not None:
            self.doubts = self._draw(self._effects, self._variances).var(axis=0, ddof=1)
            self.expected = np.where(self._known, self._expected_alone(), table)

    @cached_property
    def offsets(self) -> Array:
        """Of the labels, that calibrate the orderings, ``[m, L]``."""
        return self._label_offsets.of_cells(*self._expected_cells)

    def _fit_processes(self, features: Sequence[Array], earlier: Sequence[Sequence[float]] | None) -> None:
        """Fit a process to leanings and to slopes; what it says of an ordering replaces what was measured."""
        cells, self._features = self._cells, features
        self._kernels = [family @ family.T for family in features]
        measured = [
            (cells.leanings, cells.leaning_variances, cells.mean, cells.leaning_priors),
            (cells.slopes[:, None], cells.slope_variances, np.zeros(1), cells.slope_priors),
        ]
        self._processes = [
            EffectProcess(
                self._kernels,
                means=means,
                variances=variances,
                prior_mean=level,
                prior_variances=prior,
                unit=cells.noise,
                earlier=before,
            )
            for (means, variances, level, prior), before in zip(
                measured, earlier or (None, None), strict=False
            )
        ]
        self.components = [process.components.tolist() for process in self._processes]
        self._effects = np.concatenate([process.means for process in self._processes], axis=1)
        self._variances = np.stack([process.variances for process in self._processes], axis=1)

    def _expected_alone(self) -> Array:
        """Expected scores in the cells known, each from all other cells, ``[m, E]``."""
        left_out = 1.0 - self._cells.leverage
        missed = np.nan_to_num(self._contrasts - self._cells.residuals / left_out[..., None])
        if self.calibrating:
            missed = self._moved(missed, self.offsets)
        table: Array = (self._answers(missed, self._cells.noise / left_out) * self._scores).sum(axis=-1)
        return table

    def _contrasts_of(self, effects: Array, examples: NDArray[np.int64]) -> tuple[Array, Array]:
        """Means ``[m, E, d]`` and variances ``[E]`` of the contrasts of orderings with these effects on examples."""
        means = self._cells.examples[examples] + effects[:, None, :-1]
        means += effects[:, -1:, None] * self._directions[examples]
        return means, self._cells.noise + self._cells.example_variances[examples]

    def _moved(self, means: Array, offsets: Array) -> Array:
        """Means of contrasts ``[m, E, d]`` with the offsets of labels ``[m, L]`` added."""
        moved: Array = means + (offsets @ self._basis.T)[:, None]
        return moved

    def _answers(self, means: Array, variances: Array) -> Array:
        """Probability that each label is the likeliest, ``[..., L]``, by the logistic approximation of the normal."""
        return softmax_of((means @ self._basis) * (np.pi / np.sqrt(6.0 * variances))[..., None])

    def _score(self, means: Array, variances: Array, scores: Array, further: Array | float = 0.0) -> Array:
        """Expected scores ``[m, E]`` from means and variances of contrasts.

        Args:
            means, variances: As `_contrasts_of` gives them.
            scores: What labels score on these examples, ``[E, L]``.
            further: Variances of the leanings, ``[m]``.
        """
        if self.calibrating and self._label_offsets.calibrates:
            # Calibration takes a leaning away, and with it the doubt about it.
            means = self._moved(means, self._label_offsets.expected(means @ self._basis, variances))
        else:
            variances = variances + np.reshape(further, (-1, 1))
        table: Array = np.einsum("mel,el->me", self._answers(means, variances), scores)
        return table

    def _mean_scores(self, effects: Array, further: Array | float = 0.0) -> Array:
        """Expected mean scores of orderings with these effects, ``[m]``; variances of their leanings, ``[m]``."""
        means, variances = self._contrasts_of(effects, self._shown)
        scores: Array = self._score(means, variances, self._scores[self._shown], further).mean(axis=1)
        return scores

    def _draw(self, effects: Array, variances: Array) -> Array:
        """Expected mean scores under draws of the effects, the same ones for all orderings, ``[draws, m]``.

        Args:
            effects: Their means, ``[m, d + 1]``.
            variances: Of the leanings and of the slope, ``[m, 2]``.
        """
        half = np.random.default_rng(0).normal(size=(NUM_DRAWS // 2, effects.shape[1]))
        leanings, slopes = np.sqrt(variances).T[..., None]
        deviations = np.concatenate([leanings.repeat(effects.shape[1] - 1, axis=1), slopes], axis=1)
        return np.stack([self._mean_scores(effects + deviations * draw) for draw in (*half, *-half)])

    def predict(self, features: Sequence[Array]) -> tuple[Array, Array]:
        drawn = self._draw(*self._predicted(features))
        return drawn.mean(axis=0), drawn.var(axis=0, ddof=1)

    def predict_means(self, features: Sequence[Array]) -> Array:
        effects, variances = self._predicted(features)
        return self._mean_scores(effects, variances[:, 0])

    def _predicted(self, features: Sequence[Array]) -> tuple[Array, Array]:
        """Effects of other orderings ``[c, d + 1]``, and the variances of their leanings and slopes ``[c, 2]``."""
        across = [other @ known.T for other, known in zip(features, self._features, strict=True)]
        squares = np.stack([(other**2).sum(axis=1) for other in features], axis=1)
        effects, variances = zip(*(p.predict(across, squares) for p in self._processes), strict=True)
        return np.concatenate(effects, axis=1), np.stack(variances, axis=1)

    def counted(self, table: Array) -> Array:
        if not self.calibrating:
            return table
        answers = self._label_offsets.calibrated(self.offsets).argmax(axis=2)
        return np.where(self._known, self._scores[np.arange(len(self._scores)), answers], table)

    def _expected_of(self, number: int, examples: NDArray[np.int64]) -> tuple[Array, Array]:
        """Scores that are expected of an ordering on examples, as it is and calibrated, ``[n]`` each.

        Its own cells count as far as they tell its effects, and no further: an ordering that was chosen for its cells
        is not as good as these.
        """
        means, variances = self._contrasts_of(self._effects[[number]], examples)
        before, after = (
            np.asarray((self._answers(each, variances)[0] * self._scores[examples]).sum(axis=1))
            for each in (means, self._moved(means, self.offsets[[number]]))
        )
        return before, after

    def calibration(self, number: int, told: Array) -> Calibrated:
        examples = np.flatnonzero(self._known[number])
        raw, moved = self._label_offsets.told(number, self.offsets[number])
        before, after = (float(each.mean()) for each in self._expected_of(number, self._shown))
        # Calls that brought none, such as replies that are no label, have a share of all as they were scored.
        own = ~np.isnan(told)
        silent = own & ~self._known[number]
        share = silent.sum() / max(1, own.sum())
        rest = share * (told[silent].mean() if share else 0.0)
        before = float((1 - share) * before + rest)
        if self.calibrating:  # Otherwise it is not known which of them calibration would read.
            after = float((1 - share) * after + rest)
        offsets = tuple(np.round(self.offsets[number], 6).tolist())
        return Calibrated(offsets, before, after, raw, moved, self._scores[examples])

    def corrected(self, number: int, told: Array, counted: Array) -> tuple[float, float, Array]:
        """What an ordering scores as it is, and what calibration adds: as is expected, corrected by its own calls.

        So they hold whatever its answers as they are go by: replies that cannot be read, or a calibration of its own.

        Args:
            number: Of the ordering.
            told, counted: Its scores as they came and as they count, ``[E]``; NaN where there is none.

        Returns:
            The score, the difference, and by how much the difference was missed on each of its calls, ``[n]``.
        """
        own = np.flatnonzero(~np.isnan(told))
        before, after = self._expected_of(number, self._shown)
        own_before, own_after = self._expected_of(number, own)
        missed = (counted - told)[own] - (own_after - own_before)
        score = float(before.mean() + (told[own] - own_before).mean())
        return score, float((after - before).mean() + missed.mean()), missed

    def leaning(self, original: int, chosen: int) -> Leaning:
        means, variances = self._contrasts_of(self._effects[[original, chosen]], self._shown)
        answers = self._answers(means, variances).mean(axis=1)
        scores = self._scores[self._shown]
        best = scores == scores.max(axis=1, keepdims=True)
        right = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
        shares = np.round([right, *answers], 6).tolist()
        return Leaning(right=shares[0], original=shares[1], chosen=shares[2])

    def gains(self, reference: int) -> Gains | None:
        seen = self._cells.weights > 0
        if not seen[reference] or seen.sum() < 2:
            return None
        apart = APART_SCORE * self._apart[seen]
        found = independent_gains(
            self.means[seen], self._errors(seen), apart=apart, reference=int(seen[:reference].sum())
        )
        return found.among(seen)

    def _errors(self, seen: Mask) -> Array:
        """Covariance of the errors of expected mean scores on new examples, of some orderings, ``[m, m]``.

        It has two sources: the examples are a sample, and the orderings' effects are measured on some of them.
        """
        effects, scores = self._effects[seen], self._scores[self._shown]
        table = self._score(*self._contrasts_of(effects, self._shown), scores)
        kinds = np.unique(scores, axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        centred = table - (table @ of_kind / of_kind.sum(axis=0)) @ of_kind.T
        errors: Array = centred @ centred.T / max(1, table.shape[1] - of_kind.shape[1]) / table.shape[1]

        contrasts = self._contrasts[seen]
        contrasts = contrasts[:, ~np.isnan(contrasts[..., 0]).all(axis=0)]
        kernels = [kernel[np.ix_(seen, seen)] for kernel in self._kernels]
        alike = np.mean(
            [covariance_of_means(kernels, ScoreTable(column)) for column in np.moveaxis(contrasts, 2, 0)],
            axis=0,
        )
        *leanings, slope = STEP * np.eye(effects.shape[1])
        of_leanings, of_slopes = self._processes
        for process, step in [*((of_leanings, step) for step in leanings), (of_slopes, slope)]:
            change = (self._mean_scores(effects + step) - self._mean_scores(effects - step)) / (2.0 * STEP)
            errors += UNDERSTATED * np.outer(change, change) * process.errors(alike, seen)
        return errors


def _spread_out(seen: Mask, most: int) -> NDArray[np.int64]:
    """The numbers of the examples seen; where these are more than the most, so many of them, evenly spread."""
    numbers = np.flatnonzero(seen)
    if len(numbers) > most:
        numbers = numbers[np.linspace(0, len(numbers) - 1, most).round().astype(np.int64)]
    return numbers
