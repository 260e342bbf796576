"""Scores by example that stand for a metric over a set: its value, and what one more answer does to it."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plr_dspy.runtime import as_json
from plr_dspy.scoring.values import Unwritable, ValueCodec

Array: TypeAlias = NDArray[np.float64]

STEP = 1e-6  # share of all weight that an answer more has, where the metric is smooth; elsewhere it is a whole example
ENOUGH = 10  # answers to examples of each fact in a reference, where there are so many: fewer tell no rare label's rate
PSEUDO = 0.5  # examples of each fact, spread over all answers, beside a reference: so that no share is 0 in derivatives
MOST_PSEUDO = 400  # such examples, at most, where labels are many: every answer stands for as many facts as another


class Influence:
    """Scores answers by their influence on a metric over a set, near a reference.

    The reference is a set of answers, such as those of the best program so far. The influence of an answer is the
    derivative of the metric by its weight there: the metric of another set is, to first order, that of the reference
    and the mean influence over the set. So the score of an answer is the sum of both. Where the metric is weighted,
    facts (such as right labels) count in the shares that they have, whichever examples were answered, and influences
    are centred for each fact by itself: which examples a few scores happen to be of says nothing of answers.

    Source: F. R. Hampel, "The influence curve and its role in robust estimation", JASA 69, 1974.
    """

    def __init__(self, metric: Any, facts: Sequence[Any]) -> None:  # a `SetMetric`, and what it reads of each example
        self._metric, self._facts = metric, list(facts)
        self.kind = metric.kind
        self.bounds: tuple[float, float] = metric.bounds  # as far as what it was referred to tells
        # Answers count by groups of examples: those of one fact, or all of them where there are no weights.
        self._groups = self._facts if metric.weighted else [None] * len(self._facts)
        self._shares = Counter(self._facts) if metric.weighted else Counter()
        self._numbers = {group: number for number, group in enumerate(dict.fromkeys(self._groups))}
        self._of_group = np.eye(len(self._numbers))[[self._numbers[group] for group in self._groups]]
        self._group_shares = self._of_group.mean(axis=0)
        self.of_labels: Sequence[Sequence[Any]] = []  # outputs of each label on each example, [E, L], if known
        self.table: Array = np.empty((0, 0))  # what these score, which is kept up to date
        self._value = 0.0
        self._shifts: Array | None = None  # mean influences at the reference, by group; None without one
        self._variances = np.ones(len(self._numbers))  # of these influences
        self._influences: dict[tuple[Any, Any], float] = {}
        self._codec = ValueCodec()
        self._identified: dict[int, Any] = {}  # outputs that their ids stand for, which are theirs as long as they live

    def refer(self, answered: Iterable[tuple[int, Any]]) -> None:
        """Take these outputs, of examples given by number, as the reference; without any nothing changes."""
        rows = [(self._facts[example], outputs) for example, outputs in answered]
        if not rows:
            return
        scores = [outputs for _, outputs in rows if self.kind == (int, float) and outputs is not None]
        self.bounds = min([self.bounds[0], *scores]), max([self.bounds[1], *scores])
        self._shifts = None  # Should the metric raise, there is no reference.
        answers = self._metric.answers(self._facts) or [outputs for _, outputs in rows]
        of_each = min(len(answers), max(1, MOST_PSEUDO // max(1, len(self._shares))))
        pseudo = [
            (fact, answers[(number + i) % len(answers)])
            for number, fact in enumerate(self._shares)
            for i in range(of_each)
        ]
        counts = [1.0] * len(rows) + [PSEUDO / of_each] * len(pseudo)
        self._rows, self._weights = reference = self._merged(rows + pseudo, counts)
        self._base = self._value_of(*reference)
        self._influences.clear()
        self._identified.clear()
        # Without shares, facts may be objects that have no hash.
        if not self._shares or self._shares.keys() <= {fact for fact, _ in rows}:
            reference = self._merged(rows, counts[: len(rows)])
        self._value = self._value_of(*reference)
        self._shifts = self._moments(*reference)[0]
        self._variances = self._moments(self._rows, self._weights)[1]  # not 0 where all answers agree
        for example, label in np.ndindex(*self.table.shape):
            self.table[example, label] = self.score(example, self.of_labels[example][label])

    def is_enough(self, answered: Sequence[tuple[int, Any]]) -> bool:
        """Whether so many answers make a reference: as many as there are examples, and some of each fact."""
        counts = Counter(self._groups[example] for example, _ in answered)
        return len(answered) >= len(self._facts) and all(counts[fact] >= ENOUGH for fact in self._shares)

    def score(self, example: int, outputs: Any) -> float:
        """The score of outputs on an example; 0 as long as there is no reference."""
        if self._shifts is None:
            return 0.0
        return self._value + self._centred(self._facts[example], outputs)

    @property
    def _answers(self) -> Sequence[Any]:
        """Answers that any example may have: of scores the lowest and the highest; none where they have no end."""
        return self._metric.answers(self._facts) or (self.bounds if self.kind == (int, float) else ())

    def largest(self) -> float:
        """The largest influence, in size, of a right answer to an example, or where right answers have none, as all are
        right, of some wrong answers to each fact; 0 where answers are not known."""
        answers, of_each = self._answers, MOST_PSEUDO // max(1, len(self._shares))
        right = [(fact, fact) for fact in self._shares.keys() & set(answers)]
        some = [(fact, answer) for fact in self._shares for answer in answers[:of_each]]
        sizes = (max((abs(self._centred(*pair)) for pair in pairs), default=0.0) for pairs in (right, some))
        return next((size for size in sizes if size > 1e-9), 0.0)

    def error(self, scores: Sequence[float], value: float) -> tuple[float, float]:
        """The centre, and the standard error about it, of an interval of the metric, by the scores of all examples.

        Each of the K groups that matter counts 2 / K answers of the highest and of the lowest score more, so that one
        that is all right is not taken for certain (R. Price and D. Bonett, "An improved confidence interval for a
        linear function of binomial proportions", Computational Statistics & Data Analysis 45, 2004). The error is
        infinite where a group has one example alone.
        """
        answers, deviations = self._answers, list[tuple[list[float], tuple[float, float]]]()
        for stratum in self.strata(len(scores)):  # and the least and the largest of any answer
            group, seen = self._groups[stratum[0]], [scores[example] - value for example in stratum]
            named = [*answers[: MOST_PSEUDO // max(1, len(self._shares))], *([group] if group in answers else [])]
            told = [*seen, *(self._centred(group, each) for each in named)]
            deviations.append((seen, (min(told), max(told))))
        more, shift, variance = 2.0 / max(1, sum(any(ends) for _, ends in deviations)), 0.0, 0.0
        for seen, ends in deviations:
            if len(seen) == 1:
                return value, math.inf
            count = len(seen) + 2.0 * more
            mean = more * sum(ends) / count
            # Of each group its own mean was taken away.
            squares = np.square(seen).sum() * len(seen) / (len(seen) - 1) + more * np.square(ends).sum()
            share = len(seen) / len(scores)
            shift += share * mean
            variance += share**2 * max(0.0, squares / count - mean**2) / count
        return value + shift, math.hypot(math.sqrt(variance), self.error_of_shares)

    @property
    def error_of_shares(self) -> float:
        """The standard error of the metric by the shares of the groups, which are others among new examples."""
        squares = 0.0 if self._shifts is None else self._group_shares @ self._shifts**2
        return math.sqrt(squares / len(self._groups))

    @property
    def centring(self) -> float:
        """How many times as far scores lie from those of new examples as from the means of groups that were taken away:
        no end of it where each is a group."""
        number, free = len(self._groups), len(self._groups) - len(set(self._groups))
        return math.sqrt(number / max(free, 1e-12))

    def weights(self, known: NDArray[np.bool_], examples: NDArray[np.int64]) -> Array:
        """What each score of programs on these examples counts, ``[m, E]``, so that facts do in the shares that they
        have among all: 1 on the mean, but 0 of scores that are not known, and of facts without any."""
        of_group = self._of_group[examples]
        rates = known.sum(axis=1, keepdims=True) * self._group_shares
        return np.where(known, (rates / np.maximum(1, known @ of_group)) @ of_group.T, 0.0)

    def worth(self, known: NDArray[np.bool_], examples: NDArray[np.int64]) -> Array:
        """Scores on examples drawn at random that would say as much of a program as each of its own, ``[m]``: where few
        examples decide, the scores on these say most."""
        counts = known @ self._of_group[examples]
        shares = self._group_shares * (counts > 0)
        shares /= shares.sum(axis=1, keepdims=True)
        errors = (shares**2 / np.maximum(1, counts)) @ self._variances
        at_random = shares @ self._variances / counts.sum(axis=1)
        return np.where(errors > 0, at_random / np.where(errors > 0, errors, 1.0), 1.0)

    def stratified(self, table: Array, examples: NDArray[np.int64]) -> Array:
        """Scores of programs on these examples, ``[m, E]``, NaN where there are none, so that the mean of each row is
        the weighted one."""
        return self._value + self.weights(~np.isnan(table), examples) * (table - self._value)

    def strata(self, num_examples: int) -> list[list[int]]:
        """The first examples by their facts, where these have shares; without, all together."""
        strata = defaultdict[Any, list[int]](list)
        for example, group in enumerate(self._groups[:num_examples]):
            strata[group].append(example)
        return list(strata.values())

    def turns(self, num_examples: int) -> list[int]:
        """The first examples so that facts take turns, however many have each; the metric's label comes first."""
        strata = sorted(self.strata(num_examples), key=lambda group: self._groups[group[0]] != self._metric.label)
        columns = itertools.zip_longest(*strata)
        return [example for column in columns for example in column if example is not None]

    def value(self, answered: Iterable[tuple[int, Any]]) -> float:
        """The metric itself, of these outputs."""
        rows = [(self._facts[example], outputs) for example, outputs in answered]
        return self._value_of(*self._merged(rows, [1.0] * len(rows)))

    def limited(self, value: float) -> float:
        """The value, or the nearest to it that the metric can have."""
        return min(max(self.bounds[0], value), self.bounds[1])

    def _value_of(self, rows: Sequence[tuple[Any, Any]], weights: Array) -> float:
        """The metric of facts and outputs with weights."""
        # Replies that could not be read count as the lowest score seen.
        unread = self.bounds[0] if self.kind == (int, float) else None
        outputs = [unread if told is None else told for _, told in rows]
        value = float(self._metric.value([fact for fact, _ in rows], outputs, weights.tolist()))
        self.bounds = min(value, self.bounds[0]), max(value, self.bounds[1])  # A user's own may say too little.
        return value

    def _influence(self, fact: Any, outputs: Any) -> float:
        """What the weight of an answer changes at the reference, per unit."""
        key = self._key(fact, outputs)
        if key not in self._influences:
            step = STEP if self._metric.smooth else 1.0 / len(self._facts) if self._metric.weighted else 1.0
            weights = np.append(self._weights, step)
            moved = self._value_of([*self._rows, (fact, outputs)], weights)
            self._influences[key] = (moved - self._base) * float(weights.sum()) / step
        return self._influences[key]

    def _centred(self, fact: Any, outputs: Any) -> float:
        """The influence of an answer above the mean of its group."""
        shift = 0.0 if self._shifts is None else float(self._shifts[self._number(fact)])
        return self._influence(fact, outputs) - shift

    def _number(self, fact: Any) -> int:
        """The number of a fact's group."""
        return self._numbers[fact if self._metric.weighted else None]

    def _moments(self, rows: Sequence[tuple[Any, Any]], weights: Array) -> tuple[Array, Array]:
        """Means and variances of the influences of these answers, by group."""
        groups = [self._number(fact) for fact, _ in rows]
        influences, totals = np.array([self._influence(*row) for row in rows]), np.bincount(groups, weights)
        means = np.bincount(groups, weights * influences) / totals
        return means, np.bincount(groups, weights * (influences - means[groups]) ** 2) / totals

    def _merged(self, rows: Sequence[tuple[Any, Any]], counts: Sequence[float]) -> tuple[list[tuple[Any, Any]], Array]:
        """Rows that differ, and their weights: where the metric is weighted, in the shares of all facts."""
        if not self._metric.weighted:
            return list(rows), np.array(counts)
        weights, totals = defaultdict[Any, float](float), defaultdict[Any, float](float)
        distinct: dict[Any, tuple[Any, Any]] = {}
        for (fact, outputs), count in zip(rows, counts, strict=True):
            key = self._key(fact, outputs)
            distinct.setdefault(key, (fact, outputs))
            weights[key] += count
            totals[fact] += count
        found = [weights[key] * self._shares[fact] / totals[fact] for key, (fact, _) in distinct.items()]
        return list(distinct.values()), np.array(found) / sum(found)

    def _key(self, fact: Any, outputs: Any) -> tuple[Any, Any]:
        """What identifies an answer."""
        return fact if self._metric.weighted else id(fact), self._identity(outputs)

    def _identity(self, outputs: Any) -> Any:
        """What identifies outputs: what they hold, or the object itself if that cannot be told."""
        if type(outputs) is str:
            return outputs
        try:
            return as_json(self._codec.encode(outputs))
        except Unwritable:
            self._identified[id(outputs)] = outputs
            return id(outputs)
