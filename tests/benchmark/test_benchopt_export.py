"""The export to benchopt: its files name everything of the board, and benchopt runs them where it is installed."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

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


def test_the_files_work_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As benchopt calls them, with empty classes in the place of its own."""
    bases = {name: type(name, (), {}) for name in ("BaseObjective", "BaseDataset", "BaseSolver")}
    monkeypatch.setitem(sys.modules, "benchopt", SimpleNamespace(**bases))
    call("benchopt", tmp_path / "exported")
    made = {}
    for file, name in (("objective", "Objective"), ("datasets/fairbound", "Dataset"), ("solvers/fairbound", "Solver")):
        made[name] = runpy.run_path(str(tmp_path / "exported" / f"{file}.py"))[name]()
    objective, dataset, solver = made["Objective"], made["Dataset"], made["Solver"]
    dataset.problem, solver.method = "hs7", "SGD"
    objective.set_data(**dataset.get_data())
    given = objective.get_objective()
    assert solver.skip(**given)[0] is False
    solver.set_objective(**given)
    values = []
    for steps in (0, 20):
        solver.run(steps)
        values.append(objective.evaluate_result(**solver.get_result()))
    assert values[0] == objective.evaluate_result(**objective.get_one_result())
    assert values[1]["value"] < values[0]["value"]
    assert {"value", "violation", "gap"} == values[1].keys()


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
