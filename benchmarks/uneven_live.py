"""F1 on uneven classes with a real model: what is chosen by F1, by accuracy, and what calibration alone gives.

python benchmarks/uneven_live.py --data-dir DATA           # SUBJ, MR and TREC, 15 % of one label, 5 draws
python benchmarks/uneven_live.py --data-dir DATA --tasks subj --seeds 0 --calls 100 --test 60

Each seed draws `--pool` labelled and `--test` held-out examples of each task, both with the share `--share` of one
label, its "rare" one. "original" shows 8 of the labelled ones, as `LabeledFewShot` draws them. `PLReorder` puts these
in another order by accuracy, by F1 of the rare label, and by F1 with thresholds (calibrate=True), each by `--calls`;
`PLFewShot` chooses others by F1 with thresholds. `BatchCalibration` keeps the order, and decides by accuracy or by F1.
Lines have the held-out F1 of each, and how far it is above the original and above accuracy's choice, with intervals
over draws. Every program that is made is kept in `--out`, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import dspy
import pandas as pd
from command import head, options, row, served, with_interval

from paper.model import LOCAL
from plr_dspy import F1, BatchCalibration, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.runtime.files import write_atomically
from quickstart import Data, load_data

RARE = {"subj": "objective", "mr": "negative", "trec": "Location"}
"""The label of each task that is made rare."""

ORIGINAL, BY_ACCURACY = "original", "PLReorder by accuracy"


def draw(
    examples: list[dspy.Example], number: int, label: str, share: float, seed: int
) -> list[dspy.Example]:
    """So many examples, with so large a share of one label."""
    rng, num_rare = random.Random(seed), round(share * number)
    is_rare = [label in example.labels().values() for example in examples]
    kinds = [
        list(itertools.compress(examples, (rare == wanted for rare in is_rare))) for wanted in (True, False)
    ]
    drawn = [*rng.sample(kinds[0], num_rare), *rng.sample(kinds[1], number - num_rare)]
    return rng.sample(drawn, number)


def scores(data: Data, seed: int, args: Any, folder: Path) -> dict[str, float]:
    """The held-out F1 of each way, for one draw."""
    if (path := folder / "scores.json").exists():
        known: dict[str, float] = json.loads(path.read_text())
        return known
    label = RARE[data.task.name]
    labelled = draw(data.train, args.pool, label, args.share, seed)
    test = draw(data.test, args.test, label, args.share, seed)
    accuracy, f1 = data.task.metric(), F1(label)
    student = dspy.Predict(data.task.signature)
    original = dspy.LabeledFewShot(k=8).compile(student, trainset=labelled)
    common: dict[str, Any] = {"num_threads": args.threads, "seed": seed, "display_progress": False}
    calibrating = {"num_threads": args.threads, "seed": seed}

    def search(kind: Any, metric: Any, name: str, **more: Any) -> Any:
        return kind(metric, max_metric_calls=args.calls, log_dir=folder / name, **common, **more)

    ways = {
        BY_ACCURACY: search(PLReorder, accuracy, "accuracy"),
        "PLReorder by F1": search(PLReorder, f1, "f1"),
        "PLReorder by F1, calibrate=True": search(PLReorder, f1, "f1-calibrated", calibrate=True),
        "PLFewShot by F1, calibrate=True": search(PLFewShot, f1, "demos-calibrated", calibrate=True),
        "BatchCalibration()": BatchCalibration(**calibrating),
        "BatchCalibration(metric=F1)": BatchCalibration(metric=f1, **calibrating),
    }
    programs = {ORIGINAL: original}
    for name, optimizer in ways.items():
        programs[name] = optimizer.compile(original.deepcopy(), trainset=labelled)
    found = evaluate_programs(programs, f1, test, num_threads=args.threads, display_progress=False)
    told = {name: each.score for name, each in found.programs.items()}
    write_atomically(path, json.dumps(told, indent=2).encode())
    print(f"{data.task.name}, seed {seed}: {told}", flush=True)
    return told


def main() -> None:
    args = options(
        __doc__ or "",
        among={"tasks": list(RARE)},
        tasks=list(RARE),
        data_dir=Path,
        seeds=list(range(5)),
        share=0.15,
        calls=300,
        pool=108,
        test=300,
        model=LOCAL,
        api_base=[str],
        threads=2,
        out=Path("runs/uneven"),
    )
    found = []
    for seed, task in itertools.product(args.seeds, args.tasks):
        data = load_data(task, args.data_dir)
        with served(args, data.task, cache=True):
            folder = args.out / f"{task}-{args.share}-{args.calls}-{args.pool}-{args.test}" / f"seed{seed}"
            found.append({"task": task, **scores(data, seed, args, folder)})
    table = pd.DataFrame(found)
    ways = [name for name in table.columns if name != "task"]
    print(f"\nF1 of the rare label, {len(table)} draws, {args.test} held-out examples each\n")
    print(head("", *args.tasks, "all", "over the original", "over accuracy's choice"))
    for way in ways:
        means = [f"{table[table.task == task][way].mean():.3f}" for task in args.tasks]
        gains = [with_interval(table[way] - table[other]) for other in (ORIGINAL, BY_ACCURACY)]
        print(row(way, *means, f"{table[way].mean():.3f}", *gains))


if __name__ == "__main__":
    main()
