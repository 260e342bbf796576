"""A comparison of figures in the docs with newly computed figures.

Figures that need a model are checked only for the instruct model, from recorded results.

python benchmarks/evidence.py                      # a few compiles for each figure, 9 minutes on 2 cores
python benchmarks/evidence.py --only recorded --compiles 48

Each figure is computed from fewer compiles than in the docs. Both figures must agree within their noise.
By chance, one figure in 2,000 disagrees.
"""

import itertools
import logging
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import calibration
import headroom
import numpy as np
import pandas as pd
from command import DOCS, RECORDED, options, print_table, read_table
from landscapes import KINDS
from live_results import ResultsFile
from offline import World, measure, worlds_of
from scipy.stats import t

FILES = {"MR": RECORDED / "mr.npz", "SUBJ": RECORDED / "subj.npz", "AG News": RECORDED / "agnews.npz"}
LIVE_SIDES = {
    "no demos": "no demos",
    "8 random demos": "original",
    "8 random demos, calibrated": "calibrated",
    "DSPy's random search": "random search@300",
    "`MIPROv2`": "MIPROv2@300",
    "`GEPA`": "GEPA@300",
    "`SIMBA`": "SIMBA@300",
    "`KNNFewShot`": "KNNFewShot",
    "`PLFewShot`": "PLFewShot@300",
    "`PLFewShot(calibrate=True)`": "PLFewShot calibrated@300",
    "`PLFewShot`, then `BatchCalibration`": "PLFewShot, then calibrated@300",
    '`PLFewShot(instructions="propose")`': "PLFewShot propose@300",
    "`MIPROv2` for half of the calls, then `PLFewShot`": "MIPROv2, then PLFewShot@300",
}
"""Sides of `live.py`, keyed by their names in the docs."""
LIVE_TASKS = {"TREC (draws)": "trec", "AG News (draws)": "agnews"}
"""Tasks of `live.py`, keyed by their columns in the docs."""
ROUNDING = 0.0006
"""Maximum rounding error of a figure. Differences up to this size are always allowed."""
LEVEL = 0.0005
"""Significance level of the t test that decides whether a figure disagrees."""


@dataclass(frozen=True)
class Figure:
    """A figure in the docs, and new values whose mean must agree with the figure."""

    name: str
    cell: str  # the figure as written in the docs
    values: Sequence[float]
    num_in_docs: int  # number of compiles behind the figure in the docs; 0 if the new mean must be equal


