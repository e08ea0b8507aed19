"""Stacked, compiled runs beside plain eager loops and the form of the authors' code: microseconds a
run and step.

    OMP_NUM_THREADS=1 python benchmarks/speed/stacked.py [--rounds 15]

9-64-32-1 net, mini-batches of 8 + 2 x 8 examples out of 14,333, drawn inside the timed loops on
both sides.
"""

from __future__ import annotations

import argparse

import torch
from hand_written import authors_ssl_alm, plain_sgd, plain_ssl_alm, plain_switching, repeated
from measuring import Checks, Contestant, alternate, machine
from setting import Stack

from fairbound.algorithms import SGD, SSLALM, SwitchingSubgradient

CHUNK = {1: 400, 10: 200, 100: 40}  # steps at a time, at least
AUTHORS = "SSL-ALM, authors' form"
METHODS = {
    "SSL-ALM": (SSLALM(), plain_ssl_alm, {1: 4.0, 10: 10.0, 100: 30.0}),
    "SGD": (SGD(tau=0.01), plain_sgd, {10: 8.0, 100: 25.0}),
    "SSw": (SwitchingSubgradient(), plain_switching, {10: 8.0, 100: 25.0}),
}


def contestants() -> dict[str, Contestant]:
    found: dict[str, Contestant] = {}
    for name, (method, hand_written, wanted) in METHODS.items():
        found[f"{name}, plain loop"] = repeated(hand_written(), 60)
        found |= {f"{name}, {runs} stacked": Stack(method, runs, CHUNK[runs]) for runs in wanted}
    return found | {AUTHORS: repeated(authors_ssl_alm(), 25)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = alternate(contestants(), options.rounds)
    print(machine())
    for name, own in found.medians().items():
        faster = found.ratio(f"{name.split(',')[0]}, plain loop", name)
        print(
            f"{name:<24} {own.cpu:9.1f} us CPU {own.wall:9.1f} us wall  plain loop / it: {faster}"
        )
    of_sgd = found.ratio(AUTHORS, "SGD, plain loop")
    print(
        f"{AUTHORS}, plain SGD steps: {of_sgd} (the authors' code itself, elsewhere: 9 to 10, 5.3"
        " to 7 ms)"
    )
    checks = Checks()
    for name, (_, _, wanted) in METHODS.items():
        for runs, limit in wanted.items():
            ratio = found.ratio(f"{name}, plain loop", f"{name}, {runs} stacked")
            checks.at_least(
                f"{name}, {runs} stacked: times faster than a plain eager loop", ratio, limit
            )
    ratio = found.ratio(AUTHORS, "SSL-ALM, 100 stacked")
    checks.at_least("SSL-ALM, 100 stacked: times faster than the authors' form", ratio, 100)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
