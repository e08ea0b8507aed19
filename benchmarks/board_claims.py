"""What a finished board shows of the collection: run `fairbound board` first.

    OMP_NUM_THREADS=1 python benchmarks/board_claims.py results

For every problem as stated: how many methods solve it in some run, and whether a run that is feasible within 0.03 of
the scale has a smaller loss than the frozen reference of a network, by more than 1 % of the way from the start. Exits
with 1 where that is so: `tools/make_references.py --long` renews the reference.
"""

from __future__ import annotations

import sys

import numpy as np

from fairbound.benchmark.board.results import Board, InstanceName
from fairbound.benchmark.store import Store
from fairbound.benchmark.study import load
from fairbound.cli.report import stored_studies


def main(folder: str) -> int:
    store = Store(folder)
    (study, *_) = stored_studies("board", load("board").digest, store) or sys.exit(f"{folder} has no whole board")
    board = Board.read(study, store)
    below = []
    for problem in board.problems:
        instance, reference = InstanceName(problem.name), problem.reference
        solving = [method.name for method in board.methods if board.solved(method.name, instance).any()]
        runs = {name: one for (name, where), one in board.curves.items() if where.problem == problem.name}
        least = {
            name: float(np.min(one.loss[one.violation <= 0.03 * reference.scale], initial=np.inf))
            for name, one in runs.items()
        }
        first = min(least, key=lambda name: least[name])
        margin = 0.01 * abs(reference.start - reference.loss)
        if not reference.exact and least[first] < reference.loss - margin:
            below.append(f"{problem.name} ({first}: {least[first]:.4f} < {reference.loss:.4f})")
        dropped = "; not counted" if instance in board.dropped else ""
        print(f"{problem.name:<26} {len(solving):>2} methods solve it; least feasible loss {least[first]:.4g}{dropped}")
    print(f"a run is below the reference on: {', '.join(below) or 'none'}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
