"""Landscapes: definitions of the answers to all examples for each order of the demos, without a model.

Synthetic landscapes combine effects that were seen in recorded answers of a real model: effects of each demo, of each
demo at each position, of adjacent demos, and of the sequence of labels. Each order has a leaning and a quality. The
leaning towards a label helps examples with this label, and hurts other examples. The quality helps all examples. The
leaning has the larger effect, as for SmolLM2-135M: on three two-class tasks, the correlation between the leaning and
the accuracy is -.89 to -.99.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

KINDS = (
    "item",
    "item by position",
    "adjacency",
    "labels",
    "mixed",
)  # kinds of effects; "mixed" combines all other kinds
Order = tuple[int, ...]
Effect = Callable[[np.ndarray], np.ndarray]  # a function from orders [orders, demos] to values [orders]


class Landscape:
    """The answers to every example for every order of the demos.

    Subclasses define the log-probabilities of labels or, with two labels, only the log-odds of the correct label.

    Attributes:
        num_held_out: Number of examples that a search does not see.
        max_shown: Maximum number of demos in a prompt if a search chooses demos. The original
            program then has no demos. None if prompts show all demos.
    """

    num_demos: int
    num_examples: int
    seed = 0
    num_labels = 2
    num_held_out = 1_000
    max_shown: int | None = None

    def odds(self, order: Order) -> np.ndarray:
        """Return the log-odds of the correct answer to each example, ``[num_examples]``."""
        raise NotImplementedError

    def log_probabilities(self, order: Order) -> np.ndarray:
        """Return the log-probabilities of labels, ``[num_examples, labels]``. The likeliest is the answer."""
        odds = self.odds(order)
        right = -np.logaddexp(0.0, -odds)
        of_right_and_wrong = np.stack([right, right - odds], axis=1)
        columns = np.stack([self.right_labels, 1 - self.right_labels], axis=1)
        return np.take_along_axis(of_right_and_wrong, columns, axis=1)

    @cached_property
    def classes(self) -> Sequence[int]:
        """The correct labels of the demos. By default, labels alternate."""
        return [i % self.num_labels for i in range(self.num_demos)]

    @cached_property
    def right_labels(self) -> np.ndarray:
        """The correct labels of the examples, ``[num_examples]``."""
        return np.arange(self.num_examples) % self.num_labels

    def of_call(self, order: Order, example: int) -> np.ndarray:
        """Return the log-probabilities of labels in one call, ``[labels]``."""
        return self.log_probabilities(order)[example]

    def text(self, example: int) -> str:
        """Return the input text of an example. It contains the example's index."""
        return f"example {example}"

    def answers(self, order: Order) -> np.ndarray:
        """Return whether each answer is correct, bool ``[num_examples]``."""
        return self.log_probabilities(order).argmax(axis=1) == self.right_labels

    def noise(self, order: Order) -> np.random.Generator:
        """Return a random generator seeded by the order, so that repeated calls get the same noise."""
        return np.random.default_rng([self.seed, zlib.crc32(bytes(order))])


