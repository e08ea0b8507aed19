"""What drawing rows and evaluating take of a run: stacks of Experiment 1 as `fairbound run income-ok-race` makes them.

    OMP_NUM_THREADS=1 python benchmarks/speed/shares.py [--steps 4000]

Drawing: the mini-batches of a stack alone, drawn and gathered, against whole steps, in CPU time. Evaluation: what the
benchmark itself reports of it, records as many as in the experiment, compiling left out.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from measuring import Checks, machine
from setting import Stack

from fairbound.algorithms import SGD, SSLALM, SwitchingSubgradient
from fairbound.bench.execute import computed
from fairbound.bench.job import Job, prepared
from fairbound.core import Algorithm

STEPS = 400


def drawing(method: Algorithm[Any], runs: int) -> float:
    """The share of drawing in a step."""
    stack = Stack(method, runs, STEPS)
    stack()  # compiles
    group = stack.run._groups[0]
    shares = []
    for _ in range(5):
        start = time.process_time()
        stack()
        whole = time.process_time() - start
        start = time.process_time()
        for _ in group._draws(STEPS):
            pass
        shares.append((time.process_time() - start) / whole)
    return sorted(shares)[2]


def evaluating(method: str, steps: int) -> float:
    """The share of evaluation in ten runs of a method of Experiment 1."""
    found = prepared(Job(experiment="income-ok-race", steps=steps))
    stack = next(s for s in found.planned if type(s.algorithms[0]).__name__ == method)
    spent = computed(found.setting, stack, lambda share: None)[1]
    print(f"  {method}, {len(stack.plans)} runs of {stack.steps} steps, {found.setting.experiment.records} records")
    return spent.evaluating / (spent.evaluating + spent.stepping)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="at most so many a run; the experiment's if more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    checks = Checks()
    for method in (SSLALM(), SGD(), SwitchingSubgradient()):
        for runs in (10, 100):
            name = f"{type(method).__name__}, {runs} runs: drawing rows, percent of a step"
            checks.at_most(name, 100 * drawing(method, runs), 20)
    for name in ("SSLALM", "SwitchingSubgradient"):
        checks.at_most(f"{name}: evaluation, percent of a run", 100 * evaluating(name, options.steps), 10)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
