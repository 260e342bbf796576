"""What calibration gives on recorded answers, and what is left for the order of the demos under it.

python benchmarks/calibration.py --recorded DATA/mr_k5_seed1.npz DATA/subj_k5_seed1.npz --splits 40
python benchmarks/calibration.py --unbiased    # what it costs a model that leans to no label
python benchmarks/calibration.py --reanchor    # beside dspy.experimental.ReAnchor

Half of the examples are the pool, the other half is held out. Each order is calibrated by the mean probabilities of its
labels on the pool, which needs no label there. The best orders are those of the highest accuracy on the whole pool.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from command import head, options, row
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


def compared(num_labels: int, share: float, lean: float, num_inputs: int, seed: int) -> dict[str, float]:
    """Accuracy on held-out inputs of a world, by what was fitted to its first inputs."""
    table, right = leaning_world(num_labels, share, lean, num_inputs, seed)
    known, answers, held = table[:num_inputs], right[:num_inputs], table[num_inputs:]
    counts = np.bincount(answers, minlength=num_labels).astype(float)
    scales, offsets = fit_linear(known, answers, seed=seed) or (np.ones(num_labels), np.zeros(num_labels))
    right_is, rows = np.eye(num_labels)[answers], np.arange(num_inputs)
    ways = [(right_is[rows, known.argmax(axis=1)].mean(), np.zeros(num_labels))]
    for shares in likely_shares(counts):
        ways.append((right_is[rows, cross_validated(known, shares)].mean(), batch_offsets(known, prior=shares)))
    told = {
        "as it is": held,
        "labels decide": held + max(ways, key=lambda way: way[0])[1],
        "batch": held + batch_offsets(known),
        "linear": held * scales + offsets,
        "ReAnchor": held + reanchored(known, answers),
    }
    return {name: float((rows.argmax(axis=1) == right[num_inputs:]).mean()) for name, rows in told.items()}


def print_unbiased() -> None:
    """Print the accuracy that batch calibration costs a model whose probabilities are right and lean to no label."""
    sizes = (10, 20, 40, 64)
    print(head("labels", *(f"{size} inputs" for size in sizes)))
    for num_labels in (2, 4, 10):
        costs = []
        for size in sizes:
            lost = []
            for seed in range(200):
                table, right = leaning_world(num_labels, 1 / num_labels, 0.0, size, seed)
                held, calibrated = table[size:], table[size:] + batch_offsets(table[:size])
                before, after = (each.argmax(axis=1) == right[size:] for each in (held, calibrated))
                lost.append((before * 1.0 - after).mean())
            costs.append(f"{100 * np.mean(lost):.1f}")
        print(row(num_labels, *costs))


def print_reanchor() -> None:
    """Print the accuracy of each way to calibrate in simulated worlds."""
    for number, world in enumerate(product((2, 4), (None, 0.85), (0.0, 2.0), (20, 64))):
        num_labels, share, lean, num_inputs = world
        draws = [compared(num_labels, share or 1 / num_labels, lean, num_inputs, seed) for seed in range(200)]
        means = pd.DataFrame(draws).mean()
        if not number:
            print(head("labels", "shares", "lean", "examples", *means.index))
        shares = "even" if share is None else f"{share:.0%} one"
        told = (f"{mean:.3f}".lstrip("0") for mean in means)
        print(row(num_labels, shares, f"{lean:g}", num_inputs, *told), flush=True)


def print_recorded(paths: list[Path], num_splits: int) -> None:
    """Print what calibration gives on recorded answers."""
    for number, path in enumerate(paths):
        table, gold = recorded_answers(path)
        means = pd.DataFrame([split(table, gold, seed) for seed in range(num_splits)]).mean()
        if not number:
            print(head("recorded answers", *means.index))
        print(row(path.stem, *(f"{mean:.3f}" for mean in means)))


def main() -> None:
    args = options(__doc__ or "", recorded=[Path], splits=40, unbiased=False, reanchor=False)
    if args.unbiased:
        print_unbiased()
    if args.reanchor:
        print_reanchor()
    print_recorded(args.recorded, args.splits)


if __name__ == "__main__":
    main()
