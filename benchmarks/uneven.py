"""What F1 chooses on uneven classes, against what accuracy chooses, where the truth is known.

python benchmarks/uneven.py                         # 50, 20, 10 and 5 % of one label, 300 and 1,000 calls, 48 worlds
python benchmarks/uneven.py --shares .1 --pools 100 --calls 300 --worlds mixed nothing --ways score --seeds 0 1 2 3
python benchmarks/uneven.py --recorded --shares .15 --pools 70 --calls 300 --jobs 2   # answers of SmolLM2-135M
python benchmarks/uneven.py --live subj mr trec --data-dir DATA --shares .15 --pools 100 --calls 300 --seeds 0 1 2 3 4

The worlds are those of `landscapes.py`, with so many examples of "label 1"; their answers come through DSPy, from a
simulated model. In "mixed" `PLReorder` orders 8 demos; in "classes", "items" and "nothing" (no arrangement is better
than another) `PLFewShot` chooses from 16. "Ways" are by scores, by log-probabilities, and with calibrate=True. Lines
have the F1 of "label 1" on held-out examples (2,000 or 1,000): of the original, of accuracy's choice, of F1's choice,
and how far this is above both; how often the report of F1's choice says "better" (p >= .9) and how often the program is
worse by more than a point then, and how often the F1 of the returned program lies in the interval that is expected.

Recorded answers are those of `recorded/`: 5 demos, whose first order the seed decides, and each label in turn as the
rare one. The pool is drawn with the share; all other examples are held out, and weighted so that they have it, too.
Lines have the F1 of each way to spend the calls; `BatchCalibration` takes 64 or fewer.

Live, the local model or the one of `--model` answers; the seed decides which label is rare, the examples, and the
`--demos` of them that the original shows. `--test` others are held out, which have the same share. DSPy caches calls.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pandas as pd
import torch
from command import RECORDED, head, options, percent, processes, row, served, with_interval
from landscapes import ArrangementWorld, Landscape, RecordedLandscape, SyntheticLandscape
from replay import metric, replayed_examples, replayed_program, replaying, shown_order
from sklearn.metrics import f1_score

from paper.model import LOCAL
from paper.tasks import CLASSIFICATION
from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from quickstart import load_data

LABELS = ("label 0", "label 1")
WAYS = {"score": {"signal": "score"}, "logprobs": {}, "calibrated": {"calibrate": True}}
RARE = [(name, label) for name, number in (("mr", 2), ("subj", 2), ("agnews", 4)) for label in range(number)]
"""Recorded answers, and the label that is made rare."""

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


def held_out(program: dspy.Module, made: Landscape, examples: Sequence[int], rare: int, share: float) -> float:
    """The F1 of a label by a program on some examples of a landscape, of which the label has this share by weight."""
    calibration = getattr(program, "calibration", None)
    offsets = np.zeros(made.num_labels) if calibration is None else np.array(calibration.offsets)
    answers = (made.log_probabilities(shown_order(program)) + offsets).argmax(axis=1)[examples] == rare
    right = made.right_labels[examples] == rare
    weights = np.where(right, share / right.mean(), (1.0 - share) / (1.0 - right.mean()))
    return float(f1_score(right, answers, zero_division=0.0, sample_weight=weights))


def compiled(task: tuple[str, int, int, float, int, str]) -> dict[str, float]:
    """The held-out F1 of what each metric chooses in one world, and what the report of F1 says: see `FOUND`."""
    name, seed, pool, share, calls, way = task
    torch.set_num_threads(1)
    made = world(name, seed, pool, share)
    common = {"max_metric_calls": calls, "num_threads": 1, "seed": seed, "display_progress": False}
    others = range(pool, made.num_examples)
    with replaying(made, LABELS):
        student, examples = replayed_program(made, LABELS), replayed_examples(made, LABELS)[:pool]
        kind = PLReorder if name == "mixed" else PLFewShot
        if kind is PLFewShot:
            common["candidates"], student.demos = list(student.demos), []
        found = {"original": held_out(student, made, others, 1, share)}
        for by, objective in (("accuracy", metric), ("F1", F1("label 1"))):
            optimizer = kind(objective, **common, **WAYS[way])
            program = optimizer.compile(student, trainset=examples)
            found[by] = held_out(program, made, others, 1, share)
    comparison = optimizer.report.comparison
    if comparison is not None:
        low, high = comparison.expected_chosen[1:]
        claimed = comparison.probability >= MIN_WIN_PROBABILITY
        found |= {"claimed": claimed, "worse": claimed and found["F1"] < found["original"] - 0.01}
        found |= {"inside": low <= found["F1"] <= high, "promised": comparison.expected_gain}
    return found


def recorded(task: tuple[str, int, int, int, float, int]) -> dict[str, float]:
    """The held-out F1 of a label of recorded answers, made rare, by each way to spend the calls."""
    name, rare, seed, pool, share, calls = task
    torch.set_num_threads(1)
    made, rng = RecordedLandscape(RECORDED / f"{name}.npz", seed), np.random.default_rng(seed)
    is_rare = made.right_labels == rare
    own, others = np.flatnonzero(is_rare), np.flatnonzero(~is_rare)
    known = [*own[: round(share * pool)], *others[: pool - round(share * pool)]]
    rest = sorted({*range(made.num_examples)} - {*known})
    labels = [f"label {label}" for label in range(made.num_labels)]
    f1, common = F1(labels[rare]), {"num_threads": 1, "seed": seed, "display_progress": False}
    with replaying(made, labels):
        student, examples = replayed_program(made, labels), replayed_examples(made, labels)
        student.demos = [student.demos[demo] for demo in rng.permutation(made.num_demos)]
        trainset = [examples[example] for example in rng.permutation(known)]
        programs = compared(student, trainset, metric, f1, calls=calls, **common)
    return {way: held_out(program, made, rest, rare, share) for way, program in programs.items()}


def compared(
    student: dspy.Module, trainset: list[dspy.Example], accuracy: Any, f1: F1, *, calls: int, **common: Any
) -> dict[str, dspy.Module]:
    """The program as it is, and what each way to spend the calls makes of it."""

    def search(metric: Any, way: str) -> PLReorder:
        return PLReorder(metric, max_metric_calls=calls, **common, **WAYS[way])

    ways = {
        "PLReorder(accuracy)": search(accuracy, "logprobs"),
        "PLReorder(F1), by scores": search(f1, "score"),
        "PLReorder(F1)": search(f1, "logprobs"),
        "PLReorder(F1, calibrate=True)": search(f1, "calibrated"),
        "BatchCalibration()": BatchCalibration(**common),
        "BatchCalibration(metric=F1)": BatchCalibration(metric=f1, **common),
    }
    made = {way: each.compile(student.deepcopy(), trainset=trainset) for way, each in ways.items()}
    return {"original": student, **made}


def live(name: str, seed: int, pool: int, share: float, calls: int, args: Any) -> dict[str, float]:
    """The held-out F1 of a label, made rare, of a task with a model that answers now, by each way."""
    data, rng = load_data(name, args.data_dir), random.Random(seed)
    (field,) = data.task.signature.output_fields
    counts = Counter(each[field] for each in data.test)
    rare = rng.choice(sorted(label for label, count in counts.items() if count >= share * args.test))

    def drawn(examples: Sequence[dspy.Example], number: int) -> list[dspy.Example]:
        own = [each for each in examples if each[field] == rare]
        others = [each for each in examples if each[field] != rare]
        found = rng.sample(own, round(share * number)) + rng.sample(others, number - round(share * number))
        return rng.sample(found, number)

    trainset, test = drawn(data.train, pool), drawn(data.test, args.test)
    student = dspy.LabeledFewShot(k=args.demos).compile(
        dspy.Predict(data.task.signature), trainset=trainset, sample=False
    )
    common = {"num_threads": args.threads, "seed": seed, "display_progress": False}
    with served(args, data.task, cache=True):
        programs = compared(student, trainset, data.task.metric(), F1(rare), calls=calls, **common)
        limits = {"num_threads": args.threads, "display_progress": False}
        found = evaluate_programs(programs, F1(rare), test, **limits).programs
    scores = {way: each.score for way, each in found.items()}
    print(f"{name}, seed {seed}, {rare}:", {way: round(score, 3) for way, score in scores.items()}, flush=True)
    return scores


def print_ways(title: str, draws: Sequence[Mapping[str, float]]) -> None:
    """Print the mean F1 of each way over draws, and what it is above the original's and accuracy's."""
    found = pd.DataFrame(draws)
    print(f"\n{title}, {len(found)} draws\n")
    print(head("", "F1", "less the original's", "less PLReorder(accuracy)'s"))
    for way, values in found.items():
        others = (found["original"], found["PLReorder(accuracy)"])
        gains = [with_interval((values - other).to_numpy()) for other in others]
        print(row(way, f"{values.mean():.3f}", *gains), flush=True)


def main() -> None:
    args = options(
        __doc__ or "",
        among={"worlds": ["mixed", "classes", "items", "nothing"], "ways": list(WAYS), "live": list(CLASSIFICATION)},
        worlds=["mixed", "classes", "nothing"],
        recorded=False,
        live=[str],
        data_dir=Path,
        demos=8,
        test=300,
        model=LOCAL,
        api_base=[str],
        threads=2,
        shares=[0.5, 0.2, 0.1, 0.05],
        pools=[100, 400],
        calls=[300, 1_000],
        ways=list(WAYS),
        seeds=list(range(48)),
        jobs=1,
    )
    logging.disable(logging.WARNING)
    with processes(args.jobs) as mapped:
        if args.recorded or args.live:
            for shape in itertools.product(args.pools, args.shares, args.calls):
                title = f"{shape[0]} examples, {shape[1]:g} of them rare, {shape[2]} calls"
                of_all = []
                for task in args.live:
                    of_all += (of_each := [live(task, seed, *shape, args) for seed in args.seeds])
                    print_ways(f"{task}, {title}", of_each)
                if args.recorded:
                    of_all += mapped(recorded, [(*task, seed, *shape) for task in RARE for seed in args.seeds])
                print_ways(title, of_all)
            return
        columns = ("original", "accuracy", "F1", "F1 less accuracy", "F1 less original", "promised")
        print(head("world, share, examples, calls, way", *columns, "better", "worse then", "in the interval"))
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
