"""The table of paired differences: each method against a base method, on the same demos and examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from plr_dspy.experiments.analysis.layout import (
    NOT_APPLICABLE,
    PARTIAL,
    Block,
    Cell,
    Row,
    Table,
    Value,
    counted,
)
from plr_dspy.experiments.analysis.significance import grouped_interval, holm, sign_flip_test
from plr_dspy.experiments.runs.results import (
    METHODS,
    TASKS,
    Record,
    Result,
    Run,
    applies,
    by_run,
    in_order,
    setting_notes,
)
from plr_dspy.statistics.comparisons import paired_interval

KEY = ("num_demos", "task", "method", "against")
FIELDS = (*KEY, "mean", "low", "high", "seeds", "examples", "runs", "groups", "p", "p_holm")


@dataclass(frozen=True)
class _Pairs:
    """A method's runs that the base method has too: differences of scores by example, in percentage points."""

    method: str
    against: str
    differences: Mapping[Run, Sequence[float]]

    def key(self, num_demos: Value, task: str) -> dict[str, Value]:
        """What names a cell in the CSV."""
        return dict(zip(KEY, (num_demos, task, self.method, self.against), strict=True))

    def on(self, task: str, num_demos: int) -> dict[int, Sequence[float]]:
        """By seed."""
        return {r.seed: d for r, d in self.differences.items() if (r.task, r.num_demos) == (task, num_demos)}

    def groups(self) -> dict[tuple[str, int], list[float]]:
        """Mean differences of the runs, by task and seed: what is grouped shares its held-out examples."""
        groups: dict[tuple[str, int], list[float]] = {}
        for run, differences in sorted(self.differences.items()):
            groups.setdefault((run.task, run.seed), []).append(fmean(differences))
        return groups


