"""The tables and figures of an experiment, as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plr_dspy.experiments.analysis.ablations import ablation_frame, ablation_table
from plr_dspy.experiments.analysis.accuracy import accuracy_table
from plr_dspy.experiments.analysis.calls import calls_table
from plr_dspy.experiments.analysis.figures import draw_ablation, draw_accuracy_by_calls, draw_ranking
from plr_dspy.experiments.analysis.paired import paired_table
from plr_dspy.experiments.analysis.published import Published, published_table
from plr_dspy.experiments.analysis.rankings import ranking_table
from plr_dspy.experiments.analysis.table import Table
from plr_dspy.experiments.names import METHODS
from plr_dspy.experiments.runs.results import Result

VARIED = "PLR-"
"""What the names of the methods begin with that the ablations vary."""


def save_tables(
    results: Sequence[Result],
    folder: Path,
    *,
    against: str = "Static",
    published: Published | None = None,
) -> list[Path]:
    """Write all tables as .md, .tex and .csv, each whole or not at all, and return the files.

    Args:
        results: Results of one model and prompt format.
        folder: Made where it is missing.
        against: Base method of the paired table, which is left out where that method or any other has no results.
        published: The paper's tables, for one with its numbers beside ours where it has some.

    Raises:
        ValueError: when the results cannot stand in one table; then no file is written.
    """
    tables = [accuracy_table(results), calls_table(results)]
    methods = {result.method for result in results}
    if against in methods and len(methods) > 1:
        tables.append(paired_table(results, against))
    tables += _beside(results, published, "published")
    return [path for table in tables for path in table.save(folder)]


def save_ablations(
    results: Sequence[Result], folder: Path, *, published: Published | None = None
) -> list[Path]:
    """Write accuracy by setting of each ablation, as a table and a picture, and return the files.

    Where the paper's tables are given and have some of the settings, another table has its numbers beside ours.

    Raises:
        ValueError: when the results cannot stand in one table, or no ablation has results of two settings.
    """
    frame = ablation_frame(results)
    picture = folder / "ablation.png"
    draw_ablation(frame, picture)
    varied = [result for result in results if result.method.startswith(VARIED)]
    tables = [ablation_table(frame), *_beside(varied, published, "ablation_published")]
    return [picture, *(path for table in tables for path in table.save(folder))]


def _beside(results: Sequence[Result], published: Published | None, name: str) -> list[Table]:
    """The table with the paper's numbers beside ours, if there is one."""
    table = None if published is None or not results else published_table(results, published, name)
    return [] if table is None else [table]


def save_figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write accuracy by calls, and by learnt probability where orders were ranked, and return the files.

    Raises:
        ValueError: when the results cannot stand in one figure, or there is nothing to draw.
    """
    files = []
    if methods := [result for result in results if result.method in METHODS]:
        files.append(folder / "accuracy_by_calls.png")
        draw_accuracy_by_calls(methods, files[-1])
    rankings = {(r.task, r.num_demos, r.seed): r.ranking for r in results if r.ranking is not None}
    if rankings:
        files.append(folder / "ranking.png")
        draw_ranking(rankings, files[-1])
        files += ranking_table(rankings).save(folder)
    if not files:
        raise ValueError("no results of methods or rankings: make some with plr-dspy experiment run")
    return files
