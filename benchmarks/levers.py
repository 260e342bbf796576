"""The gains on recorded answers from demos, from their choice and order, and from calibration.

python benchmarks/levers.py                                  # all records, in seconds, without a model
python benchmarks/levers.py --records benchmarks/recorded/chat/*.npz

Records come from `record_chat.py` or `record.py`. The latter records one set of demos in all orders. Records may be
unfinished. The 95% intervals are from a bootstrap over the examples. They hold only for the recorded sets of demos:
other sets may differ more.

best recorded      the random arrangement with the highest accuracy, measured on the same examples (biased upwards)
best on half       the best random arrangement on one half of the examples, measured on the other half
own opening        how often the model itself begins its reply in the adapter's format; accuracies are for replies
                   whose beginning is supplied
calibrated         batch calibration on one half of the examples, without labels, measured on the other half

The spread is the standard deviation of accuracies over sets of demos, and over orders of one set. "Seen" includes noise
from the choice of examples, but "true" does not. The noise is that of differences between arrangements, because all
arrangements share the examples.
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
    """The recorded answers of a model to the examples of a task.

    Attributes:
        prompt: Format of the prompts, `PLAIN` or `CHAT`.
        log_probabilities: Log-probabilities, normalized over labels, ``[arrangements, examples, labels]``.
        gold: Indices of the correct labels, ``[examples]``.
        is_own: Whether the model itself begins its reply as recorded, ``[arrangements, examples]``; None if unknown.
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
        """Whether each answer is correct, as 0 or 1, ``[arrangements, examples]``."""
        return (self.log_probabilities.argmax(axis=2) == self.gold).astype(float)

    @cached_property
    def is_right_calibrated(self) -> np.ndarray:
        """The share of splits in which each calibrated answer is correct, ``[arrangements, examples]``."""
        tables = self.log_probabilities
        shares = np.zeros(tables.shape[:2])
        for known, held_out in splits(len(self.gold)):
            for number, table in enumerate(tables):
                moved = table[held_out] + batch_offsets(table[known])
                shares[number, held_out] += moved.argmax(axis=1) == self.gold[held_out]
        return shares / NUM_SPLITS

    def of_kind(self, kind: str) -> list[int]:
        """Return the indices of the arrangements of a kind."""
        return [number for number, arrangement in enumerate(self.plan) if arrangement.kind == kind]

    @cached_property
    def sizes(self) -> dict[int, list[int]]:
        """The indices of the random arrangements, keyed by number of demos, with the largest number first."""
        sizes: dict[int, list[int]] = {}
        for number in self.of_kind(RANDOM):
            sizes.setdefault(len(self.plan[number].demos), []).append(number)
        return dict(sorted(sizes.items(), reverse=True))

    @property
    def largest(self) -> list[int]:
        """Indices of the random arrangements with the most demos."""
        return next(iter(self.sizes.values()))

    def sets(self) -> list[np.ndarray]:
        """Return the rows of `is_right` for the orders of each of the largest sets."""
        sets: dict[int, list[int]] = {}
        for number in self.largest:
            sets.setdefault(self.plan[number].set, []).append(number)
        return [self.is_right[numbers] for numbers in sets.values()]


def read(path: Path) -> Record:
    """Read a file that `record_chat.py` or `record.py` has written."""
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
    """Return the indices of arrangements and examples for which all answers are known.

    In an unfinished record, some arrangements may have fewer examples. The selected arrangements and
    examples have as many answers as possible.

    Args:
        is_known: Whether each answer is known, ``[arrangements, examples]``.
    """
    counts = is_known.sum(axis=1)
    num_examples = max(np.unique(counts), key=lambda count: count * (counts >= count).sum())
    arrangements = np.flatnonzero(counts >= num_examples)
    examples = np.flatnonzero(is_known[arrangements].all(axis=0))
    return arrangements, examples


