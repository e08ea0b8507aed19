"""What a page says of stored studies: `read_page` makes one of any, papers' and boards' alike.

Which tables and figures a study on a table has, `tables.TABLES` and `plots.PLOTS` decide; a board's
are in `board/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairbound.benchmark._answer import NEXT, findings
from fairbound.benchmark._front import front_finding
from fairbound.benchmark._page import Exhibit, Page, Section
from fairbound.benchmark._paper_comparison import agreement
from fairbound.benchmark._paper_statements import statements_table
from fairbound.benchmark._plan import REFERENCE_STEPS
from fairbound.benchmark._plots import PLOTS
from fairbound.benchmark._results import Results
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import StoredStudy
from fairbound.benchmark._tables import TABLES
from fairbound.benchmark._user_files import known_name
from fairbound.benchmark.board._results import Board, SentEntry
from fairbound.benchmark.board._section import board_section

PAPERS_DATA = ("acs:OK", "acs:VA")
_FIRST = "trade-off"  # what was found comes first
BUDGETS = {  # how long every method runs
    "own": "As many steps as the study gives each method",
    "paper": "The paper's seconds, as steps",
    "examples": (
        f"Equal numbers of examples for every method, those of {REFERENCE_STEPS:,} SSL-ALM steps"
    ),
}
QUESTION = "Training under fairness constraints: which method keeps the bound?"


def read_page(studies: Sequence[StoredStudy], store: Store, sent: Sequence[SentEntry] = ()) -> Page:
    """Page of stored studies, boards with entries that were sent; what the paper says comes
    first."""
    results = [Results.read(study, store) for study in studies if study.page == "report"]
    boards = [Board.read(study, store, sent) for study in studies if study.page == "board"]
    sections = [*paper_section(results), *map(study_section, results), *map(board_section, boards)]
    return Page(sections, store.systems())


def study_section(results: Results) -> Section:
    """One study within one budget."""
    study, items = results.study, TABLES | PLOTS
    for name in study.shows:
        known_name(name, items, "table or figure")
    names = [name for name in study.shows or items if items[name].applies(results)]
    exhibits = {
        name: Exhibit(items[name].heading, items[name].make(results))
        for name in sorted(names, key=[_FIRST, *items].index)
    }
    is_answer = "answer" in exhibits
    budget = "examples" if results.equal_examples else study.budget
    return Section(
        name=study.name,
        variant=budget,
        title=study.title,
        question=QUESTION if is_answer else "",
        how=BUDGETS["own" if budget == "paper" and not study.reference else budget],
        origin=(
            f"{f'In the paper: {study.reference}. ' if study.reference else ''}Data:"
            f" {results.card.data}."
        ),
        cards=study.cards,
        finding=findings(results) if is_answer else front_finding(results),
        short=results.short,
        agreement=_agreement(results, exhibits),
        notes={entry.name: entry.note for entry in study.entries if entry.note},
        exhibits=exhibits,
        next=NEXT if is_answer else {},
    )


def _agreement(results: Results, exhibits: dict[str, Exhibit]) -> str:
    """How many numbers meet the paper's, or why a short run is not compared; empty where the paper
    has none."""
    if results.short and results.study.reference:
        return f"A short run, not compared with the paper: {results.short}."
    return agreement(exhibit.shown.frame for name, exhibit in exhibits.items() if name in TABLES)


def paper_section(studies: Sequence[Results]) -> list[Section]:
    """What the paper says of the studies that are its own, in full length and on its data; empty
    without any."""
    own = [
        study
        for study in studies
        if study.card.source in PAPERS_DATA
        and study.study.reference
        and study.study.budget == "paper"
        and not study.short
    ]
    table = statements_table({study.study.name: study for study in own})
    if table is None:
        return []
    finding, *notes = table.notes
    section = Section(
        name="paper",
        variant="paper",
        title=table.title,
        how=BUDGETS["paper"],
        finding=finding,
        origin="In the paper: section 4, appendices A and B.",
        cards=[study.card for study in own],
        exhibits={"statements": Exhibit("Statements", replace(table, notes=tuple(notes)))},
    )
    return [section]
