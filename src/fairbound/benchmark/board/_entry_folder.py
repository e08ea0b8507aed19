"""An entry as a folder that anyone can send: a card, one file with the method, and its results.

    my-entry/
      entry.toml       the card: `EntryCard` has its keys
      method.py        one frozen dataclass, the contract of `fairbound.core.Algorithm`
      results/         a store with the runs on all problems of the board
      manifest.json
              written by `fairbound enter`: a checksum of every result, and by which versions

`fairbound enter` computes what is missing, `fairbound check` is in `checks`, `fairbound board
entries/*` reads folders without running anything of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from fairbound._utils.files import write_text
from fairbound.benchmark._engine import Done, Engine, ProgressCallback
from fairbound.benchmark._entry import Entry, Rules
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import EntryInfo
from fairbound.benchmark._study import load_study as load_study
from fairbound.benchmark._task import Task
from fairbound.benchmark._user_files import KNOWN_KEYS_ONLY, Text, mistakes_in, nearest, read_toml
from fairbound.benchmark.board._limits import Limits
from fairbound.benchmark.board._results import InstanceName, SentEntry
from fairbound.benchmark.problems._catalog import load_problem, problem_names

CARD, METHOD, RESULTS, MANIFEST = "entry.toml", "method.py", "results", "manifest.json"


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class EntryCard:
    """The keys of entry.toml."""

    name: Text
    authors: Text
    license: Text
    method: Text  # the class in method.py
    rules: Rules = "default"
    settings: Mapping[str, Any] = Field(default_factory=dict)
    space: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    problems: tuple[str, ...] = ()  # some of the board's alone: then the entry is marked partial
    paper: str = ""


@plain_dataclass(frozen=True)
class EntryFolder:
    """A folder and its card; nothing of it is run by reading it."""

    path: Path

    @cached_property
    def card(self) -> EntryCard:
        file = self.path / CARD
        table = read_toml(file, "the card of an entry")
        with mistakes_in(file, {(): EntryCard}, table):
            return TypeAdapter(EntryCard).validate_python(table)

    @property
    def store(self) -> Store:
        return Store(self.path / RESULTS)

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the board, or those of them that the card names."""
        for name in self.card.problems:
            if name not in board_problems():
                raise ValueError(
                    f"{self.path / CARD}, problems: {name!r} is not on the board; the nearest is "
                    f"{nearest(name, board_problems())!r}"
                )
        return self.card.problems or board_problems()

    @property
    def is_partial(self) -> bool:
        return bool(self.card.problems)

    def entry(self) -> Entry:
        """Entry of its method, which runs the author's file."""
        card, file = self.card, self.path / METHOD
        if not file.is_file():
            raise FileNotFoundError(
                f"there is no {file}; an entry has its method in one file of that name"
            )
        return Entry(
            name=card.name,
            method=f"{file.resolve()}:{card.method}",
            settings=card.settings,
            space=card.space,
            rules=card.rules,
            authors=card.authors,
        )

    def plan(self, limits: Limits | None = None) -> Plan:
        """The board's study with this entry alone; with limits each task in a process of its
        own."""
        rules: Rules = "tuned" if self.card.rules == "tuned" else "default"
        study = replace(
            load_study("board"), problems=self.problems, entries=(self.entry(),), rules=rules
        )
        return Plan(study, limits=limits)

    def tasks(self) -> list[Task]:
        """What the board asks for; under the tuned rules after the points of the space are
        computed."""
        return self.plan().tasks(self.store)

    def compute(
        self, engine: Engine, limits: Limits, progress: ProgressCallback | None = None
    ) -> Done:
        """Compute what the folder lacks, each task in a process of its own, and write the
        manifest."""
        done = self.plan(limits).compute(self.store, engine, progress)
        self.write_manifest()
        return done

    def write_manifest(self) -> None:
        store = self.store
        files = {
            key: hashlib.sha256(store.file(key) or b"").hexdigest() for key in sorted(store.keys())
        }
        content = {"fairbound": version("fairbound"), "results": files}
        write_text(self.path / MANIFEST, json.dumps(content, indent=1) + "\n")

    def manifest(self) -> dict[str, Any]:
        file = self.path / MANIFEST
        try:
            found: dict[str, Any] = json.loads(file.read_bytes())
            return {"fairbound": str(found["fairbound"]), "results": dict(found["results"])}
        except OSError as error:
            raise OSError(
                f"{file} cannot be read ({error.strerror}); `fairbound enter {self.path}` writes it"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is not what `fairbound enter` writes: {error}") from error

    def sent(self, checked: Store) -> SentEntry:
        """Results of the entry: those that the check computed again, from the checker's store; else
        what the folder says, which is marked. Nothing is computed or run."""
        card, by_task = self.card, dict[tuple[InstanceName, str], list[StoredResult]]()
        taken_on_trust = dict[str, None]()  # problems
        for one in self.store.results(
            lambda settings: settings.get("kind") != "tuning" and "salt" not in settings
        ):
            instance = InstanceName(str(one.settings["problem"]), str(one.settings["change"]))
            recomputed = checked.get(one.key)
            by_task.setdefault((instance, str(one.settings["kind"])), []).append(recomputed or one)
            if recomputed is None:
                taken_on_trust.setdefault(instance.problem)
        by_seed = {
            task: sorted(some, key=lambda one: one.settings["seed"])
            for task, some in by_task.items()
        }
        partial = (
            f"; partial: {len(card.problems)} of {len(board_problems())} problems"
            if self.is_partial
            else ""
        )
        unchecked = f"; not recomputed: {', '.join(taken_on_trust)}" if taken_on_trust else ""
        settings = next((str(some[0].settings["method"]) for some in by_seed.values()), card.method)
        info = EntryInfo(
            name=card.name,
            method=card.method,
            settings=settings,
            summary=card.paper,
            rules=card.rules,
            own_step=" under " not in settings,
            authors=f"{card.authors}{partial}{unchecked}",
        )
        return SentEntry(
            info, [(instance, kind, some) for (instance, kind), some in by_seed.items()]
        )


def board_problems() -> tuple[str, ...]:
    return tuple(name for name in problem_names() if load_problem(name).on_board)
