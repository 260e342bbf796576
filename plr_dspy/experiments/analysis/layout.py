"""A table of numbers as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

Value: TypeAlias = str | int | float | None

PARTIAL = "†"
"""Marks a cell of which a note says that it rests on less than others of its column."""

NOT_APPLICABLE = "-"
"""Text of a cell that no run could fill."""

_MARKDOWN_MARKS = {1: "**{}**", 2: "<ins>{}</ins>", 3: "*{}*"}
_LATEX_MARKS = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    PARTIAL: r"$^{\dagger}$",
    # After the \\ that ends a row, LaTeX takes a bare [ or * for an argument of it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "\n": " ",
    **{character: "\\" + character for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        text: As people read it.
        tail: What follows it and carries no mark, such as an interval.
        rank: Place in the column; the first three are marked.
        values: Its row of the CSV; none if empty.
    """

    text: str = ""
    tail: str = ""
    rank: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A line of a table: its name, and a cell for each column."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    """Lines that share a heading and columns."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """Blocks of lines, with what must be known to read them.

    Attributes:
        name: Of its files, and its LaTeX label.
        title: One sentence.
        blocks: From top to bottom.
        notes: Sentences that stand below it.
        fields: Columns of the CSV.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    fields: tuple[str, ...]

    def to_markdown(self) -> str:
        """The table for people, readable as plain text too; second places are in ``<ins>`` (underlined)."""
        parts = [f"## {escape_markdown(self.title)}"]
        for block in self.blocks:
            parts += [f"### {escape_markdown(block.heading)}", _markdown_lines(block)]
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
        for columns, blocks in groupby(self.blocks, key=lambda block: block.columns):
            lines += _latex_tabular(columns, list(blocks))
        notes = "\n".join(map(escape_latex, self.notes))
        return "\n".join([*lines, rf"\parbox{{\textwidth}}{{\footnotesize {notes}}}", r"\end{table*}"]) + "\n"

    def to_csv(self) -> str:
        """One line a cell, all digits; what is not known is empty."""
        file = io.StringIO()
        writer = csv.DictWriter(file, self.fields, lineterminator="\n")
        writer.writeheader()
        for block in self.blocks:
            writer.writerows(cell.values for row in block.rows for cell in row.cells if cell.values)
        return file.getvalue()


def counted(count: int, noun: str) -> str:
    """Such as "1 demo" and "8 demos"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands; a hyphen before a number becomes a minus."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped)


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands, in a table cell too."""
    # An underscore within a word, and "<" before a number, are plain text, and read better so.
    special = r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    return re.sub(special, lambda match: "\\" + match[0], text.replace("\n", " "))


def _markdown_lines(block: Block) -> str:
    grid = [["method", *map(escape_markdown, block.columns)]]
    for row in block.rows:
        cells = [
            _marked(_MARKDOWN_MARKS, cell.rank, escape_markdown(cell.text)) + escape_markdown(cell.tail)
            for cell in row.cells
        ]
        grid.append([escape_markdown(row.name), *cells])
    widths = [max(3, *map(len, column)) for column in zip(*grid, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |"
        for line in [grid[0], rule, *grid[1:]]
    )


def _latex_tabular(columns: tuple[str, ...], blocks: list[Block]) -> list[str]:
    width = len(columns) + 1
    lines = [
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["Method", *map(escape_latex, columns)]) + r" \\",
    ]
    for block in blocks:
        heading = rf"\textit{{{escape_latex(block.heading)}}}"
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{{heading}}} \\"]
        for row in block.rows:
            lines.append(" & ".join([escape_latex(row.name), *map(_latex_cell, row.cells)]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}}\par\smallskip"]


def _latex_cell(cell: Cell) -> str:
    space = r"\," if cell.tail.startswith(" ") else " "
    tail = rf"{{\scriptsize{space}{escape_latex(cell.tail.strip())}}}" if cell.tail else ""
    return _marked(_LATEX_MARKS, cell.rank, escape_latex(cell.text)) + tail


def _marked(marks: Mapping[int, str], rank: int | None, text: str) -> str:
    return marks.get(rank or 0, "{}").format(text)
