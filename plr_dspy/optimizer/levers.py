"""The levers that `headroom` measures: how to apply each, how much each gains, and which one to advise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plr_dspy.report.formats import score_text
from plr_dspy.statistics.comparisons import TAIL
from plr_dspy.statistics.levers import Gain, PairedExperiment

NUM_SEARCHED = 20  # number of random sets or orders among which a search is assumed to find the best
WORTHWHILE = 0.02  # smallest gain that justifies a change
USUAL_LEVERS = 7  # number of levers, not counting instructions
NOTHING_TO_GAIN = "No gain is proven"  # start of the advice to keep the program
GAINS = "expected gain [95% interval]"  # heading of the column of gains

PROGRAM = "your program"
NO_DEMOS = "no demos"
RANDOM = "random demos"
INSTRUCTION = "instruction"
CALIBRATED = "calibrated answers"
CALIBRATED_RANDOM = "calibrated random demos"
NEAREST = "nearest demos"
ORDERS = "other orders"
SETS = "other sets"
HOW = {  # how to apply each lever, simplest first
    NO_DEMOS: "remove the demos",
    RANDOM: "use dspy.LabeledFewShot",
    INSTRUCTION: "show random demos and this instruction: run PLFewShot(instructions=[...])",
    CALIBRATED: "run BatchCalibration",
    CALIBRATED_RANDOM: "use dspy.LabeledFewShot, then BatchCalibration",
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
        rows: Indices of these programs' rows in the table of scores.
        how: Advice on how to apply the change.
        base: Name of the lever on top of which the change is made; empty if the change is made
            to the program itself.
        num_searched: Number of programs among which a search is assumed to find the best; 1 if
            the change needs no search.
    """

    name: str
    rows: list[int]
    how: str
    base: str = ""
    num_searched: int = 1


