"""Studies as TOML: entries on problems, for how long, and what the page shows of them.

    load("paper-ok-race")     a study that is installed with the package (`names()`)
    load("my-study.toml")     a file of the user's own, of the same form

The keys of a file are the fields of `Study`, `Entry`, `TableSpec` and `SplitSpec`. There are two
kinds of pages:

* "report": tables and figures of one table of examples, `problem = "income-ok-race-paper"`, a file,
  or a table [problem] in the study itself. The losses of every group are measured on the parts of
  the split.
* "board": shares of `problems = ["qcqp", "my_problem.py"]` that are solved, all of the collection
  where none are named, and of their single changes.

An entry is completed by the keys under [common], or by those of an earlier entry that it names:
`like = "SSw"`. Settings are completed one by one, at last by those under [settings.METHOD], which
hold for every entry of that method. A study may be like another, too: `like = "board"`, and `only =
["SGD", "SSL-ALM"]` of its entries.

Whatever is not understood is refused: a misspelt setting that went unnoticed would be another study
than the one that was asked for. Nothing is loaded or run here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from fairbound.algorithms import ALGORITHMS
from fairbound.benchmark._custom_algorithm import CustomAlgorithm
from fairbound.benchmark._entry import Entry, Paper, Rules
from fairbound.benchmark._fingerprint import canonical_json
from fairbound.benchmark._user_files import (
    KNOWN_KEYS_ONLY,
    Count,
    Text,
    check_unique,
    known_name,
    mistakes_in,
    nearest,
    one_of,
    read_toml,
)
from fairbound.benchmark.problems import _catalog as catalog
from fairbound.benchmark.problems.table import TABLE_MODELS as TABLE_MODELS
from fairbound.benchmark.problems.table import SplitSpec, TableSpec, table_spec
from fairbound.data._dataset import Split

INSTALLED = Path(__file__).parent / "studies"
COMPLETING = ("common", "settings", "split")  # keys of a file that complete others

Budget = Literal["paper", "examples"]  # the entries' own steps, or equal examples for every method
SplitPart = Annotated[str, one_of("part of a split", Split._fields)]


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class Study:
    """Entries to compare on problems."""

    name: str  # of the file
    title: Text
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    page: Literal["report", "board"] = "report"
    reference: str = ""  # where it stands in the paper
    problem: TableSpec | None = None  # of a report
    problems: tuple[Text, ...] = ()  # of a board: names or files; empty: all of the collection
    seeds: Count = 5  # runs of each entry on each split
    splits: Count = 1  # of a board: on which bounds are tested on held-out data
    records: Count = 40  # states measured along a run, the last one included
    # no run is longer; of a board, of a method that draws one mini-batch a step
    steps: Count | None = None
    # Of a report
    measured: tuple[SplitPart, ...] = ()  # the parts of the split that are measured; empty: all
    # records at the end of a run whose mean the tables show and the choice reads
    last_states: Count = 1
    budget: Budget = "paper"
    shows: tuple[Text, ...] = ()  # tables and figures of its page; empty: all that apply
    # Of a board
    rules: Rules = "default"
    # runs of each entry on each change; 0: no changes
    changed_seeds: Annotated[int, Field(ge=0)] = 3
    short: bool = False  # a trial: fewer problems, seeds or steps than the whole

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        check_unique((entry.name for entry in self.entries), "entries")
        if self.rules == "tuned" and not any(entry.space for entry in self.entries):
            raise ValueError(
                "the tuned rules need entries with a search space; add space = { tau = [0.01,"
                " 1.0] }"
            )
        if self.page == "report":
            self._fits_report()
        return self

    def _fits_report(self) -> None:
        if self.problem is None:
            raise ValueError(
                'name the problem of the report: problem = "income-ok-race-paper", a file, or'
                " [problem]"
            )
        if self.last_states > self.records:
            raise ValueError(
                f"last_states is {self.last_states}, but records is only {self.records}"
            )
        needed = ("validation",) if self.last_states > 1 else ("train", "test")
        if self.measured and not set(needed) <= set(self.measured):
            raise ValueError(f"measured must name {' and '.join(needed)}, which its tables show")
        for entry in self.entries:
            if entry.steps is None:
                raise ValueError(f"entry {entry.name!r}: the key 'steps' is missing")
            if entry.steps < self.records:
                raise ValueError(
                    f"records is {self.records}, but entry {entry.name!r} has {entry.steps} steps"
                )
            for pool in entry.pools:
                if pool not in self.problem.split.parts:
                    raise ValueError(
                        f"entry {entry.name!r}: the constraints read {pool!r}, of which the split"
                        " has none; give it a share"
                    )

    def problem_names(self) -> tuple[str | TableSpec, ...]:
        """What `catalog.load_problem` takes."""
        if self.problem is not None:
            return (self.problem,)
        return self.problems or tuple(
            name for name in catalog.problem_names() if catalog.load_problem(name).on_board
        )

    def within(self, budget: Budget) -> Study:
        """Study with the entries that have a place in the budget."""
        entries = tuple(
            entry for entry in self.entries if budget == "paper" or entry.equal_examples
        )
        return replace(self, budget=budget, entries=entries)

    def on(
        self,
        *,
        source: str | None = None,
        label: str | None = None,
        group: str | None = None,
        folder: Path | None = None,
    ) -> Study:
        """A report on other data, or about another protected attribute: of these the paper says
        nothing."""
        spec = self.problem
        if spec is None:
            raise ValueError(
                f"{self.name} is a board, whose problems name their data: give other problems"
                " instead"
            )
        own: dict[str, Any] = {}
        elsewhere = source is not None and source.partition(":")[2] != spec.state
        if elsewhere or label is not None or group is not None:
            title = f"The methods of {self.name}" + (
                f" on {Path(str(source)).name}" if elsewhere else ""
            )
            entries = tuple(replace(entry, paper=Paper({}, {}, {})) for entry in self.entries)
            own = {
                "title": title + (f", by {group}" if group else ""),
                "reference": "",
                "entries": entries,
            }
        if source is not None:
            spec = replace(spec, state=None, source=source, label=label or spec.label)
        elif label is not None:
            spec = replace(spec, label=label)
        if group is not None:
            spec = replace(spec, group=group, groups=())
        return replace(
            self, **own, problem=replace(spec, folder=None if folder is None else str(folder))
        )

    def with_entries(self, further: Sequence[Entry], only: Sequence[str] = ()) -> Study:
        """Study with entries of the user's own beside ours; with `only`, of ours those alone."""
        known = {entry.name: entry for entry in self.entries}
        chosen = (
            [known[known_name(name, known, "entry")] for name in only]
            if only
            else list(self.entries)
        )
        return replace(self, entries=(*chosen, *further))

    def custom_entry(self, custom: CustomAlgorithm) -> Entry:
        """Entry for a method of the user's own. In a report it runs for as many steps as the first
        entry of SSL-ALM; where there is none, as most do."""
        steps = None
        if self.page == "report":
            reference = [entry.steps for entry in self.entries if entry.method == "SSLALM"]
            common = Counter(entry.steps or 1 for entry in self.entries)
            steps = (
                reference[0]
                if reference
                else max(common, key=lambda length: (common[length], length))
            )
        return Entry(
            name=custom.name,
            method=f"{custom.path.resolve()}:{custom.method.__name__}",
            settings=custom.settings,
            steps=steps,
            authors="your own",
            reference=f"your own: {custom.path.name}",
        )

    @property
    def digest(self) -> str:
        """Digest of what was asked; titles, notes and the paper's numbers, and where data lie, do
        not count."""
        found = asdict(self)
        found["entries"] = [
            {
                name: value
                for name, value in entry.items()
                if name not in ("reference", "paper", "note", "authors")
            }
            for entry in found["entries"]
        ]
        if found["problem"] is not None:
            del found["problem"]["folder"], found["problem"]["title"]
        del found["title"], found["reference"], found["shows"]
        return hashlib.sha256(canonical_json(found, finite=False).encode()).hexdigest()[:12]


