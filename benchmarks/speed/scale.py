"""Ten stacked runs on 960,360 examples in 5 groups (42 states), against 14,333 examples.

    OMP_NUM_THREADS=1 python benchmarks/speed/scale.py [--rounds 15]

Only the examples of a mini-batch are touched, so a step should cost the same, but for those no
longer in a cache.
"""

from __future__ import annotations

import argparse
import resource

import torch
from measuring import Checks, alternate, machine
from setting import EXAMPLES, Stack, examples

from fairbound.algorithms import SGD, SSLALM, SwitchingSubgradient

MANY, GROUPS, RUNS = 960_360, 5, 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checks = Checks()
    few, many = examples(EXAMPLES, GROUPS), examples(MANY, GROUPS)
    print(machine())
    for method in (SSLALM(), SGD(), SwitchingSubgradient()):
        name = type(method).__name__
        found = alternate(
            {
                "few": Stack(method, RUNS, 200, data=few),
                "many": Stack(method, RUNS, 200, data=many),
            },
            options.rounds,
        )
        times = found.medians()
        print(
            f"{name}: {times['few'].cpu:.1f} us with {EXAMPLES:,} examples, {times['many'].cpu:.1f}"
            f" us with {MANY:,}"
        )
        checks.at_most(
            f"{name}: {MANY:,} examples against {EXAMPLES:,}", found.ratio("many", "few"), 1.2
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    checks.at_most("peak memory, GB", peak, 4.0)
    return checks.status


if __name__ == "__main__":
    raise SystemExit(main())
