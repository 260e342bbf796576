"""What F1 chooses on uneven classes, against what accuracy chooses, where the truth is known.

python benchmarks/uneven.py                         # 50, 20, 10 and 5 % of one label, 300 and 1,000 calls, 48 worlds
python benchmarks/uneven.py --shares .1 --pools 100 --calls 300 --worlds mixed nothing --ways score --seeds 0 1 2 3

The worlds are those of `landscapes.py`, with so many examples of "label 1"; their answers come through DSPy, from a
simulated model. In "mixed" `PLReorder` orders 8 demos; in "classes", "items" and "nothing" (no arrangement is better
than another) `PLFewShot` chooses from 16. "Ways" are by scores, by log-probabilities, and with calibrate=True. Lines
have the F1 of "label 1" on held-out examples (2,000 or 1,000): of the original, of accuracy's choice, of F1's choice,
and how far this is above both; how often the report of F1's choice says "better" (p >= .9) and how often the program is
worse by more than a point then, and how often the F1 of the returned program lies in the interval that is expected.
"""

from __future__ import annotations

import itertools
import logging

import dspy
import numpy as np
import pandas as pd
import torch
from command import head, options, percent, processes, row, with_interval
from landscapes import ArrangementWorld, Landscape, SyntheticLandscape
from replay import metric, replayed_examples, replayed_program, replaying, shown_order
from sklearn.metrics import f1_score

from plr_dspy import F1, PLFewShot, PLReorder
from plr_dspy.report.text import MIN_WIN_PROBABILITY

LABELS = ("label 0", "label 1")
WAYS = {"score": {"signal": "score"}, "logprobs": {}, "calibrated": {"calibrate": True}}
FOUND = ("original", "accuracy", "F1", "promised", "claimed", "worse", "inside")


def world(name: str, seed: int, pool: int, share: float) -> Landscape:
    """A landscape with so many examples of the second label, among those that are known and among the others."""
    made: Landscape
    if name == "mixed":
        made = SyntheticLandscape(name, 8, seed, pool + 1_000)
    else:
        made = ArrangementWorld(name, 16, seed, pool + 2_000)
    rng = np.random.default_rng([seed, 5])
    known, others = np.zeros(pool, dtype=int), np.zeros(made.num_examples - pool, dtype=int)
    known[: round(share * pool)] = others[: round(share * len(others))] = 1
    made.example_classes = [*rng.permutation(known).tolist(), *rng.permutation(others).tolist()]
    return made


def held_out(program: dspy.Module, made: Landscape, pool: int) -> float:
    """The F1 of a program on the examples of a landscape after the first ones."""
    calibration = getattr(program, "calibration", None)
    offsets = np.zeros(2) if calibration is None else np.array(calibration.offsets)
    answers = (made.log_probabilities(shown_order(program)) + offsets).argmax(axis=1)
    return float(f1_score(made.right_labels[pool:], answers[pool:], zero_division=0.0))


def compiled(task: tuple[str, int, int, float, int, str]) -> dict[str, float]:
    """The held-out F1 of what each metric chooses in one world, and what the report of F1 says: see `FOUND`."""
    name, seed, pool, share, calls, way = task
    torch.set_num_threads(1)
    made = world(name, seed, pool, share)
    common = {"max_metric_calls": calls, "num_threads": 1, "seed": seed, "display_progress": False}
    with replaying(made, LABELS):
        student, examples = replayed_program(made, LABELS), replayed_examples(made, LABELS)[:pool]
        kind = PLReorder if name == "mixed" else PLFewShot
        if kind is PLFewShot:
            common["candidates"], student.demos = list(student.demos), []
        found = {"original": held_out(student, made, pool)}
        for by, objective in (("accuracy", metric), ("F1", F1("label 1"))):
            optimizer = kind(objective, **common, **WAYS[way])
            found[by] = held_out(optimizer.compile(student, trainset=examples), made, pool)
    comparison = optimizer.report.comparison
    if comparison is not None:
        low, high = comparison.expected_chosen[1:]
        claimed = comparison.probability >= MIN_WIN_PROBABILITY
        found |= {"claimed": claimed, "worse": claimed and found["F1"] < found["original"] - 0.01}
        found |= {"inside": low <= found["F1"] <= high, "promised": comparison.expected_gain}
    return found


def main() -> None:
    args = options(
        __doc__ or "",
        among={"worlds": ["mixed", "classes", "items", "nothing"], "ways": list(WAYS)},
        worlds=["mixed", "classes", "nothing"],
        shares=[0.5, 0.2, 0.1, 0.05],
        pools=[100, 400],
        calls=[300, 1_000],
        ways=list(WAYS),
        seeds=list(range(48)),
        jobs=1,
    )
    logging.disable(logging.WARNING)
    columns = ("original", "accuracy", "F1", "F1 less accuracy", "F1 less original", "promised")
    shape = "world, share, examples, calls, way"
    print(head(shape, *columns, "better", "worse then", "in the interval"), flush=True)
    with processes(args.jobs) as mapped:
        for name, share, pool, calls, way in itertools.product(
            args.worlds, args.shares, args.pools, args.calls, args.ways
        ):
            tasks = [(name, seed, pool, share, calls, way) for seed in args.seeds]
            found = pd.DataFrame(mapped(compiled, tasks), columns=FOUND, dtype=float)
            means = [f"{found[key].mean():.3f}" for key in ("original", "accuracy", "F1")]
            gains = [with_interval(found["F1"] - found[key]) for key in ("accuracy", "original")]
            said = [percent(found[key]) for key in ("claimed", "worse", "inside")]
            what = f"{name}, {share:g}, {pool}, {calls}, {way}"
            print(row(what, *means, *gains, f"{found['promised'].mean():+.3f}", *said), flush=True)


if __name__ == "__main__":
    main()
