"""A table: columns of numbers with their intervals, formats and notes, as text, CSV, LaTeX, records
and the cells of a page."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import wrap
from typing import Any, NamedTuple

from fairbound.reports._words import (
    MISSING,
    harmless,
    interval,
    is_none,
    visible,
    with_deviation,
)

PAPER = "paper"  # of a column: the paper's figures beside ours
MARK = "*"  # after a figure that stands out
WHOLE, PERCENT, SHORT = "{:,.0f}", "{:.0%}", "{:.3g}"  # formats of a column
WIDTH = 80  # letters in a line of a terminal
MIN_NAME, MIN_TEXT = 20, 16  # letters to which a row's name and other text are wrapped, at least
MAX_NAME = 32
Fields = Mapping[str, Sequence[Any]]


class TableCell(NamedTuple):
    """A cell of a page."""

    text: str
    sort_key: float | str | None = None  # None: always last
    small: str = ""  # below the text
    is_marked: bool = False
    shade: float | None = None  # of its ground, from 0 to 1
    href: str = ""  # where its text leads

    @property
    def key(self) -> str:
        """What a table is sorted by, with the digits that are shown; empty: always last."""
        if self.sort_key is None or isinstance(self.sort_key, str):
            return self.sort_key or ""
        return f"{self.sort_key:.4g}"


class ShownColumn(NamedTuple):
    """A column as it is written."""

    heading: str
    is_text: bool
    text: list[str]  # the figures
    ends: list[str]  # their intervals, or ""
    details: dict[str, list[str]]  # e.g. the paper's figures; columns of their own in text
    notes: list[str]  # below the figures on a page
    sort_keys: list[Any]
    marked: list[bool]


@dataclass(frozen=True, eq=False)
class ReportTable:
    r"""Columns by (name, field), with a title above and notes below; the first column names the
    rows.

    A column has its figures in the field "", "value" or "mean"; "low" and "high" are the ends of
    their intervals, "std" their deviations, "paper mean" and "paper std" the paper's figures; where
    "differs" is true a figure is marked; "note" stands below it on a page.

    Args:
        title: what is in the table.
        frame: a dictionary of lists or a data frame, with the keys (name, field).
        notes: sentences below the table.
        digits: of figures after the point.
        formats: of the columns that are written otherwise, by name: a format or a function.
        headings: of the columns that are not headed by their names.
        hints: what a heading means, shown under the pointer.
        shaded: whether figures are shares, of which a page gives a large one a dark ground.

    >>> frame = {
    ...     ("method", ""): ["SGD", "SSw"],
    ...     ("loss", "mean"): [0.4064, None],
    ...     ("loss", "std"): [0.0031, None],
    ... }
    >>> table = ReportTable("Losses", frame, ("Two runs.",))
    >>> table.to_csv().splitlines()
    ['method,loss mean,loss std', 'SGD,0.4064,0.0031', 'SSw,,']
    >>> print(table.to_text())
    method            loss
    SGD    0.4064 ± 0.0031
    SSw                  —
    """

    title: str
    frame: Any
    notes: tuple[str, ...] = ()
    digits: int = 4
    formats: Mapping[str, str | Callable[[Any], str]] = field(default_factory=dict)
    headings: Mapping[str, str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    shaded: bool = False

    @cached_property
    def fields(self) -> dict[str, dict[str, list[Any]]]:
        """The fields of every column, by its name."""
        by_name: dict[str, dict[str, list[Any]]] = {}
        for name, part in self.frame:
            by_name.setdefault(name, {})[part] = list(self.frame[name, part])
        return by_name

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(next(iter(self.fields.values())).values())))

    def only(
        self, names: Collection[str], intervals: Collection[str] = (), **changes: Any
    ) -> ReportTable:
        """A narrower table.

        Args:
            names: of the columns that stay.
            intervals: names of those that keep their intervals.
            changes: other settings of the table.
        """
        frame = {
            (name, part): self.frame[name, part]
            for name, part in self.frame
            if name in names and (name in intervals or part not in ("low", "high"))
        }
        return replace(self, frame=frame, **changes)

    def writer(self, name: str) -> Callable[[Any], str]:
        """What writes a value in the column's form, and text as it is."""
        form = self.formats.get(name, f"{{:z.{self.digits}f}}")
        write = form if callable(form) else form.format

        def written(value: Any) -> str:
            if isinstance(value, str):
                return value
            if value is None or value != value:
                return MISSING
            return write(value) if math.isfinite(value) else "not finite"

        return written

    @cached_property
    def columns(self) -> list[ShownColumn]:
        """The columns as they are written."""
        return [self._shown(name, fields) for name, fields in self.fields.items()]

    def _shown(self, name: str, fields: Mapping[str, list[Any]]) -> ShownColumn:
        write, rows = self.writer(name), len(self)
        part = next((part for part in ("", "value", "mean") if part in fields), None)
        figures = fields[part] if part is not None else [None] * rows
        text = list(map(write, figures))
        if "std" in fields:
            deviations = map(write, fields["std"])
            text = [
                value if value == MISSING else f"{value} ± {deviation}"
                for value, deviation in zip(text, deviations, strict=True)
            ]
        marked = [mark == True for mark in fields.get("differs", [])] or [False] * rows  # noqa: E712
        if "differs" in fields:
            text = [value + MARK * mark for value, mark in zip(text, marked, strict=True)]
        ends = [""] * rows
        if "low" in fields:
            pairs = zip(fields["low"], fields["high"], strict=True)
            ends = [interval(low, high, write) for low, high in pairs]
        if part is None:  # an interval alone
            text, ends = [pair or MISSING for pair in ends], [""] * rows
        details = {}
        if "paper mean" in fields:
            printed = zip(fields["paper mean"], fields["paper std"], strict=True)
            details[PAPER] = [
                MISSING if is_none(mean) else with_deviation(mean, std, write)
                for mean, std in printed
            ]
        return ShownColumn(
            self.headings.get(name, name),
            any(isinstance(figure, str) for figure in figures),
            text,
            ends,
            details,
            fields.get("note", [""] * rows),
            [figure if _has_order(figure) else None for figure in figures],
            marked,
        )

    def _written(self, safe: Callable[[str], str]) -> Iterator[tuple[str, list[str], bool]]:
        """Heading, cells and whether it is text, of every column in text and LaTeX."""
        for column in self.columns:
            cells = zip(column.text, column.ends, strict=True)
            texts = [safe(f"{text} {ends}" if ends else text) for text, ends in cells]
            yield safe(column.heading), texts, column.is_text
            for label, texts in column.details.items():
                yield safe(f"{column.heading}, {label}"), list(map(safe, texts)), False

    def to_text(self, width: int = WIDTH) -> str:
        """The table for a terminal. Names and other text are wrapped and never cut; columns that do
        not fit beside each other stand in blocks below each other."""
        (heading, names, _), *others = self._written(visible)
        texts = [column for column in others if column[2]]
        figures_width = sum(_column_width(*column[:2]) + 1 for column in others if not column[2])
        longest = max(map(_width, (*names, *_words(heading))), default=0)
        texts_width = sum(min(_widest(column), MIN_TEXT) + 1 for column in texts)
        name_width = min(longest, max(MIN_NAME, min(width - figures_width - texts_width, MAX_NAME)))
        room = max(MIN_TEXT, (width - figures_width - name_width) // max(len(texts), 1) - 1)
        first = _block_column(heading, names, True, name_width)
        blocks, used = [[first]], name_width
        for title, cells, is_text in others:
            limit = room if is_text else 10**6
            column = _block_column(title, cells, is_text, min(_column_width(title, cells), limit))
            if used + 1 + column.width > width and len(blocks[-1]) > 1:
                blocks.append([first])
                used = name_width
            blocks[-1].append(column)
            used += 1 + column.width
        return "\n\n".join("\n".join(_lines(block)) for block in blocks)

    def rows(self, links: Mapping[str, str] | None = None) -> list[list[TableCell]]:
        """The cells of a page; `links` are where names of rows lead."""
        columns = []
        for column in self.columns:
            below = [list(part) for part in (column.ends, column.notes) if any(part)]
            below += [
                [text if text == MISSING else f"{label}: {text}" for text in texts]
                for label, texts in column.details.items()
            ]
            smalls = [""] * len(column.text)
            if below:
                smalls = ["; ".join(_known(parts)) for parts in zip(*below, strict=True)]
            is_shaded = self.shaded and not column.is_text
            shades = column.sort_keys if is_shaded else [None] * len(smalls)
            cells = zip(column.text, column.sort_keys, smalls, column.marked, shades, strict=True)
            columns.append([TableCell(*cell) for cell in cells])
        if links and columns:
            columns[0] = [cell._replace(href=links.get(cell.text, "")) for cell in columns[0]]
        return [list(row) for row in zip(*columns, strict=True)]

    def records(self) -> list[dict[str, Any]]:
        """The rows for JSON, with every figure in full: a value, or a dictionary of its fields."""
        names = self.fields
        return [
            {
                name: fields[""][i]
                if list(fields) == [""]
                else {part or "value": values[i] for part, values in fields.items()}
                for name, fields in names.items()
            }
            for i in range(len(self))
        ]

    def to_csv(self) -> str:
        """One line a row, with every figure in full; without title and notes."""
        keys = [key for key in self.frame if key[1] != "note"]
        headings = [name if part in ("", "value") else f"{name} {part}" for name, part in keys]
        return csv_text(headings, zip(*(list(self.frame[key]) for key in keys), strict=True))

    def to_latex(self) -> str:
        r"""A `table` that needs the package booktabs; whatever is special to LaTeX is escaped."""
        headings, columns, is_text = zip(*self._written(latex), strict=True)
        lines = [" & ".join(cells) for cells in zip(*columns, strict=True)]
        # after the \\ of a line, [ and * would be read as its arguments
        lines = [f"{{}}{line}" if line[:1] in ("[", "*") else line for line in lines]
        return "\n".join(
            [
                "\\begin{table}",
                f"\\caption{{{latex(self.title)}}}",
                f"\\begin{{tabular}}{{{''.join('l' if text else 'r' for text in is_text)}}}",
                "\\toprule",
                f"{' & '.join(headings)} \\\\",
                "\\midrule",
                *(f"{line} \\\\" for line in lines),
                "\\bottomrule",
                "\\end{tabular}",
                *(f"\\par\\footnotesize {latex(note)}" for note in self.notes),
                "\\end{table}\n",
            ]
        )


def _has_order(value: Any) -> bool:
    return isinstance(value, str) or (value is not None and math.isfinite(value))


def _known(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text and text != MISSING]


# Text ---------------------------------------------------------------------------------------------


class _BlockColumn(NamedTuple):
    """A column of a terminal: the lines of its heading and of its cells."""

    heading: list[str]
    cells: list[list[str]]
    is_text: bool
    width: int


def _width(text: str) -> int:
    """Places that text takes on a terminal: two for a Chinese letter, none for an accent."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _words(heading: str) -> list[str]:
    return heading.split(" ") or [""]


def _widest(column: tuple[str, list[str], bool]) -> int:
    return max(map(_width, (*column[1], *_words(column[0]))), default=0)


def _column_width(heading: str, cells: Iterable[str]) -> int:
    """The widest cell, or word of the heading, which may have several lines."""
    return max(map(_width, (*cells, *_words(heading))), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width and text.isascii():
        return [text]
    letters = width * len(text) // max(_width(text), 1) if text else width
    return wrap(text, max(letters, 1), replace_whitespace=False, break_on_hyphens=False) or [""]


def _block_column(heading: str, cells: list[str], is_text: bool, width: int) -> _BlockColumn:
    return _BlockColumn(
        _wrapped(heading, width), [_wrapped(cell, width) for cell in cells], is_text, width
    )


def _lines(columns: Sequence[_BlockColumn]) -> Iterator[str]:
    height = max(len(column.heading) for column in columns)
    headings = [[""] * (height - len(column.heading)) + column.heading for column in columns]
    for cells in (headings, *zip(*(column.cells for column in columns), strict=True)):
        for i in range(max(map(len, cells))):
            line = []
            for column, lines in zip(columns, cells, strict=True):
                text = lines[i] if i < len(lines) else ""
                gap = " " * (column.width - _width(text))
                line.append(text + gap if column.is_text else gap + text)
            yield " ".join(line).rstrip()


# CSV and LaTeX ------------------------------------------------------------------------------------


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV table that no spreadsheet runs as a formula; numbers are in full, and nothing stands
    for what is missing.

    >>> print(csv_text(["group", "gap"], [["=1+1", -0.5], ["b", None]]), end="")
    group,gap
    '=1+1,-0.5
    b,
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerows([harmless(value) for value in row] for row in (headings, *rows))
    return written.getvalue()


LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "—": "---",
        "+": "$+$",
    }
)
MINUS = re.compile(r"(?<![\w.])-(?=\d)")  # not a hyphen


def latex(text: str) -> str:
    r"""Text as LaTeX prints it, with a minus sign for a hyphen before a digit.

    >>> latex("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return MINUS.sub("$-$", visible(text).translate(LATEX))


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Plain pandas columns, and frames of the fields of a name, side by side; all have the same
    index."""
    import pandas as pd

    parts = {name: c.to_frame("") if c.ndim == 1 else c for name, c in columns.items()}
    return pd.concat(parts, axis=1).reset_index(drop=True)
