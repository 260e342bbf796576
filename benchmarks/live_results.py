"""The results of `live.py`: a file that grows with each finished side, and tables of its results.

python benchmarks/live_results.py benchmarks/recorded/live/*.jsonl --against original

Each line of the file has the result of one side on one draw of a task: the score on each held-out example or, with
`--share`, the F1. So the tables need no model, and a long comparison can be made in several runs.
"""

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from command import print_table, with_interval

import plr_dspy
from plr_dspy.report.schema import Comparison
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.statistics.comparisons import paired_interval
from quickstart import mean

ORIGINAL = "original"
EMPTY = "no demos"


@dataclass(frozen=True)
class Setting:
    """The settings that all sides of a comparison share.

    Attributes:
        model: Name of the model, or of its GGUF file without the suffix.
        format: "plain" or "chat".
        cache: Whether DSPy caches calls. If so, seconds and tokens are meaningless.
        task: Name of the task.
        seed: Seed of the draw of labeled and held-out examples.
        demos: Maximum number of demos.
        pool: Number of labeled examples.
        test: Number of held-out examples.
        share: Share of a rare label, or 0 if the score is the accuracy.
    """

    model: str
    format: str
    cache: bool
    task: str
    seed: int
    demos: int
    pool: int
    test: int
    share: float


@dataclass(frozen=True)
class Claim:
    """The claims in an optimizer's report.

    Attributes:
        expected, interval: Expected score of the chosen program on new examples, and its 95% interval.
        expected_gain, gain_interval: Expected gain over the student, and its 95% interval.
        probability: Probability that the chosen program is better than the student.
    """

    expected: float
    interval: tuple[float, float]
    expected_gain: float
    gain_interval: tuple[float, float]
    probability: float

    @classmethod
    def of(cls, comparison: Comparison) -> "Claim":
        expected, low, high = comparison.expected_chosen
        return cls(
            expected,
            (low, high),
            comparison.expected_gain,
            comparison.gain_interval,
            comparison.probability,
        )


@dataclass(frozen=True)
class Result:
    """The cost of a side's program, including its base, and its scores on held-out examples or its F1.

    Attributes:
        calls: Number of program calls made to get the program.
        lm_calls: Number of LM calls, including cached calls.
        seconds: Time to get the program.
        tokens_read: Number of prompt tokens that the server read, or None if unknown.
        claim: The claims in the optimizer's report, or None if there is no comparison.
    """

    calls: int
    lm_calls: int
    seconds: float
    tokens_read: float | None
    scores: list[float]
    claim: Claim | None = None


Results: TypeAlias = dict[str, Result]
"""The results of all sides on one draw, keyed by the side's name."""


class ResultsFile:
    """Results that are stored in a file of JSON lines, or only in memory if `path` is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.by_setting: dict[Setting, Results] = {}
        if path is not None and path.exists():
            for line in path.read_text("utf-8").splitlines():
                self._read(json.loads(line))

    def _read(self, entry: dict[str, Any]) -> None:
        values = entry["result"]
        if values["claim"] is not None:
            claim = Claim(**values["claim"])
            # JSON has no tuples.
            values["claim"] = replace(
                claim, interval=tuple(claim.interval), gain_interval=tuple(claim.gain_interval)
            )
        results = self.by_setting.setdefault(Setting(**entry["setting"]), {})
        results[entry["side"]] = Result(**values)

    def find(self, setting: Setting, side: str) -> Result | None:
        """Return the result of a side, or None if it is missing."""
        return self.by_setting.get(setting, {}).get(side)

    def add(self, setting: Setting, side: str, result: Result) -> None:
        """Add the result of a side, and append it to the file."""
        self.by_setting.setdefault(setting, {})[side] = result
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            "version": plr_dspy.__version__,
            "setting": asdict(setting),
            "side": side,
            "result": asdict(result),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(entry)}\n")


def check_reports(draws: Sequence[Results], side: str) -> dict[str, str]:
    """Return table cells that compare a side's reports with its held-out scores and gains."""
    student = EMPTY if side.startswith("PLFewShot") else ORIGINAL
    expected = []
    expected_gains = []
    gains = []
    num_inside = 0
    num_gains_inside = 0
    better = []
    for results in draws:
        claim = results[side].claim if side in results else None
        if claim is None:
            continue
        score = mean(results[side].scores)
        low, high = claim.interval
        expected.append(claim.expected)
        num_inside += low <= score <= high
        if student not in results:
            continue
        gain = score - mean(results[student].scores)
        low, high = claim.gain_interval
        expected_gains.append(claim.expected_gain)
        gains.append(gain)
        num_gains_inside += low <= gain <= high
        if claim.probability >= MIN_WIN_PROBABILITY:
            better.append(gain > 0)
    row = {"expected": "", "inside": "", "gain expected": "", "gain": ""}
    if expected:
        row["expected"] = f"{mean(expected):.3f}"
        row["inside"] = f"{num_inside} of {len(expected)}"
    if gains:
        row["gain expected"] = f"{mean(expected_gains):+.3f}"
        row["gain"] = f"{mean(gains):+.3f}"
    row["gain inside"] = str(num_gains_inside)
    row["better, and so"] = f"{len(better)}, {sum(better)}"
    return row


