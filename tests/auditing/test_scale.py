"""Very many groups, files that are streamed, one thread for small tables, progress, and values
without intervals."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call

from fairbound.auditing import _audits as audits
from fairbound.auditing import audit
from fairbound.cli import _audit as audit_cli
from fairbound.cli import _printing as printing
from fairbound.metrics import _group_losses as group_losses
from fairbound.metrics import fairness_metrics
from fairbound.metrics._counts import Counts
from fairbound.metrics.fairness_metrics import values


def examples(groups: int, rows: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    return y, rng.integers(0, groups, rows), np.clip(rng.beta(2, 3, rows) + 0.2 * y, 0, 1)


def test_gaps_of_very_many_groups_have_no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    y, g, score = examples(80, 8_000)
    with_intervals = audit(y, g, predictions=score >= 0.5, draws=200)
    for module in (fairness_metrics, audits):
        monkeypatch.setattr(module, "MANY_GROUPS", 10)
    found = audit(y, g, predictions=score >= 0.5, draws=200)
    for name, one in with_intervals.metrics.items():
        assert found.metrics[name].value == one.value
        has_interval = fairness_metrics.METRICS[name].kind in ("rate", "signed")
        assert (found.metrics[name].low is not None) == (has_interval and one.value is not None), (
            name
        )
    assert found.groups == with_intervals.groups
    assert "more than 10 groups" in found.notes[-1]


def test_losses_of_many_groups_have_the_same_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    _, g, loss = examples(20, 2_000)
    losses = group_losses.Losses.of(loss, g, names=[str(i) for i in range(21)])
    drawn = group_losses.group_loss_intervals(losses, draws=100_000)
    monkeypatch.setattr(group_losses, "MANY_GROUPS", 10)
    for ours, theirs in zip(group_losses.group_loss_intervals(losses), drawn, strict=True):
        assert ours.value == theirs.value
        if ours.value is not None:
            assert ours[1:] == pytest.approx(theirs[1:], abs=0.002)


@pytest.mark.slow
def test_a_hundred_thousand_groups() -> None:
    y, g, score = examples(100_000, 1_000_000)
    found = audit(y, g, scores=score, names=[f"group {i}" for i in range(100_000)])
    plain = values(Counts.of(y, score >= 0.5, g))
    assert {name: found.metrics[name].value for name in plain} == plain
    assert len(found.groups) == 100_000
    assert sum(bool(group.roc) for group in found.groups) == 1_000  # of the largest


def test_values_without_intervals() -> None:
    y, g, score = examples(4, 600)
    both = [
        audit(y, g, scores=score, draws=200, intervals=intervals) for intervals in (True, False)
    ]
    for name, one in both[0].metrics.items():
        assert both[1].metrics[name].value == one.value
    without = both[1]
    group = without.groups[0]
    estimates = [*without.metrics.values(), *group.measured.values()]
    assert all(one.low is None and one.high is None for one in estimates)
    assert [one.rate.value for one in group.calibration] == [
        one.rate.value for one in both[0].groups[0].calibration
    ]


TEXT = "y, g ,p,free text\n" + "".join(
    f"{i % 2}, group {i % 3},{i / 5000},some text\n" for i in range(5_000)
)


def test_one_thread_for_small_files_progress_and_no_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.csv"
    path.write_text(TEXT)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    options = ["audit", path, "--label", "y", "--score", "p", "--group", "g", "--no-intervals"]
    printed = call(*options)
    assert "values only, without intervals" in printed
    assert "95%" not in printed
    call(*options, "--threads", "2")
    monkeypatch.setattr(audit_cli, "SMALL_BYTES", 10)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    call(*options)
    assert threads == [1, 2, 7]
    assert "did you mean p" in call(*options[:4], "--score", "pp", "--group", "g", code=1)


def test_progress_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "EVERY_S", 0.01)
    with printing.working("reading \x1b.csv"):
        time.sleep(0.2)
    assert "reading \\x1b.csv (0 s)" in capsys.readouterr().err
