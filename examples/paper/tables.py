"""The paper's tables, of our runs: accuracy, paired differences, costs, ablations, and its own numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from plr_dspy.runtime import write_atomically
from plr_dspy.statistics.comparisons import paired_interval

from .model import LOCAL
from .protocol import ABLATIONS, METHODS
from .results import Result
from .tasks import TASKS

PARTIAL, AVERAGE, BASE = "†", "average", "Static"
PAPER, PAPER_SEEDS = "arXiv:2603.21373", 5
PUBLISHED = Path(__file__).with_name("published.csv")
"""Accuracies in % that the paper's LaTeX source prints, by model, task, number of demos and our name of the method.

Its reasoning table heads the MATH500 columns 8, 4, 32, 16; they are kept as headed, with which its averages are right.
The unweighted PLR-1 and PLR-4 of its ablations, and those with an elite fraction of 0.2, are those of the main table.
"""
MARKS = ("{}", "**{}**", "<ins>{}</ins>", "*{}*")
"""Of a cell without a rank, and of the first three."""


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands, in a table cell too."""
    # An underscore within a word, and "<" before a number, are plain text, and read better so.
    special = r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    return re.sub(special, lambda match: "\\" + match[0], text.replace("\n", " "))


@dataclass(frozen=True, eq=False)
class Table:
    """A table of numbers, and what must be known to read them.

    Attributes:
        name: Name of the files.
        title: One sentence.
        cells: A line for each cell: its "block" (a heading), "row", "column" and "text" for people, a "rank" whose
            first three are marked, and numbers for the CSV.
        notes: Sentences that stand below the table.
    """

    name: str
    title: str
    cells: pd.DataFrame
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """The table for people, readable as plain text too; what is no category is in the order in which it comes."""
        ranks = self.cells["rank"].fillna(0) if "rank" in self.cells else [0] * len(self.cells)
        texts = map(escape_markdown, self.cells.text)
        shown = [MARKS[rank if rank < 4 else 0].format(text) for rank, text in zip(ranks, texts, strict=True)]
        places = {}
        for name in ("block", "row", "column"):
            labels = self.cells[name]
            known = labels.cat.categories if labels.dtype == "category" else labels.unique()
            places[name] = pd.Categorical(labels.map(escape_markdown), map(escape_markdown, known))
        grid = pd.Series(shown, pd.MultiIndex.from_frame(pd.DataFrame(places))).unstack("column")
        parts = [f"## {escape_markdown(self.title)}"]
        for heading, block in grid.groupby(level="block"):
            block = block.droplevel("block").dropna(axis=1, how="all").fillna("")
            lines = [["", *block.columns], ["---", *["---:"] * block.shape[1]]]
            lines += [[row, *block.loc[row]] for row in block.index]
            parts += [f"### {heading}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        return "\n\n".join([*parts, *map(escape_markdown, self.notes)]) + "\n"

    def to_csv(self) -> str:
        """One line for each number or interval, with all digits; what is not known is empty."""
        numbers = self.cells.drop(columns=["block", "row", "column", "text"]).dropna(how="all")
        text: str = numbers.to_csv(index=False, lineterminator="\n")
        return text

    def save(self, folder: Path) -> list[Path]:
        """Write the table as .md and .csv, each whole or not at all; returns the files."""
        texts = {folder / f"{self.name}.md": self.to_markdown(), folder / f"{self.name}.csv": self.to_csv()}
        for path, text in texts.items():
            write_atomically(path, text.encode())
        return list(texts)


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as "1 demo" and "8 demos"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """Make a frame of the results of one experiment, one row for each run: what all tables take.

    It has the fields of `Result`, "percent", "calls" and tokens, by number of demos, task, method and seed. Tasks and
    methods are categories in the order of the paper's tables; other ones come last, by name.
    """
    if not results:
        raise ValueError("there are no results in that folder (--out): make some: python examples/paper run")
    frame = pd.DataFrame([vars(result) for result in results])
    frame["block"] = [counted(count, "demo") for count in frame.num_demos]
    frame["percent"], frame["calls"] = 100 * frame.accuracy, [calls["total"] for calls in frame.program_calls]
    for kind in ("prompt", "completion"):
        frame[f"{kind} tokens"] = [float(tokens.get(kind, math.nan)) for tokens in frame.tokens]
    if len(kinds := sorted(set(zip(frame.model, frame.format, strict=True)))) > 1:
        what = f"of one model and one prompt format; got {kinds}"
        raise ValueError(f"results must be {what}: make a table of each")
    names = pd.Series([str(result.run) for result in results])
    if names.duplicated().any():
        twice = names[names.duplicated()].iloc[0]
        raise ValueError(f"results must hold one record for each run; got two of {twice}: remove one")
    examples = pd.Series([f"{len(each.scores)} {sorted(each.data.items())}" for each in results])
    if (examples.groupby([frame.task, frame.seed]).nunique() > 1).any():
        raise ValueError(
            "all runs of one task and seed must be scored on the same examples: make them with the same settings"
        )
    for name, known in (("task", TASKS), ("method", METHODS)):
        there = set(frame[name])
        order = [each for each in known if each in there] + sorted(there.difference(known))
        frame[name] = pd.Categorical(frame[name], order, ordered=True)
    return frame.sort_values(["num_demos", "task", "method", "seed"], ignore_index=True)


def intervals(groups: Any) -> pd.DataFrame:
    """The "mean" by group of seeds, the ends "low" and "high" of its 95 % t interval (NaN of one), and their number."""
    found = groups.agg(["mean", "std", "size"]).rename(columns={"size": "seeds"})
    half = stats.t.ppf(0.975, found.seeds - 1) * found["std"] / np.sqrt(found.seeds)
    return found.assign(low=found["mean"] - half, high=found["mean"] + half)[["mean", "low", "high", "seeds"]]


def grouped_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The cluster-robust 95 % t interval of the mean of all values; of one group, NaN."""
    mean, count = np.mean(np.concatenate(groups)), sum(map(len, groups))
    # The mean of these is the mean, and their spread is that of the groups' sums about what is expected of their size.
    parts = pd.Series([mean + len(groups) / count * np.sum(np.subtract(group, mean)) for group in groups])
    _, low, high, _ = intervals(parts.groupby(lambda _: 0)).iloc[0]
    return float(low), float(high)


def sign_flip_test(groups: Sequence[Sequence[float]]) -> float:
    """Two-sided p-value of a mean of paired differences, if either sign were as likely for each group as a whole.

    It is exact up to 16 groups; beyond, 65,536 flips are drawn, the same ones at each call. One group has 1.0.
    """
    sums = np.array([math.fsum(group) for group in groups])
    if sums.size < 2:
        return 1.0  # the one group and its opposite are equally far from 0
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
    """P-values by Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979), in the order given."""
    p = pd.Series(p_values, dtype=float).sort_values(kind="stable")
    corrected = (p * np.arange(len(p), 0, -1)).cummax().clip(upper=1.0)
    return [float(value) for value in corrected.sort_index()]


def _with_margins(cells: pd.DataFrame) -> list[str]:
    """Means with half the width of their intervals, where they have one."""
    margins = ["" if math.isnan(half) else f" ± {half:.1f}" for half in (cells.high - cells.low) / 2]
    return [f"{mean:.1f}{margin}" for mean, margin in zip(cells["mean"], margins, strict=True)]


def _line(block: str, row: str, texts: Mapping[str, str], numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells of a line; the first one has its numbers."""
    cells = [{"block": block, "row": row, "column": column, "text": text} for column, text in texts.items()]
    return [{**cells[0], **numbers}, *cells[1:]]


