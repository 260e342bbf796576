"""A comparison of searches for instructions, for demos, and for both, in simulated worlds.

python benchmarks/instructions.py                                     # 40 compiles in each world, an hour on 2 cores
python benchmarks/instructions.py --worlds helps nothing --compiles 8

Each world has demos and instructions to choose from. The program begins with the first instruction and without demos.
The worlds are:

helps          one instruction helps, whatever the demos
hurts          all other instructions hurt
no matter      only demos make a difference
interacts      the best instruction makes demos unnecessary, and the others hurt unless demos are shown
misleading     other instructions help some examples as much as they hurt others
nothing        neither instructions nor demos make a difference

The columns of the table are:

all            held-out score of a search for instructions and demos, in `--calls` program calls
demos          held-out score of a search for demos alone
instructions   held-out score of a search for instructions alone
behind         difference between "all" and the better of the other two, with a 95% interval
claims         share of the "all" compiles whose report says "better" (p >= .9)
false          share of the "all" compiles whose report says "better" although the score has not increased
inside         share of the "all" compiles whose held-out score lies in the report's interval
"""

import itertools
import logging
import math
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
from landscapes import ArrangementWorld, Order
from replay import Lookup, ReplayEngine, metric, number_of, shown_by

from plr_dspy import PLFewShot
from plr_dspy.report.text import MIN_WIN_PROBABILITY

NUM_KNOWN = 200
NUM_DEMOS = 24
NUM_INSTRUCTIONS = 7
WAYS = ("all", "demos", "instructions")
NOT_SHOWN = {"note": "no prompt shows it"}
"""A demo without any field of the signature. If it is the only candidate, a search cannot choose demos."""


@dataclass(frozen=True)
class Effects:
    """Effects of instructions on the log-odds of a correct answer.

    Attributes:
        demos: The kind of the `ArrangementWorld`.
        best: Effect of the best instruction, relative to the program's own instruction.
        others: Effect of each other instruction.
        best_alone, others_alone: Additional effects if no demos are shown.
        spread: Standard deviation of each instruction's effects on individual examples.
    """

    demos: str = "classes"
    best: float = 0.0
    others: float = 0.0
    best_alone: float = 0.0
    others_alone: float = 0.0
    spread: float = 0.0


WORLDS = {
    "helps": Effects(best=0.8),
    "hurts": Effects(best=-0.8, others=-0.8),
    "no matter": Effects(demos="items"),
    "interacts": Effects(demos="harm", best=0.2, best_alone=0.8, others=0.2, others_alone=-1.0),
    "misleading": Effects(spread=1.5),
    "nothing": Effects(demos="nothing"),
}


class InstructedWorld(ArrangementWorld):
    """A landscape whose answers depend on the instruction and the demos."""

    def __init__(self, effects: Effects, seed: int) -> None:
        super().__init__(effects.demos, NUM_DEMOS, seed, NUM_KNOWN + self.num_held_out)
        rng = np.random.default_rng([seed, 7])
        self._best = int(rng.integers(1, NUM_INSTRUCTIONS))
        self._effects = effects
        self._on_examples = effects.spread * rng.normal(size=(NUM_INSTRUCTIONS, self.num_examples))
        self._on_examples[0] = 0.0

    def right(self, order: Order, instruction: int) -> np.ndarray:
        """Return whether each answer is correct, bool ``[num_examples]``."""
        return self._odds(order, instruction) > 0

    def _odds(self, order: Order, instruction: int) -> np.ndarray:
        odds = self.odds(order) + self._on_examples[instruction]
        if not instruction:
            return odds
        effects = self._effects
        effect, alone = effects.others, effects.others_alone
        if instruction == self._best:
            effect = effects.best
            alone = effects.best_alone
        if not order:
            effect += alone
        rng = np.random.default_rng([self.seed, instruction, *order])
        return odds + effect + 0.3 * rng.normal(size=self.num_examples)


