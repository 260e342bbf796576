"""Repeat the figures of the docs that need no model, each beside the one in the docs: what `make evidence` runs.

python benchmarks/evidence.py                      # some compiles of each figure, 20 minutes on 2 cores
python benchmarks/evidence.py --only recorded --compiles 48

Each figure is made again from fewer compiles than the docs', and must agree with it within the noise of both, so that
one in 2,000 figures disagrees by chance.
"""

import itertools
import logging
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import calibration
import numpy as np
import pandas as pd
import sensitivity
from command import DOCS, RECORDED, options, print_table, read_table
from landscapes import KINDS
from offline import World, measured, worlds_of
from scipy.stats import t

FILES = {"MR": RECORDED / "mr.npz", "SUBJ": RECORDED / "subj.npz", "AG News": RECORDED / "agnews.npz"}
ROUNDING, LEVEL = 0.0006, 0.0005
"""What a figure may differ by in any case, and the level of Student's t by which it disagrees."""

Compiles = Callable[..., pd.DataFrame]
Figure = tuple[str, str, Any, int]
"""Its name, its cell in the docs, what was found now, and how many compiles the docs have (0: it must be the same)."""


def stated(cell: str) -> float:
    """The figure that a cell begins with; a percentage, or so many of so many, is a share."""
    if shares := re.match(r"(\d+) of (\d+)", cell):
        return int(shares[1]) / int(shares[2])
    found = float(re.findall(r"[-+]?\d*\.?\d+", cell.replace(",", ""))[0])
    return found / 100 if re.match(r"[-+\d.]+ %", cell) else found


def tolerance(values: np.ndarray, num_in_docs: int) -> float:
    """By how much the mean of values may differ from a figure of the docs."""
    if not num_in_docs:
        return ROUNDING
    spread, freedom = values.std(ddof=1), len(values) - 1.0
    if set(values) <= {0.0, 1.0}:  # one compile of each kind more: none of eight may be one of twenty
        share = (values.sum() + 1) / (len(values) + 2)
        spread, freedom = np.sqrt(share * (1 - share)), np.inf
    error = spread * np.sqrt(1 / len(values) + 1 / num_in_docs)
    return float(t.ppf(1 - LEVEL / 2, freedom) * error) + ROUNDING


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def text(name: str) -> str:
    """The text of a page, without line breaks."""
    return re.sub(r"\s+", " ", page(name))


def rows(name: str, first_column: str) -> Iterator[tuple[str, ...]]:
    """The rows of a table of a page; where the first two cells are empty, they are those above."""
    frame = read_table(page(name), first_column)
    frame.iloc[:, :2] = frame.iloc[:, :2].replace("", pd.NA).ffill()
    return frame.itertuples(index=False, name=None)


def recorded(compiles: Compiles) -> Iterator[Figure]:
    """Searches by the limit on calls, on recorded answers."""
    for task, _, limit, *told in rows("evidence", "task (best of all orders)"):
        for mode, cell in zip(("paper", "top-k", "halving", "light"), told, strict=False):
            method, world = f"{mode}@{limit.replace(',', '')}", World(FILES[task.split(" (")[0]])
            yield f"{task}, {method}", cell, compiles([world], method, 20_000)["held-out"], 48


def best_of_five(compiles: Compiles) -> Iterator[Figure]:
    """Gains where the original order is the best of five."""
    pattern = r"`PLReorder` gain (.+?) on MR, (.+?) on SUBJ and (.+?) on AG News"
    for cell, task in zip(*re.findall(pattern, text("evidence")), FILES, strict=True):
        found = compiles([World(FILES[task], best_of=5)], "light@1000", 40_000)
        yield f"{task}, gain over the best of five", cell, found["held-out"] - found["original"], 100


def log_probabilities(compiles: Compiles) -> Iterator[Figure]:
    """What they add."""
    places = {1: "light@250", 2: "logprobs@250", 6: "light@1000", 7: "logprobs@1000"}
    for cells, (place, method) in itertools.product(rows("evidence", "task | 250 calls"), places.items()):
        found = compiles([World(FILES[cells[0]])], method, 50_000)
        yield f"{cells[0]}, {method}", cells[place], found["held-out"], 48


def calibrated(_: Compiles) -> Iterator[Figure]:
    """What calibration gives any order; all splits of the docs."""
    for task, *told in rows("evidence", "recorded answers"):
        table, gold = calibration.recorded_answers(FILES[task.split(",")[0]])
        splits = pd.DataFrame([calibration.split(table, gold, seed) for seed in range(40)])
        for way, cell in zip(splits, told, strict=True):
            yield f"{task}, {way}", cell, splits[way], 0


