"""A table of numbers as Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from plr_dspy.runtime.files import write_atomically

PARTIAL = "†"
"""Marks a cell of which a note says that it rests on less than others of its column."""

NOT_APPLICABLE = "-"
"""Text of a cell that no run could fill."""

_MARKDOWN_MARKS = {1: "**{}**", 2: "<ins>{}</ins>", 3: "*{}*"}
_LATEX_MARKS = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
_LATEX_CHARACTERS = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        # After the \\ that ends a row, LaTeX takes a bare [ or * for an argument of it.
        **{character: f"{{{character}}}" for character in "[]*"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        PARTIAL: r"$^{\dagger}$",
        "\n": " ",
    }
)


@dataclass(frozen=True, eq=False)
class Table:
    """Blocks of rows, with what must be known to read them.

    Attributes:
        name: Name of the files, and LaTeX label.
        title: One sentence.
        cells: The cells, row by row. People read their "block" (a heading), "row", "column" and "text"; a "suffix"
            follows the text and carries no mark, such as an interval; the first three of a "rank" are marked.
        fields: Fields of the cells that are the columns of the CSV; a cell with none of them has no line there.
        notes: Sentences that stand below the table.
    """

    name: str
    title: str
    cells: Sequence[Mapping[str, Any]]
    fields: Sequence[str]
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """The table for people, readable as plain text too; second places are in ``<ins>`` (underlined)."""
        parts = [f"## {escape_markdown(self.title)}"]
        for heading, grid in self._grids(escape_markdown, _MARKDOWN_MARKS, str):
            widths = [max(3, *map(len, column)) for column in zip(*grid, strict=True)]
            rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
            lines = (
                [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
                for line in (grid[0], rule, *grid[1:])
            )
            parts += [f"### {heading}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        return "\n\n".join([*parts, *map(escape_markdown, self.notes)]) + "\n"

    def to_latex(self) -> str:
        """A ``table*`` float, shrunk where it is too wide; it needs the packages booktabs and graphicx."""
        lines = [
            r"% \usepackage{booktabs,graphicx}",
            r"\begin{table*}[t]",
            r"\centering\small\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{escape_latex(self.title)}}}",
            rf"\label{{tab:{self.name}}}",
        ]
        grids = self._grids(escape_latex, _LATEX_MARKS, r"{{\scriptsize{{}}{}}}".format)
        for columns, blocks in groupby(grids, key=lambda block: block[1][0]):
            lines += [
                r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
                rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
                r"\toprule",
                " & ".join(columns) + r" \\",
            ]
            for heading, grid in blocks:
                lines += [r"\midrule", rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{heading}}}}} \\"]
                lines += [" & ".join(line) + r" \\" for line in grid[1:]]
            lines += [r"\bottomrule", r"\end{tabular}}\par\smallskip"]
        notes = "\n".join(map(escape_latex, self.notes))
        return "\n".join([*lines, rf"\parbox{{\textwidth}}{{\footnotesize {notes}}}", r"\end{table*}"]) + "\n"

    def to_csv(self) -> str:
        """One line for each number or interval, with all digits; what is not known is empty."""
        numbers = pd.DataFrame(self.cells, columns=self.fields, dtype=object).dropna(how="all")
        text: str = numbers.to_csv(index=False, lineterminator="\n")
        return text

    def save(self, folder: Path) -> list[Path]:
        """Write the table as .md, .tex and .csv, each whole or not at all; returns the files."""
        texts = {"md": self.to_markdown(), "tex": self.to_latex(), "csv": self.to_csv()}
        for ending, text in texts.items():
            write_atomically(folder / f"{self.name}.{ending}", text.encode())
        return [folder / f"{self.name}.{ending}" for ending in texts]

    def _grids(
        self, escape: Callable[[str], str], marks: Mapping[int, str], set_suffix: Callable[[str], str]
    ) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield the heading and the lines of each block, the names of the columns first."""
        cells = pd.DataFrame(self.cells, columns=["block", "row", "column"])
        cells["shown"] = [
            marks.get(cell.get("rank", 0), "{}").format(escape(cell["text"]))
            + (set_suffix(escape(cell["suffix"])) if cell.get("suffix") else "")
            for cell in self.cells
        ]
        for heading, block in cells.groupby("block", sort=False):
            rows, columns = block.row.unique(), block.column.unique()
            grid = block.pivot(index="row", columns="column", values="shown").loc[rows, columns].fillna("")
            names = ["method", *map(escape, columns)]
            yield escape(heading), [names, *([escape(row), *grid.loc[row]] for row in rows)]


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands; a hyphen before a number becomes a minus."""
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", text.translate(_LATEX_CHARACTERS))


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands, in a table cell too."""
    # An underscore within a word, and "<" before a number, are plain text, and read better so.
    special = r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    return re.sub(special, lambda match: "\\" + match[0], text.replace("\n", " "))
