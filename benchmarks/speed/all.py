"""All of `make speed`: every part in a process of its own, then what was met, missed, skipped, and
what broke.

python benchmarks/speed/all.py

It ends with 1 where a target was missed or a part ended with an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from measuring import MISSED_STATUS, SKIPPED

PARTS = ("loop", "stacked", "ghost", "shares", "scale", "gpu")


class Outcome(NamedTuple):
    part: str
    lines: list[str]  # what it printed
    status: int

    def starting_with(self, word: str) -> list[str]:
        return [f"{self.part}: {line}" for line in self.lines if line.startswith(word)]

    @property
    def error(self) -> str | None:
        """What went wrong, where something did: a missed target is no error, silence is one."""
        if self.status not in (0, MISSED_STATUS):
            return f"ended with an error, status {self.status}"
        if (self.status == MISSED_STATUS) != bool(self.starting_with("MISSED")):
            return f"ended with status {self.status}, which does not fit what it printed"
        if not any(self.starting_with(word) for word in ("met", "MISSED", SKIPPED)):
            return "measured nothing"
        return None


def outcome(script: Path) -> Outcome:
    """Run one part; its lines are shown as they come."""
    print(f"\n== {script.stem}", flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    lines = []
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True
    ) as work:
        assert work.stdout is not None
        for line in work.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return Outcome(script.stem, lines, work.returncode)


def summary(outcomes: Sequence[Outcome]) -> tuple[list[str], int]:
    """The last lines, and the status of the whole."""
    met, missed, skipped = (
        [line for found in outcomes for line in found.starting_with(word)]
        for word in ("met", "MISSED", SKIPPED)
    )
    errors = [f"{found.part} {found.error}" for found in outcomes if found.error]
    counts = (
        f"{len(met)} met, {len(missed)} missed, {len(skipped)} skipped, {len(errors)} parts with an"
        " error"
    )
    return [counts, *missed, *skipped, *errors], 1 if missed or errors else 0


def main(folder: Path = Path(__file__).parent, parts: Sequence[str] = PARTS) -> int:
    lines, status = summary([outcome(folder / f"{part}.py") for part in parts])
    print("", *lines, sep="\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