def landscapes(compiles: Compiles) -> Iterator[Figure]:
    """Simulated landscapes of five kinds at a tenth of the paper's calls."""
    for demos, *told in rows("evidence", "demos | paper MLE"):
        worlds = [World(kind, int(demos), 200) for kind in KINDS]
        for method, cell in zip(("paper", "top-k", "light@3640"), told, strict=False):
            yield f"{demos} demos, {method}", cell, compiles(worlds, method, 20_000)["held-out"], 240


def claims(compiles: Compiles) -> Iterator[Figure]:
    """How often "better" is said where no order is better."""
    methods = {"scores": "light@1000", "log-probabilities": "logprobs@700", "`calibrate=True`": "calibrated@700"}
    for what, *told in rows("evidence", "| 20 examples"):
        method = methods[what.split(",")[0]]
        for pool, cell in zip((20, 40, 200), told, strict=True):
            if cell:
                found = compiles([World("own effects", 8, pool)], method, 47_000, factor=2)
                yield f"claims, {method}, {pool} examples", cell, found["better"].fillna(0.0), 60


def lone_original(compiles: Compiles) -> Iterator[Figure]:
    """How often a good original that nothing else tells of is replaced by something that is worse."""
    for limit, *told in rows("evidence", "calls | scores"):
        for mode, cell in zip(("light", "logprobs", "calibrated"), told, strict=True):
            method = f"{mode}@{limit.replace(',', '')}"
            found = compiles([World("lone original", 8, 100)], method, 46_000, factor=2)
            yield f"lone original, {method}, lost", cell, found["original"] - found["held-out"] > 0.01, 72


def order_sensitivity(_: Compiles) -> Iterator[Figure]:
    """How often the intervals of `order_sensitivity` hold, and how often it sees what is not there."""
    worlds = list(sensitivity.worlds())
    found = np.array([sensitivity.results(world, tables=10) for world in worlds])
    seen = found[[world.deviation == 0 for world in worlds], 2]
    values = {"deviation held": found[:, 0], "gain held": found[:, 1], "no effect, but seen": seen}
    pattern = r"held the truth in (\d+ %).+?that of the gain in (\d+ %).+?saw one in (\d+ %)"
    (told,) = re.findall(pattern, text("evidence"))
    for cell, (name, of_worlds) in zip(told, values.items(), strict=True):
        yield f"order_sensitivity: {name}", cell, of_worlds, len(of_worlds)


def rare(compiles: Compiles) -> Iterator[Figure]:
    """F1 of each way to spend calls, on recorded answers of which each label in turn was made rare."""
    (worlds,) = worlds_of(Namespace(recorded=list(FILES.values()), pools=[70], shares=[0.15], best_of=0))
    methods = ["original", *(f"{way}@300" for way in ("logprobs", "F1 light", "F1 logprobs", "F1 calibrated"))]
    for method, (_, cell, *_) in zip([*methods, "batch", "F1 batch"], rows("evidence", "| F1 | above"), strict=True):
        yield f"a rare label, {method}", cell, compiles(worlds, method, 2)["held-out"], 48


ON_RECORDED = (calibrated, recorded, best_of_five, log_probabilities, rare)
SIMULATED = (landscapes, claims, lone_original, order_sensitivity)
PARTS = {part.__name__: part for part in (*ON_RECORDED, *SIMULATED)}


def main() -> int:
    args = options(__doc__, among={"only": list(PARTS)}, only=list(PARTS), compiles=6, jobs=2)
    if args.compiles < 4:
        raise SystemExit("--compiles must be 4 at least: fewer say nothing of their own noise")
    logging.disable(logging.WARNING)
    agreed = []
    with ProcessPoolExecutor(args.jobs) as pool:

        def compiles(worlds: Sequence[World], method: str, first: int, factor: int = 1) -> pd.DataFrame:
            """So many in all worlds together, but one at least in each."""
            seeds = range(first, first + max(1, factor * args.compiles // len(worlds)))
            found = [pd.DataFrame(pool.map(partial(measured, world=each, method=method), seeds)) for each in worlds]
            return pd.concat(found, ignore_index=True)

        def compared() -> Iterator[dict[str, str]]:
            for name, cell, found, num_in_docs in itertools.chain(*(PARTS[part](compiles) for part in args.only)):
                values = np.asarray(found, dtype=float)
                told = {"docs": stated(cell), "now": values.mean(), "may differ by": tolerance(values, num_in_docs)}
                agreed.append(abs(told["docs"] - told["now"]) <= told["may differ by"])
                columns = {column: f"{number:.3f}" for column, number in told.items()}
                yield {"figure": name, **columns, "": "" if agreed[-1] else "DIFFERS"}

        print_table(compared())
    print(f"\n{sum(agreed)} of {len(agreed)} figures agree with the docs")
    return int(not all(agreed))


if __name__ == "__main__":
    sys.exit(main())
