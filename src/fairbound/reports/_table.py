"""A table: columns of numbers with their intervals, formats and notes, as text, CSV, LaTeX, records
and the cells of a page."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import wrap
from typing import Any, NamedTuple

from fairbound.reports._words import (
    NO_VALUE,
    harmless,
    interval,
    is_none,
    visible,
    with_deviation,
)

_PAPER = "paper"  # of a column: the paper's figures beside ours
MARK = "*"  # after a figure that stands out
WHOLE, PERCENT, SHORT = "{:,.0f}", "{:.0%}", "{:.3g}"  # formats of a column
WIDTH = 80  # letters in a line of a terminal
MIN_NAME, MIN_TEXT = 20, 16  # letters to which a row's name and other text are wrapped, at least
MAX_NAME = 32
FIGURES = ("", "value", "mean")  # fields


class Measured(NamedTuple):
    """A figure or text of a table, with the ends of its interval."""

    value: Any
    low: float | None = None
    high: float | None = None
    note: str = ""  # below it on a page
    differs: bool = False  # whether it is marked


class TableCell(NamedTuple):
    """A cell of a page."""

    text: str
    key: str = ""  # what its table is sorted by; empty: always last
    ends: str = ""  # its interval, below the text
    small: str = ""  # below both
    is_marked: bool = False
    shade: float | None = None  # of its ground, from 0 to 1
    href: str = ""  # where its text leads


class ShownColumn(NamedTuple):
    """A column as it is written."""

    heading: str
    is_text: bool
    figures: list[Any]
    text: list[str]
    ends: list[str]  # intervals, or ""
    details: dict[str, list[str]]  # e.g. the paper's figures; columns of their own in text
    notes: list[str]  # below the figures on a page
    marked: list[bool]

    def cell(self, i: int, shaded: bool, links: Mapping[str, str]) -> TableCell:
        """The cell of a page in row i."""
        figure, text = self.figures[i], self.text[i]
        details = {label: texts[i] for label, texts in self.details.items() if texts[i] != NO_VALUE}
        below = [self.notes[i], *(f"{label}: {words}" for label, words in details.items())]
        return TableCell(
            text,
            _sort_key(figure),
            self.ends[i],
            "; ".join(filter(None, below)),
            self.marked[i],
            figure if shaded and not self.is_text else None,
            links.get(text, ""),
        )


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
        short: what a terminal shows in its place, if not the same.

    >>> frame = {
    ...     ("method", ""): ["SGD", "SSw"],
    ...     ("loss", "mean"): [0.4064, None],
    ...     ("loss", "std"): [0.0031, None],
    ... }
    >>> table = ReportTable("Losses", frame, ("Two runs.",))
    >>> table.to_csv().splitlines()
    ['method,loss_mean,loss_std', 'SGD,0.4064,0.0031', 'SSw,,']
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
    short: ReportTable | None = None

    @staticmethod
    def of_rows(title: str, rows: Sequence[Mapping[str, Any]], **settings: Any) -> ReportTable:
        """A table from its rows: by column, a `Measured` or a figure or text alone.

        Args:
            title: what is in the table.
            rows: all with the same columns.
            settings: the others of a table.

        >>> rows = [
        ...     {"group": "a", "rate": Measured(0.5, 0.4, 0.6)},
        ...     {"group": "b", "rate": Measured(None)},
        ... ]
        >>> print(ReportTable.of_rows("Rates", rows, digits=1).to_text())
        group           rate
        a     0.5 [0.4, 0.6]
        b                  —
        """
        frame: dict[tuple[str, str], list[Any]] = {}
        for name in rows[0] if rows else ():
            column = [row[name] for row in rows]
            cells = [cell if isinstance(cell, Measured) else Measured(cell) for cell in column]
            for part, values in zip(Measured._fields, zip(*cells, strict=True), strict=True):
                blank = (Measured._field_defaults.get(part),) * len(rows)
                if part == "value" or values != blank:
                    frame[name, part] = list(values)
        return ReportTable(title, frame, **settings)

    @cached_property
    def fields(self) -> dict[str, dict[str, list[Any]]]:
        """The fields of every column, by its name."""
        by_name: dict[str, dict[str, list[Any]]] = {}
        for name, part in self.frame:
            by_name.setdefault(name, {})[part] = list(self.frame[name, part])
        return by_name

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.frame[key] for key in self.frame), ()))

    def with_short(
        self, headings: Mapping[str, str], intervals: Collection[str], **settings: Any
    ) -> ReportTable:
        """The table, of which a terminal shows some columns.

        Args:
            headings: of the columns that it shows.
            intervals: names of those that keep their intervals there.
            settings: others of the table that it shows.
        """
        frame = {
            (name, part): values
            for (name, part), values in self.frame.items()
            if name in headings and (name in intervals or part not in ("low", "high"))
        }
        return replace(self, short=replace(self, frame=frame, headings=headings, **settings))

    def writer(self, name: str) -> Callable[[Any], str]:
        """What writes a value in the column's form, and text as it is."""
        form = self.formats.get(name, f"{{:z.{self.digits}f}}")
        write = form if callable(form) else form.format

        def written(value: Any) -> str:
            if isinstance(value, str):
                return value
            if value is None or value != value:
                return NO_VALUE
            return write(value) if math.isfinite(value) else "not finite"

        return written

    @cached_property
    def columns(self) -> list[ShownColumn]:
        """The columns as they are written."""
        return [self._shown(name, fields) for name, fields in self.fields.items()]

    def _shown(self, name: str, fields: Mapping[str, list[Any]]) -> ShownColumn:
        write, rows = self.writer(name), len(self)
        figures = next((fields[part] for part in FIGURES if part in fields), None)
        lows = fields.get("low", [None] * rows)
        ends = [interval(*pair, write) for pair in zip(lows, fields.get("high", lows), strict=True)]
        marked = [mark == True for mark in fields.get("differs", [False] * rows)]  # noqa: E712
        if figures is None:  # an interval alone
            text, figures, ends = [pair or NO_VALUE for pair in ends], lows, [""] * rows
        else:
            text = _spreads(figures, fields.get("std"), write)
        details = {}
        if "paper mean" in fields:
            details[_PAPER] = _spreads(fields["paper mean"], fields["paper std"], write)
        return ShownColumn(
            self.headings.get(name, name),
            any(isinstance(figure, str) for figure in figures),
            figures,
            [value + MARK * mark for value, mark in zip(text, marked, strict=True)],
            ends,
            details,
            fields.get("note", [""] * rows),
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
        if not self.columns:
            return ""
        first, *others = itertools.starmap(_TextColumn.of, self._written(visible))
        texts = [column.width for column in others if column.is_text]
        room = width - sum(column.width + 1 for column in others if not column.is_text)
        least = sum(min(text, MIN_TEXT) + 1 for text in texts)
        first = first.narrowed(max(MIN_NAME, min(room - least, MAX_NAME)))
        share = max(MIN_TEXT, (room - first.width) // max(len(texts), 1) - 1)
        blocks, used = [[first]], first.width
        for column in others:
            shown = column.narrowed(share) if column.is_text else column
            if used + 1 + shown.width > width and len(blocks[-1]) > 1:
                blocks.append([first])
                used = first.width
            blocks[-1].append(shown)
            used += 1 + shown.width
        return "\n\n".join("\n".join(_lines(block)) for block in blocks)

    def rows(self, links: Mapping[str, str] | None = None) -> list[tuple[TableCell, ...]]:
        """The cells of a page; `links` are where names of rows lead."""
        leads = [links or {}, *[{}] * (len(self.columns) - 1)]
        columns = [*zip(self.columns, leads, strict=True)]
        return [
            tuple(column.cell(i, self.shaded, leads) for column, leads in columns)
            for i in range(len(self))
        ]

    def records(self) -> list[dict[str, Any]]:
        """The rows for JSON, with every figure in full: a value, or a dictionary of its fields."""
        records: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for name, fields in self.fields.items():
            for i, record in enumerate(records):
                values = {part or "value": column[i] for part, column in fields.items()}
                record[name] = values if len(values) > 1 else next(iter(values.values()))
        return records

    def to_csv(self) -> str:
        """One line a row, with every figure in full; without title and notes."""
        keys = [key for key in self.frame if key[1] != "note"]
        # positive_rate_low, as a program names it, and "train loss mean"
        marks = [" " if " " in name else "_" for name, _ in keys]
        headings = [
            name if part in ("", "value") else f"{name}{mark}{part}"
            for (name, part), mark in zip(keys, marks, strict=True)
        ]
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


def _spreads(
    means: Sequence[Any], deviations: Sequence[Any] | None, write: Callable[[Any], str]
) -> list[str]:
    if deviations is None:
        return list(map(write, means))
    pairs = zip(means, deviations, strict=True)
    return [NO_VALUE if is_none(mean) else with_deviation(mean, std, write) for mean, std in pairs]


def _sort_key(figure: Any) -> str:
    if figure is None or isinstance(figure, str):
        return figure or ""
    return f"{figure:.4g}" if math.isfinite(figure) else ""


# Text ---------------------------------------------------------------------------------------------


class _TextColumn(NamedTuple):
    """A column of a terminal: its heading and its cells, which are wrapped to a width."""

    texts: list[str]
    is_text: bool
    width: int

    @staticmethod
    def of(heading: str, cells: list[str], is_text: bool) -> _TextColumn:
        width = max(map(_width, (*cells, *heading.split(" "))))
        return _TextColumn([heading, *cells], is_text, width)

    def narrowed(self, width: int) -> _TextColumn:
        return self._replace(width=min(width, self.width))


def _width(text: str) -> int:
    """Places that text takes on a terminal: two for a Chinese letter, none for an accent."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _wrapped(text: str, width: int) -> list[str]:
    if _width(text) <= width:
        return [text]
    letters = max(width * len(text) // _width(text), 1)
    return wrap(text, letters, replace_whitespace=False, break_on_hyphens=False)


def _lines(columns: Sequence[_TextColumn]) -> Iterator[str]:
    for place, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
        widths = [column.width for column in columns]
        cells = [*map(_wrapped, texts, widths)]
        height = max(map(len, cells))
        for i in range(height):
            line = []
            for column, lines in zip(columns, cells, strict=True):
                at = i if place else i - height + len(lines)  # headings end at the bottom
                text = lines[at] if 0 <= at < len(lines) else ""
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
