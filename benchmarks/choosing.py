"""The cost of a race between simulated programs, and how often the race finds the best program.

python benchmarks/choosing.py                     # 2, 5 and 20 programs, and gaps of 0 to .1
python benchmarks/choosing.py --programs 2 --gaps 0.05 --races 1000 --jobs 2

An answer is correct if the sum of the program's ability, the example's ease and their interaction is positive. In
worlds with "one better", a random program is better than all others by the gap. In worlds with a "spread", the gap is
the standard deviation of the programs' true scores.

calls          calls in the race, as a share of the calls that score all programs on all examples
right          share of races that return a program within half a point of the best
rule           the same share for the program that the race's rule would choose, given all scores
best mean      the same share for the program with the highest mean of all scores
lost           mean difference between the best program and the returned program, in true scores
inside         share of reported intervals that contain the returned program's true score or gain
better         share of races that report a gain with a probability of at least .9
false          share of races that report such a gain, but return a program that is no better than the first
"""

import argparse
import itertools
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from command import options, percent, print_table
from scipy import special

from plr_dspy.compiling.choice import likely
from plr_dspy.compiling.elimination import EliminationRun
from plr_dspy.compiling.plan import MAX_ROUNDS, Plan
from plr_dspy.report.rules import USER_PROGRAM_ODDS
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import CallRecord, RunLog
from plr_dspy.search.elimination import EliminationSearch
from plr_dspy.search.model.paired import ProgramModel
from plr_dspy.search.space import Candidate, OrderingSpace, WholeProgram

TOLERANCE = 0.005  # maximum difference between the best true score and that of a right choice
EFFECTS = (0.3, 0.6, 1.0)  # standard deviations of interactions, relative to that of the examples' ease
ABILITIES = (0.5, 0.8)  # range of the programs' true mean score, without the gap or spread


@dataclass(frozen=True)
class World:
    """The true mean scores of simulated programs, and their scores on examples."""

    truth: np.ndarray  # [programs]
    scores: np.ndarray  # [programs, examples]


def make_world(seed: int, *, num_programs: int, gap: float, kind: str, num_examples: int) -> World:
    """Draw programs and examples."""
    rng = np.random.default_rng([seed, num_programs, round(1000 * gap)])
    effect = rng.choice(EFFECTS)
    truth = np.full(num_programs, rng.uniform(*ABILITIES))
    if kind == "spread":
        truth = np.clip(truth + gap * rng.normal(size=num_programs), 0.05, 0.95)
    else:
        truth[rng.integers(num_programs)] += gap
    abilities = special.ndtri(truth) * np.sqrt(1.0 + effect**2)
    ease = rng.normal(size=num_examples)
    both = effect * rng.normal(size=(num_programs, num_examples))
    return World(truth, (abilities[:, None] + ease + both > 0.0).astype(float))


class TablePayer:
    """An implementation of `Payer` that looks up scores in a table."""

    def __init__(self, scores: np.ndarray, max_calls: int) -> None:
        self.scores = scores
        self.log = RunLog()
        self.budget = Budget(self.log, max_calls=max_calls)

    def fingerprint(self, ordering: Candidate, example: int | None) -> str:
        """Return the index of a program, as a string."""
        assert isinstance(ordering, WholeProgram)
        return str(ordering.number)

    def pay(self, cells: Iterable[tuple[str, int]]) -> None:
        """Add the scores of these cells to the log."""
        for program, example in cells:
            self.log.add((program, example), CallRecord(float(self.scores[int(program), example])), {})


def race(world: World, *, max_calls: int | None = None) -> EliminationRun:
    """Return a race between the world's programs, ready to run."""
    num_programs, num_examples = world.scores.shape
    first, *others = (WholeProgram(number, f"program {number}") for number in range(num_programs))
    most = max_calls or world.scores.size
    return EliminationRun(
        EliminationSearch(OrderingSpace((), programs=tuple(others)), first),
        Evaluator(TablePayer(world.scores, most)),
        plan=Plan(
            num_iterations=MAX_ROUNDS,
            num_train_examples=num_examples,
            max_metric_calls=most,
            race_calls=most,
            num_best_seen=num_programs - 1,
        ),
        num_train=num_examples,
        original=first,
        user_programs=tuple(others),
    )


