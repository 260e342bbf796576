"""Landscapes: whether a program is right on an example under an order of its demos, known without a model.

Synthetic ones are made of the kinds of effect that recorded answers of a real model show: a score of each
item, item by position, which demo follows which, and the sequence of labels. An order acts on an example
through a leaning towards one label, which helps the examples of that label and hurts the others, and through
a quality that helps all. On three two-class tasks of SmolLM2-135M the distance of the leaning from one half
is correlated by -.89 to -.99 with the accuracy of the order, so it is what counts most.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from scipy.special import log_softmax

from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.cells import Cell, CellKey
from plr_dspy.scoring.ledger import Ledger
from plr_dspy.search.space import Ordering

KINDS = ("item", "item by position", "adjacency", "labels", "mixed")
"""Of effects; the last has all of the others."""

TRIPLES = "triples"
"""A kind that the search has no model of: whether three items come in a certain order."""


OWN = "own effects"
"""A kind without classes: item by position, the last places weighing most, and each example with effects of its own."""


class Landscape(Protocol):
    """Answers to every example under every order of one list of demos; classes are right answers, None for none."""

    num_demos: int
    num_examples: int
    classes: list[int] | None
    example_classes: list[int] | None

    @property
    def label_scores(self) -> np.ndarray:
        """What each label scores on each example, ``[num_examples, L]``."""

    def log_probabilities(self, order: tuple[int, ...]) -> np.ndarray:
        """Of the labels on each example, ``[num_examples, L]``; the likeliest is the answer."""

    def answers(self, order: tuple[int, ...]) -> np.ndarray:
        """Whether each example is answered right: bool ``[num_examples]``."""


class TwoLabels(ABC):
    """The labels of a landscape that is made of the odds of the right answer: of each example one of two is right."""

    num_examples: int

    @abstractmethod
    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        """Log-odds of the right answer on each example, ``[num_examples]``."""

    @property
    def right_labels(self) -> np.ndarray:
        """The right one of each example, ``[num_examples]``."""
        return np.arange(self.num_examples) % 2

    @property
    def label_scores(self) -> np.ndarray:
        return np.eye(2)[self.right_labels]

    def log_probabilities(self, order: tuple[int, ...]) -> np.ndarray:
        odds = self.odds(order)
        right = -np.logaddexp(0.0, -odds)
        table = np.stack([right, right - odds], axis=1)
        return np.take_along_axis(table, np.stack([self.right_labels, 1 - self.right_labels], axis=1), axis=1)

    def answers(self, order: tuple[int, ...]) -> np.ndarray:
        return self.odds(order) > 0


class SyntheticLandscape(TwoLabels):
    """A random landscape.

    Args:
        kind: One of `KINDS`, or `TRIPLES`.
        num_demos: Demos, half of either label.
        seed: Of everything random.
        num_examples: Examples, half of either label.
    """

    LEANING, QUALITY, NOISE = 0.8, 0.3, 0.6
    """Standard deviations of an order's effect and of what order and example decide together, in logits.

    With a margin of N(.35, .9) these give orders a mean of .60 and a standard deviation of .09, and two
    orders disagree on 35 % of the examples: .46 to .68, .04 to .10, and 7 to 42 % in the recorded ones.
    """

    def __init__(self, kind: str, num_demos: int, seed: int, num_examples: int = 1_200) -> None:
        kinds_known = (*KINDS, TRIPLES)
        if kind not in kinds_known:
            raise ValueError(f"kind must be one of {kinds_known}; got {kind!r}")
        rng = np.random.default_rng([seed, num_demos, kinds_known.index(kind)])
        self.num_demos, self.num_examples, self._seed = num_demos, num_examples, seed
        self._labels = rng.permutation(np.arange(num_demos) % 2) * 2 - 1
        self.classes = [int(label) for label in self._labels]
        kinds = KINDS[:-1] if kind == "mixed" else (kind,)
        sample = np.array([rng.permutation(num_demos) for _ in range(1_000)])
        self._effects = {
            target: self._standardized([self._effect(kind, rng) for kind in kinds], sample)
            for target in ("leaning", "quality")
        }
        self._margin = rng.normal(0.35, 0.9, num_examples)
        self._label = rng.permutation(np.arange(num_examples) % 2) * 2 - 1
        self.example_classes = [int(label) for label in self._label]
        self._own = rng.normal(0.0, 0.35, (2, num_examples))
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def right_labels(self) -> np.ndarray:
        return (self._label + 1) // 2

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        if order not in self._known:
            orders = np.array([order])
            leaning, quality = (self._effects[target](orders)[0] for target in ("leaning", "quality"))
            noise = np.random.default_rng([self._seed, zlib.crc32(bytes(order))])
            logits = (
                self._margin
                + self.LEANING * (self._label + self._own[0]) * (leaning + 0.2)
                + self.QUALITY * (1 + self._own[1]) * quality
                + self.NOISE * noise.normal(size=self.num_examples)
            )
            self._known[order] = logits
        return self._known[order]

    def _effect(self, kind: str, rng: np.random.Generator):
        """A random function of orders ``[m, n]``, giving ``[m]``."""
        n = self.num_demos
        positions = np.linspace(-1.0, 1.0, n)
        if kind == "item":
            scores = rng.normal(size=n)
            return lambda orders: scores[orders] @ positions
        if kind == "item by position":
            table = rng.normal(size=(n, n)) * np.linspace(0.5, 1.5, n)
            return lambda orders: table[orders, np.arange(n)].sum(1)
        if kind == "adjacency":
            table = rng.normal(size=(n, n))
            return lambda orders: table[orders[:, :-1], orders[:, 1:]].sum(1)
        if kind == TRIPLES:
            triples = np.array([rng.permutation(n)[:3] for _ in range(4 * n)])
            signs = rng.normal(size=len(triples))

            def of_triples(orders: np.ndarray) -> np.ndarray:
                places = np.argsort(orders, axis=1)[:, triples]  # [m, triples, 3]
                ordered = (places[..., 0] < places[..., 1]) & (places[..., 1] < places[..., 2])
                return ordered @ signs

            return of_triples
        weights, recency = rng.normal(size=n), np.exp(-np.arange(n)[::-1] / 3.0)
        recent, changes, last = rng.normal(size=3)

        def of_labels(orders: np.ndarray) -> np.ndarray:
            labels = self._labels[orders]
            switches = (labels[:, 1:] != labels[:, :-1]).sum(1)
            return (
                labels @ (0.3 * weights + 1.5 * recent * recency)
                + 0.7 * changes * switches
                + last * labels[:, -1]
            )

        return of_labels

    @staticmethod
    def _standardized(effects, sample: np.ndarray):
        """Their sum, each scaled to unit variance over random orders, and the sum again."""
        moments = [(effect, (values := effect(sample)).mean(), values.std() + 1e-9) for effect in effects]

        def total(orders: np.ndarray) -> np.ndarray:
            parts = [(effect(orders) - mean) / deviation for effect, mean, deviation in moments]
            return np.sum(parts, axis=0) / np.sqrt(len(parts))

        return total


class OwnEffectsLandscape(TwoLabels):
    """What demo stands where helps or hurts each example by a table of its own, and all of them by a common one.

    Args:
        num_demos: Demos.
        seed: Of everything random.
        num_examples: Examples.
        common, own: Standard deviations of the two effects over orders, in logits. Without a common one no order is
            better than another on new examples, whatever it scores on those seen.
    """

    classes = example_classes = None

    def __init__(
        self,
        num_demos: int,
        seed: int,
        num_examples: int = 1_200,
        *,
        common: float = 0.0,
        own: float = 1.2,
    ) -> None:
        rng = np.random.default_rng([seed, num_demos, len(OWN)])
        self.num_demos, self.num_examples = num_demos, num_examples
        weights = np.linspace(0.2, 1.8, num_demos)
        scale = np.sqrt((weights**2).sum())
        self._common = common * rng.normal(size=(num_demos, num_demos)) * weights / scale
        self._own = own * rng.normal(size=(num_examples, num_demos, num_demos)) * weights / scale
        self._margin = rng.normal(0.35, 0.9, num_examples)
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        if order not in self._known:
            items, places = np.array(order), np.arange(self.num_demos)
            effects = self._common[items, places].sum() + self._own[:, items, places].sum(axis=1)
            self._known[order] = self._margin + effects
        return self._known[order]


class CoinLandscape(TwoLabels):
    """Every answer is a coin's: right with the same chance under every order on every example.

    Args:
        num_demos, seed, num_examples: As in `OwnEffectsLandscape`.
        chance: Of being right.
    """

    classes = example_classes = None

    def __init__(self, num_demos: int, seed: int, num_examples: int = 1_200, *, chance: float = 0.5) -> None:
        self.num_demos, self.num_examples = num_demos, num_examples
        self._seed, self._chance = seed, chance
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        if order not in self._known:
            rng = np.random.default_rng([self._seed, zlib.crc32(bytes(order))])
            self._known[order] = rng.logistic(
                np.log(self._chance / (1 - self._chance)), size=self.num_examples
            )
        return self._known[order]


class LeaningLandscape(TwoLabels):
    """Orders lean to a label by what demo stands where, and the model's odds have nothing to do with the right labels.

    Args:
        num_demos, seed, num_examples: As in `OwnEffectsLandscape`.
        noise: Standard deviation of what order and example decide together, in logits.
    """

    classes = None

    def __init__(self, num_demos: int, seed: int, num_examples: int = 1_200, *, noise: float = 0.3) -> None:
        rng = np.random.default_rng([seed, num_demos, 99])
        self.num_demos, self.num_examples, self._seed, self._noise = num_demos, num_examples, seed, noise
        self._leanings = rng.normal(size=(num_demos, num_demos)) / np.sqrt(num_demos)
        self._margin = rng.normal(size=num_examples)
        self.example_classes = [int(label) for label in self.right_labels]

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self._seed, zlib.crc32(bytes(order))])
        leaning = self._leanings[np.array(order), np.arange(self.num_demos)].sum()
        noise = self._noise * rng.normal(size=self.num_examples)
        return (2 * self.right_labels - 1) * (self._margin + leaning + noise)


class GoodOriginalLandscape(TwoLabels):
    """The original order is right on more examples than the others, which are all equally good.

    Args:
        num_demos, seed, num_examples: As in `OwnEffectsLandscape`.
        original, others: Chance that the original order, and that any other one, is right on an example.
    """

    classes = example_classes = None

    def __init__(
        self,
        num_demos: int,
        seed: int,
        num_examples: int = 1_200,
        *,
        original: float = 0.7,
        others: float = 0.6,
    ) -> None:
        self.num_demos, self.num_examples = num_demos, num_examples
        self._seed, self._chances = seed, (original, others)

    def odds(self, order: tuple[int, ...]) -> np.ndarray:
        chance = self._chances[order != tuple(range(self.num_demos))]
        rng = np.random.default_rng([self._seed, zlib.crc32(bytes(order))])
        return rng.logistic(np.log(chance / (1 - chance)), size=self.num_examples)


class NoisyLogitsLandscape:
    """Logits of three labels that say something of the right one, with noise of their own for every prompt.

    No order is better than another on new examples.

    Args:
        num_demos, seed, num_examples: As in `OwnEffectsLandscape`.
        noise: Standard deviation of what each order and example decide together, in logits of each label.
        own: The same, of what each example makes of which demo stands where, so that like orders share it.
    """

    classes = None

    def __init__(
        self, num_demos: int, seed: int, num_examples: int = 1_200, *, noise: float = 3.0, own: float = 0.0
    ) -> None:
        rng = np.random.default_rng([seed, num_demos, 77])
        self.num_demos, self.num_examples, self._seed, self._noise = num_demos, num_examples, seed, noise
        self.example_classes = (np.arange(num_examples) % 3).tolist()
        self.label_scores = np.eye(3)[self.example_classes]
        self._base = rng.normal(size=(num_examples, 3)) + self.label_scores
        shape = (num_demos, num_demos, num_examples, 3)
        self._own = own / np.sqrt(num_demos) * rng.normal(size=shape) if own else np.zeros((*shape[:2], 1, 1))
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def log_probabilities(self, order: tuple[int, ...]) -> np.ndarray:
        if order not in self._known:
            rng = np.random.default_rng([self._seed, zlib.crc32(bytes(order))])
            own = self._own[np.array(order), np.arange(self.num_demos)].sum(axis=0)
            noise = self._noise * rng.normal(size=self._base.shape)
            self._known[order] = log_softmax(self._base + own + noise, axis=1)
        return self._known[order]

    def answers(self, order: tuple[int, ...]) -> np.ndarray:
        right: np.ndarray = self.log_probabilities(order).argmax(axis=1) == self.example_classes
        return right


class LandscapePayer:
    """Answers the calls of a `CellScorer` from a landscape.

    Args:
        landscape: Knows the answers.
        max_calls: Limit of program calls; None for none.
    """

    def __init__(self, landscape: Landscape, max_calls: int | None = None) -> None:
        self.ledger = Ledger()
        self.budget = Budget(self.ledger, max_calls=max_calls)
        self._landscape = landscape

    def log_probabilities(self, ordering: Ordering, example: int) -> Sequence[float] | None:
        """Those of the labels, of a call that was paid for."""
        cell = self.ledger.cells.get((self.fingerprint(ordering), example))
        return None if cell is None else cell.label_logprobs

    def fingerprint(self, ordering: Ordering) -> str:
        return repr(ordering)

    def pay(self, keys: Sequence[CellKey], orderings: Mapping[str, Ordering]) -> None:
        told = {
            name: (self._landscape.answers(order), self._landscape.log_probabilities(order))
            for name, (order,) in orderings.items()
        }
        for name, example in keys:
            right, logprobs = (values[example] for values in told[name])
            self.ledger.add((name, example), Cell(float(right), label_logprobs=tuple(logprobs.tolist())), {})
