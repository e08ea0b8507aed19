"""Long batches are kept now and then: whoever goes on from a checkpoint ends with the same results,
to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from small_study import small_plan, small_study

from fairbound.benchmark import _computing as module
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._entry import Entry
from fairbound.benchmark._store import Store
from fairbound.benchmark._task import Task, TaskRun
from fairbound.training._checkpoint import Checkpoint
from fairbound.training._vectorized import VectorizedRuns

ENTRIES = """
  { name = "SSL-ALM", method = "SSLALM", steps = 60 },
  { name = "Ghost", method = "StochasticGhost", steps = 8, batch = 4 },
"""


class Killed(BaseException):
    """In the place of a signal."""


def killed_after(share: float) -> Callable[[float], None]:
    def advanced(done: float) -> None:
        if done > share:
            raise Killed

    return advanced


def contents(store: Store) -> dict[str, list[bytes]]:
    return {
        one.key: [column.tobytes() for table in one.tables.values() for column in table.values()]
        for one in store.results()
    }


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A checkpoint at every step; the steps that are made."""
    often = partial(Checkpoint, every_s=0.0)
    monkeypatch.setattr(module, "Checkpoint", often)
    made: list[int] = []
    advance = VectorizedRuns._advance

    def counted(self: VectorizedRuns, step: int, *others: object) -> None:
        made.append(step)
        advance(self, step, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(VectorizedRuns, "_advance", counted)
    return made


@pytest.mark.parametrize("method", ["SSLALM", "DescentAscent under Adam", "TrackedSQP"])
def test_a_task_of_a_board_goes_on_where_it_was_killed(
    method: str, tmp_path: Path, steps: list[int]
) -> None:
    name, _, primal = method.partition(" under ")
    entry = Entry(name="A", method=name, primal={"name": primal, "lr": 0.01} if primal else {})
    task = Task("hs7", (entry,), (TaskRun(0, 0), TaskRun(0, 1), TaskRun(0, 2)), "solve", limit=120)
    whole, part = Store(tmp_path / "whole"), Store(tmp_path / "part")
    task.complete(whole, lambda share: None)
    assert steps == list(range(task.steps))
    del steps[:]
    with pytest.raises(Killed):
        task.complete(part, killed_after(0.5))
    before = len(steps)
    assert contents(part) == {}
    task.complete(part, lambda share: None)
    assert steps[before:][0] >= before - 1  # all but the step whose record was being taken
    assert contents(part) == contents(whole)
    assert list((tmp_path / "part" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_of_a_report_goes_on_where_it_was_killed(
    number: int, tmp_path: Path, steps: list[int]
) -> None:
    (tmp_path / "small.toml").write_text(small_study(ENTRIES, seeds=2, records=4))
    plan = small_plan(tmp_path)
    plan.compute(Store(tmp_path / "whole"), Engine())
    task = plan.tasks(Store(tmp_path / "whole"))[number]
    del steps[:]
    part = Store(tmp_path / "part")
    with pytest.raises(Killed):
        task.complete(part, killed_after(0.4))
    before = len(steps)
    task.complete(part, lambda share: None)
    assert steps[before:][0] >= before - 1
    whole = contents(Store(tmp_path / "whole"))
    assert contents(part) == {key: whole[key] for key in task.keys}


def test_a_checkpoint_that_was_cut_off_counts_as_none(tmp_path: Path, steps: list[int]) -> None:
    task = Task("hs7", (Entry(name="A", method="SGD"),), (TaskRun(0, 0),), "solve", limit=80)
    store = Store(tmp_path)
    with pytest.raises(Killed):
        task.complete(store, killed_after(0.5))
    (file,) = (tmp_path / "checkpoints").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    del steps[:]
    task.complete(store, lambda share: None)
    assert steps == list(range(task.steps))


def test_short_runs_write_none(tmp_path: Path) -> None:
    seen: list[bool] = []
    folder = tmp_path / "checkpoints"
    task = Task("hs7", (Entry(name="A", method="SGD"),), (TaskRun(0, 0),), "solve", limit=80)
    task.complete(Store(tmp_path), lambda share: seen.append(any(folder.iterdir())))
    assert seen
    assert not any(seen)