def changes_of(rows: Mapping[str, list[int]], num_orders: int) -> list[Change]:
    """Return the changes that were scored, simplest first.

    Args:
        rows: The indices of rows in the table of scores, keyed by `PROGRAM` or lever.
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
                # This lever reorders the program's own demos. If there are none, it reorders the first
                # random set. A new order of this set is a change on top of the random demos.
                base_of_orders = "" if NO_DEMOS in rows else base
                changes.append(Change(name, numbers, how, base_of_orders, min(num_orders, NUM_SEARCHED)))
            elif name == lever:
                changes.append(Change(name, numbers, how))
    if base:
        changes.append(Change(SETS, rows[RANDOM], HOW[SETS], base, NUM_SEARCHED))
    return changes


def lever_gains(experiment: PairedExperiment, changes: Sequence[Change]) -> dict[str, Gain]:
    """Return the gain of each change over the user's program, keyed by the name of the change.

    In `changes`, each base must come before the changes on top of it.
    """
    first_rows = {change.name: change.rows[0] for change in changes}
    gains: dict[str, Gain] = {}
    for change in changes:
        if change.num_searched > 1:
            average = gains[change.base] if change.base else experiment.gain(change.rows)
            gains[change.name] = experiment.gain_of_best(change.rows, average, change.num_searched)
        elif change.base:
            # An instruction is scored with the first random set, so compare it with this set alone.
            (row,) = change.rows
            gains[change.name] = experiment.gain_on_top(gains[change.base], row, first_rows[change.base])
        else:
            gains[change.name] = experiment.gain(change.rows)
    return gains


def best_advice(
    changes: Sequence[Change],
    gains: Mapping[str, Gain],
    *,
    num_examples: int,
    how_to_narrow: str = "pass more examples",
) -> str:
    """Return one or two sentences that recommend a change, or recommend keeping the program.

    Args:
        changes: The changes that were scored, simplest first.
        gains: The gain of each change, keyed by the name of the change.
        num_examples: Number of examples on which the changes were scored.
        how_to_narrow: How to narrow the intervals of the gains, as an imperative clause.
    """
    if not changes:
        return "No lever could be tried, because there are too few distinct demos: pass more examples."
    # The more levers are tried, the likelier it is that one looks good by chance, so require
    # stronger evidence.
    doubt = TAIL * min(1.0, USUAL_LEVERS / len(changes))
    proven = []
    for change in changes:
        gain = gains[change.name]
        # Do not advise an instruction that adds nothing to the gain of random demos.
        adds_to_base = not change.base or change.num_searched > 1 or gain.exceeds(gains[change.base], doubt)
        if adds_to_base and gain.exceeds(0.0, doubt):
            proven.append(change)
    if not proven:
        return _advice_to_keep(changes, gains, num_examples, how_to_narrow)
    # If several changes have the same rounded gain, take the simplest.
    largest = max(proven, key=lambda change: round(gains[change.name].value, 2))
    simplest = next(
        change for change in proven if not gains[largest.name].exceeds(gains[change.name], doubt)
    )
    described = f"{simplest.name!r} ({_figures(gains[simplest.name])}): {simplest.how}"
    if simplest is largest:
        return f"The largest proven gain is that of {described}."
    return (
        f"The simplest lever whose gain is proven is {described}. {largest.name!r} has a larger expected gain "
        f"({_figures(gains[largest.name])}), but the difference may be chance."
    )


def _advice_to_keep(
    changes: Sequence[Change], gains: Mapping[str, Gain], num_examples: int, how_to_narrow: str
) -> str:
    """Return advice to keep the program. If a worthwhile gain is possible, the advice names a lever."""
    start = f"{NOTHING_TO_GAIN} on {num_examples} examples"
    most = max(gain.interval[1] for gain in gains.values())
    if most <= WORTHWHILE:
        return f"{start}, and no interval reaches above {WORTHWHILE:+.2f}: keep the program."
    # If several levers have the same rounded gain, name the simplest.
    best = max(changes, key=lambda change: round(gains[change.name].value, 2))
    text = f"The most promising lever is {best.name!r}"
    if gains[best.name].value < WORTHWHILE:
        best = max(changes, key=lambda change: gains[change.name].interval[1])
        text = f"All expected gains are below {WORTHWHILE:+.2f}, but the interval of {best.name!r} is wide"
    return f"{start}. {text} ({_figures(gains[best.name])}): keep the program for now, or {how_to_narrow} to find out."


def _figures(gain: Gain) -> str:
    return score_text(gain.value, *gain.interval, sign="+", digits=2)


def advice_without_difference(reason: str) -> str:
    """Return the advice to give if no score differed between programs.

    `reason` is the observation as a clause, such as "every score was 0 in 80 calls".
    """
    return (
        f"{reason[0].upper()}{reason[1:]}, so no gain can be measured: keep the program. If you did not expect this, "
        "check the fields that the metric compares, and check with dspy.inspect_history() that the demos reach the "
        "model. If all scores are low, try a larger model."
    )


@dataclass(frozen=True)
class Lever:
    """A change to a program's prompts, and its estimated gain.

    Attributes:
        name: Name of the lever.
        score: Expected score with this change: the program's mean score plus `gain`.
        gain, interval: Expected gain over the user's program on new examples, and its 95%
            interval. The gain is shrunk towards 0, because the largest of several observed
            gains overestimates the true gain. The metric's range of scores limits both the gain
            and the interval.
        num_calls: Number of program calls from which the gain was estimated.
        note: Advice on how to apply the lever.
        mean_score: Mean score of the lever's calls. If answers are calibrated, it is the mean
            score of the calibrated answers.
        num_unread: Number of the lever's calls whose replies could not be parsed. Such replies
            count as incorrect answers.
        num_failed: Number of the lever's calls that failed. Each failed call gets the mean score
            of the other programs on its example. For calibrated answers, `num_unread` and
            `num_failed` are 0.
    """

    name: str
    score: float
    gain: float
    interval: tuple[float, float]
    num_calls: int
    note: str
    mean_score: float
    num_unread: int = 0
    num_failed: int = 0


@dataclass(frozen=True)
class Headroom:
    """The expected gain of each change to a program. `str()` formats the gains as a table with advice.

    Attributes:
        score, interval: The program's mean score, and the 95% interval of its score on new
            examples.
        levers: The possible changes, simplest first.
        noise_shares: A dict that maps "other orders" and "other sets" to the share of noise in
            the variance of their scores. A lever is omitted if all its orders or sets scored
            the same.
        num_examples, program_calls: Number of examples on which each change was scored, and
            total number of program calls.
        advice: A few sentences that name the simplest change with a proven gain that no other
            clearly exceeds, or advise keeping the program.
        num_unread: Number of the program's own replies that could not be parsed.
        num_failed: Number of the program's own calls that failed.
        no_difference: Why all gains are 0, such as "every score was 0 in 80 calls". If it is
            not empty, the printed text omits the levers. Empty if scores differed, or if too few
            were compared.
    """

    score: float
    levers: list[Lever]
    noise_shares: dict[str, float]
    num_examples: int
    program_calls: int
    advice: str
    interval: tuple[float, float]
    num_unread: int = 0
    num_failed: int = 0
    no_difference: str = ""

    def __str__(self) -> str:
        if self.no_difference:
            own = f"{PROGRAM}: mean score {self.score:.2f} on {self.num_examples} examples"
            lines = [own, *self._failed(), *self._unread(), self.advice]
        else:
            low, high = self.interval
            own = (
                f"On new examples, your program probably scores {low:.2f} to {high:.2f} (95% interval); gains are "
                "relative to this score."
            )
            lines = [*self._table(), own, *self._failed(), *self._unread(), self.advice]
        return "\n".join(lines)

    def _table(self) -> Iterator[str]:
        width = max(map(len, (PROGRAM, *(lever.name for lever in self.levers))))
        yield f"{'':{width}}  mean score  {GAINS}  program calls  how to apply it"
        yield f"{PROGRAM:{width}}  {self.score:10.2f}  {'':{len(GAINS)}}  {self.num_examples:13}"
        indent = GAINS.index("[")
        for lever in self.levers:
            gain, interval = score_text(lever.gain, *lever.interval, sign="+", digits=2).split(maxsplit=1)
            gains = f"{gain:{indent}}{interval}"
            yield (
                f"{lever.name:{width}}  {lever.mean_score:10.2f}  {gains:{len(GAINS)}}  {lever.num_calls:13}  "
                f"{lever.note}{self._noise(lever.name)}"
            )
        if self.num_examples + sum(lever.num_calls for lever in self.levers) > self.program_calls:
            yield f"Some levers share calls: there were {self.program_calls} calls in total."

    def _noise(self, name: str) -> str:
        """Return a note on the noise in the variance between orders or sets, or "" for other levers."""
        if name not in (ORDERS, SETS):
            return ""
        kind = name.removeprefix("other ")
        if name in self.noise_shares:
            return f"; {self.noise_shares[name]:.0%} of the variance between {kind} is noise"
        return f", but this would probably add nothing, because all {kind} scored the same"

    def _counts(self, noun: str, own: int, of_levers: Sequence[int]) -> str:
        """Format the positive numbers, such as "2 of 30 calls of your program and 1 of 60 calls of 'other sets'"."""
        counts = []
        if own:
            counts.append(f"{own} of {self.num_examples} {noun} of your program")
        for lever, number in zip(self.levers, of_levers, strict=True):
            if number:
                counts.append(f"{number} of {lever.num_calls} {noun} of {lever.name!r}")
        return " and ".join(counts)

    def _failed(self) -> Iterator[str]:
        """Yield a line with the numbers of failed calls, or nothing if no call failed."""
        counts = self._counts("calls", self.num_failed, [lever.num_failed for lever in self.levers])
        if counts:
            yield (
                f"{counts} failed. They get the mean score of the other programs, so the gains are less "
                "reliable."
            )

    def _unread(self) -> Iterator[str]:
        """Yield a line with the numbers of unparsable replies, or nothing if all replies were parsed."""
        counts = self._counts("replies", self.num_unread, [lever.num_unread for lever in self.levers])
        if not counts:
            return
        line = f"{counts} could not be parsed and count as wrong."
        if self.num_unread:
            fixes = ["try another adapter", "increase max_tokens if replies are cut off"]
            # If the demos cannot be removed, the program has none.
            if not any(lever.name == NO_DEMOS for lever in self.levers):
                fixes.insert(1, "show demos")
            line += f" To fix this, {', '.join(fixes[:-1])}, or {fixes[-1]}."
        yield line
