"""Tables of our runs, as in the paper: accuracies, paired differences, costs and ablations.

One table compares our accuracies with the published numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from plr_dspy.runtime import write_atomically
from plr_dspy.statistics.comparisons import mean_interval, paired_interval

from .model import LOCAL
from .protocol import ABLATIONS, METHODS
from .results import Result
from .tasks import TASKS

AVERAGE = "average"
BASE = "Static"
PARTIAL = "†"
MARKS = {1: "**{}**", 2: "<ins>{}</ins>", 3: "*{}*"}
"""The markup of cells with the three best ranks in a column, keyed by rank."""

PAPER = "arXiv:2603.21373"
PAPER_SEEDS = 5
PUBLISHED = Path(__file__).with_name("published.csv")
"""Accuracies in % from the paper's LaTeX source, for each model, task, number of demos and method.

The paper's reasoning table has the MATH500 columns in the order 8, 4, 32, 16. The table's averages confirm these
headings. In the ablations, the values of unweighted PLR-1 and PLR-4, and of PLR-1 and PLR-4 with an elite fraction of
0.2, are copies from the main table.
"""


@dataclass(frozen=True, eq=False)
class Table:
    """A formatted table, and its numbers.

    Attributes:
        name: Name of the files, without suffix.
        title: Heading of the Markdown file.
        blocks: Frames of formatted cells with row and column labels, keyed by heading.
        numbers: Rows of the CSV file.
        notes: Sentences to print below the table.
    """

    name: str
    title: str
    blocks: dict[str, pd.DataFrame]
    numbers: pd.DataFrame
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """Return the blocks and notes as Markdown."""
        parts = [f"## {self.title}"]
        for heading, block in self.blocks.items():
            lines = [["", *block.columns], ["---", *["---:"] * block.shape[1]]]
            lines += [list(line) for line in block.fillna("").itertuples()]
            parts.append(f"### {heading}")
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def to_csv(self) -> str:
        """Return the numbers as CSV, with all digits. Unknown numbers are empty."""
        return str(self.numbers.to_csv(index=False, lineterminator="\n"))

    def save(self, folder: Path) -> list[Path]:
        """Write the table as .md and .csv files, and return their paths."""
        markdown = folder / f"{self.name}.md"
        csv = folder / f"{self.name}.csv"
        write_atomically(markdown, self.to_markdown().encode())
        write_atomically(csv, self.to_csv().encode())
        return [markdown, csv]


def _blocks(cells: pd.DataFrame, *, row: str = "method", column: str = "task") -> dict[str, pd.DataFrame]:
    """Return the formatted cells as one frame per block."""
    groups = cells.groupby("block", sort=False)
    return {heading: group.pivot(index=row, columns=column, values="text") for heading, group in groups}


def count_noun(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 demo" or "8 demos"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """Return the frame from which all tables are built, with one row per run.

    Columns are the fields of `Result`, "block", "percent", "calls" and the numbers of tokens. Rows are
    sorted by number of demos, task, method and seed. Tasks and methods are categories in the order of
    the paper's tables. Other tasks and methods follow in alphabetical order.
    """
    if not results:
        raise ValueError(
            "the folder (--out) must contain results; got no results. Run python examples/paper run first."
        )
    _check_comparable(results)
    frame = pd.DataFrame([vars(result) for result in results])
    frame["block"] = [count_noun(count, "demo") for count in frame.num_demos]
    frame["percent"] = 100 * frame.accuracy
    frame["calls"] = [calls["total"] for calls in frame.program_calls]
    for kind in ("prompt", "completion"):
        frame[f"{kind} tokens"] = [float(tokens.get(kind, math.nan)) for tokens in frame.tokens]
    for name, known in (("task", list(TASKS)), ("method", list(METHODS))):
        others = sorted(set(frame[name]).difference(known))
        frame[name] = pd.Categorical(frame[name], [*known, *others]).remove_unused_categories()
    return frame.sort_values(["num_demos", "task", "method", "seed"], ignore_index=True)


def _check_comparable(results: Sequence[Result]) -> None:
    """Raise a ValueError if results cannot be in one table."""
    models = sorted({(result.model, result.format) for result in results})
    if len(models) > 1:
        raise ValueError(
            f"results must share one model and one prompt format; got {models}. Use a folder for each model and format."
        )
    runs = set()
    examples: dict[Hashable, Hashable] = {}
    for result in results:
        if result.run in runs:
            raise ValueError(
                f"results must have one line per run; got two lines for {result.run}. Delete one of them."
            )
        runs.add(result.run)
        own_examples = (len(result.scores), *sorted(result.data.items()))
        if examples.setdefault((result.task, result.seed), own_examples) != own_examples:
            raise ValueError(
                "all runs of one task and seed must have the same examples; the examples of "
                f"{result.task!r}, seed {result.seed}, differ. Delete these results, and make the runs again."
            )


def grouped_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the cluster-robust 95% t interval for the mean of all values, or NaN for a single group."""
    if len(groups) < 2:
        return math.nan, math.nan
    mean = np.mean(np.concatenate(groups))
    mean_size = np.mean([len(group) for group in groups])
    # The mean of `parts` is the mean of all values. Their variance comes from the groups' sums of residuals.
    parts = [float(mean + np.sum(np.subtract(group, mean)) / mean_size) for group in groups]
    return mean_interval(parts)


