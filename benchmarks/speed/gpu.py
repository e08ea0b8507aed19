"""Stacked SSL-ALM on an NVIDIA GPU: microseconds a run and step.

    python benchmarks/speed/gpu.py [--rounds 7] [--profile]

9-64-32-1 net, mini-batches of 8 + 2 x 8 and 2 x 8 examples out of 14,333. Without a GPU it says so
and ends with 0.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from measuring import Checks, skip
from setting import Stack, examples

from fairbound.algorithms import SSLALM

WANTED = {1_000: (1.0, 400), 10_000: (0.2, 100)}  # runs: microseconds, steps at a time


def timed(stack: Stack, rounds: int) -> float:
    """Microseconds a run and step, wall time with the device waited for; a median."""
    stack()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        units = stack()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / units * 1e6)
    return statistics.median(found)


def profiled(stack: Stack) -> None:
    """Where the device's time goes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        stack()
        torch.cuda.synchronize()
    print(
        profile.key_averages().table(
            sort_by="cuda_time_total", row_limit=25, max_name_column_width=70
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        skip("stacked runs on a GPU", "there is no NVIDIA GPU here")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    checks, data = Checks(), examples(device="cuda")
    for runs, (limit, chunk) in WANTED.items():
        stack = Stack(SSLALM(), runs, chunk, data=data)
        checks.at_most(
            f"SSL-ALM, {runs:,} runs, microseconds a run and step",
            timed(stack, options.rounds),
            limit,
        )
        if options.profile:
            profiled(stack)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
