"""Tasks that failed: no results, but what `fairbound status` says of them.

    work/failed-<key>.json    a task that failed, named by its first result: traceback and workers

Nothing here decides what is computed: results do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

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
        last = (
            self.traceback.strip().splitlines()[-1]
            if self.traceback.strip()
            else "no reason is known"
        )
        kind, _, words = last.partition(": ")
        return words if words and kind in ("ValueError", "RuntimeError", "OSError") else last


class WorkLog:
    """The folder `work` of a store."""

    def __init__(self, store: Path) -> None:
        self.folder = store / "work"

    def fail(self, failure: Failure) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self._file(failure.keys[0]), json.dumps(asdict(failure), indent=1) + "\n")

    def failures(self) -> list[Failure]:
        """Failures of tasks that still lack results."""
        failures = []
        for path in sorted(self.folder.glob("failed-*.json")):
            with suppress(OSError, ValueError):  # removed or being replaced by another process
                failures.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        return failures

    def forget(self, keys: Iterable[str]) -> None:
        """Results are there: an earlier failure no longer counts."""
        for key in keys:
            with suppress(OSError):
                self._file(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"failed-{key}.json"
