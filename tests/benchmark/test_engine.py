"""Studies in several processes: the same results as in one, errors in their own words, and no
orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from small_study import BROKEN, ENTRIES, carry_out, contents, small_plan, small_study

from fairbound.benchmark._engine import Engine, complete_all
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._store import Store

TWO = Engine(processes=2)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return small_plan(tmp_path)


def test_two_processes_compute_what_one_does(plan: Plan, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = carry_out(plan, tmp_path / "two", TWO, lambda work, total: seen.append((work, total)))
    assert (done.runs, carry_out(plan, tmp_path / "one", Engine()).runs) == (6, 6)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert len(contents(tmp_path / "one")) == 6
    assert seen[-1][0] == seen[-1][1]
    assert done.seconds > 0
    assert carry_out(plan, tmp_path / "two", TWO).runs == 0


def test_what_budgets_share_is_computed_once(plan: Plan, tmp_path: Path) -> None:
    """Within 12 steps at most both budgets are the same runs, but for the row without
    equal_examples."""
    store = Store(tmp_path / "both")
    plans = [small_plan(tmp_path, budget=budget, steps=12) for budget in ("paper", "examples")]
    assert [len(one.tasks(store)) for one in plans] == [2, 2]
    tasks = [task for one in plans for task in one.tasks(store)]
    assert complete_all(tasks, store, Engine()).runs == 4  # the longer entry is the same run too
    assert complete_all(tasks, store, Engine()).runs == 0


def test_a_task_that_fails_is_marked_and_the_others_are_stored(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    done = carry_out(
        small_plan(tmp_path, algorithm=f"{tmp_path / 'mine.py'}:Broken"), tmp_path / "all", Engine()
    )
    assert [failure.sentence for failure in done.failed] == ["this method cannot take a step"]
    assert len(contents(tmp_path / "all")) == 6


def test_processes_end_when_the_one_that_started_them_is_killed(plan: Plan, tmp_path: Path) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("who started whom is read from /proc, which only Linux has")
    (tmp_path / "long.toml").write_text(
        small_study(ENTRIES.replace("30", "1_900"), seeds=2, records=15)
    )
    main = "from fairbound.cli import main; main()"
    command = [sys.executable, "-c", main, "run", str(tmp_path / "long.toml"), "--jobs", "2"]
    started = subprocess.Popen(
        [*command, "--source", "synthetic:OK", "--out", str(tmp_path / "results")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # one tracks resources
    children = waited_for(lambda: children_of(started.pid), lambda found: len(found) >= 3)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    assert (
        waited_for(
            lambda: [pid for pid in children if Path(f"/proc/{pid}").exists()],
            lambda left: not left,
        )
        == []
    )


def children_of(pid: int) -> list[int]:
    """Of all its threads: Dask starts workers from one of its own."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def waited_for(look, enough):  # type: ignore[no-untyped-def]
    for _ in range(600):
        if enough(found := look()):
            break
        time.sleep(0.1)
    return found
