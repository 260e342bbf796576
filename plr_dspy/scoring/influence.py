"""Scores by example that stand for a metric over a set: its value, and what one more answer does to it."""

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        distinct = dict.fromkeys(self._groups)
        self._of_group = np.array([[group == each for each in distinct] for group in self._groups], dtype=np.float64)
        self._group_shares = self._of_group.mean(axis=0)
        self.of_labels: Sequence[Sequence[Any]] = []  # outputs of each label on each example, [E, L], if known
        self.table: NDArray[np.float64] = np.empty((0, 0))  # what these score, which is kept up to date
        self._value = 0.0
        self._shifts: dict[Any, float] = {}
        self._influences: dict[tuple[Any, str], float] = {}

    def refer(self, answered: Iterable[tuple[int, Any]]) -> None:
        """Take these outputs, of examples given by number, as the reference; without any nothing changes."""
        rows = [(self._facts[example], outputs) for example, outputs in answered]
        if not rows:
            return
        scores = [outputs for _, outputs in rows if self.kind == (int, float) and outputs is not None]
        self.bounds = min([self.bounds[0], *scores]), max([self.bounds[1], *scores])
        self._shifts = {}  # Should the metric raise, there is no reference.
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
        if self._shares.keys() <= {fact for fact, _ in rows}:
            reference = self._merged(rows, counts[: len(rows)])
        self._value = self._value_of(*reference)
        totals, sums = defaultdict[Any, float](float), defaultdict[Any, float](float)
        for (fact, outputs), weight in zip(reference[0], reference[1].tolist(), strict=True):
            group = fact if self._metric.weighted else None
            totals[group] += weight
            sums[group] += weight * self._influence(fact, outputs)
        self._shifts = {group: sums[group] / total for group, total in totals.items()}
        for example, label in np.ndindex(*self.table.shape):
            self.table[example, label] = self.score(example, self.of_labels[example][label])

    def is_enough(self, answered: Sequence[tuple[int, Any]]) -> bool:
        """Whether so many answers make a reference: as many as there are examples, and some of each fact."""
        counts = Counter(self._groups[example] for example, _ in answered)
        return len(answered) >= len(self._facts) and all(counts[fact] >= ENOUGH for fact in self._shares)

    def score(self, example: int, outputs: Any) -> float:
        """The score of outputs on an example; 0 as long as there is no reference."""
        if not self._shifts:
            return 0.0
        influence = self._influence(self._facts[example], outputs)
        return self._value + influence - self._shifts[self._groups[example]]

    @property
    def _answers(self) -> Sequence[Any]:
        """Answers that any example may have: of scores the lowest and the highest; none where they have no end."""
        return self._metric.answers(self._facts) or (self.bounds if self.kind == (int, float) else ())

    def largest(self) -> float:
        """The largest influence, in size, of a right answer to an example, or where right answers have none, as all are
        right, of some wrong answers to each fact; 0 where answers are not known."""
        answers = self._answers

        def most(pairs: Iterable[tuple[Any, Any]]) -> float:
            sizes = (abs(self._influence(*pair) - self._shifts.get(pair[0], 0.0)) for pair in pairs)
            return max(sizes, default=0.0)

        right = most((fact, fact) for fact in self._shares.keys() & set(answers))
        of_each = MOST_PSEUDO // max(1, len(self._shares))
        return right if right > 1e-9 else most((fact, a) for fact in self._shares for a in answers[:of_each])

    def error(self, scores: Sequence[float], value: float) -> tuple[float, float]:
        """The centre, and the standard error about it, of an interval of the metric, by the scores of all examples.

        Each of the K groups that matter counts 2 / K answers of the highest and of the lowest score more, so that one
        that is all right is not taken for certain (R. Price and D. Bonett, "An improved confidence interval for a
        linear function of binomial proportions", Computational Statistics & Data Analysis 45, 2004). The error is
        infinite where a group has one example alone.
        """
        deviations = defaultdict[Any, list[float]](list)
        for score, group in zip(scores, self._groups, strict=True):
            deviations[group].append(score - value)
        answers, extremes = self._answers, dict[Any, tuple[float, float]]()
        for group, seen in deviations.items():  # least and largest score of an answer, less the mean of those seen
            named = [*answers[: MOST_PSEUDO // max(1, len(self._shares))], *([group] if group in answers else [])]
            told = [*seen, *(self._influence(group, each) - self._shifts.get(group, 0.0) for each in named)]
            extremes[group] = min(told), max(told)
        more, shift, variance = 2.0 / max(1, sum(map(any, extremes.values()))), 0.0, 0.0
        for group, seen in deviations.items():
            if len(seen) == 1:
                return value, math.inf
            ends, count = extremes[group], len(seen) + 2.0 * more
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
        counts = Counter(self._groups)
        shifts = (count * self._shifts.get(group, 0.0) ** 2 for group, count in counts.items())
        return math.sqrt(sum(shifts)) / len(self._groups)

    @property
    def centring(self) -> float:
        """How many times as far scores lie from those of new examples as from the means of groups that were taken away:
        no end of it where each is a group."""
        number, free = len(self._groups), len(self._groups) - len(set(self._groups))
        return math.sqrt(number / max(free, 1e-12))

    def weights(self, known: NDArray[np.bool_], examples: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each score of programs on these examples counts, ``[m, E]``, so that facts do in the shares that they
        have among all: 1 on the mean, but 0 of scores that are not known, and of facts without any."""
        of_group = self._of_group[examples]
        rates = known.sum(axis=1, keepdims=True) * self._group_shares
        return np.where(known, (rates / np.maximum(1, known @ of_group)) @ of_group.T, 0.0)

    def stratified(self, table: NDArray[np.float64], examples: NDArray[np.int64]) -> NDArray[np.float64]:
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

    def _value_of(self, rows: Sequence[tuple[Any, Any]], weights: NDArray[np.float64]) -> float:
        """The metric of facts and outputs with weights."""
        value = float(self._metric.value([fact for fact, _ in rows], [told for _, told in rows], weights.tolist()))
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

    def _merged(
        self, rows: Sequence[tuple[Any, Any]], counts: Sequence[float]
    ) -> tuple[list[tuple[Any, Any]], NDArray[np.float64]]:
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

    def _key(self, fact: Any, outputs: Any) -> tuple[Any, str]:
        """What identifies an answer."""
        return fact if self._metric.weighted else id(fact), json.dumps(outputs, sort_keys=True)
