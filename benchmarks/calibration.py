"""What calibration gives on recorded answers, and what is left for the order of the demos under it; and in simulations.

python benchmarks/calibration.py --recorded benchmarks/recorded/*.npz
python benchmarks/calibration.py      # simulated, beside dspy.experimental.ReAnchor

Of recorded answers half of the examples are the pool, the other half is held out. Each order is calibrated by the mean
probabilities of its labels on the pool; the best orders are those of the highest accuracy on it. Means are over 40
splits. Simulated models lean to the last label by so much in log-odds; one label is right for a share of the inputs, or
with 0 for as many as each other one. What is fitted to the first inputs is used on 500 others, in 200 worlds.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from command import options, print_table
from dspy.experimental import Choice
from dspy.teleprompt.reanchor import calibrate as reanchor
from scipy.special import log_softmax, logsumexp

from plr_dspy.labels.batch_calibration import fit_linear
from plr_dspy.statistics.calibration import batch_offsets, calibrated, cross_validated, likely_shares


def recorded_answers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities ``[orders, examples, L]`` of a file that `record.py` made, and the right labels."""
    data = np.load(path)
    return log_softmax(data["logprobs"].astype(np.float64), axis=2), data["gold"]


def split(table: np.ndarray, gold: np.ndarray, seed: int) -> dict[str, float]:
    """What one split into pool and held-out examples comes to, by log-probabilities ``[orders, examples, L]``."""
    shuffled = np.random.default_rng(seed).permutation(len(gold))
    pool, held = shuffled[: len(gold) // 2], shuffled[len(gold) // 2 :]
    offsets = np.stack([batch_offsets(rows[pool]) for rows in table])
    told = np.stack([calibrated(rows, own) for rows, own in zip(table, offsets, strict=True)])
    raw, moved = table.argmax(axis=2) == gold, told.argmax(axis=2) == gold
    uneven = -logsumexp(table[:, pool], axis=1).sum(axis=1)  # how far mean probabilities are from even ones
    return {
        "random order": raw[:, held].mean(),
        "random, calibrated": moved[:, held].mean(),
        "PDO": raw[uneven.argmin(), held].mean(),
        "PDO, calibrated": moved[uneven.argmin(), held].mean(),
        "best": raw[raw[:, pool].mean(axis=1).argmax(), held].mean(),
        "best calibrated": moved[moved[:, pool].mean(axis=1).argmax(), held].mean(),
        "sd": raw[:, held].mean(axis=1).std(),
        "sd calibrated": moved[:, held].mean(axis=1).std(),
    }


def reanchored(table: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Log-weights ``[L]`` that `dspy.experimental.ReAnchor` fits, by its own code, with accuracy as the metric."""
    names, probabilities = [str(i) for i in range(table.shape[1])], np.exp(table)
    predict = SimpleNamespace(fields={"label": {"weights": dict.fromkeys(names, 1.0)}})

    def score() -> list[float]:
        weights = np.array(list(predict.fields["label"]["weights"].values()))
        return ((probabilities * weights).argmax(axis=1) == right).astype(float).tolist()

    evidence = [{"probabilities": dict(zip(names, row.tolist(), strict=True))} for row in probabilities]
    before, kind = score(), Choice[tuple((name, "") for name in names)]
    weights, fitted, *_ = reanchor._fit_weights(predict, "label", kind, evidence, score, before)
    kept = reanchor._select(before, [(fitted, (), None)])[0] is not None
    return np.log([weights[name] for name in names]) if kept else np.zeros(len(names))


def by_labels(table: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Offsets ``[L]`` where labels decide: none, or to likely shares, whichever is best by cross-validation."""
    num_labels = table.shape[1]
    ways = [((table.argmax(axis=1) == right).mean(), np.zeros(num_labels))]
    for shares in likely_shares(np.bincount(right, minlength=num_labels)):
        ways.append(((cross_validated(table, shares) == right).mean(), batch_offsets(table, prior=shares)))
    return max(ways, key=itemgetter(0))[1]


def simulated(num_labels: int, share: float, lean: float, num_inputs: int, seed: int) -> dict[str, float]:
    """Accuracy on held-out inputs, by what was fitted to the first ones, of a model that leans to the last label.

    Without the lean its probabilities are right, and log-probabilities are normal before they are normalised, but for
    the share of the first label.
    """
    rng, share = np.random.default_rng(seed), share or 1 / num_labels
    shares = np.array([share, *[(1.0 - share) / (num_labels - 1)] * (num_labels - 1)])
    truth = log_softmax(1.5 * rng.normal(size=(num_inputs + 500, num_labels)) + np.log(shares), axis=1)
    right = np.array([rng.choice(num_labels, p=row) for row in np.exp(truth)])
    table = log_softmax(truth + lean * (np.arange(num_labels) == num_labels - 1), axis=1)
    known, answers, held = table[:num_inputs], right[:num_inputs], table[num_inputs:]
    scales, offsets = fit_linear(known, answers, seed=seed) or (1.0, 0.0)
    told = {
        "as it is": held,
        "labels decide": held + by_labels(known, answers),
        "batch": held + batch_offsets(known),
        "linear": held * scales + offsets,
        "ReAnchor": held + reanchored(known, answers),
    }
    return {name: float((rows.argmax(axis=1) == right[num_inputs:]).mean()) for name, rows in told.items()}


def means(draw: Callable[[int], dict[str, float]], number: int) -> dict[str, str]:
    """The means of so many draws."""
    return {name: f"{mean:.3f}" for name, mean in pd.DataFrame(map(draw, range(number))).mean().items()}


def rows(args: Any) -> Iterator[dict[str, Any]]:
    """Those of the table: a file of recorded answers each, or a kind of simulated world."""
    for path in args.recorded:
        yield {"recorded answers": path.stem} | means(partial(split, *recorded_answers(path)), 40)
    if not args.recorded:
        for world in itertools.product(args.labels, args.shares, args.leans, args.inputs):
            named = dict(zip(("labels", "share", "lean", "inputs"), world, strict=True))
            yield named | means(partial(simulated, *world), 200)


def main() -> None:
    given = {"labels": [2, 4], "shares": [0.0, 0.85], "leans": [0.0, 2.0], "inputs": [20, 64]}
    print_table(rows(options(__doc__, recorded=[Path], **given)))


if __name__ == "__main__":
    main()