def sign_flip_test(groups: Sequence[Sequence[float]]) -> float:
    """Return the two-sided p-value of a mean difference, from a test that flips the signs of whole groups.

    The p-value is exact for up to 16 groups, and 1.0 for one group. For more than 16 groups, the test
    draws 65,536 random flips with a fixed seed.
    """
    sums = np.array([math.fsum(group) for group in groups])
    if sums.size < 2:
        return 1.0  # With a single group, both signs give a mean that is equally far from 0.
    test = stats.permutation_test(
        (sums,),
        lambda values, axis: values.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**16,
        random_state=np.random.default_rng(0),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected with Holm's step-down method (Scandinavian Journal of Statistics 6, 1979)."""
    p = pd.Series(p_values, dtype=float).sort_values()
    corrected = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1.0)
    return [float(value) for value in corrected.sort_index()]


def _mean_cells(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return each group's mean accuracy, with a 95% t interval over seeds (NaN for one seed)."""
    cells = []
    for place, runs in frame.groupby(keys, observed=True):
        mean = runs.percent.mean()
        interval = (math.nan, math.nan)
        text = f"{mean:.1f}"
        if len(runs) > 1:
            interval = mean_interval(list(runs.percent))
            text += f" ± {interval[1] - mean:.1f}"
        cells.append([*place, mean, *interval, len(runs), text])
    columns = [*keys, "mean", "low", "high", "seeds", "text"]
    return pd.DataFrame(cells, columns=columns).astype({key: frame[key].dtype for key in keys})


def _has_all_seeds(cells: pd.DataFrame, frame: pd.DataFrame) -> list[bool]:
    """Return whether each cell has results for all seeds of its column."""
    num_seeds = frame.groupby(["num_demos", "task"], observed=True).seed.nunique()
    columns = zip(cells.num_demos, cells.task, strict=True)
    return [num == num_seeds[column] for num, column in zip(cells.seeds, columns, strict=True)]


def _setting_notes(frame: pd.DataFrame) -> list[str]:
    """Return a list with a note about settings and versions that differ between results, if any."""
    settings = [
        {**settings, **versions} for settings, versions in zip(frame.settings, frame.versions, strict=True)
    ]
    described = pd.DataFrame(settings).map(repr)
    differing = sorted(described.columns[described.nunique() > 1])
    if not differing:
        return []
    return [f"Runs differ in their settings or versions: {', '.join(differing)}."]


def _have_different_runs(frame: pd.DataFrame) -> bool:
    """Return whether methods differ in their tasks, numbers of demos or seeds."""
    runs_of = set()
    for _, runs in frame.groupby("method", observed=True):
        runs_of.add(frozenset(zip(runs.num_demos, runs.task, runs.seed, strict=True)))
    return len(runs_of) > 1


def accuracy_table(frame: pd.DataFrame) -> Table:
    """Return mean accuracies in % over seeds, with a block per number of demos and a column per task.

    In each column, methods with all seeds are ranked, if there are several such methods. Ties share a
    rank.
    """
    with_averages = _with_averages(frame)
    cells = _mean_cells(with_averages, ["num_demos", "block", "task", "method"])
    complete = _has_all_seeds(cells, with_averages)
    # Round accuracies, so that rounding errors do not break ties.
    means = cells["mean"].round(9).where(complete)
    columns = means.groupby([cells.num_demos, cells.task], observed=True)
    ranks = columns.rank("min", ascending=False).where(columns.transform("count") > 1)
    cells["rank"] = ranks.astype("Int64")
    texts = []
    for text, rank, is_complete in zip(cells.text, ranks, complete, strict=True):
        texts.append(MARKS.get(rank, "{}").format(text) if is_complete else text + PARTIAL)
    notes = [
        "Means over seeds ± half the width of a 95% t interval (omitted for one seed). In each column, among methods "
        "with all seeds of the column, the best mean is bold, the second underlined and the third italic.",
        f"{AVERAGE}: macro average, for methods with all tasks of the block. {PARTIAL}: some seeds of the column "
        "are missing. Empty: no runs; methods that read label probabilities have no runs on reasoning tasks.",
        *_setting_notes(frame),
    ]
    title = f"Accuracy of {frame.model[0]} in %, {frame.format[0]} prompts"
    numbers = cells.drop(columns=["block", "text"])
    return Table("accuracy", title, _blocks(cells.assign(text=texts)), numbers, notes)


def _with_averages(frame: pd.DataFrame) -> pd.DataFrame:
    """Add rows for an extra task, "average": the mean over all tasks of a block.

    A method gets a row for a seed only if it has runs with this seed on all tasks of the block.
    """
    num_tasks = frame.groupby("num_demos").task.nunique()
    keys = ["num_demos", "block", "method", "seed"]
    averages = []
    for place, runs in frame.groupby(keys, observed=True):
        if len(runs) == num_tasks[place[0]] > 1:
            averages.append([*place, AVERAGE, runs.percent.mean()])
    added = pd.DataFrame(averages, columns=[*keys, "task", "percent"])
    tasks = pd.CategoricalDtype([*frame.task.cat.categories, AVERAGE])
    types = {"method": frame.method.dtype, "task": tasks, "num_demos": int, "seed": int}
    return pd.concat([frame[added.columns], added], ignore_index=True).astype(types)


def paired_table(frame: pd.DataFrame) -> Table | None:
    """Return mean differences in accuracy from Static, in percentage points, or None if no runs are paired.

    Intervals by task are over the pooled held-out examples of all shared seeds, so they hold for new
    examples with the same demos. Intervals over all runs hold for new draws on similar tasks.
    """
    pairs = _pair_with_base(frame)
    if pairs.empty:
        return None
    by_task = _differences_by_task(pairs, frame)
    overall = _differences_over_all(pairs)
    numbers = pd.concat([by_task.drop(columns=["block", "text"]), overall])
    blocks = {**_blocks(by_task), "all runs": _overall_texts(overall)}
    notes = [
        f"By task: mean difference from {BASE} over the pooled held-out examples of all seeds [95% interval for "
        f"new examples with the same demos]. {PARTIAL}: some seeds of the column are missing. Empty: no shared runs.",
        f"All runs: mean difference over the runs that {BASE} also has [95% interval over groups; runs of one task "
        "and seed form a group, because they share examples]; p of a two-sided sign-flip test over groups, also with "
        "Holm's correction. Intervals are not corrected for multiple comparisons.",
    ]
    unpaired = [method for method in frame.method.unique() if method not in {BASE, *pairs.method}]
    if unpaired:
        notes.append(f"No runs in common with {BASE}: {', '.join(unpaired)}.")
    if _have_different_runs(pairs):
        notes.append(
            "Methods differ in their runs. Compare differences over all runs only for methods with the same runs."
        )
    fewest = int(overall.groups.min())
    if fewest < 6:
        notes.append(
            f"With {count_noun(fewest, 'group')} of runs, p cannot be below {2.0 ** (1 - fewest):g}."
        )
    title = f"Accuracy of {frame.model[0]} against {BASE} in percentage points, {frame.format[0]} prompts"
    return Table("paired", title, blocks, numbers, [*notes, *_setting_notes(frame)])


def _pair_with_base(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that Static also has, with their differences in score from Static.

    New columns are "differences", with a value for each example, and "mean".
    """
    place = ["task", "num_demos", "seed"]
    base = frame.loc[frame.method == BASE, [*place, "scores"]]
    pairs = frame[frame.method != BASE].merge(base, on=place, suffixes=("", "_of_base"))
    scores = zip(pairs.scores, pairs.scores_of_base, strict=True)
    pairs["differences"] = [100 * np.subtract(own, of_base) for own, of_base in scores]
    pairs["mean"] = pairs.differences.map(np.mean)
    return pairs


def _differences_by_task(pairs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean difference over all examples for each method, task and number of demos."""
    keys = ["num_demos", "block", "task", "method"]
    lines = []
    for place, runs in pairs.groupby(keys, observed=True):
        differences = np.concatenate(list(runs.differences))
        mean = differences.mean()
        low, high = paired_interval(list(differences))
        text = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        lines.append([*place, len(runs), differences.size, mean, low, high, text])
    columns = [*keys, "seeds", "examples", "mean", "low", "high", "text"]
    cells = pd.DataFrame(lines, columns=columns).astype({key: pairs[key].dtype for key in keys})
    cells["text"] = cells.text.where(_has_all_seeds(cells, frame), cells.text + PARTIAL)
    return cells


def _differences_over_all(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean difference of each method over all its runs, with p-values."""
    lines = []
    for method, runs in pairs.groupby("method", observed=True):
        # Runs of one task and seed share held-out examples, so only groups of these runs are independent.
        groups = [list(group) for _, group in runs.groupby(["task", "seed"], observed=True)["mean"]]
        low, high = grouped_interval(groups)
        lines.append(
            [
                method,
                "all",
                "all",
                len(runs),
                len(groups),
                runs["mean"].mean(),
                low,
                high,
                sign_flip_test(groups),
            ]
        )
    columns = ["method", "num_demos", "task", "runs", "groups", "mean", "low", "high", "p"]
    overall = pd.DataFrame(lines, columns=columns)
    return overall.assign(p_holm=holm(overall.p))


def _overall_texts(overall: pd.DataFrame) -> pd.DataFrame:
    """Return the formatted differences over all runs, one row per method."""
    lines = {}
    for line in overall.itertuples():
        difference = f"{line.mean:+.1f}"
        if line.groups > 1:
            difference += f" [{line.low:+.1f}, {line.high:+.1f}]"
        p_values = ["<.0001" if p < 0.0001 else f"{p:.4f}" for p in (line.p, line.p_holm)]
        lines[line.method] = [difference, str(line.runs), str(line.groups), *p_values]
    columns = ["difference", "runs", "groups", "p", "p (Holm)"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def calls_table(frame: pd.DataFrame) -> Table:
    """Return mean program calls, tokens and seconds per run, for each method and number of demos."""
    groups = frame.groupby(["num_demos", "block", "method"], observed=True)
    means = groups[["calls", "prompt tokens", "completion tokens", "seconds"]].mean()
    means["runs"] = groups.size()
    texts = means.map("{:,.0f}".format).where(means.notna(), "")
    blocks = {
        block: texts.xs(block, level="block").droplevel("num_demos") for block in frame.block.unique()
    }
    notes = ["Means over runs (tasks and seeds). Means of tokens are over runs with known tokens."]
    if any(_have_different_runs(block) for _, block in frame.groupby("num_demos")):
        notes.append("Methods differ in their runs. Compare means only of methods with the same runs.")
    title = f"Cost of a run with {frame.model[0]}, {frame.format[0]} prompts"
    numbers = means.reset_index().drop(columns="block")
    return Table("calls", title, blocks, numbers, [*notes, *_setting_notes(frame)])


def ablation_table(frame: pd.DataFrame) -> Table | None:
    """Return accuracies by setting, or None if there are no ablations.

    There is a block per ablation, and a column per task and number of demos.
    """
    parts = []
    for ablation, values in ABLATIONS.items():
        runs = frame[frame.method.isin(values)]
        if runs.method.nunique() > 1:
            parts.append(
                runs.assign(ablation=ablation, value=[float(values[method]) for method in runs.method])
            )
    if not parts:
        return None
    cells = _mean_cells(pd.concat(parts), ["ablation", "value", "task", "num_demos", "block"])
    settings = cells.value.map("{:g}".format)
    settings = settings.mask(
        cells.ablation == "weighted", cells.value.map({0.0: "unweighted", 1.0: "weighted"})
    )
    numbers = cells.assign(setting=settings).drop(columns=["block", "text"])
    cells["row"] = pd.Categorical(settings, settings.unique())
    columns = cells.task.astype(str) + ", " + cells.block
    cells["column"] = pd.Categorical(columns, columns.unique())
    cells["block"] = cells.ablation.str.replace("_", " ")
    note = "Means over seeds ± half the width of a 95% t interval (omitted for one seed)."
    title = "Held-out accuracy in % by setting"
    return Table(
        "ablation",
        title,
        _blocks(cells, row="row", column="column"),
        numbers,
        [note, *_setting_notes(frame)],
    )


def load_published() -> pd.DataFrame:
    """Return the paper's numbers.

    Columns are "published_model", "task", "num_demos", "method" and "published".
    """
    wide = pd.read_csv(PUBLISHED).rename(columns={"model": "published_model"})
    places = ["published_model", "task", "num_demos"]
    return wide.melt(places, var_name="method", value_name="published").dropna()


def published_table(frame: pd.DataFrame) -> Table | None:
    """Return our mean accuracies, the paper's accuracies, and the differences.

    The table has one block per number of demos and model in the paper. Return None if the paper has no
    accuracies for our combinations of task, number of demos and method.
    """
    published = load_published()
    model = "SmolLM2-135M (local)" if frame.model[0] == LOCAL else str(frame.model[0])
    ours = _mean_cells(frame, ["num_demos", "block", "task", "method"]).drop(
        columns=["low", "high", "text"]
    )
    cells = ours.merge(published, on=["num_demos", "task", "method"])
    if cells.empty:
        return None
    cells = cells.assign(
        model=model, published_seeds=PAPER_SEEDS, difference=cells["mean"] - cells.published
    )
    for key in ("task", "method"):
        cells[key] = cells[key].astype(frame[key].dtype)
    texts = [
        f"{cell.mean:.1f} / {cell.published:.1f} / {cell.difference:+.1f}" for cell in cells.itertuples()
    ]
    headings = cells.block + f": ours {model}; paper " + cells.published_model + f", {PAPER_SEEDS} seeds"
    blocks = _blocks(cells.assign(text=texts, block=headings))
    notes = [
        f"ours / paper / difference, in points. ours: {model}, means over our seeds. paper: the model named above each "
        f"block, means over {PAPER_SEEDS} seeds, as reported by {PAPER}.",
        "If the models differ, the difference mostly reflects the models, not the methods.",
    ]
    if "math500" in set(cells.task):
        notes.append(
            "The paper's MATH500 columns are in the order 8, 4, 32, 16; this table follows the paper's headings."
        )
    title = f"Our accuracy and that of {PAPER}, in %: {model}, {frame.format[0]} prompts"
    return Table("published", title, blocks, cells.drop(columns="block"), notes)


def all_tables(frame: pd.DataFrame) -> list[Table]:
    """Return all tables for which there are results. The first three cover only the paper's methods."""
    tables: list[Table | None] = []
    ours = frame[frame.method.isin(METHODS)].reset_index(drop=True)
    if len(ours):
        tables += [accuracy_table(ours), calls_table(ours), paired_table(ours)]
    tables += [ablation_table(frame), published_table(frame)]
    return [table for table in tables if table is not None]
