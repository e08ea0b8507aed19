"""What Experiment 1 must show on the real census of Oklahoma, checked on stored results; fails where it does not.

fairbound run income-ok-race && python benchmarks/paper_claims.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairbound.bench.job import Job, prepared
from fairbound.bench.store import Store
from fairbound.bench.summary import summary

CLAIMS = (  # row, part, quantity, from, to
    ("SGD", "test", "loss", 0.400, 0.420),
    ("SSL-ALM", "train", "loss", 0.0, 0.45),
    ("SSL-ALM", "train", "gap", -0.02, 0.02),
    ("ALM", "train", "loss", 0.0, 0.45),
    ("ALM", "train", "gap", -0.02, 0.02),
    ("SSw, batch 64", "train", "loss", 0.537, 0.597),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder of results")
    parser.add_argument("--data", type=Path, default=None, help="the folder with census data")
    asked = parser.parse_args()
    found = prepared(Job(experiment="income-ok-race", folder=asked.data))
    if found.simulated:
        sys.exit("these claims are about real data, and none were found: name their folder with --data")
    store = Store(asked.out)
    lines = {
        (one.row, part): one for part in ("train", "test") for one in summary(found.setting, store, found.planned, part)
    }
    missed = 0
    for row, part, quantity, low, high in CLAIMS:
        if (row, part) not in lines:
            sys.exit(f"{asked.out} has no runs of {row}; compute them first: fairbound run income-ok-race")
        mean, std = getattr(lines[row, part], quantity)
        holds = low <= mean <= high
        missed += not holds
        print(
            f"{'holds ' if holds else 'MISSED'} {row:14} {part} {quantity} {mean:+.4f} ± {std:.4f} in [{low}, {high}]"
        )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