@dataclass(frozen=True)
class Compiles:
    """A function that makes a number of compiles in a pool of processes."""

    pool: ProcessPoolExecutor
    number: int  # total number of compiles over all worlds; each world has at least one

    def __call__(
        self, worlds: Sequence[World], method: str, first_seed: int, factor: int = 1
    ) -> pd.DataFrame:
        number = max(1, factor * self.number // len(worlds))
        seeds = range(first_seed, first_seed + number)
        frames = []
        for world in worlds:
            rows = self.pool.map(partial(measure, world=world, method=method), seeds)
            frames.append(pd.DataFrame(rows))
        return pd.concat(frames, ignore_index=True)


def stated(cell: str) -> float:
    """Return the first number in a cell. Convert "15%" and "3 of 20" to shares."""
    shares = re.match(r"(\d+) of (\d+)", cell)
    if shares:
        return int(shares[1]) / int(shares[2])
    value = float(re.findall(r"[-+]?\d*\.?\d+", cell.replace(",", ""))[0])
    if re.match(r"[-+\d.]+%", cell):
        return value / 100
    return value


def tolerance(values: np.ndarray, num_in_docs: int) -> float:
    """Return the allowed difference between the mean of `values` and the figure in the docs."""
    if not num_in_docs:
        return ROUNDING
    spread = values.std(ddof=1)
    freedom = len(values) - 1.0
    if set(values) <= {0.0, 1.0}:
        # Add one success and one failure, because 0 of 8 does not prove a share of 0.
        share = (values.sum() + 1) / (len(values) + 2)
        spread = np.sqrt(share * (1 - share))
        freedom = np.inf
    error = spread * np.sqrt(1 / len(values) + 1 / num_in_docs)
    return float(t.ppf(1 - LEVEL / 2, freedom) * error) + ROUNDING


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def text(name: str) -> str:
    """Return the text of a page without line breaks."""
    return re.sub(r"\s+", " ", page(name))


def rows(name: str, first_column: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table on a page. Empty cells in the first two columns repeat the cell above."""
    frame = read_table(page(name), first_column)
    frame.iloc[:, :2] = frame.iloc[:, :2].replace("", pd.NA).ffill()
    return frame.itertuples(index=False, name=None)


def without_comma(number: str) -> str:
    return number.replace(",", "")


def recorded(compiles: Compiles) -> Iterator[Figure]:
    """Compare searches on recorded answers, with different limits on calls."""
    for task, _, limit, *cells in rows("evidence", "task (best of all orders)"):
        world = World(FILES[task.split(" (")[0]])
        for mode, cell in zip(("paper", "top-k", "halving", "light"), cells, strict=False):
            method = f"{mode}@{without_comma(limit)}"
            frame = compiles([world], method, 20_000)
            yield Figure(f"{task}, {method}", cell, frame["held-out"], 48)


def best_of_five(compiles: Compiles) -> Iterator[Figure]:
    """Measure gains over an original order that is the best of five random orders."""
    pattern = r"`PLReorder` gain (.+?) on MR, (.+?) on\s+SUBJ and (.+?) on AG News"
    (cells,) = re.findall(pattern, page("evidence"), re.S)
    for cell, (task, path) in zip(cells, FILES.items(), strict=True):
        frame = compiles([World(path, best_of=5)], "light@1000", 40_000)
        gains = frame["held-out"] - frame["original"]
        yield Figure(f"{task}, gain over the best of five", cell, gains, 100)


def log_probabilities(compiles: Compiles) -> Iterator[Figure]:
    """Compare searches that learn from scores with searches that also learn from log-probabilities."""
    columns = {1: "light@250", 2: "logprobs@250", 6: "light@1000", 7: "logprobs@1000"}
    for cells in rows("evidence", "task | 250 calls"):
        task = cells[0]
        for column, method in columns.items():
            frame = compiles([World(FILES[task])], method, 50_000)
            yield Figure(f"{task}, {method}", cells[column], frame["held-out"], 48)


def calibrated(_: Compiles) -> Iterator[Figure]:
    """Measure the gain from calibration on recorded orders, over the same splits as in the docs."""
    for task, *cells in rows("evidence", "recorded answers"):
        table, gold = calibration.recorded_answers(FILES[task.split(",")[0]])
        splits = pd.DataFrame([calibration.split(table, gold, seed) for seed in range(40)])
        for way, cell in zip(splits, cells, strict=True):
            yield Figure(f"{task}, {way}", cell, splits[way], 0)


def landscapes(compiles: Compiles) -> Iterator[Figure]:
    """Compare methods on five kinds of simulated landscapes. "light" makes a tenth of the paper's calls."""
    for demos, *cells in rows("evidence", "demos | paper MLE"):
        worlds = [World(kind, int(demos), 200) for kind in KINDS]
        for method, cell in zip(("paper", "top-k", "light@3640"), cells, strict=False):
            frame = compiles(worlds, method, 20_000)
            yield Figure(f"{demos} demos, {method}", cell, frame["held-out"], 240)


def claims(compiles: Compiles) -> Iterator[Figure]:
    """Measure how many reports say "better" although no order is better."""
    methods = {
        "scores": "light@1000",
        "log-probabilities": "logprobs@700",
        "`calibrate=True`": "calibrated@700",
    }
    for name, *cells in rows("evidence", "| 20 examples"):
        method = methods[name.split(",")[0]]
        for num_pool, cell in zip((20, 40, 200), cells, strict=True):
            if not cell:
                continue
            world = World("own effects", 8, num_pool)
            frame = compiles([world], method, 47_000, factor=2)
            claimed = frame["better"].fillna(0.0)
            yield Figure(f"claims, {method}, {num_pool} examples", cell, claimed, 60)


def lone_original(compiles: Compiles) -> Iterator[Figure]:
    """Measure how often a worse order replaces an original that is better than all other orders."""
    for limit, *cells in rows("evidence", "calls | scores"):
        for mode, cell in zip(("light", "logprobs", "calibrated"), cells, strict=True):
            method = f"{mode}@{without_comma(limit)}"
            frame = compiles([World("lone original", 8, 100)], method, 46_000, factor=2)
            lost = frame["original"] - frame["held-out"] > 0.01
            yield Figure(f"lone original, {method}, lost", cell, lost, 72)


def simulated_headroom(_: Compiles) -> Iterator[Figure]:
    """Measure how often `headroom` advises keeping the program when there is nothing to gain."""
    kept = np.array([headroom.results(world, tables=10)["kept"][0] for world in headroom.without_effect()])
    (cell,) = re.findall(r"the advice is to keep the program \| (\d+%)", page("evidence"))
    yield Figure("headroom: the program is kept", cell, kept, len(kept))


def rare(compiles: Compiles) -> Iterator[Figure]:
    """Measure the F1 of each method on recorded answers. Each label is made rare in turn."""
    shape = Namespace(recorded=list(FILES.values()), pools=[70], shares=[0.15], best_of=0)
    (worlds,) = worlds_of(shape)
    ways = ("logprobs", "F1 light", "F1 logprobs", "F1 calibrated")
    methods = ["original", *(f"{way}@300" for way in ways), "batch", "F1 batch"]
    for method, cells in zip(methods, rows("evidence", "| F1 | above"), strict=True):
        frame = compiles(worlds, method, 2)
        yield Figure(f"a rare label, {method}", cells[1], frame["held-out"], 48)


def live(_: Compiles) -> Iterator[Figure]:
    """Read the accuracies of the instruct model from the results that `live.py` saved."""
    path = RECORDED / "live" / "qwen2.5-coder-1.5b.jsonl"
    if not path.exists():
        raise SystemExit(
            f'{path} is missing: run the first command of "Which models" in benchmarks/README.md'
        )
    by_setting = ResultsFile(path).by_setting
    table = read_table(page("evidence"), "method, 1.5B model")
    for name, row in table.iterrows():
        side = LIVE_SIDES[name]
        for column, task in LIVE_TASKS.items():
            scores = [
                float(np.mean(results[side].scores))
                for setting, results in by_setting.items()
                if setting.task == task and side in results
            ]
            if row[column]:
                yield Figure(f"1.5B model, {column}, {name}", row[column], scores, 0)


ON_RECORDED = (calibrated, recorded, best_of_five, log_probabilities, rare, live)
SIMULATED = (landscapes, claims, lone_original, simulated_headroom)
PARTS = {part.__name__: part for part in (*ON_RECORDED, *SIMULATED)}


def compare_figures(figures: Iterator[Figure], agreed: list[bool]) -> Iterator[dict[str, str]]:
    """Yield a table row for each figure.

    For each figure, append to `agreed` whether the new values agree with the docs.
    """
    for figure in figures:
        values = np.asarray(figure.values, dtype=float)
        in_docs = stated(figure.cell)
        may_differ = tolerance(values, figure.num_in_docs)
        agrees = bool(abs(in_docs - values.mean()) <= may_differ)
        agreed.append(agrees)
        yield {
            "figure": figure.name,
            "docs": f"{in_docs:.3f}",
            "now": f"{values.mean():.3f}",
            "may differ by": f"{may_differ:.3f}",
            "": "" if agrees else "DIFFERS",
        }


def main() -> int:
    names = list(PARTS)
    args = options(__doc__, among={"only": names}, only=names, compiles=6, jobs=2)
    if args.compiles < 4:
        raise SystemExit(
            f"--compiles must be at least 4, to estimate the noise; got {args.compiles}: increase --compiles"
        )
    logging.disable(logging.WARNING)
    agreed: list[bool] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        compiles = Compiles(pool, args.compiles)
        figures = itertools.chain.from_iterable(PARTS[part](compiles) for part in args.only)
        print_table(compare_figures(figures, agreed))
    print(f"\n{sum(agreed)} of {len(agreed)} figures agree with the docs")
    return int(not all(agreed))


if __name__ == "__main__":
    sys.exit(main())
