"""The report of finished studies as files: one page, and every table and figure beside it.

report.html       opens offline: tables to sort and figures (`_utils/templates/benchmark.html`)
tables/           every table as CSV and LaTeX
figures/          every figure as PDF

Which tables and figures a study has, `tables.TABLES` and `plots.PLOTS` decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairbound._utils.drawing import write_pdf
from fairbound._utils.files import write_text
from fairbound._utils.pages import TableCell, render
from fairbound.benchmark.answer import NEXT, findings
from fairbound.benchmark.front import finding
from fairbound.benchmark.paper_comparison import agreement
from fairbound.benchmark.paper_statements import statements_table
from fairbound.benchmark.plan import REFERENCE_STEPS
from fairbound.benchmark.plots import PLOTS
from fairbound.benchmark.report_table import MISSING, PAPER, ReportTable
from fairbound.benchmark.results import Results
from fairbound.benchmark.study import Budget
from fairbound.benchmark.tables import TABLES
from fairbound.benchmark.user_files import known_name

PAPERS_DATA = ("acs:OK", "acs:VA")
HEADINGS = {name: item.heading for name, item in (TABLES | PLOTS).items()} | {"statements": "Statements"}
OnProgress = Callable[[int, int], None]  # tables and figures written, and all of them
BUDGET_WORDS = {  # how long every method runs
    "paper": "The paper's seconds, as steps",
    "examples": f"Equal numbers of examples for every method, those of {REFERENCE_STEPS:,} SSL-ALM steps",
}


@dataclass(frozen=True, eq=False)
class Section:
    """All that a report says about one study within one budget."""

    name: str  # of the study
    title: str
    budget: Budget
    reference: str  # where it stands in the paper
    data: str  # "real: acs:OK, 17,917 rows"
    source: str  # of the data, with what was left out of them
    finding: str  # in words
    short: str  # in what the runs are fewer or shorter than the study's
    notes: Mapping[str, str]  # by row: where the paper contradicts itself, or is ambiguous
    tables: Mapping[str, ReportTable]  # by key of TABLES
    figures: Mapping[str, Any]  # matplotlib's, by key of PLOTS
    next: Mapping[str, str]  # commands, and what they do

    @staticmethod
    def of(results: Results) -> Section:
        study = results.study
        for name in study.shows:
            known_name(name, [*TABLES, *PLOTS], "table or figure")
        tables, figures = (
            {
                name: item.make(results)
                for name, item in items.items()
                if item.applies(results) and (not study.shows or name in study.shows)
            }
            for items in (TABLES, PLOTS)
        )
        is_answer = "answer" in tables
        return Section(
            name=study.name,
            title=study.title,
            budget="examples" if results.equal_examples else study.budget,
            reference=study.reference,
            data=results.card.data_name,
            source=results.card.data,
            finding=findings(results) if is_answer else finding(results),
            short=results.short,
            notes={entry.name: entry.note for entry in study.entries if entry.note},
            tables=tables,
            figures=figures,
            next=NEXT if is_answer else {},
        )

    @staticmethod
    def of_paper(studies: Sequence[Results]) -> list[Section]:
        """What the paper says of the studies that are its own, in full length and on its data; empty without any."""
        own = [
            study
            for study in studies
            if study.card.source in PAPERS_DATA and study.study.budget == "paper" and not study.short
        ]
        table = statements_table({study.study.name: study for study in own})
        if table is None:
            return []
        section = Section(
            name="paper", title=table.title, budget="paper", reference="section 4, appendices A and B",
            data="; ".join(dict.fromkeys(study.card.data_name for study in own)), finding=table.notes[0],
            source=", ".join(dict.fromkeys(study.card.data for study in own)), short="", notes={},
            tables={"statements": replace(table, notes=table.notes[1:])}, figures={}, next={},
        )  # fmt: skip
        return [section]

    @property
    def synthetic(self) -> bool:
        return self.source.partition(":")[0] == "synthetic"

    @property
    def agreement(self) -> str:
        """How many numbers meet the paper's, or why a short run is not compared; empty where the paper has none."""
        if self.short:
            return f"A short run, not compared with the paper: {self.short}."
        return agreement(table.frame for table in self.tables.values())


def write_report(
    sections: Sequence[Section],
    to: Path | str,
    systems: Sequence[Mapping[str, Any]],
    progress: OnProgress | None = None,
) -> Path:
    """Write tables, figures and the page into a folder; the path of the page. `systems` is `Store.systems()`."""
    if not sections:
        raise ValueError("a report has at least one section; run a study first: fairbound run paper-ok-race")
    to = Path(to)
    stems = file_stems(sections)
    work = [*_writings(sections, stems, to)]
    with _os_errors_named(to):
        for folder in ("tables", "figures"):
            (to / folder).mkdir(parents=True, exist_ok=True)
        for done, write in enumerate(work, start=1):
            write()
            if progress is not None:
                progress(done, len(work))
        write_text(to / "report.html", page(sections, systems))
    return to / "report.html"