class SyntheticLandscape(Landscape):
    """A random landscape with two labels. They are equally frequent among demos and among examples.

    `kind` is one of `KINDS`, or "triples". Triples are effects of the relative order of three demos.
    No search can model them. The mean accuracy of orders is .60, with a standard deviation of .09.
    Two orders disagree on 35% of the examples. In the recorded answers of a real model, the mean
    accuracy is .46 to .68, the standard deviation .04 to .10, and the disagreement 7 to 42%.
    """

    def __init__(self, kind: str, num_demos: int, seed: int, num_examples: int) -> None:
        rng = np.random.default_rng([seed, num_demos, (*KINDS, "triples").index(kind)])
        self.num_demos = num_demos
        self.num_examples = num_examples
        self.seed = seed
        self.classes = rng.permutation(np.arange(num_demos) % 2).tolist()
        self._signs = 2 * np.array(self.classes) - 1
        kinds = KINDS[:-1] if kind == "mixed" else (kind,)
        sample = np.array([rng.permutation(num_demos) for _ in range(1_000)])
        self._leanings = [_standardized(self._effect(name, rng), sample) for name in kinds]
        self._qualities = [_standardized(self._effect(name, rng), sample) for name in kinds]
        self._margin = rng.normal(0.35, 0.9, num_examples)
        self.right_labels = rng.permutation(np.arange(num_examples) % 2)
        self._own = rng.normal(0.0, 0.35, (2, num_examples))

    def odds(self, order: Order) -> np.ndarray:
        towards = 2 * self.right_labels - 1 + self._own[0]
        leaning = 0.8 * towards * (_sum(self._leanings, order) + 0.2)
        quality = 0.3 * (1 + self._own[1]) * _sum(self._qualities, order)
        noise = self.noise(order).normal(size=self.num_examples)
        return self._margin + leaning + quality + 0.6 * noise

    def _effect(self, kind: str, rng: np.random.Generator) -> Effect:
        """Draw a random effect of this kind."""
        n = self.num_demos
        if kind == "item":
            scores = rng.normal(size=n)
            return lambda orders: scores[orders] @ np.linspace(-1.0, 1.0, n)
        if kind == "item by position":
            table = rng.normal(size=(n, n)) * np.linspace(0.5, 1.5, n)
            return lambda orders: table[orders, np.arange(n)].sum(1)
        if kind == "adjacency":
            table = rng.normal(size=(n, n))
            return lambda orders: table[orders[:, :-1], orders[:, 1:]].sum(1)
        if kind == "triples":
            triples = np.array([rng.permutation(n)[:3] for _ in range(4 * n)])
            signs = rng.normal(size=len(triples))

            def of_triples(orders: np.ndarray) -> np.ndarray:
                places = np.argsort(orders, axis=1)[:, triples]  # [orders, triples, 3]
                return (np.diff(places) > 0).all(axis=2) @ signs

            return of_triples
        weights = rng.normal(size=n)
        recency = np.exp(-np.arange(n)[::-1] / 3.0)
        recent, changes, last = rng.normal(size=3)

        def of_labels(orders: np.ndarray) -> np.ndarray:
            labels = self._signs[orders]
            switches = (labels[:, 1:] != labels[:, :-1]).sum(1)
            by_place = labels @ (0.3 * weights + 1.5 * recent * recency)
            return by_place + 0.7 * changes * switches + last * labels[:, -1]

        return of_labels


def _sum(effects: Sequence[Effect], order: Order) -> float:
    """Return the sum of the effects of an order, scaled to unit variance."""
    values = [effect(np.array([order]))[0] for effect in effects]
    return np.sum(values) / np.sqrt(len(effects))


def _standardized(effect: Effect, sample: np.ndarray) -> Effect:
    """Return the effect after standardizing it over a sample of random orders."""
    values = effect(sample)
    mean = values.mean()
    deviation = values.std() + 1e-9
    return lambda orders: (effect(orders) - mean) / deviation


class OwnEffectsLandscape(Landscape):
    """A landscape in which each demo at each position has a common effect and an effect on each example.

    `common` and `own` are the standard deviations of these two effects over orders, in logits. If
    `common` is 0, all orders are equally good on new examples. If `leaning` is true, the common effect
    favors one label, whether it is correct or not.
    """

    def __init__(
        self,
        num_demos: int,
        seed: int,
        num_examples: int,
        common: float = 0.0,
        own: float = 1.2,
        leaning: bool = False,
    ) -> None:
        rng = np.random.default_rng([seed, num_demos, 11])
        self.num_demos = num_demos
        self.num_examples = num_examples
        weights = np.linspace(0.2, 1.8, num_demos)
        scale = np.sqrt((weights**2).sum())
        self._common = common * rng.normal(size=(num_demos, num_demos)) * weights / scale
        self._own = own * rng.normal(size=(num_examples, num_demos, num_demos)) * weights / scale
        self._margin = rng.normal(0.0 if leaning else 0.35, 0.9, num_examples)
        self._towards = np.ones(num_examples)
        if leaning:
            self._towards = 2 * self.right_labels - 1

    def odds(self, order: Order) -> np.ndarray:
        items = np.array(order)
        places = np.arange(self.num_demos)
        common = self._common[items, places].sum()
        own = self._own[:, items, places].sum(axis=1)
        return self._margin + common * self._towards + own


class CoinLandscape(Landscape):
    """A landscape of random answers, with one accuracy for the original order and one for the others."""

    def __init__(
        self, num_demos: int, seed: int, num_examples: int, of_original: float = 0.5, of_others: float = 0.5
    ) -> None:
        self.num_demos = num_demos
        self.num_examples = num_examples
        self.seed = seed
        self._of_original = of_original
        self._of_others = of_others

    def odds(self, order: Order) -> np.ndarray:
        chance = self._of_others
        if order == tuple(range(self.num_demos)):
            chance = self._of_original
        return self.noise(order).logistic(np.log(chance / (1 - chance)), size=self.num_examples)


