"""`fairbound reproduce`: all experiments within their budgets, times, one report; here a few steps of two of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call

from fairbound.benchmark import config
from fairbound.benchmark.store import Store
from fairbound.cli import reproduce

FEW = ("income-ok-race", "tune-ok-fairret")


def test_every_experiment_is_planned_and_those_that_compare_methods_twice() -> None:
    planned = [(job.experiment, job.budget) for job in reproduce.all_jobs(None, None, None)]
    assert [name for name, budget in planned if budget == "examples"] == ["income-ok-race", "income-va-marital"]
    assert sorted(name for name, budget in planned if budget == "paper") == sorted(config.paper_names())


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
