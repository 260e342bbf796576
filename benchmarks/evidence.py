"""Repeat the figures of the docs that need no model, each beside the one in the docs: what `make evidence` runs.

python benchmarks/evidence.py                      # some compiles of each figure, 10 minutes on 2 cores
python benchmarks/evidence.py --only recorded --compiles 48

Each figure is made again from fewer compiles than the docs', and must agree with it within the noise of both, so that
one in 2,000 figures disagrees by chance. Recorded answers are those of `recorded/`, which `record.py` makes for any
model: a new file there whose name has a row in the tables is compared, too. The figures of docs/evidence.md that need a
model are in its tables called "Live"; each has its command and its time.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import calibration
import numpy as np
import pandas as pd
import sensitivity
import uneven
from command import DOCS, RECORDED, Mapper, head, options, processes, read_table, row
from landscapes import KINDS
from offline import measured
from scipy.stats import t

FILES = {"MR": "mr", "SUBJ": "subj", "AG News": "agnews"}
ROUNDING = 0.0006
LEVEL = 0.0005
"""Of Student's t, by which a figure disagrees."""


@dataclass(frozen=True)
class Figure:
    """A figure of the docs, and the same made again.

    Attributes:
        name: What it is of.
        cell: What the docs have, which begins with the figure; a percentage is a share.
        values: What was found, by compile; their mean is the figure.
        num_in_docs: Compiles that the figure of the docs is the mean of; 0 where these values are all of them.
    """

    name: str
    cell: str
    values: Sequence[float] | np.ndarray
    num_in_docs: int

    @property
    def stated(self) -> float:
        if self.cell.startswith("none"):
            return 0.0
        found = float(re.findall(r"[-+]?\d*\.?\d+", self.cell.replace(",", ""))[0])
        return found / 100 if re.match(r"[-+\d.]+ %", self.cell) else found

    @property
    def tolerance(self) -> float:
        """By how much docs and values may differ."""
        if not self.num_in_docs:
            return ROUNDING
        values = np.asarray(self.values, dtype=float)
        spread, freedom = values.std(ddof=1), len(values) - 1.0
        if set(values) <= {0.0, 1.0}:  # one compile of each kind more: none of eight may be one of twenty
            share = (values.sum() + 1) / (len(values) + 2)
            spread, freedom = np.sqrt(share * (1 - share)), np.inf
        error = spread * np.sqrt(1 / len(values) + 1 / self.num_in_docs)
        return float(t.ppf(1 - LEVEL / 2, freedom) * error) + ROUNDING


Figures = Iterator[Figure]


@dataclass(frozen=True)
class Compiles:
    """Compiles so many times, on all processes."""

    run: Mapper
    count: int

    def __call__(
        self, world: str | Path, method: str, first: int, *, demos: int = 0, pool: int = 0, best_of: int = 0
    ) -> pd.DataFrame:
        """What compiles in one world come to, from a first seed on."""
        shape = {"num_demos": demos, "num_pool": pool, "best_of": best_of}
        work = partial(measured, world=world, method=method, **shape)
        return pd.DataFrame(self.run(work, range(first, first + self.count)))

    def times(self, factor: float) -> Compiles:
        """More or fewer of them, but two at least."""
        return Compiles(self.run, max(2, int(self.count * factor)))


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def rows(text: str, first_column: str) -> Iterable[tuple[str, ...]]:
    """The rows of a table; where the first two cells are empty, they are those above."""
    frame = read_table(text, first_column)
    frame.iloc[:, :2] = frame.iloc[:, :2].replace("", pd.NA).ffill()
    return frame.itertuples(index=False, name=None)


def recorded(compiles: Compiles) -> Figures:
    """Searches by the limit on calls, on recorded answers."""
    for task, _, limit, *told in rows(page("evidence"), "task (best of all orders)"):
        task, calls = task.split(" (")[0], limit.replace(",", "")
        for method, cell in zip(("paper", "top-k", "halving", "light"), told, strict=False):
            found = compiles(RECORDED / f"{FILES[task]}.npz", f"{method}@{calls}", 20_000)
            yield Figure(f"{task}, {method}@{calls}", cell, found["held-out"], 48)


def best_of_five(compiles: Compiles) -> Figures:
    """Gains where the original order is the best of five."""
    pattern = r"`PLReorder` gain (.+?) on MR, (.+?) on\s+SUBJ and (.+?) on AG News"
    (gains,) = re.findall(pattern, page("evidence"), re.S)
    for cell, (task, file) in zip(gains, FILES.items(), strict=True):
        found = compiles(RECORDED / f"{file}.npz", "light@1000", 40_000, best_of=5)
        yield Figure(f"{task}, gain over the best of five", cell, found["held-out"] - found["original"], 100)


def log_probabilities(compiles: Compiles) -> Figures:
    """What they add, through the whole of DSPy."""
    places = {1: "score-dspy@250", 2: "logprobs-dspy@250", 6: "score-dspy@1000", 7: "logprobs-dspy@1000"}
    for cells in rows(page("evidence"), "task | 250 calls"):
        for place, method in places.items():
            found = compiles(RECORDED / f"{FILES[cells[0]]}.npz", method, 50_000)
            yield Figure(f"{cells[0]}, {method}", cells[place], found["held-out"], 48)


