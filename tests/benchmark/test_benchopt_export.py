"""The export to benchopt: its files name everything of the board, and benchopt runs them where it is installed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import call

from fairbound.benchmark.board.entries import ours
from fairbound.benchmark.collection import names


def test_the_folder_names_every_problem_and_method(tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    assert "3 files in" in call("benchopt", folder)
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    assert repr(list(names())) in (folder / "datasets" / "fairbound.py").read_text()
    assert repr([one.name for one in ours()]) in (folder / "solvers" / "fairbound.py").read_text()
    said = " ".join(call("benchopt", folder, code=1).split())
    assert said.startswith("Error: ")
    assert "has files already; name a new folder" in said


@pytest.mark.skipif(find_spec("benchopt") is None, reason="benchopt is not installed: pip install benchopt")
def test_benchopt_runs_it(tmp_path: Path) -> None:
    import pandas

    folder = tmp_path / "exported"
    call("benchopt", folder)
    chosen = ["-d", "fairbound[problem=qcqp]", "-s", "fairbound[method=Descent-ascent]"]
    done = subprocess.run(
        [sys.executable, "-m", "benchopt", "run", str(folder), *chosen, "-n", "4", "-r", "1", "--no-plot", "--no-html"],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = (folder / "outputs").glob("*.parquet")
    found = pandas.read_parquet(table)
    assert found["objective_value"].iloc[-1] < found["objective_value"].iloc[0]
    assert "objective_violation" in found