def _setting_notes(frame: pd.DataFrame) -> list[str]:
    """Name the settings and versions that are not the same in all results."""
    described = pd.DataFrame([{**s, **v} for s, v in zip(frame.settings, frame.versions, strict=True)])
    differing = sorted(described.columns[described.map(repr).nunique() > 1])
    return [f"Not all runs were made alike; they differ in: {', '.join(differing)}."] if differing else []


def _differ(frame: pd.DataFrame) -> bool:
    """Whether some methods have other runs than the rest."""
    places = frame.groupby("method", observed=True)[["num_demos", "task", "seed"]]
    return bool(places.apply(lambda runs: str(runs.astype(str).values.tolist())).nunique() > 1)


def accuracy_table(frame: pd.DataFrame) -> Table:
    """Mean accuracy over seeds in %, a block for each number of demos, a column for each of its tasks.

    A macro average is over the tasks of the block, by seed, on the seeds that a method has on all of them. Ranks are
    among the methods that have all seeds of their column; where only one has, there are none. Ties share them.
    """
    place = ["num_demos", "block", "method"]
    frame = frame.assign(task=frame.task.cat.add_categories(AVERAGE))
    whole = frame.groupby([*place, "seed"], observed=True).percent.agg(["mean", "size"]).reset_index()
    num_tasks = whole.num_demos.map(frame.groupby("num_demos").task.nunique())
    whole = whole[(whole["size"] == num_tasks) & (num_tasks > 1)].rename(columns={"mean": "percent"})
    average = pd.Categorical([AVERAGE] * len(whole), dtype=frame.task.dtype)
    long = pd.concat([frame, whole.assign(task=average)])
    cells = intervals(long.groupby([*place, "task"], observed=True).percent)
    seeds = long.groupby(["num_demos", "task"], observed=True).seed.nunique().rename("of_seeds")
    cells = cells.join(seeds).reset_index()
    # What differs in the last bit only is a tie.
    means = cells["mean"].round(9).where(cells.seeds == cells.of_seeds)
    by_column = means.groupby([cells.num_demos, cells.task], observed=True)
    ranks = by_column.rank("min", ascending=False).where(by_column.transform("count") > 1)
    cells = cells.assign(rank=ranks.astype("Int64"), text=_with_margins(cells))
    cells.loc[cells.seeds < cells.of_seeds, "text"] += PARTIAL
    notes = [
        "Means over seeds ± half the width of a 95 % t interval (none for one seed). Of each column "
        "the best mean is bold, the second underlined, the third italic, among methods with all of its seeds.",
        f"{AVERAGE}: the macro average, of methods that have all tasks of the block. {PARTIAL}: not all seeds of the "
        "column. Empty: no runs; methods that read label probabilities have none on reasoning tasks.",
        *_setting_notes(frame),
    ]
    title = f"Accuracy of {frame.model[0]} in %, {frame.format[0]} prompts"
    return Table("accuracy", title, cells.assign(row=cells.method, column=cells.task), notes)


