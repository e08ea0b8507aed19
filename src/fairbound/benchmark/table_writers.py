r"""A table of the report, written as text, CSV or LaTeX.

A column has a kind, which says what its cells are and how they are written; None in any column is a value that does
not exist. CSV holds every number in full and in a column of its own (`loss mean`, `loss std`); text and LaTeX round.

>>> loss = Column("loss", "spread", digits=3)
>>> table = Table("Losses", (Column("row"), loss), (("SGD", Spread(0.4064, 0.0031)), ("SSw", None)), ("Two runs.",))
>>> print(table.to_text())
Losses
row  loss
SGD  0.406 ± 0.003
SSw              —
Two runs.
>>> table.to_csv().splitlines()
['row,loss mean,loss std', 'SGD,0.4064,0.0031', 'SSw,,']
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from fairbound.benchmark.summary import Interval, Spread

NOTHING = "—"
MARK = "*"  # after a difference that is larger than chance explains


class Difference(NamedTuple):
    """Ours minus the paper's."""

    value: float
    marked: bool  # more than two of the paper's standard deviations


Kind = Literal["text", "whole", "number", "percent", "spread", "interval", "difference"]
Value: TypeAlias = str | int | float | Spread | Interval | Difference | None
CSV_PARTS: dict[Kind, tuple[str, ...]] = {  # what follows a column's name in a CSV file
    "spread": (" mean", " std"),
    "interval": (" low", " high"),
    "difference": ("", " marked"),
}
TYPES: dict[Kind, type | tuple[type, ...]] = {
    "text": str,
    "whole": int,
    "number": (int, float),
    "percent": (int, float),
    "spread": Spread,
    "interval": Interval,
    "difference": Difference,
}


@dataclass(frozen=True)
class Column:
    """A name and what stands below it."""

    name: str
    kind: Kind = "text"
    digits: int = 4  # after the point

    def shown(self, value: Value) -> str:
        """The value for people.

        >>> Column("gap", "difference", digits=2).shown(Difference(0.051, marked=True))
        '+0.05*'
        """
        match value:
            case None:
                return NOTHING
            case Spread(mean, std):
                return f"{self._number(mean)} ± {self._number(std)}"
            case Interval(low, high):
                return f"[{self._number(low)}, {self._number(high)}]"
            case Difference(difference, marked):
                return self._number(difference, "+") + (MARK if marked else "")
            case str():
                return value
        if self.kind == "percent":
            return f"{100 * value:.0f} %"
        return f"{value:,}" if self.kind == "whole" else self._number(value)

    def _number(self, value: float, sign: str = "") -> str:
        return f"{value:{sign}.{self.digits}f}" if math.isfinite(value) else "not finite"

    def csv_names(self) -> list[str]:
        return [self.name + part for part in CSV_PARTS.get(self.kind, ("",))]

    def csv_values(self, value: Value) -> list[str]:
        """In full: `float` reads back the same number."""
        if value is None:
            return [""] * len(self.csv_names())
        parts = value if isinstance(value, Spread | Interval | Difference) else (value,)
        return [_plain(part) for part in parts]


def _plain(part: str | float) -> str:
    if isinstance(part, bool):
        return "yes" if part else "no"
    return part if isinstance(part, str) else repr(part)


@dataclass(frozen=True)
class Table:
    """Rows of values below their columns, with a title above and notes below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} values for {len(self.columns)} columns: {row}")
            for column, value in zip(self.columns, row, strict=True):
                if value is not None and not isinstance(value, TYPES[column.kind]):
                    raise TypeError(f"{self.title}: column {column.name!r} is of kind {column.kind!r}, got {value!r}")

    def shown(self) -> list[list[str]]:
        """Every value for people."""
        return [[c.shown(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def to_text(self) -> str:
        """For a terminal, numbers to the right."""
        names, cells = [column.name for column in self.columns], self.shown()
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        head = "  ".join(f"{name:<{width}}" for name, width in zip(names, widths, strict=True))
        lines = ["  ".join(map(_aligned, self.columns, row, widths)) for row in cells]
        return "\n".join(line.rstrip() for line in (self.title, head, *lines, *self.notes))

    def to_csv(self) -> str:
        """One line a row, without title and notes."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([name for column in self.columns for name in column.csv_names()])
        for row in self.rows:
            writer.writerow([v for c, value in zip(self.columns, row, strict=True) for v in c.csv_values(value)])
        return text.getvalue()

    def to_latex(self) -> str:
        r"""A `table` that needs the package booktabs; whatever is special to LaTeX is escaped."""
        alignment = "".join("l" if column.kind == "text" else "r" for column in self.columns)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{latex(self.title)}}}",
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\toprule",
                _latex_line([column.name for column in self.columns]),
                r"\midrule",
                *map(_latex_line, self.shown()),
                r"\bottomrule",
                r"\end{tabular}",
                *(rf"\par\footnotesize {latex(note)}" for note in self.notes),
                r"\end{table}",
                "",
            ]
        )


def _aligned(column: Column, cell: str, width: int) -> str:
    return f"{cell:<{width}}" if column.kind == "text" else f"{cell:>{width}}"


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "—": "---", "+": "$+$",
}  # fmt: skip
MINUS = re.compile(r"(?<![\w.])-(?=\d)")  # not a hyphen


def latex(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> latex("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return MINUS.sub("$-$", "".join(LATEX.get(character, character) for character in text))


def _latex_line(cells: Sequence[str]) -> str:
    protect = "{}" if cells[0].startswith(("[", "*")) else ""  # they would belong to the \\\\ of the line before
    return protect + " & ".join(map(latex, cells)) + r" \\"
