"""Whether a report keeps its word: what it expects of the student, the returned program and the gain, on other rows.

python benchmarks/promises.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8

Each compile gets 80 of the bundled reviews, of which 20, 50 or 80 % are positive, and 250 calls with calibrate=True:
PLReorder after LabeledFewShot for even seeds, PLFewShot from a student without demos for odd ones. 300 other reviews
are held out, and weighted to the same share of positive ones.
"""

import argparse
import itertools
import random
from collections import Counter

import dspy
import numpy as np
from command import SERVED, options, print_table
from live import opened

from paper.held_out import HeldOut
from paper.tasks import TASKS
from plr_dspy import PLFewShot, PLReorder
from plr_dspy.data import load_reviews

TASK = TASKS["mr"]


def promised_and_kept(positive: float, seed: int, args: argparse.Namespace) -> list[tuple[float, ...]]:
    """What the report expects, with its interval, and what held-out reviews give."""
    rng = random.Random(seed)
    rows = [*load_reviews("train"), *load_reviews("test")]
    shuffled, shares = rng.sample(rows, len(rows)), {"positive": positive, "negative": 1.0 - positive}
    trainset, others = [], []
    for label, share in shares.items():
        of_label, number = [each for each in shuffled if each.sentiment == label], round(share * args.rows)
        trainset, others = trainset + of_label[:number], others + of_label[number:]
    held_out = rng.sample(others, args.test)
    rng.shuffle(trainset)
    counts = Counter(each.sentiment for each in held_out)
    weights = np.array([shares[each.sentiment] / counts[each.sentiment] for each in held_out])
    student = dspy.Predict(TASK.signature)
    common = {"calibrate": True, "max_metric_calls": args.calls, "seed": seed, "num_threads": args.threads}
    optimizer = PLFewShot(TASK.metric(), max_demos=8, **common)
    if seed % 2 == 0:
        student = dspy.LabeledFewShot(k=8).compile(student, trainset=trainset)
        optimizer = PLReorder(TASK.metric(), **common)
    program = optimizer.compile(student, trainset=trainset)
    print(optimizer.report, flush=True)
    scored = {"metric": TASK.metric(), "examples": held_out, "num_threads": args.threads}
    before, after = (float(weights @ HeldOut(each, **scored).scores()) for each in (student, program))
    told = optimizer.report.comparison
    gain = (told.expected_gain, *told.gain_interval, after - before)
    return [(*told.expected_original, before), (*told.expected_chosen, after), gain]


def main() -> None:
    given = {"shares": [0.2, 0.5, 0.8], "seeds": list(range(10)), "calls": 250, "rows": 80, "test": 300}
    args = options(__doc__, **given, **SERVED)
    with opened(args) as make_lm, dspy.context(lm=make_lm(TASK.max_tokens("plain")), adapter=TASK.adapter("plain")):
        found = [promised_and_kept(share, seed, args) for seed, share in itertools.product(args.seeds, args.shares)]
    rows, names = [], ("student", "returned", "gain")
    for name, (expected, low, high, true) in zip(names, np.array(found).transpose(1, 2, 0), strict=True):
        figures = {"expected": expected, "held out": true, "held out less expected": true - expected}
        means = {column: f"{values.mean():.3f}" for column, values in figures.items()}
        inside = f"{((low <= true) & (true <= high)).sum()} of {len(true)}"
        rows.append({"": name, **means, "held out lies in the interval": inside})
    print_table(rows)


if __name__ == "__main__":
    main()