def chosen_by_all(world: World) -> int:
    """Return the index of the program that the race's rule would choose, given all scores."""
    programs = [WholeProgram(number, "") for number in range(len(world.scores))]
    rows = [dict(enumerate(row.tolist())) for row in world.scores]
    fitted = ProgramModel(OrderingSpace(())).fit(dict(zip(programs, rows, strict=True)))
    gains = fitted.gains(programs[0])
    allowed = [program for program in programs[1:] if likely(gains[program], None, odds=USER_PROGRAM_ODDS)]
    return max([programs[0], *allowed], key=lambda program: gains[program].expected).number


def measured(
    seed: int, *, num_programs: int, gap: float, kind: str, num_examples: int, share: float
) -> dict[str, float]:
    """Run one race in a world, and return its measurements."""
    torch.set_num_threads(1)
    world = make_world(seed, num_programs=num_programs, gap=gap, kind=kind, num_examples=num_examples)
    most = world.scores.size
    outcome = race(world, max_calls=round(share * most)).run()
    decision = outcome.decision
    assert isinstance(decision.candidate, WholeProgram)
    chosen = decision.candidate.number
    truth = world.truth
    is_right = truth >= truth.max() - TOLERANCE
    row = {
        "calls": outcome.program_calls["total"] / most,
        "right": is_right[chosen],
        "rule": is_right[chosen_by_all(world)],
        "best mean": is_right[world.scores.mean(axis=1).argmax()],
        "lost": truth.max() - truth[chosen],
        "score inside": np.nan,
        "gain inside": np.nan,
        "better": 0.0,
        "false": 0.0,
    }
    comparison = decision.comparison
    if comparison is not None and comparison.expected_chosen is not None:
        _, low, high = comparison.expected_chosen
        row["score inside"] = low <= truth[chosen] <= high
        if chosen:
            low, high = comparison.gain_interval
            row["gain inside"] = low <= truth[chosen] - truth[0] <= high
            row["better"] = comparison.probability >= MIN_WIN_PROBABILITY
            row["false"] = row["better"] and truth[chosen] <= truth[0]
    return row


def cells(frame: pd.DataFrame) -> dict[str, str]:
    """Return a table row that summarizes several races."""
    row = {"races": str(len(frame)), "calls": f"{frame['calls'].mean():.2f}"}
    for name in ("right", "rule", "best mean"):
        row[name] = percent(frame[name])
    row["lost"] = f"{frame['lost'].mean():.4f}"
    for name in ("score inside", "gain inside", "better", "false"):
        row[name] = percent(frame[name])
    return row


def rows_of(args: argparse.Namespace, pool: ProcessPoolExecutor) -> Iterator[dict[str, object]]:
    """Yield a table row for each world, and one for all worlds with the same number of programs."""
    worlds = [*itertools.product(["one better"], args.gaps), *itertools.product(["spread"], args.spreads)]
    seeds = range(args.first_seed, args.first_seed + args.races)
    for num_programs in args.programs:
        frames = []
        for kind, gap in worlds:
            shape = {"num_programs": num_programs, "gap": gap, "kind": kind, "num_examples": args.examples}
            run = partial(measured, share=args.share, **shape)
            frames.append(pd.DataFrame(pool.map(run, seeds, chunksize=10)).astype(float))
            yield {"programs": num_programs, "world": kind, "gap": gap, **cells(frames[-1])}
        yield {"programs": num_programs, "world": "all", "gap": "", **cells(pd.concat(frames))}


def main() -> None:
    logging.disable(logging.WARNING)
    args = options(
        __doc__,
        programs=[2, 5, 20],
        gaps=[0.0, 0.02, 0.05, 0.1],
        spreads=[0.03],
        examples=200,
        share=1.0,
        races=200,
        first_seed=20_000,
        jobs=1,
    )
    with ProcessPoolExecutor(args.jobs) as pool:
        print_table(rows_of(args, pool))


if __name__ == "__main__":
    main()
