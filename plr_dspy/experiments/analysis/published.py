"""The figures that the paper printed (arXiv:2603.21373), and our results beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field, TypeAdapter

from plr_dspy.experiments.analysis.frames import counted, frame_of
from plr_dspy.experiments.analysis.table import Table
from plr_dspy.experiments.names import LOCAL
from plr_dspy.experiments.runs.results import Result

AVERAGE = "average"
"""In the place of a task: the paper's mean over the tasks of a table."""

FIELDS = (
    *("num_demos", "task", "method", "model", "seeds", "mean"),
    *("published_model", "published_seeds", "published", "difference"),
)
"""Columns of the CSV."""


@dataclass(frozen=True)
class PublishedRow:
    """What the paper reports for a method on a task.

    Attributes:
        method: Our name of the method.
        task: Name of the task, or "average".
        accuracy: In %, by number of demos.
    """

    method: str
    task: str
    accuracy: tuple[Annotated[float, Field(ge=0, le=100)], ...]


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper, or the part of one that is of one model.

    Attributes:
        title: What the table is about.
        model: Name of the model.
        num_demos: Numbers of demos.
        rows: The numbers; each row has one for each number of demos.
    """

    title: str
    model: str
    num_demos: tuple[int, ...]
    rows: tuple[PublishedRow, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.accuracy) != len(self.num_demos):
                raise ValueError(
                    f"{row.method} on {row.task} must have {len(self.num_demos)} accuracies; got {len(row.accuracy)}"
                )


@dataclass(frozen=True)
class Published:
    """The paper's tables.

    Attributes:
        schema: Version of the file's format.
        paper: The paper's identifier.
        source: What the numbers were read from.
        seeds: Number of seeds that each accuracy is a mean over.
        notes: What must be known to read the numbers, by what it is about.
        tables: The tables.
    """

    schema: Literal[2]
    paper: str
    source: str
    seeds: int
    notes: Mapping[str, str]
    tables: tuple[PublishedTable, ...]

    @property
    def models(self) -> list[str]:
        """Names of the models, in the paper's order."""
        return list(dict.fromkeys(table.model for table in self.tables))

    def cells(self, model: str) -> dict[tuple[str, int, str], float]:
        """Accuracies in % with a model by task, number of demos and method; averages are not among them."""
        return {
            (row.task, num_demos, row.method): accuracy
            for table in self.tables
            if table.model == model
            for row in table.rows
            if row.task != AVERAGE
            for num_demos, accuracy in zip(table.num_demos, row.accuracy, strict=True)
        }


def load_published(data: bytes | None = None) -> Published:
    """Read published results.

    Args:
        data: JSON of the bundled file's form; None reads the bundled file.

    Raises:
        ValueError: when the data have another form or version, or an accuracy is no percentage.
    """
    if data is None:
        data = (resources.files("plr_dspy.experiments.analysis") / "published.json").read_bytes()
    return TypeAdapter(Published).validate_json(data)


def published_table(results: Sequence[Result], published: Published, name: str = "published") -> Table | None:
    """Our mean accuracy beside that of the paper, and the difference: a block for each number of demos and model.

    Args:
        results: Results of one model and prompt format.
        published: The paper's tables.
        name: Name of the table's files.

    Returns:
        None where the paper has none of the cells.

    Raises:
        ValueError: when the results cannot stand in one table.
    """
    frame = frame_of(results)
    frame["percent"] = 100 * frame.accuracy
    ours = "SmolLM2-135M (local)" if frame.model[0] == LOCAL else str(frame.model[0])
    cells = [
        cell
        for num_demos, runs in frame.groupby("num_demos")
        for model in published.models
        for cell in _block(num_demos, runs, ours, published, model)
    ]
    if not cells:
        return None
    notes = [
        f"ours: {ours}, means over our seeds. paper: the model named above each block, means over {published.seeds} "
        f"seeds, as {published.paper} reports them ({published.source}). difference: ours less paper, in points.",
        "Where the models are not the same, the difference is theirs first of all, and says nothing about a method.",
    ]
    notes += [published.notes[task] for task in frame.task.unique() if task in published.notes]
    title = f"Our accuracy beside that of {published.paper}, in %: {ours}, {frame.format[0]} prompts"
    return Table(name, title, cells, FIELDS, notes)


def _block(
    num_demos: int, runs: pd.DataFrame, ours: str, published: Published, model: str
) -> Iterator[dict[str, Any]]:
    """Yield the cells of one number of demos and one of the paper's models: three lines for each method of both."""
    theirs = {
        (method, task): accuracy
        for (task, demos, method), accuracy in published.cells(model).items()
        if demos == num_demos
    }
    both = runs[[place in theirs for place in zip(runs.method, runs.task, strict=True)]]
    found = both.groupby(["method", "task"], observed=True).percent.agg(["mean", "size"])
    if found.empty:
        return
    fewest, most = found["size"].min(), found["size"].max()
    seeds = counted(most, "seed") if fewest == most else f"{fewest} to {counted(most, 'seed')}"
    block = f"{counted(num_demos, 'demo')}: ours {ours}, {seeds}; paper {model}, {counted(published.seeds, 'seed')}"
    for method in found.index.unique("method"):
        lines: dict[str, list[dict[str, Any]]] = {"ours": [], "paper": [], "difference": []}
        for task in both.task.sort_values().unique():
            known = dict.fromkeys(lines, "")
            numbers: dict[str, Any] = {}
            if (method, task) in found.index:
                mean, count = found.loc[(method, task)]
                paper = theirs[method, task]
                known = {"ours": f"{mean:.1f}", "paper": f"{paper:.1f}", "difference": f"{mean - paper:+.1f}"}
                ending = (model, published.seeds, paper, mean - paper)
                values = (num_demos, task, method, ours, int(count), mean, *ending)
                numbers = dict(zip(FIELDS, values, strict=True))
            for line, texts in lines.items():
                place = {"block": block, "row": f"{method}, {line}", "column": task, "text": known[line]}
                texts.append(place | numbers if line == "ours" else place)
        for texts in lines.values():
            yield from texts