def paired_table(frame: pd.DataFrame) -> Table | None:
    """Mean differences of accuracy to Static in percentage points, paired; None without Static or any other method.

    By task and number of demos they are over the pooled held-out examples of all shared seeds: intervals are of other
    examples for these very demos. Over all runs, which count alike, they are of other draws on tasks like these.
    """
    place = ["task", "num_demos", "seed"]
    base = frame.loc[frame.method == BASE, [*place, "scores"]]
    pairs = frame[frame.method != BASE].merge(base, on=place, suffixes=("", "_of_base"))
    if pairs.empty:
        return None
    both = zip(pairs.scores, pairs.scores_of_base, strict=True)
    pairs["differences"] = [100 * np.subtract(ours, theirs) for ours, theirs in both]
    pairs["mean"] = pairs.differences.map(np.mean)
    by_task = pairs.groupby(["num_demos", "block", "method", "task"], observed=True)
    cells = by_task.agg(pooled=("differences", list), seeds=("seed", "size")).reset_index()
    pooled = cells.pop("pooled").map(np.concatenate)
    cells = cells.assign(mean=pooled.map(np.mean), examples=pooled.map(len), row=cells.method)
    cells[["low", "high"]] = [paired_interval(each) for each in pooled]
    cells["column"] = cells.task = cells.task.astype(str)
    cells["text"] = [f"{cell.mean:+.1f} [{cell.low:+.1f}, {cell.high:+.1f}]" for cell in cells.itertuples()]
    of_column = frame.groupby(["num_demos", "task"], observed=True).seed.nunique()
    all_seeds = [of_column[each] for each in zip(cells.num_demos, cells.task, strict=True)]
    cells.loc[cells.seeds < all_seeds, "text"] += PARTIAL
    # Runs of one task and seed share their held-out examples: only groups of them are independent.
    groups_of = {
        method: [list(group) for _, group in theirs.groupby(["task", "seed"], observed=True)["mean"]]
        for method, theirs in pairs.groupby("method", observed=True)
    }
    overall = []
    p_values = [sign_flip_test(groups) for groups in groups_of.values()]
    for (method, groups), p, p_holm in zip(groups_of.items(), p_values, holm(p_values), strict=True):
        mean, (low, high) = float(np.mean(np.concatenate(groups))), grouped_interval(groups)
        counts = {"runs": sum(map(len, groups)), "groups": len(groups)}
        numbers = {"num_demos": "all", "task": "all", "method": method, **counts, "p": p, "p_holm": p_holm}
        numbers |= {"mean": mean, "low": low, "high": high}
        interval = f" [{low:+.1f}, {high:+.1f}]" if len(groups) > 1 else ""
        texts = {"difference": f"{mean:+.1f}{interval}", **{name: str(count) for name, count in counts.items()}}
        texts |= {n: "<.0001" if v < 0.0001 else f"{v:.4f}" for n, v in (("p", p), ("p (Holm)", p_holm))}
        overall += _line("all runs", method, texts, numbers)
    notes = [
        f"By task: mean difference to {BASE} over the pooled held-out examples of all seeds [its 95 % interval, of "
        f"other examples for the same demos]. {PARTIAL}: not all seeds of the column. Empty: no run in common.",
        f"All runs: mean difference over the runs that {BASE} has too [its 95 % interval over groups: runs of one "
        "task and seed share examples]; p of a two-sided sign-flip test over groups, and with Holm's correction over "
        "the methods. Intervals are not corrected for their number.",
    ]
    if others := [method for method in frame.method.unique() if method not in {BASE, *groups_of}]:
        notes.append(f"No run in common: {', '.join(others)}.")
    if _differ(pairs):
        notes.append("Not all methods have the same runs: compare differences over all runs only where they do.")
    if (fewest := min(map(len, groups_of.values()))) < 6:
        notes.append(f"{counted(fewest, 'group')} of runs allow no p below {2.0 ** (1 - fewest):g}.")
    title = f"Accuracy of {frame.model[0]} against {BASE} in percentage points, {frame.format[0]} prompts"
    shown = pd.concat([cells, pd.DataFrame(overall)], ignore_index=True)
    shown["row"] = pd.Categorical(shown.row, frame.method.cat.categories)
    return Table("paired", title, shown, [*notes, *_setting_notes(frame)])