class InstructedLookup(Lookup):
    """A predictor that looks up a world's answers for its instruction and demos."""

    def forward(self, **inputs: str) -> dspy.Prediction:
        world = self.engine.landscape
        example = number_of(inputs["text"])
        is_right = self.engine.right(shown_by(self), instruction_of(self))[example]
        label = world.right_labels[example]
        return dspy.Prediction(label=self.engine.labels[label if is_right else 1 - label])


class InstructedEngine(ReplayEngine):
    """A replay engine for worlds with instructions. It caches answers by demos and instruction."""

    def __init__(self, world: InstructedWorld) -> None:
        super().__init__(world)
        self._known: dict[tuple[Order, int], np.ndarray] = {}

    def right(self, order: Order, instruction: int) -> np.ndarray:
        key = (order, instruction)
        if key not in self._known:
            self._known[key] = self.landscape.right(order, instruction)
        return self._known[key]


def instruction_of(predictor: dspy.Predict) -> int:
    """Return the index of a predictor's instruction."""
    return int(predictor.signature.instructions.split()[-1])


def compiled(seed: int, *, world: str, way: str, calls: int) -> dict[str, float]:
    """Search for instructions, demos or both in a world, and return measurements."""
    torch.set_num_threads(1)
    landscape = InstructedWorld(WORLDS[world], seed)
    engine = InstructedEngine(landscape)
    student = engine.program(InstructedLookup)
    student.signature = student.signature.with_instructions("instruction 0")
    candidates: list[Any] = student.demos
    student.demos = []
    if way == "instructions":
        candidates = [NOT_SHOWN]
    texts = [f"instruction {number}" for number in range(1, NUM_INSTRUCTIONS)]
    optimizer = PLFewShot(
        metric=metric,
        max_metric_calls=calls,
        candidates=candidates,
        instructions=None if way == "demos" else texts,
        signal="score",
        num_threads=1,
        seed=seed,
        display_progress=False,
    )
    with dspy.context(lm=dspy.LM("openai/replay", engine=engine, cache=False), disable_history=True):
        program = optimizer.compile(student, trainset=engine.examples()[:NUM_KNOWN])
    before = float(landscape.right((), 0)[NUM_KNOWN:].mean())
    after = float(landscape.right(shown_by(program), instruction_of(program))[NUM_KNOWN:].mean())
    row = {"score": after, "before": before, "claims": math.nan, "inside": math.nan}
    comparison = optimizer.report.comparison
    if comparison is not None:
        _, low, high = comparison.expected_chosen or (0.0, 0.0, 1.0)
        row["claims"] = float(comparison.probability >= MIN_WIN_PROBABILITY)
        row["inside"] = float(low <= after <= high)
    return row


def rows(
    worlds: Sequence[str], seeds: Sequence[int], calls: int, pool: ProcessPoolExecutor
) -> Iterator[dict[str, str]]:
    """Yield a table row for each world."""
    for world in worlds:
        frames = {}
        for way in WAYS:
            frames[way] = pd.DataFrame(
                pool.map(partial(compiled, world=world, way=way, calls=calls), seeds)
            )
        both = frames["all"]
        better = max(frames["demos"]["score"], frames["instructions"]["score"], key=np.mean)
        is_claimed = both["claims"] == 1
        row = {"world": world, "compiles": str(len(both)), "program": f"{both['before'].mean():.3f}"}
        row |= {way: f"{frames[way]['score'].mean():.3f}" for way in WAYS}
        row["behind"] = with_interval(both["score"] - better)
        row["claims"] = percent(is_claimed)
        row["false"] = percent(is_claimed & (both["score"] <= both["before"]))
        row["inside"] = percent(both["inside"])
        yield row


def main() -> None:
    logging.disable(logging.WARNING)
    args = options(
        __doc__,
        among={"worlds": list(WORLDS)},
        worlds=list(WORLDS),
        calls=1_000,
        compiles=40,
        first_seed=20_000,
        jobs=1,
    )
    seeds = range(args.first_seed, args.first_seed + args.compiles)
    with ProcessPoolExecutor(args.jobs) as pool:
        print_table(itertools.chain(rows(args.worlds, seeds, args.calls, pool)))


if __name__ == "__main__":
    main()
