"""Compare what demos, their choice, their order and calibration are worth on recorded answers.

python benchmarks/levers.py                                  # all records, in seconds, without a model
python benchmarks/levers.py --records benchmarks/recorded/chat/*.npz

Records come from `record_chat.py`, or from `record.py`, which has one set of demos in all orders. Unfinished ones count
with what they have. Intervals are of 95 %, by bootstrap over the examples. They hold for the recorded sets of demos;
other sets may differ more.

best recorded      the random arrangement with the highest accuracy on the examples of the table: this flatters
best on half       the same, chosen on one half of the examples and measured on the other
own opening        how often the model itself begins its reply as the adapter's format does; where it does not, the
                   accuracies are those of a reply that is begun for it
calibrated         by batch calibration on one half, without labels, and measured on the other

The spread is the standard deviation of accuracies over sets of demos, and over orders of one set. "Seen" includes the
noise of the examples, "true" does not. The noise is that of differences between arrangements, which share their
examples.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from command import RECORDED, options, percent, print_table
from record_chat import NEAREST, NO_DEMOS, RANDOM, Arrangement, read_plan
from scipy.special import log_softmax

from plr_dspy.statistics.calibration import batch_offsets

NUM_SPLITS = 20
NUM_RESAMPLES = 2_000
TAILS = [0.025, 0.975]
PLAIN = "plain"
CHAT = "chat"
BASE = "random demos"
LEVERS = (
    NO_DEMOS,
    "2 random",
    "4 random",
    BASE,
    "best recorded",
    "best on half",
    NEAREST,
    f"{NO_DEMOS}, calibrated",
    f"{BASE}, calibrated",
    f"{NEAREST}, calibrated",
)


@dataclass(frozen=True)
class Record:
    """Recorded answers of a model to the examples of a task.

    Attributes:
        prompt: `PLAIN` or `CHAT`.
        log_probabilities: ``[A, N, L]``, normalised over the labels.
        gold: Numbers of the right labels, ``[N]``.
        is_own: Whether the model itself begins its reply as recorded, ``[A, N]``; None if unknown.
    """

    model: str
    task: str
    prompt: str
    plan: Sequence[Arrangement]
    log_probabilities: np.ndarray
    gold: np.ndarray
    is_own: np.ndarray | None = None

    @cached_property
    def is_right(self) -> np.ndarray:
        """Whether each arrangement answers each example right, ``[A, N]`` of 0 and 1."""
        return (self.log_probabilities.argmax(axis=2) == self.gold).astype(float)

    @cached_property
    def is_right_calibrated(self) -> np.ndarray:
        """Shares of the splits in which a calibrated answer is right, ``[A, N]``."""
        tables = self.log_probabilities
        shares = np.zeros(tables.shape[:2])
        for known, held_out in splits(len(self.gold)):
            for number, table in enumerate(tables):
                moved = table[held_out] + batch_offsets(table[known])
                shares[number, held_out] += moved.argmax(axis=1) == self.gold[held_out]
        return shares / NUM_SPLITS

    def of_kind(self, kind: str) -> list[int]:
        """Return the numbers of the arrangements of a kind."""
        return [number for number, arrangement in enumerate(self.plan) if arrangement.kind == kind]

    @cached_property
    def sizes(self) -> dict[int, list[int]]:
        """The random arrangements by their number of demos, the largest first."""
        sizes: dict[int, list[int]] = {}
        for number in self.of_kind(RANDOM):
            sizes.setdefault(len(self.plan[number].demos), []).append(number)
        return dict(sorted(sizes.items(), reverse=True))

    @property
    def largest(self) -> list[int]:
        """The random arrangements with the most demos."""
        return next(iter(self.sizes.values()))

    def sets(self) -> list[np.ndarray]:
        """Return `is_right` of the orders of each set with the most demos."""
        sets: dict[int, list[int]] = {}
        for number in self.largest:
            sets.setdefault(self.plan[number].set, []).append(number)
        return [self.is_right[numbers] for numbers in sets.values()]


def read(path: Path) -> Record:
    """Read a file of `record_chat.py` or `record.py`."""
    data = np.load(path)
    gold = data["gold"].astype(int)
    tables = data["logprobs"].astype(np.float64)
    about = json.loads(str(data["about"]))
    prompt = PLAIN
    if "kinds" in data:
        prompt = CHAT
        plan = read_plan(data)
    else:
        plan = [Arrangement(RANDOM, tuple(order), 0) for order in data["orders"].tolist()]
    arrangements, examples = known_part(~np.isnan(tables).any(axis=2))
    return Record(
        model=about["model"].split(",")[0],
        task=about["task"],
        prompt=prompt,
        plan=[plan[number] for number in arrangements],
        log_probabilities=log_softmax(tables[np.ix_(arrangements, examples)], axis=2),
        gold=gold[examples],
        is_own=data["is_own"][np.ix_(arrangements, examples)] if "is_own" in data else None,
    )


def known_part(is_known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrangements and the examples to compare, of ``[A, N]``: all answers of theirs are known.

    An unfinished record may have arrangements with fewer examples than others. Those that leave the most answers count.
    """
    counts = is_known.sum(axis=1)
    num_examples = max(np.unique(counts), key=lambda count: count * (counts >= count).sum())
    arrangements = np.flatnonzero(counts >= num_examples)
    examples = np.flatnonzero(is_known[arrangements].all(axis=0))
    return arrangements, examples


