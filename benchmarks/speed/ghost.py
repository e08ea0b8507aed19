"""Stacked Ghost beside the form of the authors' code and beside SSL-ALM: microseconds a run and
step.

    OMP_NUM_THREADS=1 python benchmarks/speed/ghost.py [--rounds 7]

Mini-batches of random size (p0 = .4, at most 8 2^8 examples), two groups. SSL-ALM gets mini-batches
as large as Ghost's are in the mean, so that both pass as many examples through the model.
"""

from __future__ import annotations

import argparse

import torch
from hand_written import authors_ghost, plain_sgd, repeated
from measuring import Checks, Contestant, alternate, machine, skip
from setting import Stack

from fairbound import BatchSpec
from fairbound.algorithms import SSLALM, StochasticGhost

GHOST = StochasticGhost(p0=0.4, cap=7)  # for the authors' form too
AUTHORS = "Ghost, authors' form"


def equal_batch() -> int:
    """SSL-ALM's batch b with 5 b examples a step (b + 2 b, and 2 b again) equal to Ghost's mean of
    24 (1 + 2^(N+1))."""
    assert GHOST.batch_size_probs is not None
    mean = 24 * (1 + sum(p * 2 ** (n + 1) for n, p in enumerate(GHOST.batch_size_probs)))
    return round(mean / 5)


def contestants(size: int) -> dict[str, Contestant]:
    take = BatchSpec(objective=size, cell=size)
    found: dict[str, Contestant] = {
        "Ghost, 10 stacked": Stack(GHOST, 10, 20),
        "Ghost, 100 stacked": Stack(GHOST, 100, 5),
        "SSL-ALM, 10 stacked": Stack(SSLALM(), 10, 100, take=take),
        "SSL-ALM, 100 stacked": Stack(SSLALM(), 100, 20, take=take),
        "plain SGD": repeated(plain_sgd(), 100),
    }
    try:
        found[AUTHORS] = repeated(authors_ghost(GHOST), 3)
    except ModuleNotFoundError as error:
        skip(AUTHORS, f"{error}; pip install -r benchmarks/requirements.txt")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = equal_batch()
    found = alternate(contestants(size), options.rounds)
    print(machine())
    print(f"SSL-ALM has mini-batches of {size} examples")
    for name, own in found.medians().items():
        print(f"{name:<24} {own.cpu:9.1f} us CPU {own.wall:9.1f} us wall")
    checks = Checks()
    if AUTHORS in found.times:
        of_sgd = found.ratio(AUTHORS, "plain SGD")
        print(
            f"{AUTHORS}, plain SGD steps: {of_sgd} (the authors' code itself, elsewhere: 140 to"
            " 160, 90 to 108 ms)"
        )
        ratio = found.ratio(AUTHORS, "Ghost, 100 stacked")
        checks.at_least("Ghost, 100 stacked: times faster than the authors' form", ratio, 150)
    for runs, limit in ((100, 6), (10, 15)):
        ratio = found.ratio(f"Ghost, {runs} stacked", f"SSL-ALM, {runs} stacked")
        checks.at_most(f"Ghost against SSL-ALM, {runs} stacked", ratio, limit)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
