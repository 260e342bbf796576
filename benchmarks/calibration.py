"""The gain from calibration on recorded answers and in simulations.

python benchmarks/calibration.py --recorded benchmarks/recorded/*.npz
python benchmarks/calibration.py      # simulations, compared with dspy.experimental.ReAnchor

Half of the recorded examples are the pool, and the other half are held out. Each order is calibrated by its
mean label probabilities on the pool. "Best" is the order with the highest accuracy on the pool. The values
are means over 40 random splits.

Simulated models favor the last label by `--leans`, in log-odds. `--shares` is the share of inputs with the
first label. If it is 0, all labels are equally frequent. Calibrations are fitted to `--inputs` inputs and
scored on 500 other inputs, in 200 worlds.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from command import options, print_table
from dspy.experimental import Choice
from dspy.teleprompt.reanchor import calibrate as reanchor
from scipy.special import log_softmax, logsumexp

from plr_dspy.statistics.calibration import batch_offsets, calibrated, cross_validated, likely_shares

NUM_HELD_OUT = 500


def recorded_answers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probabilities ``[orders, examples, labels]`` and correct labels in a recording."""
    data = np.load(path)
    return log_softmax(data["logprobs"].astype(np.float64), axis=2), data["gold"]


def split(table: np.ndarray, gold: np.ndarray, seed: int) -> dict[str, float]:
    """Return held-out accuracies with and without calibration, and their standard deviations over orders.

    `table` has the log-probabilities ``[orders, examples, labels]``.
    """
    shuffled = np.random.default_rng(seed).permutation(len(gold))
    pool, held_out = np.split(shuffled, [len(gold) // 2])
    offsets = [batch_offsets(rows[pool]) for rows in table]
    calibrated_tables = [calibrated(rows, own) for rows, own in zip(table, offsets, strict=True)]
    is_right = table.argmax(axis=2) == gold
    is_right_calibrated = np.stack(calibrated_tables).argmax(axis=2) == gold
    # PDO minimizes the divergence of the mean probabilities from equal ones. Constant terms are omitted.
    unevenness = -logsumexp(table[:, pool], axis=1).sum(axis=1)
    by_pdo = unevenness.argmin()
    best = is_right[:, pool].mean(axis=1).argmax()
    best_calibrated = is_right_calibrated[:, pool].mean(axis=1).argmax()
    raw = is_right[:, held_out].mean(axis=1)
    after = is_right_calibrated[:, held_out].mean(axis=1)
    return {
        "random order": raw.mean(),
        "random, calibrated": after.mean(),
        "PDO": raw[by_pdo],
        "PDO, calibrated": after[by_pdo],
        "best": raw[best],
        "best calibrated": after[best_calibrated],
        "sd": raw.std(),
        "sd calibrated": after.std(),
    }


def reanchored(table: np.ndarray, right_labels: np.ndarray) -> np.ndarray:
    """Return the log-weights ``[labels]`` that `dspy.experimental.ReAnchor` fits to maximize accuracy."""
    names = [str(number) for number in range(table.shape[1])]
    probabilities = np.exp(table)
    predict = SimpleNamespace(fields={"label": {"weights": dict.fromkeys(names, 1.0)}})

    def score() -> list[float]:
        weights = np.array(list(predict.fields["label"]["weights"].values()))
        answers = (probabilities * weights).argmax(axis=1)
        return (answers == right_labels).astype(float).tolist()

    evidence = []
    for row in probabilities.tolist():
        evidence.append({"probabilities": dict(zip(names, row, strict=True))})
    kind = Choice[tuple((name, "") for name in names)]
    before = score()
    weights, fitted, *_ = reanchor._fit_weights(predict, "label", kind, evidence, score, before)
    selected, *_ = reanchor._select(before, [(fitted, (), None)])
    if selected is None:
        return np.zeros(len(names))
    return np.log([weights[name] for name in names])


def by_labels(table: np.ndarray, right_labels: np.ndarray) -> np.ndarray:
    """Return the offsets ``[labels]`` with the best cross-validated accuracy.

    Candidates are zero offsets, and the offsets of batch calibration to each of the likely label shares.
    """
    num_labels = table.shape[1]
    accuracy = (table.argmax(axis=1) == right_labels).mean()
    candidates = [(accuracy, np.zeros(num_labels))]
    counts = np.bincount(right_labels, minlength=num_labels)
    for shares in likely_shares(counts):
        accuracy = (cross_validated(table, shares) == right_labels).mean()
        candidates.append((accuracy, batch_offsets(table, prior=shares)))
    _, offsets = max(candidates, key=itemgetter(0))
    return offsets


def simulated(num_labels: int, share: float, lean: float, num_inputs: int, seed: int) -> dict[str, float]:
    """Return the accuracy of each method on held-out inputs.

    Each label's logits are normally distributed around its log share. A model that favors no label
    would return the true probabilities.
    """
    rng = np.random.default_rng(seed)
    share = share or 1 / num_labels
    shares = np.full(num_labels, (1.0 - share) / (num_labels - 1))
    shares[0] = share
    logits = 1.5 * rng.normal(size=(num_inputs + NUM_HELD_OUT, num_labels))
    truth = log_softmax(logits + np.log(shares), axis=1)
    right_labels = np.array([rng.choice(num_labels, p=row) for row in np.exp(truth)])
    is_last = np.arange(num_labels) == num_labels - 1
    table = log_softmax(truth + lean * is_last, axis=1)
    known, held_out = np.split(table, [num_inputs])
    known_labels, held_out_labels = np.split(right_labels, [num_inputs])
    tables = {
        "as it is": held_out,
        "labels decide": held_out + by_labels(known, known_labels),
        "batch": held_out + batch_offsets(known),
        "ReAnchor": held_out + reanchored(known, known_labels),
    }
    accuracies = {}
    for name, log_probabilities in tables.items():
        accuracies[name] = float((log_probabilities.argmax(axis=1) == held_out_labels).mean())
    return accuracies


def means(measure: Callable[[int], dict[str, float]], number: int) -> dict[str, str]:
    """Return the mean of each measured value over the first `number` seeds, formatted for the table."""
    frame = pd.DataFrame(measure(seed) for seed in range(number))
    return {name: f"{mean:.3f}" for name, mean in frame.mean().items()}


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row for each file of recorded answers, or for each simulated setting."""
    for path in args.recorded:
        table, gold = recorded_answers(path)
        yield {"recorded answers": path.stem} | means(partial(split, table, gold), 40)
    if args.recorded:
        return
    for world in itertools.product(args.labels, args.shares, args.leans, args.inputs):
        named = dict(zip(("labels", "share", "lean", "inputs"), world, strict=True))
        yield named | means(partial(simulated, *world), 200)


def main() -> None:
    args = options(
        __doc__, recorded=[Path], labels=[2, 4], shares=[0.0, 0.85], leans=[0.0, 2.0], inputs=[20, 64]
    )
    print_table(rows(args))


if __name__ == "__main__":
    main()