class NoisyLogitsLandscape(Landscape):
    """A landscape with three labels and noisy logits, in which all orders are equally good on new examples.

    `noise` is the standard deviation of independent noise for each order and example. `own` is the
    standard deviation of the effects that each demo at each position has on each example.
    """

    num_labels = 3

    def __init__(
        self, num_demos: int, seed: int, num_examples: int, noise: float = 3.0, own: float = 0.0
    ) -> None:
        rng = np.random.default_rng([seed, num_demos, 77])
        self.num_demos = num_demos
        self.num_examples = num_examples
        self.seed = seed
        self._noise = noise
        self._base = rng.normal(size=(num_examples, 3)) + np.eye(3)[self.right_labels]
        self._own = np.zeros((num_demos, num_demos, 1, 1))
        if own:
            shape = (num_demos, num_demos, num_examples, 3)
            self._own = own / np.sqrt(num_demos) * rng.normal(size=shape)

    def log_probabilities(self, order: Order) -> np.ndarray:
        own = self._own[np.array(order), np.arange(self.num_demos)].sum(axis=0)
        noise = self._noise * self.noise(order).normal(size=self._base.shape)
        return log_softmax(self._base + own + noise, axis=1)


STRENGTHS = {
    "classes": (0.5, 0.2, 0.2, 0.0),
    "items": (0.15, 0.4, 0.2, 0.0),
    "nothing": (0.0, 0.0, 0.0, 0.0),
    "help": (0.05, 0.05, 0.0, -0.4),
    "harm": (0.0, 0.0, 0.0, 0.5),
    "cost": (0.0, 0.0, -0.2, 0.0),
}
"""Weights of leaning, demos' values and log number of demos, and the loss from any demos, keyed by kind."""


class ArrangementWorld(Landscape):
    """A landscape whose accuracy depends on which demos are shown, how many, and in what order.

    As in `SyntheticLandscape`, an arrangement has a quality and a leaning. The quality is a weighted
    sum of the demos' values, with larger weights towards the end. It also depends on the number of
    demos. The leaning is a constant of the model plus a sum over the demos' classes, with similar
    weights. The kind decides what matters most: "classes", as in recorded answers, or "items". In
    "nothing", all arrangements are equally good. In "help", all demos raise the accuracy by about the
    same amount, as on instruct models. In "harm", any demos lower the accuracy. In "cost", each
    additional demo lowers it.
    """

    num_held_out = 2_000
    max_shown = 8
    noise = 0.6  # standard deviation of an arrangement's effects on individual examples

    def __init__(self, kind: str, num_demos: int, seed: int, num_examples: int = 2_100) -> None:
        rng = np.random.default_rng([num_demos, seed])
        self.num_demos = num_demos
        self.num_examples = num_examples
        self.seed = seed
        self.classes = (rng.permutation(num_demos) % 2).tolist()
        self._strengths = STRENGTHS[kind]
        self._worth = rng.normal(size=num_demos)
        self._bias = rng.normal()
        self._easiness = rng.normal(0.2, 0.9, size=num_examples)

    def odds(self, order: Order) -> np.ndarray:
        rng = np.random.default_rng([self.seed, zlib.crc32(repr(list(order)).encode())])
        return self.expected_odds(order) + self.noise * rng.normal(size=self.num_examples)

    def expected_odds(self, order: Order) -> np.ndarray:
        """Return the log-odds without the arrangement's effects on individual examples."""
        items = list(order)
        lean, worth, more, harm = self._strengths
        nearness = 0.6 ** np.arange(len(items))[::-1]  # 1 for the last demo
        signs = np.array([2.0 * self.classes[item] - 1.0 for item in items])
        leaning = lean * (self._bias + float(nearness @ signs))
        quality = worth * float((0.2 + 0.8 * nearness) @ self._worth[items])
        quality += more * np.log1p(len(items))
        if items:
            quality -= harm
        return self._easiness + quality + leaning * (2.0 * self.right_labels - 1.0)


class RecordedLandscape(Landscape):
    """The recorded answers of a real model for every order. The seed shuffles the examples.

    The .npz file contains ``orders`` [orders, demos], ``logprobs`` [orders, examples, labels], ``gold`` [examples],
    ``labels`` [labels] and ``demo_labels`` [demos].
    """

    def __init__(self, path: Path, seed: int) -> None:
        data = np.load(path)
        shuffled = np.random.default_rng(seed).permutation(len(data["gold"]))
        tables = data["logprobs"].astype(np.float32)[:, shuffled]
        orders = map(tuple, data["orders"].tolist())
        self._tables = dict(zip(orders, tables, strict=True))
        self.right_labels = data["gold"][shuffled].astype(int)
        self.classes = data["demo_labels"].astype(int).tolist()
        self.num_labels = len(data["labels"])
        self.num_demos = data["orders"].shape[1]
        self.num_examples = len(shuffled)

    def log_probabilities(self, order: Order) -> np.ndarray:
        return self._tables[order]

    def best(self, examples: Sequence[int]) -> float:
        """Return the accuracy of the best order on these examples."""
        return max(float(self.answers(order)[list(examples)].mean()) for order in self._tables)