def splits(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield random halves of the examples. Each pair of halves is yielded twice, in both orders."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_SPLITS):
        shuffled = rng.permutation(number)
        first, second = np.split(shuffled, [number // 2])
        yield first, second
        yield second, first


def best_on_half(is_right: np.ndarray) -> np.ndarray:
    """Return how often the best arrangement on one half is correct on each example of the other half."""
    shares = np.zeros(is_right.shape[1])
    for known, held_out in splits(is_right.shape[1]):
        best = is_right[:, known].mean(axis=1).argmax()
        shares[held_out] += is_right[best, held_out]
    return shares / NUM_SPLITS


@cache
def resamples(number: int) -> np.ndarray:
    """Return how often each example is in each bootstrap sample, ``[samples, examples]``."""
    counts = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), NUM_RESAMPLES)
    return counts.astype(float)


def with_interval(values: np.ndarray, *, sign: str = "") -> str:
    """Return the mean over examples as text, with a 95% interval."""
    means = resamples(len(values)) @ values / len(values)
    low, high = np.quantile(means, TAILS)
    return f"{values.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


@dataclass(frozen=True)
class Spread:
    """Variances of accuracies over sets or orders, for the recorded examples or for each bootstrap sample.

    Attributes:
        seen: Variance of the accuracies.
        noise: Expected variance from the choice of examples.
        true: Variance without the noise. It may be below 0 by chance.
    """

    seen: np.ndarray
    noise: np.ndarray
    true: np.ndarray


SpreadFunction = Callable[[Sequence[np.ndarray], np.ndarray], Spread | None]


def _seen_and_noise(scores: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance of the rows' mean scores and the part of the variance that is noise, ``[samples]``.

    Args:
        scores: Scores to compare, with a row for each order or set, ``[rows, examples]``.
        counts: How often each example is in each sample, ``[samples, examples]``.
    """
    num_examples = scores.shape[1]
    weights = counts.T / num_examples
    residuals = scores - scores.mean(axis=0)
    means = residuals @ weights
    seen = (means**2).sum(axis=0) / (len(scores) - 1)
    of_examples = (residuals**2 @ weights - means**2).sum(axis=0) / (len(scores) - 1)
    return seen, of_examples / (num_examples - 1)


def spread_over_orders(sets: Sequence[np.ndarray], counts: np.ndarray) -> Spread | None:
    """Return the mean spread over the orders of a set. Each set has scores ``[orders, examples]``."""
    parts = [_seen_and_noise(scores, counts) for scores in sets if len(scores) > 1]
    if not parts:
        return None
    seen, noise = np.mean(parts, axis=0)
    return Spread(seen, noise, seen - noise)


def spread_over_sets(sets: Sequence[np.ndarray], counts: np.ndarray) -> Spread | None:
    """Return the spread over sets, corrected for noise because each set has only a few orders."""
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
    """Return three table cells that describe a spread.

    "seen" and "true" are standard deviations, "true" with an interval. "noise" is the share of
    the seen variance that is due to noise.
    """
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
    # Bootstrap samples add noise to the variance, so shift their mean variance to the variance of the data.
    centered = of_resamples.true - of_resamples.true.mean() + true
    variances = [true, *np.quantile(centered, TAILS)]
    deviation, low, high = np.sqrt(np.maximum(0.0, variances))
    values = (
        f"{math.sqrt(seen):.3f}",
        f"{100 * noise_share:.0f}%",
        f"{deviation:.3f} [{low:.3f}, {high:.3f}]",
    )
    return dict(zip(cells, values, strict=True))


def levers(record: Record) -> dict[str, np.ndarray]:
    """Return each lever's share of correct answers to each example, ``[examples]``."""
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
    """Return the cells that identify a record."""
    return {"model": record.model, "prompt": record.prompt, "task": record.task}


def accuracies(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield a table row for each record, with the accuracy of each lever."""
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
    """Yield a table row for each record, with the gain of each lever over random demos."""
    for record in records:
        cells = {}
        shares = levers(record)
        for name in LEVERS:
            if name != BASE:
                cells[name] = with_interval(shares[name] - shares[BASE], sign="+") if name in shares else ""
        yield named(record) | cells


def spreads(records: Sequence[Record]) -> Iterator[dict[str, str]]:
    """Yield a table row for each record, with the spread over sets and over orders."""
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
            print(f"{path} has no random demos yet, and is omitted", file=sys.stderr)
    for title, table in (
        ("Accuracy", accuracies),
        (f"Gain over {BASE}", gains),
        ("Standard deviation", spreads),
    ):
        print(f"\n{title}\n")
        print_table(table(records))


if __name__ == "__main__":
    main()
