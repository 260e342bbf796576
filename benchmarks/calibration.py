"""What calibration gives on recorded answers, and what is left for the order of the demos under it; and in simulations.

python benchmarks/calibration.py --recorded benchmarks/recorded/*.npz
python benchmarks/calibration.py      # simulated, beside dspy.experimental.ReAnchor
python benchmarks/calibration.py --labels 2 4 10 --shares 0 --leans 0 --inputs 10 20 40 64     # where there is no bias

Of recorded answers half of the examples are the pool, the other half is held out. Each order is calibrated by the mean
probabilities of its labels on the pool, which needs no label there. The best orders are those of the highest accuracy
on the whole pool. Means are over `--splits`.

Simulated models lean to the last label by so much in log-odds; one label is right for a share of the inputs, or with 0
for as many as each other one. What is fitted to the first inputs is used on 500 others. Means are over 200 worlds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
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
    # The distance of mean probabilities from the same for all.
    uneven = -logsumexp(table[:, pool], axis=1).sum(axis=1)
    means = {
        "random order": raw[:, held].mean(),
        "random, calibrated": moved[:, held].mean(),
        "PDO": raw[uneven.argmin(), held].mean(),
        "PDO, calibrated": moved[uneven.argmin(), held].mean(),
        "best": raw[raw[:, pool].mean(axis=1).argmax(), held].mean(),
        "best calibrated": moved[moved[:, pool].mean(axis=1).argmax(), held].mean(),
        "sd": raw[:, held].mean(axis=1).std(),
        "sd calibrated": moved[:, held].mean(axis=1).std(),
    }
    return {name: float(value) for name, value in means.items()}


def leaning_world(
    num_labels: int, share: float, lean: float, num_inputs: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities ``[num_inputs + 500, L]`` of a model that leans to the last label, and the right labels.

    Without the lean they are right: normal before they are normalised, but for the share of the first label.
    """
    rng = np.random.default_rng(seed)
    shares = np.array([share, *[(1.0 - share) / (num_labels - 1)] * (num_labels - 1)])
    truth = log_softmax(1.5 * rng.normal(size=(num_inputs + 500, num_labels)) + np.log(shares), axis=1)
    right = np.array([rng.choice(num_labels, p=row) for row in np.exp(truth)])
    return log_softmax(truth + lean * (np.arange(num_labels) == num_labels - 1), axis=1), right


def reanchored(table: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Log-weights ``[L]`` that `dspy.experimental.ReAnchor` fits, by its own code, with accuracy as the metric."""
    names = [str(i) for i in range(table.shape[1])]
    probabilities = np.exp(table)
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
    num_inputs, num_labels = table.shape
    counts, rows = np.bincount(right, minlength=num_labels).astype(float), np.arange(num_inputs)
    right_is = np.eye(num_labels)[right]
    ways = [(right_is[rows, table.argmax(axis=1)].mean(), np.zeros(num_labels))]
    for shares in likely_shares(counts):
        ways.append((right_is[rows, cross_validated(table, shares)].mean(), batch_offsets(table, prior=shares)))
    return max(ways, key=lambda way: way[0])[1]


def simulated(num_labels: int, share: float, lean: float, num_inputs: int, seed: int) -> dict[str, float]:
    """Accuracy on held-out inputs of a world, by what was fitted to its first inputs."""
    table, right = leaning_world(num_labels, share or 1 / num_labels, lean, num_inputs, seed)
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


def main() -> None:
    args = options(
        __doc__ or "", recorded=[Path], splits=40, labels=[2, 4], shares=[0.0, 0.85], leans=[0.0, 2.0], inputs=[20, 64]
    )
    worlds: dict[tuple[Any, ...], Callable[[int], dict[str, float]]] = {
        (path.stem,): partial(split, *recorded_answers(path)) for path in args.recorded
    }
    names, number = ["recorded answers"], args.splits
    if not args.recorded:
        names, number = ["labels", "share", "lean", "inputs"], 200
        worlds = {
            world: partial(simulated, *world)
            for world in itertools.product(args.labels, args.shares, args.leans, args.inputs)
        }
    means = ((*world, pd.DataFrame(map(draw, range(number))).mean()) for world, draw in worlds.items())
    first = next(means)
    print_table(
        [*names, *first[-1].index],
        ((*world, *(f"{mean:.3f}" for mean in found)) for *world, found in itertools.chain([first], means)),
    )


if __name__ == "__main__":
    main()
