"""A step of every method beside one of SSL-ALM: microseconds a run and step, stacked and compiled.

    OMP_NUM_THREADS=1 python benchmarks/speed/methods.py [--runs 10 100] [--rounds 5] [--only PHRALM
    TrackedSQP]

9-64-32-1 net, mini-batches of 8 + 2 x 8 examples out of 14,333, two constraints. On a machine with
a GPU the runs are there (--runs 1000). The methods take turns; CPU time on a CPU, wall time on a
GPU.
"""

from __future__ import annotations

import argparse
import time

import torch
from measuring import Contestant, alternate, machine
from setting import Stack, examples

from fairbound.algorithms import ALGORITHMS, SSLALM
from fairbound.core import Algorithm
from fairbound.training import _vectorized as vectorized

STEPS = {10: 100, 100: 20, 1000: 50}  # at a time, at least
VARIANTS: dict[str, Algorithm] = {  # type: ignore[type-arg]
    "SSLALM, lag": SSLALM(samples=1, lag=True),
}


class OnDevice:
    """A stack whose device is waited for."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __call__(self) -> int:
        done = self.stack()
        torch.cuda.synchronize()
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="methods beside SSLALM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    # a call does a whole number of blocks, and some methods are slow
    vectorized.GPU_BLOCK_BYTES = 64 << 20
    print(torch.cuda.get_device_name() if gpu else machine(), flush=True)
    data = examples(device="cuda" if gpu else "cpu")
    methods = {name: build() for name, build in ALGORITHMS.items()} | VARIANTS
    chosen = {
        name: own
        for name, own in methods.items()
        if not options.only or name in ("SSLALM", *options.only)
    }
    for runs in options.runs:
        contestants: dict[str, Contestant] = {}
        for name, method in chosen.items():
            begun = time.perf_counter()
            stack = Stack(method, runs, STEPS.get(runs, 20), data=data)
            contestants[name] = OnDevice(stack) if gpu else stack
            contestants[name]()  # compiles
            print(
                f"  {name}: ready after {time.perf_counter() - begun:.0f} s {stack.run.note}",
                flush=True,
            )
        found = alternate(contestants, options.rounds)
        print(f"\n{runs:,} runs{'':<24}us a run and step   SSL-ALM steps")
        medians = found.medians()
        for name, own in medians.items():
            ratio = (
                f"{own.wall / medians['SSLALM'].wall:.2f}"
                if gpu
                else str(found.ratio(name, "SSLALM"))
            )
            print(f"{name:<30} {own.wall if gpu else own.cpu:18.2f}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
