"""`fairbound reproduce`: all studies of the paper within their budgets, one report; here a few
steps of two."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from commands import call

from fairbound.benchmark import _study as study
from fairbound.benchmark._engine import Engine, complete_all
from fairbound.benchmark._store import Store
from fairbound.cli import _reproduce as reproduce

FEW = ("paper-ok-race", "tune-ok-fairret")


def test_every_study_is_planned_and_those_that_compare_methods_twice() -> None:
    planned = [
        (plan.study.name, plan.study.budget) for plan in reproduce.all_plans(None, None, None)
    ]
    assert [name for name, budget in planned if budget == "examples"] == [
        "paper-ok-race",
        "paper-va-marital",
    ]
    assert sorted(name for name, budget in planned if budget == "paper") == sorted(
        study.paper_names()
    )


def test_time_is_weighed_by_what_was_measured(tmp_path: Path) -> None:
    """Of two tasks of one method and a longer one of another, one is done: it took ten times as
    long for its work."""
    seen: list[tuple[int, int]] = []
    order: list[str] = []

    def key_of(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    class Measured:
        def __init__(self, name: str, method: str, work: int, seconds: float) -> None:
            self.name, self.method, self.work, self.seconds, self.gpu = (
                name,
                method,
                work,
                seconds,
                False,
            )

            self.keys = [key_of(name)]

        def missing_in(self, store: Store) -> list[str]:
            return self.keys

        def complete(self, store: object, advanced: object) -> float:
            order.append(self.name)
            return self.seconds

    tasks: Any = [
        Measured("long", "SGD", 300, 3.0),
        Measured("main", "Ghost", 100, 10),
        Measured("g", "Ghost", 50, 5),
    ]
    complete_all(tasks, Store(tmp_path), Engine(), lambda *both: seen.append(both))
    assert order == ["long", "main", "g"]  # the longest first
    assert seen[0] == (300, 450)  # one method alone is measured: the mean pace is its own
    done, total = seen[1]
    # seconds, as the paces of both are known
    assert done / total == pytest.approx(13 / 18, abs=0.01)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.slow
def test_one_command_computes_times_and_reports_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "study_names", lambda: FEW)
    monkeypatch.setenv("FAIRBOUND_DATA", str(tmp_path))  # no census here: the synthetic one
    monkeypatch.setattr("fairbound.data._acs_files.available", lambda folder=None: [])
    folders = ("--out", tmp_path / "results", "--to", tmp_path / "report")
    options = ("--seeds", "1", "--steps", "3", "--jobs", "1", *folders)
    said = " ".join(call("reproduce", *options).split())
    assert said.startswith("Data: synthetic, not real: synthetic:OK, 17,917 rows Experiment 1: ")
    assert (
        "paper-ok-race: A short run, not compared with the paper: 1 of 10 runs of a method, at most"
        " 3 of" in said
    )
    # 11 and 7 that differ; three steps are the same runs within either budget
    assert "18 runs in" in said
    assert (tmp_path / "report" / "index.html").stat().st_size > 100_000

    again = " ".join(call("reproduce", *options).split())
    assert "0 runs in" in again
