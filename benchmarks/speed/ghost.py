"""Stacked Ghost beside the form of the authors' code and beside SSL-ALM: microseconds a run and step.

    OMP_NUM_THREADS=1 python benchmarks/speed/ghost.py [--rounds 7]

Mini-batches of random size (p0 = .4, at most 8 2^8 rows), two groups. SSL-ALM gets mini-batches as large as Ghost's are
in the mean, so that both pass as many rows through the model.
"""

from __future__ import annotations

import argparse

import torch
from by_hand import authors_ghost, repeated
from measuring import Checks, alternate, machine
from setting import Stack

from fairbound import Take
from fairbound.algorithms import SSLALM, StochasticGhost

GHOST = StochasticGhost(p0=0.4, cap=7)


def equal_batch() -> int:
    """SSL-ALM's batch b with 5 b rows a step (b + 2 b, and 2 b again) equal to Ghost's mean of 24 (1 + 2^(N+1))."""
    assert GHOST.levels is not None
    mean = 24 * (1 + sum(p * 2 ** (n + 1) for n, p in enumerate(GHOST.levels)))
    return round(mean / 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = equal_batch()
    take = Take(objective=size, cell=size)
    contestants = {
        "Ghost, 10 stacked": Stack(GHOST, 10, 20),
        "Ghost, 100 stacked": Stack(GHOST, 100, 5),
        f"SSL-ALM, 10 stacked, {size} rows": Stack(SSLALM(), 10, 100, take=take),
        f"SSL-ALM, 100 stacked, {size} rows": Stack(SSLALM(), 100, 20, take=take),
        "Ghost, authors' form": repeated(authors_ghost(0.4, 7), 3),
    }
    found = alternate(contestants, options.rounds)
    print(machine())
    for name, own in found.items():
        print(f"{name:<34} {own.cpu:9.1f} us CPU {own.wall:9.1f} us wall")
    times = {name.split(" stacked")[0]: own.cpu for name, own in found.items()}
    checks = Checks()
    checks.at_least(
        "Ghost, 100 stacked: times faster than the authors' form",
        times["Ghost, authors' form"] / times["Ghost, 100"],
        150,
    )
    checks.at_most("Ghost against SSL-ALM, 100 stacked", times["Ghost, 100"] / times["SSL-ALM, 100"], 6)
    checks.at_most("Ghost against SSL-ALM, 10 stacked", times["Ghost, 10"] / times["SSL-ALM, 10"], 15)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
