"""`PLFewShot`'s choice between demos and the user's other programs, in simulated worlds.

python benchmarks/own_programs.py                 # 24 compiles in each cell, half an hour on one core
python benchmarks/own_programs.py --worlds better --calls 100 --examples 40

The student shows no demos. The user's other programs, a and b, show none of the candidate demos. The worlds are:

better     a is much better than the student and b, and demos make no difference
bit        a is slightly better than the student and b, and demos make no difference
both       a is much better than the student and b, and demos make a difference
demos      only demos make a difference
worse      a and b are slightly worse than the student, and demos make no difference
nothing    all programs are equally good, and demos make no difference

All scores in the table are true scores, without noise:

student    score of the student
best own   highest score of the student, a and b
returned   score of the returned program
behind     "returned" minus "best own", with its 95% interval
lost       share of compiles that return a program at least a point worse than "best own"
worse      share of compiles that return a program at least a point worse than the student
kept       share of compiles that return the student
claims     share of compiles whose report says "better" (p >= .9)
false      share of compiles whose report says "better" although the program is not better than the student
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy
import numpy as np
import pandas as pd
import torch
from command import options, percent, print_table, with_interval
from landscapes import ArrangementWorld
from replay import Lookup, ReplayEngine, metric, number_of, shown_by
from scipy import special

from plr_dspy import PLFewShot
from plr_dspy.report.text import MIN_WIN_PROBABILITY

NUM_DEMOS = 16
POINT = 0.01


@dataclass(frozen=True)
class Programs:
    """The kind of the `ArrangementWorld`, and the effects of a and b on the log-odds of a correct answer."""

    demos: str
    effects: tuple[float, float]


WORLDS = {
    "better": Programs("nothing", (0.6, 0.0)),
    "bit": Programs("nothing", (0.2, 0.0)),
    "both": Programs("classes", (0.6, 0.0)),
    "demos": Programs("classes", (0.0, 0.0)),
    "worse": Programs("nothing", (-0.2, -0.2)),
    "nothing": Programs("nothing", (0.0, 0.0)),
}


class OwnProgram(dspy.Module):
    """A program without predictors. It answers an example correctly if `is_right` is true for the example."""

    def __init__(self, engine: ReplayEngine, is_right: np.ndarray) -> None:
        super().__init__()
        self.engine = engine
        self.is_right = is_right

    def forward(self, text: str) -> dspy.Prediction:
        example = number_of(text)
        label = self.engine.landscape.right_labels[example]
        return dspy.Prediction(label=self.engine.labels[label if self.is_right[example] else 1 - label])


def compiled(seed: int, *, world: str, calls: int, num_known: int) -> dict[str, float]:
    """Compile the student and the user's programs in a world, and return measurements."""
    torch.set_num_threads(1)
    effects = WORLDS[world].effects
    landscape = ArrangementWorld(
        WORLDS[world].demos, NUM_DEMOS, seed, num_known + ArrangementWorld.num_held_out
    )
    rng = np.random.default_rng([seed, 5])
    engine = ReplayEngine(landscape)
    own_odds = [landscape.expected_odds(()) + effect for effect in effects]
    programs: dict[str, Any] = {}
    for name, odds in zip("ab", own_odds, strict=True):
        noise = landscape.noise * rng.normal(size=landscape.num_examples)
        programs[name] = OwnProgram(engine, odds + noise > 0)
    student = engine.program(Lookup)
    candidates: list[Any] = student.demos
    student.demos = []
    optimizer = PLFewShot(
        metric=metric,
        max_metric_calls=calls,
        candidates=candidates,
        signal="score",
        num_threads=1,
        seed=seed,
        display_progress=False,
    )
    with dspy.context(lm=dspy.LM("openai/replay", engine=engine, cache=False), disable_history=True):
        program = optimizer.compile(student, trainset=engine.examples()[:num_known], programs=programs)

    def score(odds: np.ndarray) -> float:
        return float(special.ndtr(odds[num_known:] / landscape.noise).mean())

    own_scores = dict(zip("ab", map(score, own_odds), strict=True))
    before = score(landscape.expected_odds(()))
    report = optimizer.report
    if report.returned.name:
        after = own_scores[report.returned.name]
    else:
        after = score(landscape.expected_odds(shown_by(program)))
    comparison = report.comparison
    return {
        "student": before,
        "best own": max(before, *own_scores.values()),
        "returned": after,
        "kept": float(report.original_stays),
        "claims": float(comparison is not None and comparison.probability >= MIN_WIN_PROBABILITY),
    }


def rows(
    worlds: Sequence[str],
    sizes: Sequence[int],
    budgets: Sequence[int],
    seeds: Sequence[int],
    pool: ProcessPoolExecutor,
) -> Iterator[dict[str, str]]:
    """Yield a table row for each world, number of calls and number of examples."""
    for world, calls, num_known in itertools.product(worlds, budgets, sizes):
        run = partial(compiled, world=world, calls=calls, num_known=num_known)
        frame = pd.DataFrame(pool.map(run, seeds))
        behind = frame["returned"] - frame["best own"]
        gain = frame["returned"] - frame["student"]
        row = {"world": world, "calls": str(calls), "examples": str(num_known), "compiles": str(len(frame))}
        row |= {name: f"{frame[name].mean():.3f}" for name in ("student", "best own", "returned")}
        row["behind"] = with_interval(behind)
        row["lost"] = percent(behind < -POINT)
        row["worse"] = percent(gain < -POINT)
        row["kept"] = percent(frame["kept"])
        row["claims"] = percent(frame["claims"])
        row["false"] = percent((frame["claims"] == 1) & (gain <= 0))
        yield row


def main() -> None:
    logging.disable(logging.WARNING)
    args = options(
        __doc__,
        among={"worlds": list(WORLDS)},
        worlds=list(WORLDS),
        examples=[20, 40, 100],
        calls=[100, 300, 1_000],
        compiles=24,
        first_seed=2_000,
        jobs=1,
    )
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    with ProcessPoolExecutor(args.jobs) as pool:
        print_table(rows(args.worlds, args.examples, args.calls, seeds, pool))


if __name__ == "__main__":
    main()
