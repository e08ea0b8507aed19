"""`fairbound reproduce`: all experiments within their budgets, times, one report; here a few steps of two of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from commands import call

from fairbound.benchmark import config
from fairbound.benchmark.engines import Engine, complete_all
from fairbound.benchmark.executor import Spent
from fairbound.benchmark.store import Store
from fairbound.cli import reproduce

FEW = ("income-ok-race", "tune-ok-fairret")


def test_every_experiment_is_planned_and_those_that_compare_methods_twice() -> None:
    planned = [(job.experiment, job.budget) for job in reproduce.all_jobs(None, None, None)]
    assert [name for name, budget in planned if budget == "examples"] == ["income-ok-race", "income-va-marital"]
    assert sorted(name for name, budget in planned if budget == "paper") == sorted(config.paper_names())


def test_the_main_experiments_come_first_and_time_is_weighed_by_what_was_measured(tmp_path: Path) -> None:
    """Of two tasks of one method and a longer one of another, one is done: it took ten times as long for its work."""
    seen: list[tuple[int, int]] = []
    order: list[str] = []

    def key_of(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    class Measured:
        def __init__(self, name: str, method: str, work: int, seconds: float) -> None:
            self.name, self.method, self.work, self.seconds, self.gpu = name, method, work, seconds, False

        def result_keys(self) -> list[str]:
            return [key_of(self.name)]

        def complete(self, store: object, advanced: object) -> Spent:
            order.append(self.name)
            return Spent(stepping=self.seconds)

    tasks: Any = [
        Measured("long", "SGD", 300, 3.0),
        Measured("main", "Ghost", 100, 10.0),
        Measured("g", "Ghost", 50, 5),
    ]
    complete_all(tasks, Store(tmp_path), Engine(), lambda *both: seen.append(both), early={key_of("main")})
    assert order == ["main", "long", "g"]
    assert seen[0] == (100, 450)  # one method alone is measured: the mean pace is its own
    done, total = seen[1]
    assert done / total == pytest.approx(13 / 18, abs=0.01)  # seconds, as the paces of both are known
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.slow
def test_one_command_computes_times_and_reports_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "names", lambda: FEW)
    monkeypatch.setattr(reproduce, "ROUNDS", 1)
    monkeypatch.setattr(reproduce, "TURN_STEPS", 2)
    monkeypatch.setenv("FAIRBOUND_DATA", str(tmp_path))  # no census here: the synthetic one
    monkeypatch.setattr("fairbound.data.acs_files.available", lambda folder=None: [])
    folders = ("--out", tmp_path / "results", "--to", tmp_path / "report")
    options = ("--seeds", "1", "--steps", "3", "--jobs", "1", *folders)
    said = " ".join(call("reproduce", *options).split())
    assert "synthetic data: generated, not real" in said
    assert "income-ok-race: A short run, not compared with the paper: 1 of 10 runs of a method, at most 3 of" in said
    assert "20 runs in" in said  # 13 rows and 7; three steps are the same runs within either budget
    assert "evaluating" in said
    assert (tmp_path / "report" / "report.html").stat().st_size > 1_000_000
    times = Store(tmp_path / "results").times("income-ok-race")
    assert times is not None
    assert len(times) == 13

    again = " ".join(call("reproduce", *options).split())
    assert "0 runs in" in again
    assert Store(tmp_path / "results").times("income-ok-race") == times