def splits(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of halves of the examples; each example is `NUM_SPLITS` times in the second."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_SPLITS):
        shuffled = rng.permutation(number)
        first, second = np.split(shuffled, [number // 2])
        yield first, second
        yield second, first


def best_on_half(is_right: np.ndarray) -> np.ndarray:
    """Return how often the arrangement that is best on one half is right on each example of the other, ``[N]``."""
    shares = np.zeros(is_right.shape[1])
    for known, held_out in splits(is_right.shape[1]):
        best = is_right[:, known].mean(axis=1).argmax()
        shares[held_out] += is_right[best, held_out]
    return shares / NUM_SPLITS


@cache
def resamples(number: int) -> np.ndarray:
    """Return how often each example is in each bootstrap sample, ``[B, N]``."""
    counts = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), NUM_RESAMPLES)
    return counts.astype(float)


def with_interval(values: np.ndarray, *, sign: str = "") -> str:
    """Return the mean over examples with its interval."""
    means = resamples(len(values)) @ values / len(values)
    low, high = np.quantile(means, TAILS)
    return f"{values.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


@dataclass(frozen=True)
class Spread:
    """Variances of accuracies, each for the sample or for a number of bootstrap samples.

    Attributes:
        seen: Variance of the accuracies.
        noise: Its part that comes from the choice of examples.
        true: The rest; below 0 by chance if the truth is about 0.
    """

    seen: np.ndarray
    noise: np.ndarray
    true: np.ndarray


SpreadFunction = Callable[[Sequence[np.ndarray], np.ndarray], Spread | None]


def _seen_and_noise(scores: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance of mean scores over rows and its part that is noise, both ``[B]``.

    Args:
        scores: ``[rows, N]``.
        counts: How often each example counts, ``[B, N]``.
    """
    num_examples = scores.shape[1]
    weights = counts.T / num_examples
    residuals = scores - scores.mean(axis=0)
    means = residuals @ weights
    seen = (means**2).sum(axis=0) / (len(scores) - 1)
    of_examples = (residuals**2 @ weights - means**2).sum(axis=0) / (len(scores) - 1)
    return seen, of_examples / (num_examples - 1)


def spread_over_orders(sets: Sequence[np.ndarray], counts: np.ndarray) -> Spread | None:
    """Return how far the orders of one set differ, on average over sets of scores ``[orders, N]``."""
    parts = [_seen_and_noise(scores, counts) for scores in sets if len(scores) > 1]
    if not parts:
        return None
    seen, noise = np.mean(parts, axis=0)
    return Spread(seen, noise, seen - noise)


def spread_over_sets(sets: Sequence[np.ndarray], counts: np.ndarray) -> Spread | None:
    """Return how far sets differ; what the order adds to the mean of a set's orders is taken off."""
    if len(sets) < 2:
        return None
    means = np.array([scores.mean(axis=0) for scores in sets])
    seen, noise = _seen_and_noise(means, counts)
    true = seen - noise
    orders = spread_over_orders(sets, counts)
    if orders is not None:
        true = true - orders.true * np.mean([1 / len(scores) for scores in sets])
    return Spread(seen, noise, true)


def spread_cells(name: str, sets: Sequence[np.ndarray], spread: SpreadFunction) -> dict[str, str]:
    """Return the standard deviations of a spread as cells."""
    cells = dict.fromkeys((f"{name}: seen", f"{name}: noise", f"{name}: true"), "")
    num_examples = sets[0].shape[1]
    of_sample = spread(sets, np.ones((1, num_examples)))
    of_resamples = spread(sets, resamples(num_examples))
    if of_sample is None or of_resamples is None:
        return cells
    seen = of_sample.seen.item()
    true = of_sample.true.item()
    noise_share = 1.0
    if seen:
        noise_share = min(1.0, of_sample.noise.item() / seen)
    # A bootstrap sample adds its own noise to the variance, so the mean of all is moved to that of the sample.
    centred = of_resamples.true - of_resamples.true.mean() + true
    variances = [true, *np.quantile(centred, TAILS)]
    deviation, low, high = np.sqrt(np.maximum(0.0, variances))
    values = (f"{math.sqrt(seen):.3f}", f"{100 * noise_share:.0f} %", f"{deviation:.3f} [{low:.3f}, {high:.3f}]")
    return dict(zip(cells, values, strict=True))


def levers(record: Record) -> dict[str, np.ndarray]:
    """Return the share of right answers to each example, ``[N]``, by lever."""
    right = record.is_right
    calibrated = record.is_right_calibrated
    random = right[record.of_kind(RANDOM)]
    shares = {}
    for number in record.of_kind(NO_DEMOS):
        shares[NO_DEMOS] = right[number]
        shares[f"{NO_DEMOS}, calibrated"] = calibrated[number]
    for size, numbers in record.sizes.items():
        shares[f"{size} random"] = right[numbers].mean(axis=0)
    shares[BASE] = right[record.largest].mean(axis=0)
    shares[f"{BASE}, calibrated"] = calibrated[record.largest].mean(axis=0)
    shares["best recorded"] = random[random.mean(axis=1).argmax()]
    shares["best on half"] = best_on_half(random)
    for number in record.of_kind(NEAREST):
        shares[NEAREST] = right[number]
        shares[f"{NEAREST}, calibrated"] = calibrated[number]
    return shares


def named(record: Record) -> dict[str, str]:
    """Return the first cells of a record's rows."""
    return {"model": record.model, "prompt": record.prompt, "task": record.task}


def accuracies(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the accuracy of each lever, by record."""
    for record in records:
        cells = {"examples": str(len(record.gold)), "arrangements": str(len(record.plan))}
        for kind, name in ((NO_DEMOS, "own opening, no demos"), (RANDOM, "own opening, demos")):
            is_own = [] if record.is_own is None else record.is_own[record.of_kind(kind)]
            cells[name] = percent(is_own) if len(is_own) else ""
        shares = levers(record)
        for name in LEVERS:
            cells[name] = with_interval(shares[name]) if name in shares else ""
        yield named(record) | cells


def gains(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the difference of each lever to random demos, by record."""
    for record in records:
        cells = {}
        shares = levers(record)
        for name in LEVERS:
            if name != BASE:
                cells[name] = with_interval(shares[name] - shares[BASE], sign="+") if name in shares else ""
        yield named(record) | cells


def spreads(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield the spread over sets and over orders, by record."""
    for record in records:
        sets = record.sets()
        cells = {"sets": str(len(sets)), "orders of one": str(max(map(len, sets)))}
        cells |= spread_cells("sets", sets, spread_over_sets)
        cells |= spread_cells("orders", sets, spread_over_orders)
        yield named(record) | cells


def main() -> None:
    paths = sorted(RECORDED.glob("*.npz")) + sorted(RECORDED.glob("chat/*.npz"))
    args = options(__doc__, records=[Path])
    records = []
    for path in args.records or paths:
        record = read(path)
        if record.sizes:
            records.append(record)
        else:
            print(f"{path} has no random demos yet, so it is left out", file=sys.stderr)
    for title, table in (("Accuracy", accuracies), (f"Gain over {BASE}", gains), ("Standard deviation", spreads)):
        print(f"\n{title}\n")
        print_table(table(records))


if __name__ == "__main__":
    main()
