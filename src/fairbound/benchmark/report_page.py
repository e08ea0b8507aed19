"""The report as one HTML page: tables to sort and figures to hover, in a single file that needs no network.

What the page says beside its numbers is in `page.html`, its own style in `page.css`; the rest is that of all
`_utils.pages`. Figures are drawn when a reader comes near them, so that a page with dozens of them opens at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fairbound._utils.pages import SYNTHETIC, Cell, facts, filled, picture, section, table, text, whole
from fairbound.benchmark.config import REFERENCE_STEPS
from fairbound.benchmark.figure_specs import Sheet
from fairbound.benchmark.interactive import drawing
from fairbound.benchmark.report_sections import Section
from fairbound.benchmark.summary import Interval, Spread
from fairbound.benchmark.table_writers import Column, Difference, Table, Value

BUDGETS = {  # how long every method runs
    "paper": "The paper's seconds, as steps",
    "examples": f"Equal examples for every method, those of {REFERENCE_STEPS:,} SSL-ALM steps",
}
TABLES = {  # headings; the table of contents has their first words, up to a comma
    "loss": "Loss and violation",
    "splits": "Training rows and held-out rows",
    "tuning": "Settings, chosen on the validation split",
    "fairness-reported": "Fairness as reported, by the definitions behind the paper's results",
    "fairness-printed": "Fairness as printed, by the definitions in the paper's text",
    "differences": "Differences, where our figures are not the paper's",
}
FIGURES = {
    "curves": "Along the steps, training and test rows",
    "seconds": "Along the seconds, training and test rows",
    "validation": "Along the steps on validation rows",
    "scores": "Scores by group",
    "spiders": "Fairness metrics",
    "trade-off": "Loss against violation",
}
NONE_FAR = "Every figure of the paper is met."


def page(sections: Sequence[Section], stems: Sequence[str], systems: Sequence[Mapping[str, Any]]) -> str:
    """The whole page as text; a stem is how the names of a section's files begin."""
    numbered = list(zip(sections, stems, strict=True))
    mixed = len({one.synthetic for one in sections}) > 1  # else the head says for all whether people are real
    content = filled(
        "benchmark.html",
        head=_head(sections, systems),
        contents="".join(_entry(one, stem) for one, stem in numbered),
        body="".join(_section(one, stem, mixed) for one, stem in numbered),
    )
    return whole("Training under fairness constraints: the benchmark", content, text("benchmark.css"))


def _head(sections: Sequence[Section], systems: Sequence[Mapping[str, Any]]) -> str:
    sources = dict.fromkeys(one.source for one in sections)
    met = [one.tables["differences"].notes[0] for one in sections if "differences" in one.tables]
    said = {"Data": ", ".join(sources)}
    for number, system in enumerate(systems, start=1):
        said[f"Computed on{f' ({number})' if len(systems) > 1 else ''}"] = _system(system)
    if systems:
        said["Date"] = ", ".join(dict.fromkeys(str(system.get("date", "unknown"))[:10] for system in systems))
    banner = SYNTHETIC if all(one.synthetic for one in sections) else ""
    agreement = f"<p>{escape(met[0])}</p>" if len(sections) == len(met) == 1 else ""
    return banner + facts(said) + agreement


def _system(system: Mapping[str, Any]) -> str:
    said = [str(system[name]) for name in ("cpu", "platform") if name in system]
    said += [f"{name} {system[name]}" for name in ("fairbound", "torch", "python") if name in system]
    device = system.get("device", "cpu")
    return ", ".join([*said, *([] if device == "cpu" else [f"on {device}"])]) or "not noted"


def _entry(one: Section, stem: str) -> str:
    links = [
        f'<a href="#{stem}-{name}">{_first_words(words[name])}</a>'
        for words, found in ((TABLES, one.tables), (FIGURES, one.figures))
        for name in found
    ]
    met = f" {escape(one.tables['differences'].notes[0])}" if "differences" in one.tables else ""
    return (
        f'<li><a href="#{stem}">{escape(one.title)}</a>'
        f"<small>{escape(BUDGETS[one.budget])}.{met}</small><small>{' · '.join(links)}</small></li>"
    )


def _first_words(heading: str) -> str:
    return escape(heading.partition(",")[0].lower())


def _section(one: Section, stem: str, mixed: bool) -> str:
    meta = f"{BUDGETS[one.budget]}. In the paper: {one.at}. Data: {one.source}."
    content = f'<p class="meta">{escape(meta)}</p>' + (SYNTHETIC if mixed and one.synthetic else "")
    for name, found in one.tables.items():
        content += section(f"{stem}-{name}", "h3", TABLES[name], _table(found, f"{stem}-{name}"))
    for name, sheet in one.figures.items():
        content += section(f"{stem}-{name}", "h3", FIGURES[name], _figure(sheet, f"{stem}-{name}"))
    return section(stem, "h2", one.title, content + _row_notes(one.notes))


def _table(found: Table, file: str) -> str:
    rows = [[_cell(c, value) for c, value in zip(found.columns, row, strict=True)] for row in found.rows]
    right = [at for at, column in enumerate(found.columns) if column.kind != "text"]
    shown = table(found.title, [column.name for column in found.columns], rows, kind="figures", right=right)
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    below = f'<ul class="below">{notes}</ul>' if notes else ""
    return (
        (shown if rows else f"<p>{NONE_FAR}</p>")
        + below
        + _files({"CSV": f"tables/{file}.csv", "LaTeX": f"tables/{file}.tex"})
    )


def _cell(column: Column, value: Value) -> Cell:
    words = escape(column.shown(value))
    if isinstance(value, Difference) and value.marked:
        words = f'<strong class="far">{words}</strong>'
    return words, _sorted_by(value)


def _sorted_by(value: Value) -> float | str | None:
    """Means, lower ends and differences by their size; what is not finite comes last, as what is missing does."""
    if isinstance(value, Spread | Interval | Difference):
        value = value[0]
    if value is None or isinstance(value, str):
        return value
    return value if math.isfinite(value) else None


def _figure(sheet: Sheet, file: str) -> str:
    json, height = drawing(sheet)
    return (
        f"<p>{escape(sheet.words)}.</p>"
        + picture(sheet.words, json, waits=height)
        + _files({ending.upper(): f"figures/{file}.{ending}" for ending in ("pdf", "png")})
    )


def _files(paths: Mapping[str, str]) -> str:
    links = " · ".join(f'<a href="{escape(path)}">{name}</a>' for name, path in paths.items())
    return f'<p class="files">{links}</p>'


def _row_notes(notes: Mapping[str, str]) -> str:
    """Folded up: they are for who compares with the paper line by line."""
    if not notes:
        return ""
    listed = "".join(f"<div><dt>{escape(row)}</dt><dd>{escape(note)}</dd></div>" for row, note in notes.items())
    summary = "Where the paper leaves something open, by row"
    return f'<details><summary>{summary}</summary><dl class="rows">{listed}</dl></details>'
