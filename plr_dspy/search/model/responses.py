"""What orderings score, as the log-probabilities that they give to labels let one expect.

The effects of orderings and examples on log-probabilities (`effects`) say which label an ordering would answer on each
example, and the metric what that label scores there.
The prompts of a whole program may differ by example, as those with demos found for each input do, so that no effect of
theirs is common to all. What a mean ordering scores is expected of it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import helmert
from scipy.special import log_softmax

from plr_dspy.search.model.effects import NUM_QUICK_SWEEPS, NUM_SWEEPS, EffectProcess, Posterior, ResponseEffects
from plr_dspy.search.model.gains import Array, Families, Gains, Mask, Numbers, independent_gains
from plr_dspy.search.model.process import AdditiveProcess, Earlier, ScoreTable, covariance_of_means, linear
from plr_dspy.search.space import Candidate
from plr_dspy.statistics.calibration import calibrated, label_offsets, log_mean

MOST_EXAMPLES = 128  # that expected scores are means of
LEAST = -1e3  # log-probabilities count as no smaller: a probability of 0 has none, and servers write -9999 for one
LARGEST = 8.0  # contrasts count no further from 0: a label out of the question says little by how far it is
NUM_DRAWS = 8  # of an ordering's effects, that say how sure its expected score is; an even number
# Error variances of effects over what the fit says, which takes each kind of effect in turn for known: in worlds that
# are made as it believes them to be, 1.0 to 1.9.
UNDERSTATED = 1.6
STEP = 0.05  # of an effect, to see what it does to a score
APART_SCORE = np.float64(0.25)  # variance of the mean score of a program that is not one of the orderings
PRIOR_CELLS = 4.0  # that what is expected of an ordering counts as; of one that is alone, answers in these shares


class Calibrated(NamedTuple):
    """What calibration does to an ordering. Replies that say nothing of labels count as in its own cells, but for those
    with calibration where answers are not calibrated."""

    offsets: tuple[float, ...]  # of the labels
    before: float  # mean score over all examples that is expected without calibration
    after: float  # and with it


class Labels(NamedTuple):
    """The labels that orderings answer when their offsets calibrate them."""

    shares: Array  # the guess that was taken, [L], of NaN where answers stay as they are
    offsets: Array  # 0 on the mean, [m, L]
    answers: Numbers  # the likeliest labels with these, [m, E]; an unseen label wins none
    known: Mask  # whether answers are known, [m, E]
    never_seen: Mask  # labels that were among the likeliest tokens of no answer, [L]
    calibrates: bool  # whether that guess calibrates answers


def softmax(logits: Array) -> Array:
    """The softmax over the last axis, ``[..., L]``, in a third of the time that scipy takes for short rows."""
    by_label = np.moveaxis(logits, -1, 0).copy()
    odds = np.exp(by_label - by_label.max(axis=0))
    return np.moveaxis(odds / odds.sum(axis=0), 0, -1)


def probable(logits: Array, variances: Array) -> Array:
    """Mean probabilities of labels under normal noise, by the probit approximation (MacKay, 1992)."""
    return softmax(logits / np.sqrt(1.0 + np.pi / 4.0 * variances)[..., None])


@dataclass(frozen=True)
class LabelResponses:
    """Where the log-probabilities of labels are found, and what the labels score."""

    scores: Array  # what the metric gives for each label on each example, [E, L]
    told: Callable[[Candidate, int], tuple[Sequence[float], Sequence[int]] | None]
    """By ordering and example, log-probabilities of the labels, and the numbers of those that were not among the
    likeliest tokens; None where they are not known."""
    shares: Array | None = None  # of examples that labels are right for, [L], or guesses, [S, L]; None for even ones
    calibrating: bool = False  # whether answers are calibrated to it, or taken as they are
    influence: Any = None  # the `scoring.confusion_scores.ConfusionScores` of a metric over a set

    def weights(self, known: Mask, examples: Numbers) -> Array:
        """What scores on examples count, ``[m, E]``; see `ConfusionScores.weights`."""
        return known.astype(np.float64) if self.influence is None else self.influence.weights(known, examples)

    def stratified(self, table: Array, examples: Numbers) -> Array:
        """Scores on examples as they count, ``[m, E]``; see `ConfusionScores.reweighted`."""
        return table if self.influence is None else self.influence.reweighted(table, examples)

    def table(self, rows: Mapping[Candidate, Collection[int]], examples: Numbers) -> tuple[Array, Mask]:
        """The log-probabilities of labels of each ordering on its examples, and where a label was not among the
        likeliest tokens, ``[m, E, L]`` each; NaN where they are not known. The columns hold all examples."""
        table = np.full((len(rows), len(examples), self.scores.shape[1]), np.nan)
        hidden = np.zeros(table.shape, dtype=bool)
        for row, (ordering, asked) in enumerate(rows.items()):
            for column, example in enumerate(examples.tolist()):
                if example in asked and (told := self.told(ordering, example)) is not None:
                    table[row, column] = told[0]
                    hidden[row, column, list(told[1])] = True
        return table, hidden


class Silence:
    """What replies without a label, which have a mean `score`, do to expected scores. Orderings may differ in how many
    they are by far more than in the labels said, so that the shares of others, ``[m]``, are a process of their own."""

    def __init__(self, told: Array, heard: Mask, features: Families | None, apart: Mask, earlier: Earlier) -> None:
        self.score, self.shares, self.variances = 0.0, np.ones(len(told)), np.zeros(len(told))
        self.process, self.state = None, list[float]()
        if not (silent := ~np.isnan(told) & ~heard).any():
            return
        table, self.score = ScoreTable(np.where(np.isnan(told), np.nan, heard)), float(told[silent].mean())
        shares = table.scores[table.known].mean() + table.adjusted_means * table.trust
        if features is not None:
            self.process = process = AdditiveProcess(features, table, apart=apart, earlier={"variances": earlier})
            shares, self.variances, self.state = process.mean, process.variances, process.state["variances"]
        self.shares = np.clip(shares, 0.0, 1.0)

    def of(self, features: Families) -> Array:
        """The expected shares of other orderings, ``[c]``."""
        shares = 1.0 if self.process is None else self.process.predict(features)
        return np.clip(shares, 0.0, 1.0)

    def counted(self, scores: Array, shares: Array) -> Array:
        """Scores that are expected where those of replies with a label are, and their shares."""
        return np.asarray(self.score + shares * (scores - self.score))


class ResponseModel:
    """Expected scores of orderings from log-probabilities; their effects are rows of leanings, ``[d]``, and a slope.

    Attributes:
        means, mean_variances: Expected mean scores of the orderings, ``[m]``, and the variances of these.
        components: Variances of the processes of orderings' effects, and of silent replies, as JSON data.
        num_examples: Examples that expected scores are means of.
        always: The mean score of answering each label to all examples, ``[L]``.
    """

    def __init__(
        self,
        responses: LabelResponses,
        examples: Numbers,  # the columns, [E]
        logs: tuple[Array, Mask],  # as of `LabelResponses.table`
        *,
        apart: Mask,  # as in `AdditiveProcess`
        programs: Mask,  # whole programs, whose log-probabilities calibrate these, and no more, [m]
        told: Array,  # what calls scored, [m, E], NaN for none
        features: Families | None = None,  # None takes effects as measured: quick, and says nothing of others
        earlier: Sequence[Sequence[float]] | None = None,  # the `state` of the fit before
    ) -> None:
        self._scores, self._apart, self._programs = responses.scores[examples], apart, programs
        self._responses, self._examples, self.calibrating = responses, examples, responses.calibrating
        usual = ~self._programs
        self._drawn = responses.influence is None and _are_drawn(told[usual], logs[0][usual], self._scores)
        self._told, self._logs = told, (np.maximum(logs[0], LEAST), logs[1])
        *earlier_effects, of_silence = earlier or (None, None, None)
        self._silence = silence = Silence(told, ~np.isnan(logs[0][..., 0]), features, apart, of_silence)
        self._basis = helmert(self._scores.shape[1])  # from labels to contrasts, [d, L]
        directions = self._scores @ self._basis.T
        lengths = np.sqrt((directions**2).sum(axis=1, keepdims=True))
        self._directions = np.where(lengths > 1e-9, directions / np.maximum(lengths, 1e-9), 0.0)
        of_orderings = np.where(self._programs[:, None, None], np.nan, self._logs[0])
        self._contrasts = np.clip(of_orderings @ self._basis.T, -LARGEST, LARGEST)
        self._known = ~np.isnan(self._contrasts[..., 0])
        # The examples seen; where these are very many, so many of them, evenly spread.
        every, seen = np.arange(len(examples)), np.flatnonzero(~np.isnan(logs[0][..., 0]).all(axis=0))
        shown = seen[np.linspace(0, len(seen) - 1, min(len(seen), MOST_EXAMPLES)).round().astype(np.int64)]
        self.num_examples, self._shown = len(shown), (shown, self._counts(shown))
        sweeps = NUM_QUICK_SWEEPS if features is None else NUM_SWEEPS
        self._cells = cells = ResponseEffects(self._contrasts, self._directions, apart=self._apart, num_sweeps=sweeps)
        known: Sequence[Posterior | EffectProcess] = (cells.leaning, cells.slope)
        if features is not None:
            # What a process says of an ordering replaces what was measured.
            self._features, self._kernels = features, [family @ family.T for family in features]
            pairs = zip((cells.leaning, cells.slope), earlier_effects, strict=True)
            known = self._processes = [
                EffectProcess(features, self._kernels, measured, unit=cells.noise, earlier=before)
                for measured, before in pairs
            ]
            self.components = [*(process.components.tolist() for process in self._processes), silence.state]
        self._effects = np.concatenate([each.means for each in known], axis=1)
        self._variances = np.stack([each.variances for each in known], axis=1)
        counts = self._counts(every)
        table = self._score(self._effects, every, counts)
        self._heard = heard = np.asarray(table[:, shown] @ self._shown[1])
        self.means = silence.counted(heard, silence.shares)
        self.always = np.round(counts @ self._scores, 6).tolist()
        if features is not None:
            drawn = self._draw(self._effects, self._variances).var(axis=0, ddof=1) * ~self._programs
            self.mean_variances = silence.shares**2 * drawn + (heard - silence.score) ** 2 * silence.variances
            heard_alone = np.where(self._known, self._expected_alone(), table)
            expected = silence.counted(heard_alone, silence.shares[:, None])
            self.expected = responses.stratified(np.where(np.isnan(told), np.nan, expected), examples)

    @cached_property
    def labels(self) -> Labels:
        """The offsets of labels, from cells and, where these are unknown, what is expected; of no use to rounds where
        answers are not calibrated, they are found when needed."""
        (log_probabilities, unseen), weigh = self._logs, partial(self._responses.weights, examples=self._examples)
        known = ~np.isnan(log_probabilities[..., 0])
        logs, counts = np.where(known[..., None], log_probabilities, 0.0), known.sum(axis=1)[:, None]
        never_seen: Mask = np.asarray(unseen[known].all(axis=0) & known.any())
        logits, variances = self._logits_of(self._effects, np.arange(len(self._examples)))
        expected, every = np.log(probable(logits, variances)), weigh(np.ones((1, logits.shape[1]), dtype=bool))
        told = np.where(known[..., None], log_softmax(logs, axis=-1), expected)
        cells = np.where(counts > 0, weigh(known), every)  # Without any cell, what is known is what is expected.
        found, trust = log_mean(told, cells), counts / (counts + PRIOR_CELLS)
        filled = log_mean(expected, every) + trust * (found - log_mean(expected, cells))
        even = np.full(logits.shape[2], 1.0 / logits.shape[2])
        own, options = softmax(found), list[Labels]()
        for shares in np.atleast_2d(even if self._responses.shares is None else self._responses.shares):
            # Of whole programs, their own cells alone tell.
            of_programs = np.log(np.maximum(trust * own + (1 - trust) * shares, 1e-300))
            means, offsets = np.where(self._programs[:, None], of_programs, filled), np.zeros_like(filled)
            if calibrates := not np.isnan(shares).any():
                offsets = label_offsets(means, shares, held=never_seen)
            answers = calibrated(logs, offsets[:, None], unseen=unseen).argmax(axis=2)
            options.append(Labels(shares, offsets, answers, known, never_seen, calibrates))
        seen, right = np.asarray(known.any(axis=0)), np.arange(len(self._scores))
        tables = np.array([np.where(known, self._scores[right, each.answers], 0.0) for each in options])
        means = (tables.sum(axis=1) / np.maximum(1, known.sum(axis=0)))[:, seen]
        weights = weigh(seen[None])[0, seen]
        gains, weights = means - means[0], weights / weights.sum()
        mean_gains = gains @ weights
        # Scores of a few rare examples differ far too much for a gain to be clear, and it is the larger for it.
        errors = np.sqrt((gains - mean_gains[:, None]) ** 2 @ weights**2) * options[0].calibrates
        return options[int(np.where(mean_gains > errors, mean_gains, 0.0).argmax())]

    def _expected_alone(self) -> Array:
        """Expected scores in the cells known, each from all other cells, ``[m, E]``."""
        left_out = 1.0 - self._cells.leverage
        logits = np.nan_to_num(self._contrasts - self._cells.residuals / left_out[..., None]) @ self._basis
        if self.calibrating:
            logits = logits + self.labels.offsets[:, None]
        return self._answered(logits, self._cells.noise / left_out, self._scores, calibrated=self.calibrating)

    def _counts(self, examples: Numbers) -> Array:
        """What each of these examples counts in a mean, ``[E]``."""
        weights = self._responses.weights(np.ones((1, len(examples)), dtype=bool), self._examples[examples])[0]
        return np.asarray(weights / weights.sum())

    def _logits_of(self, effects: Array, examples: Numbers) -> tuple[Array, Array]:
        """Mean logits ``[m, E, L]`` of orderings with these effects on examples, and variances of contrasts ``[E]``."""
        means = self._cells.examples[examples] + effects[:, None, :-1]
        means += effects[:, -1:, None] * self._directions[examples]
        return means @ self._basis, self._cells.noise + self._cells.example_variances[examples]

    def _answered(self, logits: Array, variances: Array, scores: Array, *, calibrated: bool = False) -> Array:
        """Expected scores ``[m, E]`` of the likeliest label, by the logistic approximation of the normal; where answers
        are drawn, and not calibrated, of labels by their probabilities."""
        if self._drawn and not calibrated:
            chances = probable(logits, variances)
        else:
            chances = softmax(logits * (np.pi / np.sqrt(6.0 * variances))[..., None])
        return np.asarray(np.einsum("mel,el->me", chances, scores))

    def _score(self, effects: Array, examples: Numbers, counts: Array, further: Array | float = 0.0) -> Array:
        """Expected scores ``[m, E]`` of orderings with these effects on examples that count so much; leanings may have
        further variances, ``[m]``."""
        logits, variances = self._logits_of(effects, examples)
        if self.calibrating and self.labels.calibrates:
            # Calibration takes a leaning away, and with it the doubt about it.
            means, labels = np.log(counts @ probable(logits, variances)), self.labels
            logits = logits + label_offsets(means, labels.shares, held=labels.never_seen)[:, None]
        else:
            variances = variances + np.reshape(further, (-1, 1))
        return self._answered(logits, variances, self._scores[examples], calibrated=self.calibrating)

    def _mean_scores(self, effects: Array, further: Array | float = 0.0) -> Array:
        """Expected mean scores of orderings with these effects, ``[m]``, and further variances of leanings, ``[m]``."""
        return np.asarray(self._score(effects, *self._shown, further) @ self._shown[1])

    def _draw(self, effects: Array, variances: Array) -> Array:
        """Expected mean scores under draws of effects ``[m, d + 1]``, the same ones for all orderings, ``[draws, m]``;
        of leanings and of the slope the variances are given, ``[m, 2]``."""
        half = np.random.default_rng(0).normal(size=(NUM_DRAWS // 2, effects.shape[1]))
        leanings, slopes = np.sqrt(variances).T[..., None]
        deviations = np.concatenate([leanings.repeat(effects.shape[1] - 1, axis=1), slopes], axis=1)
        return np.stack([self._mean_scores(effects + deviations * draw) for draw in (*half, *-half)])

    def predict(self, features: Families) -> tuple[Array, Array]:
        """Expected mean scores of other orderings, and the variances of these, ``[c]`` each."""
        across = [other @ known.T for other, known in zip(features, self._features, strict=True)]
        squares = np.stack([(other**2).sum(axis=1) for other in features], axis=1)
        effects, variances = zip(*(p.predict(across, squares) for p in self._processes), strict=True)
        drawn, silence = self._draw(np.concatenate(effects, axis=1), np.stack(variances, axis=1)), self._silence
        heard, shares = drawn.mean(axis=0), silence.of(features)
        of_shares = (heard - silence.score) ** 2 * silence.variances.mean()
        return silence.counted(heard, shares), shares**2 * drawn.var(axis=0, ddof=1) + of_shares

    def predict_means(self, features: Families) -> Array:
        """Expected mean scores of other orderings, about as `predict` says but in less time, ``[c]``."""
        effects = [linear(features, each.fit.weights) + each.level for each in self._processes]
        # Leanings are taken to be as sure as those of the orderings fitted are on the mean.
        heard = self._mean_scores(np.concatenate(effects, axis=1), self._variances[:, 0].mean())
        return self._silence.counted(heard, self._silence.of(features))

    @cached_property
    def calibrated(self) -> Array:
        """The scores ``[m, E]`` of orderings, where log-probabilities are known those of calibrated answers."""
        scores = self._scores[np.arange(len(self._scores)), self.labels.answers]
        counted = self._responses.stratified(np.where(np.isnan(self._told), np.nan, scores), self._examples)
        return np.where(self.labels.known, counted, self._told)

    def _expected_of(self, number: int, examples: Numbers) -> Array:
        """Scores that are expected of an ordering on examples, as it is and calibrated, ``[2, n]``."""
        # Its own cells count for its effects alone: an ordering that was chosen for its cells is not as good as these.
        logits, variances = self._logits_of(self._effects[[number]], examples)
        scores, moved = self._scores[examples], logits + self.labels.offsets[number]
        as_it_is = self._answered(logits, variances, scores)
        return np.concatenate([as_it_is, self._answered(moved, variances, scores, calibrated=True)])

    def calibration(self, number: int) -> Calibrated:
        """What calibration does to an ordering fitted."""
        offsets = tuple(np.round(self.labels.offsets[number], 6).tolist())
        if self._programs[number]:
            before, gain, _ = self.corrected(number)
            least, most = float(self._scores.min()), float(self._scores.max())
            return Calibrated(offsets, *np.clip([before, before + gain], least, most).tolist())
        shown, counts = self._shown
        before, after = (self._expected_of(number, shown) @ counts).tolist()
        # Calls that brought none, such as replies that are no label, have a share of all as they were scored.
        own = ~np.isnan(self._told[number])
        silent = own & ~self._known[number]
        share = silent.sum() / max(1, own.sum())
        rest = share * (self._told[number, silent].mean() if share else 0.0)
        before = float((1 - share) * before + rest)
        if self.calibrating:  # Otherwise it is not known which of them calibration would read.
            after = float((1 - share) * after + rest)
        return Calibrated(offsets, before, after)

    def corrected(self, number: int) -> tuple[float, float, Array]:
        """What an ordering scores as it is, what calibration adds, and by how much its calls missed that, ``[n]``.

        What is expected is corrected by its own scores as they came, and as they count where they are calibrated: it
        holds for replies that cannot be read, and for a program with a calibration of its own.
        """
        (shown, counts), told = self._shown, self._told[number]
        own = np.flatnonzero(~np.isnan(told))
        before, after = self._expected_of(number, shown) @ counts
        own_before, own_after = self._responses.stratified(self._expected_of(number, own), self._examples[own])
        missed = (self.calibrated[number] - told)[own] - (own_after - own_before)
        score = float(before + (told[own] - own_before).mean())
        return score, float(after - before + missed.mean()), missed

    def gains(self, reference: int) -> Gains | None:
        """What the orderings fitted score on new examples above one of them, by what replies with a label say, and by
        how many of them do; None where nothing tells orderings apart."""
        silence, by_silence = self._silence, None
        if silence.process is not None:
            by_silence = silence.process.gains(reference).condensed()
            by_silence = by_silence.times(float(self._heard[reference]) - silence.score)
        # Of those that log-probabilities say nothing of, what a mean ordering scores is expected: one stands for all.
        mute = self._programs | (self._cells.weights <= 0)
        first, seen = int(mute.argmax()), ~mute
        seen[first] = True
        if seen.sum() < 2:
            return by_silence
        places = (np.cumsum(seen) - 1)[np.where(mute, first, np.arange(len(mute)))]  # among those seen
        shares, means, variances, possible = independent_gains(
            self._heard[seen],
            self._errors(seen, mute),
            apart=APART_SCORE * (self._apart & ~mute)[seen],
            reference=int(places[reference]),
            num_examples=self.num_examples,
        )
        by_labels = Gains(shares, means[:, places], variances[:, places], possible[:, places])
        by_labels = by_labels.times(silence.shares)
        return by_labels if by_silence is None else by_labels.plus(by_silence)

    def _errors(self, seen: Mask, mute: Mask) -> Array:
        """Covariance of errors of expected mean scores on new examples, ``[m, m]``; of `mute` ones none is measured."""
        # There are two sources: the examples are a sample, and the orderings' effects are measured on some of them.
        effects, (shown, counts) = self._effects[seen], self._shown
        table = self._score(effects, shown, counts)
        kinds = np.unique(self._scores[shown], axis=0, return_inverse=True)[1].ravel()
        of_kind = np.eye(kinds.max() + 1)[kinds]
        centred = table - (table @ of_kind / of_kind.sum(axis=0)) @ of_kind.T
        free = max(1, table.shape[1] - of_kind.shape[1]) / table.shape[1]
        errors: Array = (centred * counts**2) @ centred.T / free

        measured, usual = seen & ~mute, np.flatnonzero(~mute[seen])
        contrasts = self._contrasts[measured]
        contrasts = contrasts[:, ~np.isnan(contrasts[..., 0]).all(axis=0)]
        kernels = [kernel[np.ix_(measured, measured)] for kernel in self._kernels]
        columns = np.moveaxis(contrasts, 2, 0)
        alike = np.mean([covariance_of_means(kernels, ScoreTable(column)) for column in columns], axis=0)
        steps = STEP * np.eye(effects.shape[1])
        for number, step in enumerate(steps):
            process = self._processes[number == len(steps) - 1]  # the last one is the slope's
            change = (self._mean_scores(effects + step) - self._mean_scores(effects - step))[usual] / (2.0 * STEP)
            errors[np.ix_(usual, usual)] += UNDERSTATED * np.outer(change, change) * process.errors(alike, measured)
        return errors


def _are_drawn(told: Array, logs: Array, scores: Array) -> bool:
    """Whether answers are drawn by their probabilities, as at a temperature of 1, and not the likeliest ones: by scores
    ``[m, E]``, log-probabilities of labels, ``[m, E, L]``, and what labels score, ``[E, L]``."""
    known = ~np.isnan(logs[..., 0]) & ~np.isnan(told)
    of_labels, chances = scores[np.nonzero(known)[1]], softmax(np.maximum(logs[known], LEAST))
    likeliest = np.take_along_axis(of_labels, chances.argmax(axis=1)[:, None], axis=1)
    agreed = np.isclose(told[known], likeliest[:, 0]).sum()
    return bool(2 * agreed < len(of_labels) + (chances * np.isclose(of_labels, likeliest)).sum())