def calls_table(frame: pd.DataFrame) -> Table:
    """What a run costs: mean program calls, tokens by kind and seconds, by method and number of demos."""
    cells = []
    for (num_demos, block, method), runs in frame.groupby(["num_demos", "block", "method"], observed=True):
        means = runs[["calls", "prompt tokens", "completion tokens", "seconds"]].mean()
        texts = {name: "" if math.isnan(mean) else f"{mean:,.0f}" for name, mean in means.items()}
        numbers = {"num_demos": num_demos, "method": method, "runs": len(runs), **means}
        cells += _line(block, method, {**texts, "runs": str(len(runs))}, numbers)
    notes = ["Means over runs (tasks and seeds); of tokens, over the runs that know them."]
    if any(_differ(block) for _, block in frame.groupby("num_demos")):
        notes.append("Not all methods have the same runs: compare their means only where they do.")
    title = f"What a run costs with {frame.model[0]}, {frame.format[0]} prompts"
    return Table("calls", title, pd.DataFrame(cells), [*notes, *_setting_notes(frame)])


def ablation_table(frame: pd.DataFrame) -> Table | None:
    """Accuracy by setting: a block for each ablation that has two, a column for each task and number of demos."""
    parts, names = [], ("unweighted", "weighted")
    for ablation, values in ABLATIONS.items():
        runs = frame[frame.method.isin(values)]
        if runs.method.nunique() > 1:
            value = runs.method.astype(str).map(values).astype(float)
            settings = [names[int(v)] if ablation == "weighted" else f"{v:g}" for v in value]
            parts.append(runs.assign(ablation=ablation, value=value, setting=settings))
    if not parts:
        return None
    keys = ["ablation", "value", "setting", "task", "num_demos", "block"]
    cells = intervals(pd.concat(parts).groupby(keys, observed=True).percent).reset_index()
    cells["column"] = cells.task.astype(str) + ", " + cells.block
    cells["block"] = cells.ablation.str.replace("_", " ")
    cells = cells.assign(row=cells.setting, text=_with_margins(cells))
    note = "Means over seeds ± half the width of their 95 % t interval, where there are two or more."
    return Table("ablation", "Held-out accuracy in % by setting", cells, [note, *_setting_notes(frame)])


