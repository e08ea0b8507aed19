"""Our problems and methods as a benchopt benchmark folder, for those who use its tool (https://benchopt.github.io).

    fairbound benchopt my-folder
    benchopt run my-folder -d 'fairbound[problem=qcqp]' -s 'fairbound[method=SSL-ALM]'

The files name problems and entries of the installed fairbound; benchopt runs them, with its own stopping rules.
"""

from __future__ import annotations

from pathlib import Path

from fairbound._utils.files import write_text
from fairbound.benchmark.board.entries import ours
from fairbound.benchmark.collection.catalog import names

OBJECTIVE = '''"""Loss and largest violation over all training examples, in the units of the constraints as stated."""

from benchopt import BaseObjective
from fairbound.benchmark.collection.catalog import reference


class Objective(BaseObjective):
    name = "Constrained training"
    url = "https://github.com/fairbound/fairbound"

    def set_data(self, problem, instance):
        self.problem, self.instance = problem, instance

    def get_objective(self):
        return {"instance": self.instance}

    def get_one_result(self):
        return {"x": self.instance.starts([0])[0]}

    def evaluate_result(self, x):
        found = self.instance.problem.evaluate(x, self.instance.splits[0].train)
        loss = float(found.loss[0])
        violation = float(self.instance.violation(found.c)[0]) / self.instance.scale
        known = reference(self.problem, self.instance.source)
        return {"value": loss, "violation": violation, "gap": loss - known.loss if known else loss}
'''
DATASET = '''"""The problems of fairbound's collection."""

from benchopt import BaseDataset
from fairbound.benchmark.collection.catalog import load


class Dataset(BaseDataset):
    name = "fairbound"
    parameters = {"problem": PROBLEMS}

    def get_data(self):
        return {"problem": self.problem, "instance": load(self.problem).build()}
'''
SOLVER = '''"""The methods of fairbound, with the settings of its board."""

from benchopt import BaseSolver
from fairbound.benchmark.board.entries import ours
from fairbound.training.contract import trial_step
from fairbound.training.runner import run


class Solver(BaseSolver):
    name = "fairbound"
    sampling_strategy = "iteration"
    parameters = {"method": METHODS}

    def set_objective(self, instance):
        self.instance = instance
        self.entry = next(one for one in ours() if one.name == self.method)
        self.start = self.sampler = None

    def skip(self, instance):
        method, m = next(one for one in ours() if one.name == self.method).algorithm(1), instance.problem.m
        solves = m > 50 and trial_step(method).several_gradients
        return solves, f"a step solves a subproblem in all constraints, and there are {m}"

    def run(self, n_iter):
        start, sampler = self.instance.starts([0]), self.instance.sampler(0, 0)
        self.x = start[0]
        if n_iter:
            method = self.entry.algorithm(n_iter)
            self.x = run(self.instance.problem, method, sampler, start, n_iter, compile=False).result().output[0]

    def get_result(self):
        return {"x": self.x}
'''


def export(folder: Path) -> list[Path]:
    """Write the folder; its files."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files already; name a new folder, or remove it")
    listed = {"PROBLEMS": list(names()), "METHODS": [one.name for one in ours()]}
    texts = {
        "objective.py": OBJECTIVE,
        "datasets/fairbound.py": DATASET.replace("PROBLEMS", repr(listed["PROBLEMS"])),
        "solvers/fairbound.py": SOLVER.replace("METHODS", repr(listed["METHODS"])),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)
    return [folder / name for name in texts]