def paired_table(results: Iterable[Record], against: str = "Static", *, confidence: float = 0.95) -> Table:
    """Mean differences of accuracy to a base method in percentage points, paired.

    Three things are said of each method, all of the runs that the base method has as well:

    - By task and number of demos: the mean difference over the held-out examples of all shared seeds, pooled, with
      `paired_interval` on the differences by example. It is of other examples for these very demos, and takes the
      examples of different seeds for different ones; how much other demos would change it, it does not say.
    - Over all runs: the mean of the runs' differences, all runs counting alike, with `grouped_interval`. It is of
      other runs like these (other draws of demos and examples, on tasks like these).
    - p: of `sign_flip_test` on the same groups, two-sided; and with Holm's correction over the table's methods. The
      intervals are not corrected for their number.

    Args:
        results: Of one model and prompt format.
        against: The base method.
        confidence: Level of the intervals, in (0, 1).

    Raises:
        ValueError: when the base method, or any other, has no results.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1); got {confidence!r}: pass 0.95 for 95 %")
    runs = by_run(results)
    methods = in_order({run.method for run in runs}, METHODS)
    if against not in methods or len(methods) == 1:
        raise ValueError(
            f"against must be one of two or more methods with results; got {against!r} among {methods}"
        )
    paired = [_pairs(runs, method, against) for method in methods if method != against]
    blocks = [
        _block(num_demos, paired, runs, confidence) for num_demos in sorted({run.num_demos for run in runs})
    ]
    blocks.append(_overall(paired, confidence))
    first = next(iter(runs.values()))
    notes = (*_legend(blocks, against, confidence), *_run_notes(paired), *setting_notes(runs.values()))
    title = f"Accuracy of {first.model} against {against} in percentage points, {first.format} prompts"
    return Table("paired", title, tuple(blocks), notes, FIELDS)


def _pairs(runs: Mapping[Run, Result], method: str, against: str) -> _Pairs:
    differences = {}
    for run, result in runs.items():
        base = runs.get(run._replace(method=against))
        if run.method == method and base is not None:
            differences[run] = [100 * (a - b) for a, b in zip(result.scores, base.scores, strict=True)]
    return _Pairs(method, against, differences)


def _block(num_demos: int, paired: Sequence[_Pairs], runs: Mapping[Run, Result], confidence: float) -> Block:
    tasks = in_order({run.task for run in runs if run.num_demos == num_demos}, TASKS)
    seeds = {task: {r.seed for r in runs if (r.task, r.num_demos) == (task, num_demos)} for task in tasks}
    rows = []
    for pairs in paired:
        by_task = {task: pairs.on(task, num_demos) for task in tasks}
        cells = []
        for task, by_seed in by_task.items():
            pooled = [difference for seed in sorted(by_seed) for difference in by_seed[seed]]
            text, tail, values = _difference(pooled, paired_interval(pooled, confidence) if pooled else None)
            if not pooled and not applies(pairs.method, task):
                text = NOT_APPLICABLE
            mark = PARTIAL if by_seed and by_seed.keys() != seeds[task] else ""
            values |= {"seeds": len(by_seed), "examples": len(pooled)}
            cells.append(Cell(text, tail + mark, values=pairs.key(num_demos, task) | values))
        if any(by_task.values()):
            rows.append(Row(pairs.method, tuple(cells)))
    return Block(counted(num_demos, "demo"), tuple(tasks), tuple(rows))


def _overall(paired: Sequence[_Pairs], confidence: float) -> Block:
    some = [pairs for pairs in paired if pairs.differences]
    p_values = [sign_flip_test(list(pairs.groups().values())) for pairs in some]
    rows = []
    for pairs, p, p_holm in zip(some, p_values, holm(p_values), strict=True):
        groups = list(pairs.groups().values())
        of_runs = [difference for group in groups for difference in group]
        interval = grouped_interval(groups, confidence) if len(groups) > 1 else None
        text, tail, values = _difference(of_runs, interval)
        values |= {"runs": len(of_runs), "groups": len(groups), "p": p, "p_holm": p_holm}
        whole = Cell(text, tail, values=pairs.key("all", "all") | values)
        others = (str(len(of_runs)), str(len(groups)), _readable(p), _readable(p_holm))
        rows.append(Row(pairs.method, (whole, *map(Cell, others))))
    return Block("all runs", ("difference", "runs", "groups", "p", "p (Holm)"), tuple(rows))


def _difference(
    values: Sequence[float], interval: tuple[float, float] | None
) -> tuple[str, str, dict[str, Value]]:
    """Text, tail and CSV values of a mean difference."""
    if not values:
        return "", "", {}
    mean = fmean(values)
    if interval is None:
        return f"{mean:+.1f}", "", {"mean": mean}
    low, high = interval
    return f"{mean:+.1f}", f" [{low:+.1f}, {high:+.1f}]", {"mean": mean, "low": low, "high": high}


def _readable(p: float) -> str:
    return "<.0001" if p < 0.0001 else f"{p:.4f}"


def _legend(blocks: Sequence[Block], against: str, confidence: float) -> Iterator[str]:
    level = f"{100 * confidence:g} %"
    yield (
        f"By task: mean difference to {against} over the pooled held-out examples of all seeds "
        f"[its {level} interval, of other examples for the same demos]."
    )
    yield (
        f"All runs: mean difference over the runs that {against} has too [its {level} interval over groups: "
        "runs of one task and seed share examples]; p of a two-sided sign-flip test over groups, and with "
        "Holm's correction over the methods. Intervals are not corrected for their number."
    )
    cells = [cell for block in blocks[:-1] for row in block.rows for cell in row.cells]
    if any(PARTIAL in cell.tail for cell in cells):
        yield f"{PARTIAL} not all seeds of the column."
    if any(not cell.text for cell in cells):
        yield f"Empty: no run that {against} has too."
    if any(cell.text == NOT_APPLICABLE for cell in cells):
        yield f"{NOT_APPLICABLE}: the method reads label probabilities, and does not apply."


def _run_notes(paired: Sequence[_Pairs]) -> Iterator[str]:
    some = [pairs for pairs in paired if pairs.differences]
    if others := [pairs.method for pairs in paired if not pairs.differences]:
        yield f"No run in common: {', '.join(others)}."
    if len({frozenset(run._replace(method="") for run in pairs.differences) for pairs in some}) > 1:
        yield "Not all methods have the same runs: compare their differences over all runs only where they do."
    fewest = min((len(pairs.groups()) for pairs in some), default=0)
    if some and 2.0 ** (1 - fewest) > 0.05:
        yield f"{counted(fewest, 'group')} of runs allow no p below {2.0 ** (1 - fewest):g}."
