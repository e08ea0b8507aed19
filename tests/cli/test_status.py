"""`fairbound status` on a command that runs, and on one that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from commands import call

from fairbound.benchmark.store import Store
from fairbound.benchmark.work_log import Front, WorkLog


def test_commands_that_run_and_commands_that_were_killed(tmp_path: Path) -> None:
    """A task is done when all of its results are there; of a killed command nothing runs and no time is left."""
    store, missing = Store(tmp_path), "0" * 64
    there = [store.put({"seed": seed}, {"records": {"f": np.zeros(1)}}) for seed in (0, 1)]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    common = {
        "written": "12:34", "keys": [there, [there[0], missing], [missing]], "seconds_left": 240.0,
        "running": {"SGD on p1": {"worker": "a worker", "share": 0.25}},
    }  # fmt: skip
    WorkLog(tmp_path).note_front("a", Front(command="fairbound board", **common))
    WorkLog(tmp_path).note_front("b", Front(command="fairbound run first", pid=ended.pid, **common))
    said = call("status", "--out", tmp_path)
    assert said.startswith("2 results in")
    _, runs, killed = said.split("fairbound ")
    assert "wrote last at 12:34" in runs
    assert "1 of 3 tasks done, 4 min left" in runs
    assert " 25% SGD on p1 (a worker)" in runs
    assert "was killed: start it again" in killed
    assert "1 of 3 tasks done\n" in killed
    assert "SGD" not in killed
