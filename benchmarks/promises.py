"""Whether a report keeps its word: what it expects of the student, the returned program and the gain, on other rows.

python benchmarks/promises.py --seeds 0 1 2 3 4 5 6 7 8 9

Each compile gets 100 of the bundled reviews, of which 20, 50 or 80 % are positive, and 250 calls of the local model,
with calibrate=True: PLReorder after LabeledFewShot for even seeds, PLFewShot from a student without demos for odd ones.
The reviews that are left are held out, and weighted to the same share of positive ones.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import dspy
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.held_out import HeldOut
from paper.tasks import TASKS
from plr_dspy import PlainTextAdapter, PLFewShot, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.local import local_lm

TASK = TASKS["mr"]
NUM_ROWS = 100


def promised_and_kept(positive: float, seed: int, args: argparse.Namespace) -> dict[str, tuple[float, ...]]:
    """What the report expects, with its interval, and what held-out reviews give."""
    rng = random.Random(seed)
    by_label: dict[str, list[dspy.Example]] = {}
    for review in rng.sample(rows := [*load_reviews("train"), *load_reviews("test")], len(rows)):
        by_label.setdefault(review.sentiment, []).append(review)
    shares = {"positive": positive, "negative": 1.0 - positive}
    trainset = [
        each for label, share in shares.items() for each in by_label[label][: round(share * NUM_ROWS)]
    ]
    held_out = [
        each for label, share in shares.items() for each in by_label[label][round(share * NUM_ROWS) :]
    ]
    held_out = rng.sample(held_out, args.test)
    weights = np.array([shares[each.sentiment] for each in held_out])
    for label in shares:
        chosen = np.array([each.sentiment == label for each in held_out])
        weights[chosen] /= chosen.sum()
    rng.shuffle(trainset)
    student: dspy.Module = dspy.Predict(TASK.signature)
    options = {"calibrate": True, "max_metric_calls": args.calls, "seed": seed, "num_threads": args.threads}
    optimizer = PLFewShot(TASK.metric(), max_demos=8, **options)
    if seed % 2 == 0:
        student = dspy.LabeledFewShot(k=8).compile(student, trainset=trainset)
        optimizer = PLReorder(TASK.metric(), **options)
    program = optimizer.compile(student, trainset=trainset)
    print(optimizer.report, flush=True)
    comparison = optimizer.report.comparison
    before, after = (
        float(
            weights
            @ HeldOut(each, metric=TASK.metric(), examples=held_out, num_threads=args.threads).scores()
        )
        for each in (student, program)
    )
    return {
        "student": (*comparison.expected_original, before),
        "returned": (*comparison.expected_chosen, after),
        "gain": (comparison.expected_gain, *comparison.gain_interval, after - before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.2, 0.5, 0.8], help="of positive reviews"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--calls", type=int, default=250)
    parser.add_argument("--test", type=int, default=200, help="held-out reviews")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, ...]]] = {}
    with local_lm() as lm, dspy.context(lm=lm, adapter=PlainTextAdapter()):
        for positive in args.shares:
            for seed in args.seeds:
                for name, row in promised_and_kept(positive, seed, args).items():
                    found.setdefault(name, []).append(row)
                    print(positive, seed, name, np.round(row, 3).tolist(), flush=True)
    print(
        "| | expected | held out | held out less expected | held out lies in the interval |\n|---|---|---|---|---|"
    )
    for name, rows in found.items():
        expected, low, high, true = np.array(rows).T
        inside = ((low <= true) & (true <= high)).sum()
        print(
            f"| {name} | {expected.mean():.3f} | {true.mean():.3f} | {(true - expected).mean():+.3f} | "
            f"{inside} of {len(rows)} |"
        )


if __name__ == "__main__":
    main()
