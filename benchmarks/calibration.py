"""What calibration gives on recorded answers, and what is left for the order of the demos under it.

python benchmarks/calibration.py DATA/mr_k5_seed1.npz DATA/subj_k5_seed1.npz --splits 40
python benchmarks/calibration.py --unbiased

Half of the examples are the pool, the other half is held out. Each order is calibrated by the mean probabilities of its
labels on the pool, which needs no label there. The best orders are those of the highest accuracy on the whole pool.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.special import log_softmax, logsumexp

from plr_dspy.statistics.calibration import (
    batch_offsets,
    brier_score,
    calibrated,
    expected_calibration_error,
)
from plr_dspy.statistics.comparisons import mean_interval


def split(table: np.ndarray, gold: np.ndarray, seed: int, batch: int | None) -> dict[str, float]:
    """What one split into pool and held-out examples comes to.

    Args:
        table: Log-probabilities of labels, ``[orders, examples, L]``.
        gold: The right labels, ``[examples]``.
        seed: Of the split.
        batch: Inputs of the pool that offsets are estimated from; None for all.
    """
    shuffled = np.random.default_rng(seed).permutation(len(gold))
    pool, held = shuffled[: len(gold) // 2], shuffled[len(gold) // 2 :]
    offsets = np.stack([batch_offsets(rows[pool[:batch]]) for rows in table])
    told = np.stack([calibrated(rows, own) for rows, own in zip(table, offsets, strict=True)])
    raw, moved = table.argmax(axis=2) == gold, told.argmax(axis=2) == gold
    right = np.eye(table.shape[2], dtype=bool)[gold[held]]
    uneven = -logsumexp(table[:, pool], axis=1).sum(
        axis=1
    )  # distance of mean probabilities from the same for all
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
    for name, rows in (("", table[:, held]), (" calibrated", told[:, held])):
        means[f"Brier{name}"] = np.mean([brier_score(row, right) for row in rows])
        means[f"ECE{name}"] = np.mean([expected_calibration_error(row, right) for row in rows])
    return {name: float(value) for name, value in means.items()}


def lost_without_need(num_labels: int, num_inputs: int, num_draws: int) -> float:
    """Points of accuracy that batch calibration costs a model whose probabilities are right and lean to no label.

    Log-probabilities are normal before they are normalised, and the right label is drawn from them; 500 inputs are
    held out.
    """
    lost = []
    for seed in range(num_draws):
        rng = np.random.default_rng(seed)
        table = log_softmax(1.5 * rng.normal(size=(num_inputs + 500, num_labels)), axis=1)
        right = np.array([rng.choice(num_labels, p=row) for row in np.exp(table)])[num_inputs:]
        held, offsets = table[num_inputs:], batch_offsets(table[:num_inputs])
        lost.append((held.argmax(axis=1) == right).mean() - ((held + offsets).argmax(axis=1) == right).mean())
    return 100.0 * float(np.mean(lost))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument(
        "--unbiased", action="store_true", help="what it costs a model that leans to no label"
    )
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--batch", type=int, help="inputs that offsets are estimated from; all without it")
    args = parser.parse_args()
    if args.unbiased:
        print("| labels | 10 inputs | 20 | 40 | 64 |\n|---|---|---|---|---|")
        for num_labels in (2, 4, 10):
            lost = [lost_without_need(num_labels, num_inputs, 200) for num_inputs in (10, 20, 40, 64)]
            print(f"| {num_labels} | {' | '.join(f'{points:.1f}' for points in lost)} |")
    for number, path in enumerate(args.files):
        data = np.load(path)
        table = log_softmax(data["logprobs"].astype(np.float64), axis=2)
        splits = [split(table, data["gold"], seed, args.batch) for seed in range(args.splits)]
        if not number:
            print(f"| recorded answers | {' | '.join(splits[0])} |\n|{'---|' * (len(splits[0]) + 1)}")
        means = [f"{np.mean([each[name] for each in splits]):.3f}" for name in splits[0]]
        print(f"| {path.stem} | {' | '.join(means)} |")
        for better, worse in (
            ("random, calibrated", "best"),
            ("best calibrated", "random, calibrated"),
            ("best calibrated", "best"),
        ):
            low, high = mean_interval([each[better] - each[worse] for each in splits])
            print(f"|  | {better} less {worse}: {(low + high) / 2:+.3f} [{low:+.3f}, {high:+.3f}] |")


if __name__ == "__main__":
    main()
