"""What a finished board shows of the collection: run `fairbound board` first.

    OMP_NUM_THREADS=1 python benchmarks/board_claims.py results

For every problem: which methods reach the loosest target in some run, and whether a run that is feasible within .03 of
the scale has a smaller loss than the frozen reference of a network. Exits with 1 where no method reaches a loosest
target.
"""

from __future__ import annotations

import sys

import numpy as np

from fairbound.benchmark.board.results import Board
from fairbound.benchmark.board.scoring import hits, known_hits
from fairbound.benchmark.store import Store
from fairbound.benchmark.study import load
from fairbound.cli.report import stored_studies


def main(folder: str) -> int:
    store = Store(folder)
    (study, *_) = stored_studies("board", load("board").digest, store) or sys.exit(f"{folder} has no whole board")
    board = Board.read(study, store)
    missed, below = [], []
    for problem in board.problems:
        found = {name: one for (name, where), one in board.curves.items() if where == problem.name}
        solve, reference = "solve" in problem.tracks, problem.reference
        loosest = {
            name: hits(one, reference)[:, 0, 0] if solve else known_hits(one, reference)[:, 0]
            for name, one in found.items()
        }
        reached = [name for name, epochs in loosest.items() if np.isfinite(epochs).any()]
        missed += [] if reached else [problem.name]
        feasible = [one.loss[one.violation <= 0.03 * reference.scale] for one in found.values()]
        least = min((float(losses.min()) for losses in feasible if losses.size), default=np.inf)
        if not reference.exact and least < reference.loss:
            below.append(f"{problem.name} ({least:.4f} < {reference.loss:.4f})")
        share = f"{len(reached):>2} of {len(found)} methods"
        print(f"{problem.name:<26} {share} reach the loosest target; least feasible loss {least:.4g}")
    print(f"no method reaches the loosest target on: {', '.join(missed) or 'none'}")
    print(f"a scored run is below the reference on: {', '.join(below) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