# Files --------------------------------------------------------------------------------------------


def study_names() -> tuple[str, ...]:
    """The studies that are installed.

    >>> "paper-ok-race" in study_names()
    True
    """
    return tuple(sorted(path.stem for path in INSTALLED.glob("*.toml")))


def paper_names() -> tuple[str, ...]:
    """Names of the studies that reproduce the paper, its two experiments first.

    >>> paper_names()[:2]
    ('paper-ok-race', 'paper-va-marital')
    """
    kinds = ("paper-", "splits-", "tune-")
    return tuple(name for kind in kinds for name in study_names() if name.startswith(kind))


def load_study(name_or_path: str | Path) -> Study:
    """An installed study by its name, or one of the user's own by its file.

    >>> load_study("paper-va-marital").problem.groups
    ('Married', 'Widowed', 'Divorced', 'Separated', 'Never married')
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and path.suffix != ".toml":
        if name_or_path not in study_names():
            raise ValueError(
                f"no study called {name_or_path!r} is installed; the nearest is"
                f" {nearest(name_or_path, study_names())!r} (there are {', '.join(study_names())});"
                " a file of your own ends in .toml"
            )
        path = INSTALLED / f"{name_or_path}.toml"
    table = read_toml(path, "a study")
    if "like" in table:
        return _like(table, path)
    with _refusals(path, table):
        table |= {"name": path.stem, "entries": whole_entries(table, path)}
        if "problem" in table:
            table["problem"] = _problem(table, path)
        known = {key: value for key, value in table.items() if key not in COMPLETING}
        return TypeAdapter(Study).validate_python(known)


def _like(table: Mapping[str, Any], path: Path) -> Study:
    """Another study with some of its keys changed, and some of its entries."""
    other = load_study(
        str(path.parent / table["like"])
        if str(table["like"]).endswith(".toml")
        else str(table["like"])
    )
    own = {key: value for key, value in table.items() if key not in ("like", "only")}
    for key in own:
        known_name(
            key,
            [one.name for one in fields(Study) if one.name not in ("name", "entries", "problem")],
            "key",
        )
    with mistakes_in(path, _MODELS, table):
        return replace(other.with_entries((), only=table.get("only", ())), name=path.stem, **own)


def _problem(table: Mapping[str, Any], path: Path) -> TableSpec:
    """Read the problem by name, by file, or as it stands in the study; with the study's own
    split."""
    own = table["problem"]
    if isinstance(own, Mapping):
        with mistakes_in("problem", TABLE_MODELS, own):
            spec = table_spec({"title": table.get("title") or path.stem} | dict(own), path)
    else:
        text = str(path.parent / own) if Path(own).suffix == ".toml" else str(own)
        spec = catalog.load_problem(text).spec
        if spec is None:
            raise ValueError(
                f"problem: a report is of a table, and {own!r} is a problem in Python; use page ="
                ' "board"'
            )
    if "split" not in table:
        return spec
    with mistakes_in("split", {(): SplitSpec}, table["split"]):
        return replace(spec, split=TypeAdapter(SplitSpec).validate_python(table["split"]))


def whole_entries(table: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """Every entry completed: by the one that it is like or by [common], its settings also by
    [settings.METHOD].

    A method's FILE is a path from the folder of the file.
    """
    common, shared = table.get("common", {}), table.get("settings", {})
    for method in shared:
        known_name(method, ALGORITHMS, "method")
    entries: dict[str, dict[str, Any]] = {}
    check_unique((own["name"] for own in table.get("entries", ())), "entries")
    for own in table.get("entries", ()):
        place, base = f"entry {own['name']!r}", common
        if "like" in own:
            if own["like"] not in entries:
                raise ValueError(
                    f"{place}: like names an earlier entry, got {own['like']!r}; "
                    + (
                        f"the nearest is {nearest(own['like'], entries)!r}"
                        if entries
                        else "and this is the first"
                    )
                )
            base = entries[own["like"]]
        entry = base | {key: value for key, value in own.items() if key != "like"}
        for key in ("settings", "paper"):
            entry[key] = base.get(key, {}) | own.get(key, {})
        if isinstance(entry.get("method"), str) and ":" in entry["method"] and "method" in own:
            entry["method"] = str(path.parent.resolve() / own["method"])
        entries[own["name"]] = entry | {
            "settings": shared.get(entry.get("method"), {}) | entry["settings"]
        }
    return list(entries.values())


@dataclass(frozen=True)
class _EntryList:
    entries: tuple[Entry, ...]


def load_entries(path: Path) -> tuple[Entry, ...]:
    """Read a file that has entries alone."""
    table = read_toml(path, "a list of entries")
    with _refusals(path, table):
        for key in table:
            known_name(key, ("entries", "common", "settings"), "key")
        table["entries"] = whole_entries(table, path)
        return TypeAdapter(_EntryList).validate_python({"entries": table["entries"]}).entries


@contextmanager
def _refusals(path: Path, table: Mapping[str, Any]) -> Iterator[None]:
    with mistakes_in(path, _MODELS, table):
        try:
            yield
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                "entries is a list of tables, [[entries]], each with a name; common, settings,"
                " paper are tables"
            ) from error


_MODELS: dict[tuple[str, ...], Any] = {
    (): Study,
    ("entries",): Entry,
    ("entries", "paper"): Paper,
    ("problem",): TableSpec,
    ("problem", "split"): SplitSpec,
}
