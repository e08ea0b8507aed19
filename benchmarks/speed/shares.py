"""What drawing rows and evaluating take of a run: stacks of Experiment 1 as `fairbound run income-ok-race` makes them.

    OMP_NUM_THREADS=1 python benchmarks/speed/shares.py

Drawing: the mini-batches of a stack alone, drawn and gathered, against whole steps that draw as many blocks, in CPU
time. Evaluation: what the benchmark itself counts for it over the whole of Experiment 1, its 30 records a run
(every second point of the paper's Figure 1), and what 60 would take.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from measuring import Checks, machine
from setting import Stack

from fairbound.algorithms import SGD, SSLALM, SwitchingSubgradient
from fairbound.benchmark.executor import Job, compute, plan
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
    """The share of evaluation in all runs of Experiment 1, without compiling; every method's is printed."""
    found = plan(Job(experiment="income-ok-race"))
    whole, measured = 0.0, 0.0
    shortest = min(found.batches, key=lambda stack: stack.steps)
    compute(found.prepared, shortest, lambda share: None)  # compiles the evaluation
    for stack in found.batches:
        spent = compute(found.prepared, stack, lambda share: None)[1]
        whole, measured = whole + spent.evaluating + spent.stepping, measured + spent.evaluating
        share = spent.evaluating / (spent.evaluating + spent.stepping)
        name = type(stack.algorithms[0]).__name__
        print(f"  {name}, {len(stack.plans)} runs of {stack.steps:,} steps: evaluation {share:.0%}", flush=True)
    stepping, records = whole - measured, found.prepared.experiment.records
    twice = 2 * measured / (2 * measured + stepping)
    print(f"  with {2 * records} records a run instead of {records} it would be about {twice:.0%}")
    return measured / whole


def main() -> int:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    print(machine())
    checks = Checks()
    for method in (SSLALM(), SGD(), SwitchingSubgradient()):
        for runs in (10, 100):
            name = f"{type(method).__name__}, {runs} runs: drawing rows, percent of a step"
            checks.at_most(name, 100 * drawing(method, runs), 20)
    checks.at_most("Experiment 1: evaluation, percent of its runs", 100 * evaluating(), 10)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
