"""The levers that `headroom` measures: how to apply each, how much each gains, and which one to advise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plr_dspy.statistics.comparisons import TAIL
from plr_dspy.statistics.levers import Gain, PairedExperiment

NUM_SEARCHED = 20  # number of random sets or orders among which a search is assumed to find the best
WORTHWHILE = 0.02  # smallest gain that justifies a change
MOST_LEVERS = 7  # maximum number of levers, not counting instructions
NOTHING_TO_GAIN = "No gain beyond noise"  # start of the advice to keep the program

PROGRAM = "your program"
NO_DEMOS = "no demos"
RANDOM = "random demos"
INSTRUCTION = "instruction"
CALIBRATED = "calibrated answers"
BOTH = "calibrated random demos"
NEAREST = "nearest demos"
ORDERS = "other orders"
SETS = "other sets"
HOW = {  # how to apply each lever, simplest first
    NO_DEMOS: "remove the demos",
    RANDOM: "use dspy.LabeledFewShot",
    INSTRUCTION: "show random demos and this instruction: run PLFewShot(instructions=[...])",
    CALIBRATED: "run BatchCalibration",
    BOTH: "use dspy.LabeledFewShot, then BatchCalibration",
    NEAREST: "run PLFewShot(demos='retrieved')",
    ORDERS: "run PLReorder",
    SETS: "run PLFewShot",
}
HOW_WITHOUT_SETS = "use this instruction, and keep the demos"


@dataclass(frozen=True)
class Change:
    """A change to the user's program, and the scored programs with this change.

    Attributes:
        name: Name of the lever.
        rows: Rows of the scored programs in the table of scores.
        how: How to apply the change, in words.
        base: Name of the lever that the change is made on top of; empty if the change is made
            to the program itself.
        num_searched: Number of programs among which a search is assumed to find the best. It
            is 1 if the change needs no search.
    """

    name: str
    rows: list[int]
    how: str
    base: str = ""
    num_searched: int = 1


def changes_of(rows: Mapping[str, list[int]], num_orders: int) -> list[Change]:
    """Return the changes that were scored, simplest first.

    Args:
        rows: A dict that maps each lever, and `PROGRAM`, to its rows in the table of scores.
        num_orders: Number of possible orders of the demos that the lever "other orders"
            reorders.
    """
    base = RANDOM if RANDOM in rows else ""
    changes = []
    for lever, how in HOW.items():
        for name, numbers in rows.items():
            if lever == INSTRUCTION and name.startswith(INSTRUCTION):
                changes.append(Change(name, numbers, how if base else HOW_WITHOUT_SETS, base))
            elif lever == ORDERS and name == ORDERS:
                # If the program has demos, these demos are reordered. Otherwise, the first random
                # set is reordered, so the change is made on top of the random demos.
                base_of_orders = "" if NO_DEMOS in rows else base
                changes.append(Change(name, numbers, how, base_of_orders, min(num_orders, NUM_SEARCHED)))
            elif name == lever:
                changes.append(Change(name, numbers, how))
    if base:
        changes.append(Change(SETS, rows[RANDOM], HOW[SETS], base, NUM_SEARCHED))
    return changes


def lever_gains(experiment: PairedExperiment, changes: Sequence[Change]) -> dict[str, Gain]:
    """Return a dict that maps each change's name to the change's gain over the user's program.

    In `changes`, a base must come before the changes that are made on top of it.
    """
    first_rows = {change.name: change.rows[0] for change in changes}
    gains: dict[str, Gain] = {}
    for change in changes:
        if change.num_searched > 1:
            average = gains[change.base] if change.base else experiment.gain(change.rows)
            gains[change.name] = experiment.gain_of_best(change.rows, average, change.num_searched)
        elif change.base:
            # An instruction is scored with one set of demos, so compare it with the same set.
            (row,) = change.rows
            gains[change.name] = experiment.gain_on_top(gains[change.base], row, first_rows[change.base])
        else:
            gains[change.name] = experiment.gain(change.rows)
    return gains


def best_advice(changes: Sequence[Change], gains: Mapping[str, Gain]) -> str:
    """Return a sentence that advises a change, or advises keeping the program.

    Args:
        changes: The changes that were scored, simplest first.
        gains: A dict that maps each change's name to the change's gain.
    """
    if not changes:
        return "No lever could be tried, because there are too few distinct demos: pass more examples."
    # The more levers are tried, the likelier it is that one looks good by chance, so require
    # stronger evidence.
    doubt = TAIL * min(1.0, MOST_LEVERS / len(changes))
    certain = []
    for change in changes:
        gain = gains[change.name]
        # Do not advise an instruction that adds nothing to the gain of random demos.
        adds_to_base = not change.base or change.num_searched > 1 or gain.exceeds(gains[change.base], doubt)
        if adds_to_base and gain.exceeds(0.0, doubt):
            certain.append(change)
    if not certain:
        most = max(0.0, *(gain.interval[1] for gain in gains.values()))
        if most > WORTHWHILE:
            return f"{NOTHING_TO_GAIN}, but {most:+.2f} is possible. Keep the program, or try more calls or examples."
        return f"{NOTHING_TO_GAIN}: at most {most:+.2f}. Keep the program."
    largest = max(certain, key=lambda change: gains[change.name].value)
    largest_gain = gains[largest.name]
    simplest = next(change for change in certain if not largest_gain.exceeds(gains[change.name], doubt))
    gain = gains[simplest.name]
    low, high = gain.interval
    text = f"({gain.value:+.2f} [{low:+.2f}, {high:+.2f}]): {simplest.how}"
    if simplest is largest:
        return f"The largest lever is {largest.name!r} {text}."
    more = float(np.quantile(largest_gain.draws - gain.least, 1 - TAIL))
    return (
        f"The simplest lever that helps as much as any is {simplest.name!r} {text}; {largest.name!r} may add "
        f"{more:+.2f}."
    )


@dataclass(frozen=True)
class Lever:
    """A change to a program's prompts, and its estimated gain.

    Attributes:
        name: Name of the lever.
        score: Expected score with this change.
        gain, interval: Expected gain over the user's program on new examples, and its 95%
            interval. The gain is shrunk towards 0, because the largest of several observed
            gains overestimates the true gain.
        num_calls: Number of program calls from which the gain was estimated.
        note: How to apply the lever, in words.
    """

    name: str
    score: float
    gain: float
    interval: tuple[float, float]
    num_calls: int
    note: str


@dataclass(frozen=True)
class Headroom:
    """How much each change to a program can gain. As a string, it is a table with a sentence of advice.

    Attributes:
        score: The program's mean score.
        levers: The possible changes, simplest first.
        noise_shares: A dict that maps "other orders" and "other sets" to shares of noise: how
            much of the variance between the scores of different orders or sets is noise.
        num_examples, program_calls: Number of examples that each change was scored on, and
            total number of program calls.
        advice: A sentence that names the simplest change that gains as much as any other, or
            advises keeping the program.
    """

    score: float
    levers: list[Lever]
    noise_shares: dict[str, float]
    num_examples: int
    program_calls: int
    advice: str

    def __str__(self) -> str:
        width = max(map(len, (PROGRAM, *(lever.name for lever in self.levers))))
        lines = [
            f"{'':{width}}  score  gain  [95% interval]",
            f"{PROGRAM:{width}}  {self.score:5.2f}  on {self.num_examples} examples",
        ]
        for lever in self.levers:
            low, high = lever.interval
            noise = self.noise_shares.get(lever.name)
            note = lever.note
            if noise is not None:
                kind = lever.name.removeprefix("other ")
                note += f"; {noise:.0%} of the variance between {kind} is noise"
            gain = f"{lever.gain:+.2f} [{low:+.2f}, {high:+.2f}]"
            lines.append(
                f"{lever.name:{width}}  {lever.score:5.2f}  {gain:20}  {lever.num_calls:4} calls  {note}"
            )
        return "\n".join([*lines, self.advice])