def differences(draws: Sequence[Results], side: str, other: str) -> tuple[str, str]:
    """Return the mean difference between two sides, with its intervals over draws and over examples."""
    if side == other:
        return "", ""
    by_draw = []
    by_example: list[float] = []
    for results in draws:
        if side in results and other in results:
            gains = np.subtract(results[side].scores, results[other].scores).tolist()
            by_draw.append(mean(gains))
            by_example += gains
    if not by_draw:
        return "", ""
    low, high = paired_interval(by_example)
    return with_interval(by_draw), f"[{low:+.3f}, {high:+.3f}]"


def mean_tokens(results: Sequence[Result]) -> str:
    """Return the mean number of prompt tokens that the server read, or an empty string if it is unknown."""
    tokens = [result.tokens_read for result in results if result.tokens_read is not None]
    return f"{mean(tokens):,.0f}" if tokens else ""


def print_sides(title: str, draws: Sequence[Results], against: Sequence[str]) -> None:
    """Print the score of each side, and its differences from the sides in `against`."""
    sides = dict.fromkeys(itertools.chain.from_iterable(draws))
    rows = []
    for side in sides:
        of_side = [results[side] for results in draws if side in results]
        row = {
            "": side,
            "draws": str(len(of_side)),
            "score": f"{mean([mean(result.scores) for result in of_side]):.3f}",
            "calls": f"{mean([result.calls for result in of_side]):,.0f}",
            "LM calls": f"{mean([result.lm_calls for result in of_side]):,.0f}",
            "tokens read": mean_tokens(of_side),
            "s": f"{mean([result.seconds for result in of_side]):.0f}",
        }
        for other in against:
            over_draws, over_examples = differences(draws, side, other)
            row[f"less {other}, over draws"] = over_draws
            row[f"less {other}, over examples"] = over_examples
        rows.append(row | check_reports(draws, side))
    print(f"\n{title}, {len(draws)} draw(s)\n")
    print_table(rows)


def print_tasks(
    results_by_task: Mapping[str, Sequence[Results]], demos: int, against: Sequence[str]
) -> None:
    """Print a table for each task and, if there are several tasks, a table for all tasks."""
    for task, draws in results_by_task.items():
        print_sides(f"{task}, {demos} demos", draws, against)
    if len(results_by_task) > 1:
        together = list(itertools.chain.from_iterable(results_by_task.values()))
        print_sides(f"all {len(results_by_task)} tasks", together, against)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--against", nargs="+", default=[ORIGINAL])
    args = parser.parse_args()
    for path in args.files:
        by_setting = ResultsFile(path).by_setting
        known = set(itertools.chain.from_iterable(by_setting.values()))
        unknown = set(args.against) - known
        if unknown:
            raise SystemExit(
                f"--against must be among {sorted(known)}; got {sorted(unknown)}: replace these names"
            )
        by_shape: dict[Setting, dict[str, list[Results]]] = {}
        for setting, results in by_setting.items():
            shape = replace(setting, task="", seed=0)
            by_shape.setdefault(shape, {}).setdefault(setting.task, []).append(results)
        for shape, results_by_task in by_shape.items():
            heading = f"{shape.model}, {shape.format} format, {shape.pool} labeled and {shape.test} held-out examples"
            if shape.share:
                heading += f", a rare label with a share of {shape.share}"
            print(f"\n{heading}")
            print_tasks(results_by_task, shape.demos, args.against)


if __name__ == "__main__":
    main()