def file_stems(sections: Sequence[Section]) -> list[str]:
    """How the names of each section's files begin: with the budget only where there are several."""
    names = [(one.name, one.budget) for one in sections]
    for name, budget in names:
        if names.count((name, budget)) > 1:
            raise ValueError(
                f"two sections are of {name!r} within the budget {budget!r}; their files would have one name: "
                "give the files of the studies different names"
            )
    several = {name for name, _ in names if [other for other, _ in names].count(name) > 1}
    return [f"{name}-{budget}" if name in several else name for name, budget in names]


def _writings(sections: Sequence[Section], stems: Sequence[str], to: Path) -> Iterator[Callable[[], object]]:
    for one, stem in zip(sections, stems, strict=True):
        for name, table in one.tables.items():
            yield partial(_write_table, table, to / "tables", f"{stem}-{name}")
        for name, figure in one.figures.items():
            yield partial(write_pdf, figure, to / "figures" / f"{stem}-{name}.pdf")


def _write_table(table: ReportTable, folder: Path, name: str) -> None:
    write_text(folder / f"{name}.csv", table.to_csv())
    write_text(folder / f"{name}.tex", table.to_latex())


@contextmanager
def _os_errors_named(folder: Path) -> Iterator[None]:
    """What went wrong with a file, in a sentence; `write_text` has its own."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(f"the report cannot be written into {folder} ({error.strerror}); name another folder") from error


# The page -------------------------------------------------------------------------------------------------------------


def page(sections: Sequence[Section], systems: Sequence[Mapping[str, Any]]) -> str:
    """The whole page as text."""
    details: dict[str, str] = {}
    for number, system in enumerate(systems, start=1):
        details[f"Computed on{f' ({number})' if len(systems) > 1 else ''}"] = system_words(system)
    if systems:
        details["Date"] = ", ".join(dict.fromkeys(str(system.get("date", "unknown"))[:10] for system in systems))
    views = [_section_view(one, stem) for one, stem in zip(sections, file_stems(sections), strict=True)]
    data = "; ".join(dict.fromkeys(name for one in sections for name in one.data.split("; ")))
    return render("benchmark.html", sections=views, details=details, data=f"Data: {data}")


def system_words(system: Mapping[str, Any]) -> str:
    """Where it was computed."""
    details = [str(system[name]) for name in ("cpu", "platform") if name in system]
    details += [f"{name} {system[name]}" for name in ("fairbound", "torch", "python") if name in system]
    device = system.get("device", "cpu")
    return ", ".join([*details, *([] if device == "cpu" else [f"on {device}"])]) or "not noted"


def _section_view(one: Section, stem: str) -> dict[str, Any]:
    """What the template shows of a section."""
    tables, figures = (
        [{**view, "name": name, "heading": HEADINGS[name], "file": f"{stem}-{name}"} for name, view in views]
        for views in (
            [(name, _table_view(table)) for name, table in one.tables.items()],
            [(name, {"figure": figure}) for name, figure in one.figures.items()],
        )
    )
    picture = [item for item in figures if item["name"] == "trade-off"]  # what was found comes first
    own = {
        "stem": stem, "budget_words": BUDGET_WORDS[one.budget], "picture": picture, "tables": tables,
        "figures": [item for item in figures if item not in picture],
    }  # fmt: skip
    return vars(one) | {"synthetic": one.synthetic, "agreement": one.agreement} | own


def _table_view(table: ReportTable) -> dict[str, Any]:
    """Ours with the paper's below it."""
    columns = list(table.shown())
    papers = {column.name: column.text for column in columns if column.detail == PAPER}
    columns = [column for column in columns if column.detail != PAPER]
    cells = [
        [
            TableCell(text, key, is_alert=marked, small="" if paper == MISSING else f"{PAPER}: {paper}")
            for text, key, marked, paper in zip(
                c.text, c.sort_keys, c.marked, papers.get(c.name, [MISSING] * len(c.text)), strict=True
            )
        ]
        for c in columns
    ]
    return {
        "title": table.title, "notes": table.notes, "headings": [column.heading for column in columns],
        "lines": list(zip(*cells, strict=True)), "right": [i for i, c in enumerate(columns) if not c.is_text],
    }  # fmt: skip
