"""What is known of work that is no result yet: who computes what, and what failed. `fairbound status` reads it.

    work/front-<name>.json    a command that hands out tasks: its plan, what runs where, its own clock
    work/failed-<key>.json    a task that failed, named by its first result: traceback and workers

Nothing here decides what is computed: results do. A file that is lost or old costs a line of `fairbound status`, and no
clock is compared with that of another machine.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairbound._utils.files import write_text


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A task that failed as often as it is tried."""

    task: str  # in words
    keys: Sequence[str]  # of its results
    traceback: str
    workers: Sequence[str]  # that tried it

    @property
    def sentence(self) -> str:
        """The last line of the traceback, without the kind of an error that speaks for itself."""
        last = self.traceback.strip().splitlines()[-1] if self.traceback.strip() else "no reason is known"
        kind, _, words = last.partition(": ")
        return words if words and kind in ("ValueError", "RuntimeError", "OSError") else last


@dataclass(kw_only=True)
class Front:
    """A command that hands out tasks."""

    command: str
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    written: str = ""  # by its own clock
    keys: list[list[str]] = field(default_factory=list)  # of the results of every task
    running: dict[str, dict[str, Any]] = field(default_factory=dict)  # by task: worker, share that is done
    seconds_left: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it has ended without a word, where that can be known: on its own machine."""
        if self.host != platform.node():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # of another user
            return False
        return False


class WorkLog:
    """The folder `work` of a store."""

    def __init__(self, store: Path) -> None:
        self.folder = store / "work"

    def fail(self, failure: Failure) -> None:
        self._write(f"failed-{failure.keys[0]}.json", asdict(failure))

    def failures(self) -> list[Failure]:
        """Of tasks that still lack results."""
        return [Failure(**found) for _, found in self._read("failed-*.json")]

    def forget(self, keys: Iterable[str]) -> None:
        """Results are there: an earlier failure no longer counts."""
        for key in keys:
            with suppress(OSError):
                (self.folder / f"failed-{key}.json").unlink(missing_ok=True)

    def note_front(self, name: str, front: Front) -> None:
        self._write(f"front-{name}.json", asdict(front))

    def front_file(self, name: str) -> Path:
        """There while the command runs: a worker that sees it shares the folder."""
        return self.folder / f"front-{name}.json"

    def end_front(self, name: str) -> None:
        with suppress(OSError):
            self.front_file(name).unlink(missing_ok=True)

    def fronts(self) -> list[Front]:
        return [Front(**found) for _, found in self._read("front-*.json")]

    def remove_gone(self) -> None:
        """Fronts of this machine that were killed."""
        for path, found in self._read("front-*.json"):
            if Front(**found).is_gone:
                path.unlink(missing_ok=True)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / name, json.dumps(content, indent=1) + "\n")

    def _read(self, pattern: str) -> Iterable[tuple[Path, dict[str, Any]]]:
        for path in sorted(self.folder.glob(pattern)):
            with suppress(OSError, ValueError):  # removed or being replaced by another process
                yield path, json.loads(path.read_text(encoding="utf-8"))
