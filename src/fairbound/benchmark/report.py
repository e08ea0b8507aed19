"""The report of finished experiments as files: one page, and every table and figure beside it.

report.html       opens offline
tables/           every table as CSV and LaTeX
figures/          every figure as PDF and PNG
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fairbound._utils.files import write_text
from fairbound.benchmark.drawing import save
from fairbound.benchmark.report_page import page
from fairbound.benchmark.report_sections import Section
from fairbound.benchmark.table_writers import Table

TrainingState = Callable[[int, int], None]  # tables and figures written, and all of them


def write_report(
    sections: Sequence[Section],
    to: Path | str,
    systems: Sequence[Mapping[str, Any]],
    progress: TrainingState | None = None,
) -> Path:
    """Write tables, figures and the page into a folder; the path of the page. `systems` is `Store.systems()`."""
    if not sections:
        raise ValueError("a report has at least one section; run an experiment first: fairbound run income-ok-race")
    to = Path(to)
    _refuse_twins(sections)
    stems = file_stems([(one.name, one.budget) for one in sections])
    work = [*_writings(sections, stems, to)]
    with _sentences(to):
        for folder in ("tables", "figures"):
            (to / folder).mkdir(parents=True, exist_ok=True)
        for done, write in enumerate(work, start=1):
            write()
            if progress is not None:
                progress(done, len(work))
        write_text(to / "report.html", page(sections, stems, systems))
    return to / "report.html"


def file_stems(sections: Sequence[tuple[str, str]]) -> list[str]:
    """How the names of a section's files begin, from (experiment, budget): the budget only where there are several.

    >>> file_stems([("income-ok-race", "paper"), ("income-ok-race", "examples"), ("splits-ok", "paper")])
    ['income-ok-race-paper', 'income-ok-race-examples', 'splits-ok']
    """
    names = [name for name, _ in sections]
    return [f"{name}-{budget}" if names.count(name) > 1 else name for name, budget in sections]


def _refuse_twins(sections: Sequence[Section]) -> None:
    named = [(one.name, one.budget) for one in sections]
    for name, budget in named:
        if named.count((name, budget)) > 1:
            raise ValueError(
                f"two sections are of {name!r} within the budget {budget!r}; their files would have one name: "
                "give the files of the experiments different names"
            )


def _writings(sections: Sequence[Section], stems: Sequence[str], to: Path) -> Iterator[Callable[[], object]]:
    for one, stem in zip(sections, stems, strict=True):
        for name, table in one.tables.items():
            yield partial(_write_table, table, to / "tables", f"{stem}-{name}")
        for name, sheet in one.figures.items():
            yield partial(save, sheet, to / "figures", f"{stem}-{name}")


def _write_table(table: Table, folder: Path, name: str) -> None:
    write_text(folder / f"{name}.csv", table.to_csv())
    write_text(folder / f"{name}.tex", table.to_latex())


@contextmanager
def _sentences(folder: Path) -> Iterator[None]:
    """What went wrong with a file, in words; `write_text` has its own."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(f"the report cannot be written into {folder} ({error.strerror}); name another folder") from error
