"""A table of a page: a data frame with a title and notes, as text, CSV, LaTeX and the cells of a
page.

A frame's columns have two levels, (name, field): ("loss", "mean"), ("loss", "std"); a plain column
has the field "". CSV holds every field in full; text, LaTeX and pages write the fields of a name
together, rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, NamedTuple

import pandas as pd

from fairbound._utils.files import harmless

MISSING = "—"
PAPER = "paper"  # of a column: the paper's figures beside ours
MARK = "*"  # after a figure of ours that is not the paper's
WHOLE, PERCENT, SHORT = "{:,.0f}", "{:.0%}", "{:.3g}"  # formats of a column
MAX_NAME = 28  # letters of a row's name on a terminal, so that three columns fit in 80


class ShownColumn(NamedTuple):
    """The heading of a column."""

    name: str
    detail: str  # "paper", say, of the paper's number beside ours; or ""
    text: list[str]
    sort_keys: list[Any]  # None: missing or not finite, always last
    marked: list[bool]  # figures of ours that are not the paper's
    is_text: bool

    @property
    def heading(self) -> str:
        return ", ".join(filter(None, (self.name, self.detail)))


@dataclass(frozen=True, eq=False)
class ReportTable:
    r"""A data frame with a title above and notes below.

    >>> loss = pd.DataFrame({"mean": [0.4064, math.nan], "std": [0.0031, math.nan]})
    >>> table = ReportTable(
    ...     "Losses", frame_of({"row": pd.Series(["SGD", "SSw"]), "loss": loss}), ("Two runs.",)
    ... )
    >>> table.to_csv().splitlines()
    ['row,loss mean,loss std', 'SGD,0.4064,0.0031', 'SSw,,']
    >>> print(table.to_text())
                    loss
    SGD  0.4064 ± 0.0031
    SSw                —
    """

    title: str
    frame: pd.DataFrame  # columns (name, field); the first is the row's name
    notes: tuple[str, ...] = ()
    digits: int = 4  # after the point
    # by name, of columns that are written otherwise
    formats: Mapping[str, str] = field(default_factory=dict)
    shaded: bool = False  # on a page: figures are shares, a large one has a dark ground

    def shown(self) -> Iterator[ShownColumn]:
        """The fields of a name together."""
        for name in self.frame.columns.unique(0):
            fields = self.frame.loc[:, [name]].droplevel(0, axis=1)
            for detail, wanted, write in FORMS:
                if wanted[0] in fields:
                    lines = [tuple(line) for line in fields[list(wanted)].itertuples(index=False)]
                    is_ours = "differs" in fields and wanted == ("mean", "std")
                    marked = [
                        is_ours and far is True
                        for far in fields.get("differs", [False] * len(lines))
                    ]
                    text = [
                        MISSING if pd.isna(line[0]) else write(self, name, *line) for line in lines
                    ]
                    text = [cell + MARK * far for cell, far in zip(text, marked, strict=True)]
                    keys = [line[0] if _has_order(line[0]) else None for line in lines]
                    is_text = any(isinstance(value, str) for value in fields[wanted[0]])
                    yield ShownColumn(name, detail, text, keys, marked, is_text)

    def number(self, name: str, value: float) -> str:
        """In the column's form; text as it is."""
        if isinstance(value, str):
            return value
        form = self.formats.get(name, f"{{:z.{self.digits}f}}")
        return form.format(value) if math.isfinite(value) else "not finite"

    def to_csv(self) -> str:
        """One line a row, without title and notes."""
        names = [" ".join(filter(None, column)) for column in self.frame.columns]
        return frame_csv(self.frame.set_axis(names, axis=1))

    def to_text(self, width: int = 80) -> str:
        """For a terminal: columns that do not fit beside each other stand in blocks below each
        other."""
        first, *others = self.shown()
        names = [shorten(name, max(MAX_NAME, width // 3), placeholder=" …") for name in first.text]
        text = pd.DataFrame(
            {(column.name, column.detail): column.text for column in others}, index=names
        )
        if not any(column.detail for column in others):
            text.columns = text.columns.droplevel(1)
        lines = text.to_string(line_width=width, sparsify=False).splitlines()
        # pandas ends a block with a backslash
        return "\n".join(line.rstrip(" \\") for line in lines)

    def to_latex(self) -> str:
        r"""A `table` that needs the package booktabs; whatever is special to LaTeX is escaped."""
        columns = list(self.shown())
        text = pd.DataFrame({latex(column.heading): map(latex, column.text) for column in columns})
        # After the \\ of a line, [ and * would be read as its arguments
        text.iloc[:, 0] = [
            f"{{}}{name}" if name[:1] in ("[", "*") else name for name in text.iloc[:, 0]
        ]
        sides = "".join("l" if column.is_text else "r" for column in columns)
        written = text.to_latex(
            index=False, escape=False, caption=latex(self.title), column_format=sides
        )
        notes = "".join(f"\\par\\footnotesize {latex(note)}\n" for note in self.notes)
        return str(written).replace("\\end{table}", f"{notes}\\end{{table}}")


def _has_order(value: Any) -> bool:
    return isinstance(value, str) or (not pd.isna(value) and math.isfinite(value))


def _spread(table: ReportTable, name: str, mean: float, std: float) -> str:
    return f"{table.number(name, mean)} ± {table.number(name, std)}"


def _within(table: ReportTable, name: str, value: float, low: float, high: float) -> str:
    ends = (
        "one run" if math.isnan(low) else f"{table.number(name, low)}, {table.number(name, high)}"
    )
    return f"{table.number(name, value)} [{ends}]"


# detail, fields, how they are written
FORMS: tuple[tuple[str, tuple[str, ...], Callable[..., str]], ...] = (
    ("", ("",), lambda t, name, value: t.number(name, value)),
    ("", ("mean", "std"), _spread),
    ("", ("value", "from", "to"), _within),
    (PAPER, ("paper mean", "paper std"), _spread),
    (
        "95 %",
        ("low", "high"),
        lambda t, name, low, high: f"[{t.number(name, low)}, {t.number(name, high)}]",
    ),
)

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
    r"""Text as LaTeX prints it: pandas escapes cells, but neither captions nor notes, and has no
    minus sign.

    >>> latex("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return MINUS.sub("$-$", text.translate(LATEX))


def frame_csv(frame: pd.DataFrame) -> str:
    """As CSV whose text, names that users gave among it, no spreadsheet runs as a formula; numbers
    stay."""
    frame = frame.set_axis([harmless(name) for name in frame.columns], axis=1)
    text = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    shown = frame.assign(**{name: frame[name].map(harmless) for name in text})
    return str(shown.to_csv(index=False, lineterminator="\n"))


def frame_of(columns: Mapping[str, pd.Series | pd.DataFrame]) -> pd.DataFrame:
    """Plain columns, and frames of the fields of a name, side by side; all have the same index."""
    whole = pd.concat(
        {name: c.to_frame("") if c.ndim == 1 else c for name, c in columns.items()}, axis=1
    )
    return whole.reset_index(drop=True)
