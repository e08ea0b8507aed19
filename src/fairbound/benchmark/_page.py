"""The page of studies and boards, with every table and figure as a file beside it; made from stored
results alone.

index.html    opens offline: tables to sort and figures (`reports/templates/benchmark.html`)
tables/       every table as CSV and LaTeX; of a board also all that was recorded, as CSV
figures/      every figure as PDF

What a section shows, `study_section` and `board.section` decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fairbound._utils.files import write_text
from fairbound.benchmark._stored_study import Card, data_line
from fairbound.reports._figures import write_pdf
from fairbound.reports._page import TableCell, render
from fairbound.reports._table import MISSING, ReportTable, frame_csv

OnProgress = Callable[[int, int], None]  # files written, and all of them


class Exhibit(NamedTuple):
    """What a page shows under a heading: a ReportTable; a matplotlib figure, whose label is its
    caption; or exhibits by name, of which the reader chooses one."""

    heading: str  # in the contents up to its first comma or colon
    shown: Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Section:
    """All that a page says about one study; or about one method or problem of a board, as a part of
    its section."""

    name: str  # its `slug` begins the names of its files
    title: str
    cards: Sequence[Card] = ()  # of its problems
    finding: str = ""  # in words, some lines
    exhibits: Mapping[str, Exhibit] = field(default_factory=dict)
    variant: str = ""  # the budget or the rules: part of the name where several sections have one
    question: str = ""  # the title of a page with this section alone
    how: str = ""  # how long, or with which settings, methods ran
    origin: str = ""  # of the study and its data
    short: str = ""  # in what the runs are fewer or shorter than the study's
    agreement: str = ""  # with the paper
    # by row; of a method that is tuned, its settings by problem
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    next: Mapping[str, str] = field(default_factory=dict)  # commands, and what they do
    # numbers that are files alone
    recorded: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    on_terminal: Sequence[str] = ()  # the tables that a terminal shows; empty: all
    parts: Sequence[Section] = ()  # each is shown alone, under its own address

    @property
    def tables(self) -> dict[str, ReportTable]:
        return {
            name: shown for name, shown in _flat(self.exhibits) if isinstance(shown, ReportTable)
        }

    @property
    def figures(self) -> dict[str, Any]:
        """matplotlib's."""
        return {
            name: shown
            for name, shown in _flat(self.exhibits)
            if not isinstance(shown, ReportTable)
        }

    @property
    def synthetic(self) -> bool:
        return bool(self.cards) and all(card.synthetic for card in self.cards)


def _flat(exhibits: Mapping[str, Exhibit], before: str = "") -> Iterator[tuple[str, Any]]:
    """Tables and figures by the names of their files, those to choose from among them."""
    for name, (_, shown) in exhibits.items():
        if isinstance(shown, Mapping):
            yield from _flat(shown, f"{before}{name}-")
        else:
            yield f"{before}{name}", shown


@dataclass(frozen=True, eq=False)
class Page:
    """Sections, and the systems that computed their results (`Store.systems()`)."""

    sections: Sequence[Section]
    systems: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not self.sections:
            raise ValueError(
                "a page has at least one section; run a study first: fairbound run paper-ok-race"
            )
        if len(self.stems) < len(self.sections):
            names = ", ".join(f"{section.name} ({section.variant})" for section in self.sections)
            raise ValueError(
                f"sections of one name would have the same files, got {names}; give the files of"
                " the studies different names"
            )

    @property
    def stems(self) -> dict[str, Section]:
        """Every section by how the names of its files begin: with its variant and its data only
        where that decides."""
        stems = [slug(section.name) for section in self.sections]
        variants = [section.variant for section in self.sections]
        data = [
            "synthetic" if any(card.synthetic for card in section.cards) else ""
            for section in self.sections
        ]
        for more in (variants, data):
            repeated = {stem for stem in stems if stems.count(stem) > 1}
            stems = [
                f"{stem}-{one}" if stem in repeated and one else stem
                for stem, one in zip(stems, more, strict=True)
            ]
        return dict(zip(stems, self.sections, strict=True))

    def write(self, to: Path | str, progress: OnProgress | None = None) -> Path:
        """Write tables, figures and the page into a folder; the path of the page."""
        to = Path(to)
        files = [file for stem, section in self.stems.items() for file in _files(section, stem)]
        try:
            for folder in ("tables", "figures"):
                (to / folder).mkdir(parents=True, exist_ok=True)
            for done, (name, content) in enumerate(files, start=1):
                _write(content, to, name)
                if progress is not None:
                    progress(done, len(files))
            write_text(to / "index.html", self.html())
        except OSError as error:
            if error.errno is None:  # `write_text` has said it
                raise
            raise OSError(
                f"the page cannot be written into {to} ({error.strerror}); name another folder"
            ) from error
        return to / "index.html"

    def html(self) -> str:
        """The page as text."""
        computed = "; ".join(dict.fromkeys(map(system_words, self.systems))) or "not noted"
        dates = [str(system["date"])[:10] for system in self.systems if "date" in system]
        return render(
            "benchmark.html",
            sections=[_section_view(section, stem) for stem, section in self.stems.items()],
            data=data_line(card for section in self.sections for card in section.cards),
            details={"Computed on": computed}
            | ({"Date": ", ".join(dict.fromkeys(dates))} if dates else {}),
        )