class Rearranged(Landscape):
    """A landscape with the demos, and optionally the examples, of another landscape in a new order."""

    def __init__(self, landscape: Landscape, demos: Sequence[int], examples: Sequence[int] = ()) -> None:
        self._landscape = landscape
        self._demos = tuple(demos)
        self._examples = list(examples) or list(range(landscape.num_examples))
        self.num_demos = landscape.num_demos
        self.num_examples = landscape.num_examples
        self.num_labels = landscape.num_labels
        self.right_labels = landscape.right_labels[self._examples]
        self.classes = [landscape.classes[demo] for demo in demos]

    def log_probabilities(self, order: Order) -> np.ndarray:
        original = tuple(self._demos[demo] for demo in order)
        return self._landscape.log_probabilities(original)[self._examples]


@dataclass(frozen=True)
class Likeness:
    """Strengths of the effects in a `LikenessLandscape`."""

    logits: float  # effect on the logit of a demo's label if the demo shares four words with the input
    agree: float = 0.9  # share of examples whose words indicate the label
    quality: float = 0.3  # standard deviation of the demos' qualities
    leaning: float = 0.3  # standard deviation of the demos' leanings
    noise: float = 1.0  # standard deviation of the noise in each call and label


LIKENESS = {
    "helps": Likeness(3.0),
    "hurts": Likeness(-3.0),
    "does not matter": Likeness(0.0, quality=0.5, leaning=0.5),
    "misleads": Likeness(3.0, agree=0.0, quality=0.5),
    "tells nothing": Likeness(0.0, quality=0.0, leaning=0.0, noise=2.0),
}


class LikenessLandscape(Landscape):
    """A landscape in which every example may be shown as a demo.

    Each demo has a quality and leanings towards labels. A demo also moves the answer towards its label,
    in proportion to the number of words that it shares with the input. Demos near the question have
    larger weights.
    """

    num_labels = 3
    num_held_out = 400
    max_shown = 8

    def __init__(self, kind: str, num_demos: int, seed: int, num_examples: int) -> None:
        self._likeness = LIKENESS[kind]
        rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
        topics = rng.integers(3, size=num_examples)
        agrees = rng.random(num_examples) < self._likeness.agree
        others = rng.integers(1, 3, size=num_examples)
        self.right_labels = np.where(agrees, topics, (topics + others) % 3)
        self.classes = []
        self._words = []
        for topic in topics:
            of_topic = {f"t{topic}w{word}" for word in rng.integers(25, size=4)}
            of_any = {f"w{word}" for word in rng.integers(99, size=4)}
            self._words.append(of_topic | of_any)
        self._qualities = self._likeness.quality * rng.normal(size=num_examples)
        self._leanings = self._likeness.leaning * rng.normal(size=(num_examples, 3))
        self._easiness = rng.normal(size=num_examples)
        self.num_demos = num_examples
        self.num_examples = num_examples
        self.seed = seed

    def text(self, example: int) -> str:
        return f"n{example} {' '.join(sorted(self._words[example]))}"

    def of_call(self, order: Order, example: int) -> np.ndarray:
        right = self.right_labels[example]
        rng = np.random.default_rng([self.seed, example, zlib.crc32(repr(list(order)).encode())])
        logits = self._likeness.noise * rng.normal(size=3)
        logits[right] += 0.5 + self._easiness[example]
        for place, demo in enumerate(reversed(order)):
            weight = 0.8**place
            logits += weight * self._leanings[demo]
            logits[right] += weight * self._qualities[demo]
            num_shared = len(self._words[example] & self._words[demo])
            logits[self.right_labels[demo]] += weight * self._likeness.logits / 4 * num_shared
        return log_softmax(logits)

    def log_probabilities(self, order: Order) -> np.ndarray:
        return np.stack([self.of_call(order, example) for example in range(self.num_examples)])


WORLDS: dict[str, Callable[[int, int, int], Landscape]] = {
    **{kind: partial(SyntheticLandscape, kind) for kind in (*KINDS, "triples")},
    "own effects": OwnEffectsLandscape,
    "coins": CoinLandscape,
    "noise 3": NoisyLogitsLandscape,
    "own noise 3": partial(NoisyLogitsLandscape, noise=1.0, own=3.0),
    "lone original": partial(CoinLandscape, of_original=0.7, of_others=0.6),
    **{kind: partial(ArrangementWorld, kind) for kind in STRENGTHS},
    **{f"likeness {kind}": partial(LikenessLandscape, kind) for kind in LIKENESS},
}
"""Functions that make a synthetic landscape from the number of demos, the seed and the number of examples."""
