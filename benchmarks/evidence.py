"""Repeat the figures of the docs that need no model, each beside the one in the docs: what `make evidence` runs.

python benchmarks/evidence.py                      # some compiles of each figure, 10 minutes on 2 cores
python benchmarks/evidence.py --only recorded --compiles 48

Each figure is made again from fewer compiles than the docs', and must agree with it within the noise of both: Student's
t at `--level`, so that one in so many figures disagrees by chance. Recorded answers are those of `recorded/`, which
`record.py` makes for any model: a new file there whose name has a row in the tables is compared, too. The figures of
docs/evidence.md that need a model are in its tables called "Live"; each has its command and its time.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import calibration
import numpy as np
import sensitivity
import uneven
from command import DOCS, RECORDED, head, options, processes, read_table, row
from landscapes import KINDS
from offline import CLAIMED, HELD_OUT, ORIGINAL, numbers
from scipy.special import log_softmax
from scipy.stats import t

FILES = {"MR": "mr", "SUBJ": "subj", "AG News": "agnews"}
ROUNDING = 0.0006
NUMBER = re.compile(r"[-+]?\d*\.?\d+")
Check = tuple[str, float, float, float]
"""What a figure is of, what the docs have, what was found, and by how much they may differ."""


def stated(cell: str) -> float:
    """The first number of a cell; a percentage is a share."""
    if cell.startswith("none"):
        return 0.0
    found = float(NUMBER.findall(cell.replace(",", ""))[0])
    return found / 100 if re.match(r"[-+\d.]+ %", cell) else found


def check(name: str, cell: str, values: Sequence[float], in_docs: int, level: float) -> Check:
    """Hold the mean of values against a cell of the docs that is the mean of so many."""
    sample, told = np.array(values, dtype=float), stated(cell)
    spread = sample.std(ddof=1)
    freedom = len(sample) - 1.0
    if set(sample) <= {0.0, 1.0}:  # one compile of each kind more: none of eight may be one of twenty
        share = (sample.sum() + 1) / (len(sample) + 2)
        spread, freedom = np.sqrt(share * (1 - share)), np.inf
    error = spread * np.sqrt(1 / len(sample) + 1 / in_docs)
    return name, told, float(sample.mean()), float(t.ppf(1 - level / 2, freedom) * error) + ROUNDING


class Evidence:
    """Makes figures again."""

    def __init__(self, args: Namespace, run: Callable[..., Any]) -> None:
        self.count, self.level, self._run = args.compiles, args.level, run
        self.evidence, self.metrics = (
            (DOCS / f"{page}.md").read_text("utf-8") for page in ("evidence", "metrics")
        )

    def compiles(
        self,
        world: str | Path,
        method: str,
        first: int,
        *,
        demos: int = 0,
        pool: int = 0,
        best_of: int = 0,
        count: int = 0,
    ) -> np.ndarray:
        """What compiles in one world come to, ``[compiles, 8]``, as `offline.numbers` has it."""
        shape = {"num_demos": demos, "num_pool": pool, "best_of": best_of}
        work = partial(numbers, world=world, method=method, **shape)
        return np.array(list(self._run(work, range(first, first + (count or self.count)))), dtype=float)

    def rows(self, first_column: str, text: str | None = None) -> Iterator[dict[str, str]]:
        """The rows of a table by their columns; empty first cells are those above."""
        above = ["", ""]
        for cells in read_table(text or self.evidence, first_column).itertuples(index=False):
            above = [cell or before for cell, before in zip(cells[:2], above, strict=True)]
            yield dict(
                zip(
                    read_table(text or self.evidence, first_column).columns, [*above, *cells[2:]], strict=True
                )
            )

    def recorded(self) -> Iterator[Check]:
        """Searches by the limit on calls, on recorded answers."""
        names = {
            "paper MLE": "paper",
            "Top-K": "top-k",
            "halving of all orders": "halving",
            "`PLReorder`": "light",
        }
        for cells in self.rows("task (best of all orders)"):
            task = cells["task (best of all orders)"].split(" (")[0]
            for column, method in names.items():
                limit = cells["limit"].replace(",", "")
                found = self.compiles(RECORDED / f"{FILES[task]}.npz", f"{method}@{limit}", 20_000)
                yield check(
                    f"{task}, {limit} calls, {column}", cells[column], found[:, HELD_OUT], 48, self.level
                )

    def best_of_five(self) -> Iterator[Check]:
        """Gains where the original order is the best of five."""
        gains = re.search(
            r"`PLReorder` gain (.+?) on MR, (.+?) on\s+SUBJ and (.+?) on AG News", self.evidence, re.S
        )
        for cell, (task, file) in zip(gains.groups() if gains else (), FILES.items(), strict=True):
            found = self.compiles(RECORDED / f"{file}.npz", "light@1000", 40_000, best_of=5)
            values = found[:, HELD_OUT] - found[:, ORIGINAL]
            yield check(f"{task}, gain over the best of five", cell, values, 100, self.level)

    def log_probabilities(self) -> Iterator[Check]:
        """What they add, through the whole of DSPy."""
        for cells in self.rows("task | 250 calls"):
            for place, method in (
                (1, "score-dspy@250"),
                (2, "logprobs-dspy@250"),
                (6, "score-dspy@1000"),
                (7, "logprobs-dspy@1000"),
            ):
                values = list(cells.values())
                found = self.compiles(RECORDED / f"{FILES[values[0]]}.npz", method, 50_000)
                yield check(f"{values[0]}, {method}", values[place], found[:, HELD_OUT], 48, self.level)

    def calibration(self) -> Iterator[Check]:
        """What calibration gives any order; all splits of the docs."""
        ways = [
            "random order",
            "random, calibrated",
            "PDO",
            "PDO, calibrated",
            "best",
            "best calibrated",
            "sd",
            "sd calibrated",
        ]
        for cells in self.rows("recorded answers"):
            task, *told = cells.values()
            data = np.load(RECORDED / f"{FILES[task.split(',')[0]]}.npz")
            logs = log_softmax(data["logprobs"].astype(np.float64), axis=2)
            splits = [calibration.split(logs, data["gold"], seed) for seed in range(40)]
            for way, cell in zip(ways, told, strict=True):
                yield f"{task}, {way}", stated(cell), float(np.mean([each[way] for each in splits])), ROUNDING

    def landscapes(self) -> Iterator[Check]:
        """Simulated landscapes of five kinds at a tenth of the paper's calls."""
        methods = {1: "paper", 2: "top-k", 3: "light@3640"}
        for cells in self.rows("demos | paper MLE"):
            demos, *told = cells.values()
            for place, method in methods.items():
                found = [
                    self.compiles(
                        kind, method, 20_000, demos=int(demos), pool=200, count=max(2, self.count // 4)
                    )
                    for kind in KINDS
                ]
                values = np.concatenate(found)[:, HELD_OUT]
                yield check(f"{demos} demos, {method}", told[place - 1], values, 240, self.level)

    def claims(self) -> Iterator[Check]:
        """How often "better" is said where no order is better."""
        methods = {"scores": ("light@1000", 46_000, 100), "log-probabilities": ("logprobs@700", 46_000, 40)}
        methods["`calibrate=True`"] = ("calibrated@700", 46_000, 40)
        for cells in self.rows("| 20 examples"):
            what, *told = cells.values()
            method, first, in_docs = methods[what.split(",")[0]]
            for pool, cell in zip((20, 40, 200), told, strict=True):
                if cell:
                    found = self.compiles(
                        "own effects", method, first, demos=8, pool=pool, count=2 * self.count
                    )[:, CLAIMED]
                    yield check(
                        f"claims, {method}, {pool} examples", cell, np.nan_to_num(found), in_docs, self.level
                    )

    def lone_original(self) -> Iterator[Check]:
        """How often a good original that nothing else tells of is replaced by something that is worse."""
        for cells in self.rows("calls | scores"):
            limit, *told = cells.values()
            for mode, cell in zip(("light", "logprobs", "calibrated"), told, strict=True):
                method = f"{mode}@{limit.replace(',', '')}"
                found = self.compiles(
                    "lone original", method, 46_000, demos=8, pool=100, count=2 * self.count
                )
                lost = found[:, ORIGINAL] - found[:, HELD_OUT] > 0.01
                share = f"{int(cell.split(' of ')[0]) / 72}"
                yield check(f"lone original, {method}, lost", share, lost, 72, self.level)

    def sensitivity(self) -> Iterator[Check]:
        """How often the intervals of `order_sensitivity` hold, and how often it sees what is not there."""
        worlds = list(sensitivity.worlds())
        found = np.array(list(self._run(partial(sensitivity.results, tables=10), worlds)))
        null = found[[world.deviation == 0 for world in worlds], 2]
        text = re.sub(r"\s+", " ", self.evidence)
        told = re.search(
            r"held the truth in (\d+ %).+?that of the gain in (\d+ %).+?saw one in (\d+ %)", text
        )
        names = ("the deviation held", "the gain held", "an effect seen without one")
        for name, cell, values in zip(
            names, told.groups() if told else (), (found[:, 0], found[:, 1], null), strict=True
        ):
            yield check(f"order_sensitivity: {name}", cell, values, len(values), self.level)

    def uneven(self) -> Iterator[Check]:
        """F1 of what accuracy and F1 choose."""
        worlds = {"orders": "mixed", "demos": "classes", "nothing": "nothing"}
        for cells in self.rows("world, share of the label", self.metrics):
            name, *told = cells.values()
            share = int(re.findall(r"(\d+) %", name)[0]) / 100
            work = [
                (worlds[name.split()[0]], seed, 400, share, 1_000, "score")
                for seed in range(200, 200 + self.count)
            ]
            found = list(self._run(uneven.compiled, work))
            for column, cell in zip(("original", "accuracy", "F1"), told, strict=False):
                yield check(f"{name}, {column}", cell, [each[column] for each in found], 20, self.level)


PARTS = (
    "calibration",
    "recorded",
    "best_of_five",
    "log_probabilities",
    "landscapes",
    "claims",
    "lone_original",
)
PARTS += ("sensitivity", "uneven")


def main() -> int:
    args = options(__doc__ or "", among={"only": PARTS}, only=list(PARTS), compiles=8, level=0.0005, jobs=2)
    if args.compiles < 4:
        raise SystemExit("--compiles must be 4 at least: fewer say nothing of their own noise")
    logging.disable(logging.WARNING)
    wrong, total = 0, 0
    print(head("figure", "docs", "now", "may differ by", ""))
    with processes(args.jobs) as run:
        made = Evidence(args, run)
        for part in args.only:
            began = time.perf_counter()
            for name, told, found, tolerance in getattr(made, part)():
                agrees = abs(told - found) <= tolerance
                wrong, total = wrong + (not agrees), total + 1
                print(
                    row(name, f"{told:.3f}", f"{found:.3f}", f"{tolerance:.3f}", "" if agrees else "DIFFERS"),
                    flush=True,
                )
            print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"\n{total - wrong} of {total} figures agree with the docs")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