def calibrated(_: Compiles) -> Figures:
    """What calibration gives any order; all splits of the docs."""
    for task, *told in rows(page("evidence"), "recorded answers"):
        table, gold = calibration.recorded_answers(RECORDED / f"{FILES[task.split(',')[0]]}.npz")
        splits = pd.DataFrame([calibration.split(table, gold, seed) for seed in range(40)])
        for way, cell in zip(splits, told, strict=True):
            yield Figure(f"{task}, {way}", cell, splits[way], 0)


def landscapes(compiles: Compiles) -> Figures:
    """Simulated landscapes of five kinds at a tenth of the paper's calls."""
    for demos, *told in rows(page("evidence"), "demos | paper MLE"):
        for method, cell in zip(("paper", "top-k", "light@3640"), told, strict=False):
            some = compiles.times(1 / 4)
            found = [some(kind, method, 20_000, demos=int(demos), pool=200) for kind in KINDS]
            yield Figure(f"{demos} demos, {method}", cell, pd.concat(found)["held-out"], 240)


def claims(compiles: Compiles) -> Figures:
    """How often "better" is said where no order is better."""
    methods = {"scores": "light@1000", "log-probabilities": "logprobs@700", "`calibrate=True`": "calibrated@700"}
    for what, *told in rows(page("evidence"), "| 20 examples"):
        method = methods[what.split(",")[0]]
        for pool, cell in zip((20, 40, 200), told, strict=True):
            if cell:
                found = compiles.times(2)("own effects", method, 47_000, demos=8, pool=pool)
                claimed = found["better"].fillna(0.0)
                yield Figure(f"claims, {method}, {pool} examples", cell, claimed, 60)


def lone_original(compiles: Compiles) -> Figures:
    """How often a good original that nothing else tells of is replaced by something that is worse."""
    for limit, *told in rows(page("evidence"), "calls | scores"):
        for mode, cell in zip(("light", "logprobs", "calibrated"), told, strict=True):
            method = f"{mode}@{limit.replace(',', '')}"
            found = compiles.times(2)("lone original", method, 46_000, demos=8, pool=100)
            lost = found["original"] - found["held-out"] > 0.01
            yield Figure(f"lone original, {method}, lost", f"{int(cell.split(' of ')[0]) / 72}", lost, 72)


def order_sensitivity(compiles: Compiles) -> Figures:
    """How often the intervals of `order_sensitivity` hold, and how often it sees what is not there."""
    worlds = list(sensitivity.worlds())
    found = np.array(list(compiles.run(partial(sensitivity.results, tables=10), worlds)))
    null = found[[world.deviation == 0 for world in worlds], 2]
    pattern = r"held the truth in (\d+ %).+?that of the gain in (\d+ %).+?saw one in (\d+ %)"
    (told,) = re.findall(pattern, re.sub(r"\s+", " ", page("evidence")))
    names = ("the deviation held", "the gain held", "an effect seen without one")
    for name, cell, values in zip(names, told, (found[:, 0], found[:, 1], null), strict=True):
        yield Figure(f"order_sensitivity: {name}", cell, values, len(values))


def uneven_classes(compiles: Compiles) -> Figures:
    """F1 of what accuracy and F1 choose."""
    worlds = {"orders": "mixed", "demos": "classes", "nothing": "nothing"}
    for name, *told in rows(page("metrics"), "world, share of the label"):
        world, share = worlds[name.split()[0]], int(re.findall(r"(\d+) %", name)[0]) / 100
        work = [(world, seed, 400, share, 300, "logprobs") for seed in range(300, 300 + compiles.count)]
        found = pd.DataFrame(compiles.run(uneven.compiled, work))
        for column, cell in zip(("original", "accuracy", "F1"), told, strict=False):
            yield Figure(f"{name}, {column}", cell, found[column], 48)


def rare_labels(compiles: Compiles) -> Figures:
    """F1 of each way to spend calls, on recorded answers of which a label was made rare."""
    seeds = range(2, 2 + max(1, compiles.count // len(uneven.RARE)))
    found = pd.DataFrame(
        compiles.run(uneven.recorded, [(*task, seed, 70, 0.15, 300) for seed in seeds for task in uneven.RARE])
    )
    cells = (cell for _, cell, *_ in rows(page("metrics"), "| F1 | above"))
    for way, cell in zip(found, cells, strict=True):
        yield Figure(f"a rare label, {way}", cell, found[way], 48)


PARTS = {
    "calibration": calibrated,
    "recorded": recorded,
    "best_of_five": best_of_five,
    "log_probabilities": log_probabilities,
    "landscapes": landscapes,
    "claims": claims,
    "lone_original": lone_original,
    "sensitivity": order_sensitivity,
    "uneven": uneven_classes,
    "rare": rare_labels,
}


def main() -> int:
    args = options(__doc__ or "", among={"only": list(PARTS)}, only=list(PARTS), compiles=6, jobs=2)
    if args.compiles < 4:
        raise SystemExit("--compiles must be 4 at least: fewer say nothing of their own noise")
    logging.disable(logging.WARNING)
    wrong, total = 0, 0
    print(head("figure", "docs", "now", "may differ by", ""))
    with processes(args.jobs) as run:
        for part in args.only:
            began = time.perf_counter()
            for figure in PARTS[part](Compiles(run, args.compiles)):
                found = float(np.mean(figure.values))
                agrees = abs(figure.stated - found) <= figure.tolerance
                wrong, total = wrong + (not agrees), total + 1
                told = (f"{number:.3f}" for number in (figure.stated, found, figure.tolerance))
                print(row(figure.name, *told, "" if agrees else "DIFFERS"), flush=True)
            print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"\n{total - wrong} of {total} figures agree with the docs")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
