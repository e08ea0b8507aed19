"""The page of studies and boards, with every table and figure as a file beside it; made from stored
results alone.

index.html    opens offline: tables to sort and figures
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
from fairbound.reports._page import Choice, Home, Line, PageSection, Words, page, synthetic_banner
from fairbound.reports._table import ReportTable, csv_text

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
        dates = dict.fromkeys(str(each["date"])[:10] for each in self.systems if "date" in each)
        sections, is_alone = self.stems, len(self.sections) == 1
        are_all_synthetic = all(section.synthetic for section in self.sections)
        title = self.sections[0].question if is_alone else ""
        short = [f"{each.title}, {each.short}" for each in self.sections if each.short]
        short_run = Line(
            f"It shows how the page works and decides nothing: {'; '.join(short)}.",
            "banner",
            "A short run.",
        )
        contents = [
            Line(
                f"{section.how}. {' '.join(section.finding.splitlines()[:1])}",
                "meta",
                section.title,
                {"Read": f"#{stem}"} | _contents(section, stem),
            )
            for stem, section in sections.items()
        ]
        kinds = {
            "studies": any(not section.parts for section in self.sections),
            "with_paper": any(section.agreement for section in self.sections),
            "boards": any(section.parts for section in self.sections),
        }
        facts = {"Computed on": computed} | ({"Date": ", ".join(dates)} if dates else {})
        home = [
            *([short_run] if short else []),
            *([synthetic_banner()] if are_all_synthetic else []),
            *([] if is_alone else [PageSection(title="Contents", body=contents)]),
            *(
                _section(section, stem, are_all_synthetic, is_alone)
                for stem, section in sections.items()
            ),
            PageSection(title="How to read this", body=[Words("reading_study.html", kinds), facts]),
        ]
        parts = [
            _part(section, part, stem)
            for stem, section in sections.items()
            for part in section.parts
        ]
        return page(
            title or "Training under constraints: the benchmark",
            [Home(home), *parts],
            above=data_line(card for section in self.sections for card in section.cards),
            footer="Links to files lead to the folders beside it.",
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
        rows = content.itertuples(index=False)
        write_text(to / "tables" / f"{name}.csv", csv_text(list(content.columns), rows))
    elif isinstance(content, ReportTable):
        write_text(to / "tables" / f"{name}.csv", content.to_csv())
        write_text(to / "tables" / f"{name}.tex", content.to_latex())
    else:
        write_pdf(content, to / "figures" / f"{name}.pdf")


# What the page shows ------------------------------------------------------------------------------


def _section(section: Section, stem: str, are_all_synthetic: bool, is_alone: bool) -> PageSection:
    links = _addresses(section, stem)
    exhibits = _exhibits(section.exhibits, stem, links)
    contents = [Line("", "meta", links=_contents(section, stem))] * (is_alone and len(exhibits) > 2)
    recorded = {name: f"tables/{stem}-{name}.csv" for name in section.recorded}
    body = [
        Line(f"{section.how}. {section.origin}", "meta"),
        *contents,
        *([synthetic_banner()] if section.synthetic and not are_all_synthetic else []),
        *_body(section, exhibits, "Notes on the rows"),
        *([Line("Everything that was recorded, as CSV:", links=recorded)] if recorded else []),
    ]
    if section.next:
        body.append(PageSection(title="What to run next", body=[section.next]))
    return PageSection(title=section.title, name=stem, body=body)


def _addresses(section: Section, stem: str) -> dict[str, str]:
    """The addresses to which the titles and names of a section's parts lead."""
    words = [(word, part.name) for part in section.parts for word in (part.title, part.name)]
    return {word: f"#{stem}-{name}" for word, name in words}


def _part(section: Section, part: Section, stem: str) -> PageSection:
    """A part that is shown alone."""
    place = f"{stem}-{part.name}"
    body = [
        Line("", "meta", links={f"← {section.title}": f"#{stem}"}),
        *([synthetic_banner()] if part.synthetic else []),
        *_body(
            part,
            _exhibits(part.exhibits, place, _addresses(section, stem)),
            "Settings chosen for each problem",
        ),
    ]
    return PageSection(title=part.title, name=place, body=body, kind="part")


def _body(section: Section, exhibits: Sequence[PageSection], notes: str) -> Iterator[Any]:
    yield from (Line(line, "finding") for line in section.finding.splitlines())
    if section.agreement:
        yield section.agreement
    yield from exhibits
    if section.facts:
        yield PageSection(title="Details", body=[section.facts])
    if section.notes:
        yield PageSection(title=notes, body=[section.notes], is_folded=True)


def _exhibits(
    exhibits: Mapping[str, Exhibit], stem: str, links: Mapping[str, str]
) -> list[PageSection]:
    return [_exhibit(name, exhibit, f"{stem}-{name}", links) for name, exhibit in exhibits.items()]


def _exhibit(name: str, exhibit: Exhibit, place: str, links: Mapping[str, str]) -> PageSection:
    shown, body = exhibit.shown, list[Any]()
    if isinstance(shown, Mapping):
        options = {
            option: _exhibit(option, part, f"{place}-{option}", links)
            for option, part in shown.items()
        }
        body = [Choice(exhibit.heading, place, options)]
    elif isinstance(shown, ReportTable):
        files = {"CSV": f"tables/{place}.csv", "LaTeX": f"tables/{place}.tex"}
        body = [shown, Line("", "files", links=files)]
    else:
        more = {"More about it": links[name]} if name in links else {}
        files = {"PDF": f"figures/{place}.pdf"}
        body = [shown, Line("", "files", links=more | files)]
    return PageSection(title=exhibit.heading, name=place, body=body, links=links)


def _contents(section: Section, stem: str) -> dict[str, str]:
    """Short headings of what a section shows, and where it is."""
    return {
        exhibit.heading.partition(",")[0].partition(":")[0]: f"#{stem}-{name}"
        for name, exhibit in section.exhibits.items()
    }
