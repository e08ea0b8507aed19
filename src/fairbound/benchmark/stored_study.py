"""A study as the store keeps it: its entries, the cards of its problems, and the keys of its runs.

Pages are made from it and from the results that it names: reading builds no problem, loads no data and no method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any

from fairbound.algorithms import ALGORITHMS
from fairbound.benchmark.entry import Paper, Printed
from fairbound.benchmark.fingerprint import code_hash
from fairbound.benchmark.problems.catalog import Reference, load, names
from fairbound.benchmark.result_file import StoredResult
from fairbound.benchmark.store import Store
from fairbound.benchmark.study import Budget


@dataclass(frozen=True, eq=False, kw_only=True)
class EntryInfo:
    """An entry, as pages show it."""

    name: str  # unique in the study
    method: str  # the class
    settings: str  # as Python text: SSLALM(tau=0.05, ...)
    summary: str  # one line
    rules: str  # default, tuned, self-tuning
    authors: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)  # tuned: settings by problem
    # Of a report
    reference: str = ""
    note: str = ""
    paper: Paper = field(default_factory=Paper)
    steps: int = 0  # of a run here
    own_steps: int = 0  # the paper's
    equal_steps: int = 0  # in the budget of equal examples
    examples_per_step: float = float("nan")


@dataclass(frozen=True, eq=False, kw_only=True)
class Card:
    """A problem's card."""

    name: str
    title: str
    family: str
    tracks: tuple[str, ...]
    n: int
    m: int
    kinds: str
    convex: bool
    noise: str
    examples: int  # of an epoch
    batch: str
    epochs: float
    origin: str
    license: str
    source: str  # of the data
    transformations: tuple[str, ...]
    reference: Reference
    provisional: bool = False  # the reference is the best of this board: a problem of the user's own
    groups: int | None = None  # of a table
    bound: float | None = None
    summary: str = ""  # "2 groups, bound 0.02": what a reader looks for
    primal: str = "the methods' own steps"  # how multiplier methods move x
    # Of a table
    data: str = ""  # the source, with what was left out of it
    rows: int = 0  # of the data, over all parts of the split
    group_names: tuple[str, ...] = ()
    notion: str = ""
    parts: tuple[str, ...] = ()  # of the split
    gaps: Mapping[str, Any] = field(default_factory=dict)  # of a notion about losses: `results.BoundedGaps`

    @property
    def synthetic(self) -> bool:
        return self.source.partition(":")[0] == "synthetic"

    @property
    def data_name(self) -> str:
        """Whether the data are real, which they are, and how many; empty for a problem without a table."""
        if not self.data:
            return ""
        kind = "synthetic, not real" if self.synthetic else "real" if self.source.startswith("acs:") else "your file"
        return f"{kind}: {self.source}" + (f", {self.rows:,} rows" if self.rows else "")


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run of a study."""

    problem: str
    entry: str
    kind: str
    seed: int
    split: int
    instance: int
    key: str


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredStudy:
    """A study that was run."""

    name: str
    title: str
    reference: str
    page: str
    budget: Budget
    rules: str
    seeds: int
    whole_seeds: int  # of the study's file
    splits: int
    records: int
    last_states: int
    short: bool
    measured: tuple[str, ...]
    entries: Sequence[EntryInfo]
    cards: Sequence[Card]
    runs: Sequence[StoredRun]
    shows: tuple[str, ...] = ()  # of a report's tables and figures these; empty: all that apply

    def to_json(self) -> dict[str, Any]:
        runs = [list(asdict(run).values()) for run in self.runs]
        return asdict(self) | {"runs": runs, "columns": [one.name for one in fields(StoredRun)]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> StoredStudy:
        known = {one.name for one in fields(StoredStudy)}
        whole = {name: value for name, value in content.items() if name in known}
        columns = content["columns"]
        whole["entries"] = [EntryInfo(**one | {"paper": _paper(one["paper"])}) for one in content["entries"]]
        whole["cards"] = [_card(one) for one in content["cards"]]
        whole["runs"] = [StoredRun(**dict(zip(columns, line, strict=True))) for line in content["runs"]]
        whole["measured"], whole["shows"] = tuple(content["measured"]), tuple(content.get("shows", ()))
        return StoredStudy(**whole)

    @property
    def sources(self) -> list[str]:
        """Of the data."""
        return list(dict.fromkeys(card.source for card in self.cards if card.source != "generated"))

    def results(self, store: Store) -> Iterable[tuple[StoredRun, StoredResult | None]]:
        """Every run with its result, or None where that is missing."""
        for run in self.runs:
            yield run, store.get(run.key)

    def stale(self, store: Store) -> list[StoredRun]:
        """Runs whose results are of other code than this; of a method of the user's own that is not known here."""
        methods = {entry.name: ALGORITHMS.get(entry.method) for entry in self.entries}
        return [
            run
            for run in self.runs
            if (method := methods[run.entry]) is not None
            and not store.is_missing(run.key)
            and store.is_missing(run.key, code_of(method, run.problem))
        ]


def data_line(cards: Iterable[Card]) -> str:
    """The first line of every command and page: real or synthetic data, which, and how many rows."""
    names = list(dict.fromkeys(card.data_name for card in cards if card.data_name))
    return f"Data: {'; '.join(names) or 'generated by the problems'}"


@cache
def code_of(method: type[Any], problem: str) -> str:
    """Of the code that would compute results of a problem now."""
    file = load(problem).file if problem in names() else None
    return code_hash(method, *([] if file is None else [file]))


def _paper(content: Mapping[str, Any]) -> Paper:
    return Paper(**{part: {name: Printed(*one) for name, one in some.items()} for part, some in content.items()})


def _card(content: Mapping[str, Any]) -> Card:
    own = dict(content)
    for name in ("tracks", "transformations", "group_names", "parts"):
        own[name] = tuple(own[name])
    own["reference"] = Reference(**own["reference"])
    return Card(**own)