def slug(name: str) -> str:
    """Make names of files and addresses on a page: letters of any alphabet, digits and hyphens.

    >>> slug("SSL-ALM (tau = .05)"), slug("50 % #1")
    ('ssl-alm-tau-05', '50-1')
    """
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def system_words(system: Mapping[str, Any]) -> str:
    """Describe the system on which it was computed."""
    details = [str(system[name]) for name in ("cpu", "platform") if name in system]
    details += [
        f"{name} {system[name]}" for name in ("fairbound", "torch", "python") if name in system
    ]
    device = system.get("device", "cpu")
    return ", ".join([*details, *([] if device == "cpu" else [f"on {device}"])]) or "not noted"


def _files(section: Section, stem: str) -> Iterator[tuple[str, Any]]:
    """What is written of a section, by name."""
    for name, content in (*section.recorded.items(), *_flat(section.exhibits)):
        yield f"{stem}-{name}", content
    for part in section.parts:
        yield from _files(part, f"{stem}-{part.name}")


def _write(content: Any, to: Path, name: str) -> None:
    if isinstance(content, pd.DataFrame):
        write_text(to / "tables" / f"{name}.csv", frame_csv(content))
    elif isinstance(content, ReportTable):
        write_text(to / "tables" / f"{name}.csv", content.to_csv())
        write_text(to / "tables" / f"{name}.tex", content.to_latex())
    else:
        write_pdf(content, to / "figures" / f"{name}.pdf")


# What the template shows --------------------------------------------------------------------------


def _section_view(
    section: Section, stem: str, links: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """links: where titles and names of parts lead; by default those of this section."""
    if links is None:
        links = {
            word: f"#{stem}-{part.name}"
            for part in section.parts
            for word in (part.title, part.name)
        }
    return vars(section) | {
        "stem": stem,
        "synthetic": section.synthetic,
        "items": [
            _item_view(name, item, f"{stem}-{name}", links)
            for name, item in section.exhibits.items()
        ],
        "parts": [_section_view(part, f"{stem}-{part.name}", links) for part in section.parts],
    }


def _item_view(name: str, exhibit: Exhibit, place: str, links: Mapping[str, str]) -> dict[str, Any]:
    shown, table, options = exhibit.shown, {}, []
    if isinstance(shown, ReportTable):
        table = _table_view(shown, links)
    elif isinstance(shown, Mapping):
        options = [
            _item_view(option, one, f"{place}-{option}", links) for option, one in shown.items()
        ]
    return {
        "name": name,
        "heading": exhibit.heading,
        "place": place,
        "link": links.get(name, ""),
        "table": table,
        "options": options,
        "figure": shown,
    }


def _table_view(table: ReportTable, links: Mapping[str, str]) -> dict[str, Any]:
    """Cells of a table: each figure with its detail, the paper's or an interval, below it."""
    columns = [column for column in table.shown() if not column.detail]
    details = {column.name: column for column in table.shown() if column.detail}
    cells = []
    for column in columns:
        below = details.get(column.name)
        small = [""] * len(column.text)
        if below is not None:
            small = ["" if text == MISSING else f"{below.detail}: {text}" for text in below.text]
        shades = column.sort_keys if table.shaded and not column.is_text else [None] * len(small)
        lines = zip(column.text, column.sort_keys, small, column.marked, shades, strict=True)
        cells.append([TableCell(*line) for line in lines])
    cells[0] = [cell._replace(href=links.get(cell.text, "")) for cell in cells[0]]
    return {
        "title": table.title,
        "notes": table.notes,
        "is_shaded": table.shaded,
        "headings": [column.name for column in columns],
        "lines": list(zip(*cells, strict=True)),
        "right": [i for i, column in enumerate(columns) if not column.is_text],
    }