def load_published() -> pd.DataFrame:
    """The numbers of the paper, with "published_model", "task", "num_demos", "method", "published"."""
    wide = pd.read_csv(PUBLISHED).rename(columns={"model": "published_model"})
    places = ["published_model", "task", "num_demos"]
    return wide.melt(places, var_name="method", value_name="published").dropna()


def published_table(frame: pd.DataFrame) -> Table | None:
    """Our mean accuracy, that of the paper, and the difference: a block for each number of demos and of its models.

    None where the paper has none of the cells.
    """
    theirs, keys = load_published(), ["num_demos", "block", "task", "method"]
    model = "SmolLM2-135M (local)" if frame.model[0] == LOCAL else str(frame.model[0])
    ours = frame.groupby(keys, observed=True).percent.agg(["mean", "size"]).rename(columns={"size": "seeds"})
    cells = ours.reset_index().merge(theirs, on=["num_demos", "task", "method"])
    if cells.empty:
        return None
    places = {"published_model": theirs.published_model.unique()}
    places |= {each: frame[each].cat.categories for each in ("method", "task")}
    for column, known in places.items():
        cells[column] = pd.Categorical(cells[column], known)
    cells = cells.assign(model=model, published_seeds=PAPER_SEEDS, difference=cells["mean"] - cells.published)
    cells = cells.sort_values(["num_demos", *places], ignore_index=True)
    cells["text"] = [f"{c.mean:.1f} / {c.published:.1f} / {c.difference:+.1f}" for c in cells.itertuples()]
    papers = cells.published_model.astype(str)
    cells["block"] = cells.block + f": ours {model}; paper " + papers + f", {PAPER_SEEDS} seeds"
    notes = [
        f"ours / paper / difference, in points. ours: {model}, means over our seeds. paper: the model named above each "
        f"block, means over {PAPER_SEEDS} seeds, as {PAPER} reports them.",
        "Where the models are not the same, the difference is theirs first of all, and says nothing about a method.",
    ]
    if "math500" in set(cells.task):
        notes.append("The paper heads its MATH500 columns 8, 4, 32, 16; they are kept as headed.")
    title = f"Our accuracy beside that of {PAPER}, in %: {model}, {frame.format[0]} prompts"
    return Table("published", title, cells.assign(row=cells.method, column=cells.task), notes)


def all_tables(frame: pd.DataFrame) -> list[Table]:
    """Every table that there are results for; the first three are of the paper's methods alone."""
    ours = frame[frame.method.isin(METHODS)].reset_index(drop=True)
    ours = ours.assign(**{name: ours[name].cat.remove_unused_categories() for name in ("method", "task")})
    found = [accuracy_table(ours), calls_table(ours), paired_table(ours)] if len(ours) else []
    return [table for table in (*found, ablation_table(frame), published_table(frame)) if table is not None]
