"""What drawing and evaluating take of a run: stacks of Experiment 1 as `fairbound run
paper-ok-race` makes them.

    OMP_NUM_THREADS=1 python benchmarks/speed/shares.py

Drawing: the mini-batches of a stack alone, drawn and gathered, against whole steps that draw as
many blocks, in CPU time. Evaluation: what the benchmark itself counts for it over the whole of
Experiment 1, its 30 records a run (every second point of the paper's Figure 1), and what 60 would
take.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from measuring import Checks, machine
from setting import Stack

from fairbound.algorithms import SGD, SSLALM, SwitchingSubgradient
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study
from fairbound.core import Algorithm

STEPS = 400  # at least, in a call


def drawing(method: Algorithm[Any], runs: int) -> float:
    """The share of drawing in a step."""
    stack = Stack(method, runs, STEPS)  # a whole number of drawing blocks
    stack()  # compiles
    group = stack.run._groups[0]
    shares = []
    for _ in range(5):
        start = time.process_time()
        stack()
        whole = time.process_time() - start
        start = time.process_time()
        for _ in group._draws(stack.steps):
            pass
        shares.append((time.process_time() - start) / whole)
    return sorted(shares)[2]


def evaluating() -> float:
    """The share of evaluation in all runs of Experiment 1, compiling left out; every method's is
    printed."""
    study = load_study("paper-ok-race")
    whole, measured = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        tasks = Plan(study).tasks(Store(folder))
        # compiles it
        min(tasks, key=lambda task: task.steps).complete(
            Store(f"{folder}/first"), lambda share: None
        )
        for task in tasks:
            spent = task.complete(Store(folder), lambda share: None)
            whole, measured = whole + spent.evaluating + spent.stepping, measured + spent.evaluating
            share = spent.evaluating / (spent.evaluating + spent.stepping)
            print(
                f"  {task.method}, {len(task.runs)} runs of {task.steps:,} steps: evaluation"
                f" {share:.0%}",
                flush=True,
            )
    twice = 2 * measured / (whole + measured)
    print(
        f"  with {2 * study.records} records a run instead of {study.records} it would be about"
        f" {twice:.0%}"
    )
    return measured / whole


def main() -> int:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    print(machine())
    checks = Checks()
    for method in (SSLALM(), SGD(), SwitchingSubgradient()):
        for runs in (10, 100):
            name = f"{type(method).__name__}, {runs} runs: drawing examples, percent of a step"
            checks.at_most(name, 100 * drawing(method, runs), 20)
    checks.at_most("Experiment 1: evaluation, percent of its runs", 100 * evaluating(), 10)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
