"""A study as the store keeps it: its entries, the cards of its problems, and the keys of its runs.

Pages are made from it and from the results that it names: reading builds no problem, loads no data
and no method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from fairbound.benchmark._entry import Paper
from fairbound.benchmark._fingerprint import code_hash
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import Budget
from fairbound.benchmark.problems._catalog import Reference


@dataclass(frozen=True, eq=False, kw_only=True)
class EntryInfo:
    """An entry, as pages show it."""

    name: str  # unique in the study
    method: str  # the class
    settings: str  # as Python text: SSLALM(tau=0.05, ...)
    summary: str  # one line
    rules: str  # default, tuned, self-tuning
    own_step: bool = False  # whether it moves x by its own step in the place of the problem's
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
    n: int  # variables
    m: int
    kinds: str
    convex: bool
    noise: str
    examples: int  # of an epoch
    batch: str
    steps: int  # of a method that draws one mini-batch a step
    origin: str
    license: str
    source: str  # of the data
    reference: Reference
    # the reference is the best of this board: a problem of the user's own
    provisional: bool = False
    groups: int | None = None  # of a table
    bound: float | None = None
    summary: str = ""  # "2 groups, bound 0.02": what a reader looks for
    primal: str = "the methods' own steps"  # how multiplier methods move x
    primal_how: str = ""  # how that was chosen
    changes: tuple[str, ...] = ()  # with which a board also runs it
    # Of a table
    data: str = ""  # the source, with what was left out of it
    rows: int = 0  # of the data, over all parts of the split
    group_names: tuple[str, ...] = ()
    notion: str = ""
    parts: tuple[str, ...] = ()  # of the split
    # of a notion about losses: `results.BoundedGaps`
    gaps: Mapping[str, Any] = field(default_factory=dict)

    @property
    def synthetic(self) -> bool:
        return self.source.partition(":")[0] == "synthetic"

    @property
    def data_name(self) -> str:
        """Whether the data are real, which they are, and how many; empty for a problem without a
        table."""
        if not self.data:
            return ""
        kind = (
            "synthetic, not real"
            if self.synthetic
            else "real"
            if self.source.startswith("acs:")
            else "your file"
        )
        return f"{kind}: {self.source}" + (f", {self.rows:,} rows" if self.rows else "")


class StoredRun(NamedTuple):
    """A run of a study."""

    problem: str
    entry: str
    kind: str
    seed: int
    split: int
    change: str
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

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> StoredStudy:
        return TypeAdapter(StoredStudy).validate_python(content)

    @property
    def sources(self) -> list[str]:
        """Sources of the data."""
        return list(dict.fromkeys(card.source for card in self.cards if card.source != "generated"))

    def results(self, store: Store) -> Iterable[tuple[StoredRun, StoredResult | None]]:
        """Every run with its result, or None where that is missing."""
        for run in self.runs:
            yield run, store.get(run.key)

    def has_results(self, store: Store) -> bool:
        """Whether the store has at least one of its results."""
        return any(store.is_named(run.key) for run in self.runs)

    def stale(self, store: Store) -> list[StoredRun]:
        """Runs whose results are of other code than this."""
        code = code_hash()
        return [
            run
            for run, result in self.results(store)
            if result is not None and result.made.get("code") != code
        ]


def data_line(cards: Iterable[Card]) -> str:
    """The first line of every command and page: real or synthetic data, which, and how many
    rows."""
    names = list(dict.fromkeys(card.data_name for card in cards if card.data_name))
    return f"Data: {'; '.join(names) or 'generated by the problems'}"
