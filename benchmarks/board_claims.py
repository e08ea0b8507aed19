"""What a finished board shows of the collection: run `fairbound board` first.

    OMP_NUM_THREADS=1 python benchmarks/board_claims.py results

Prints the shares as a table, how many pairs can be told apart, what is left out, and the CPU
minutes of all steps. Then, for every problem as stated: how many methods solve it in some run, and
whether a run that is feasible within 0.03 of the scale has a smaller loss than the frozen reference
of a network, by more than 1 % of the way from the start. Exits with 1 where that is so:
`tools/make_references.py --long` renews the reference.
"""

from __future__ import annotations

import sys

import numpy as np

from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study
from fairbound.benchmark.board._findings import overall, share_words
from fairbound.benchmark.board._results import PARTS, Board, InstanceName
from fairbound.cli._report import stored_studies
from fairbound.reports._words import interval


def main(folder: str) -> int:
    store = Store(folder)
    studies = stored_studies("board", load_study("board").digest, store)
    study, *_ = studies.values() or sys.exit(f"{folder} has no whole board")
    runs = [result for _, result in study.results(store)]
    known = [result for result in runs if result is not None]
    minutes = sum(one.made.get("step_seconds", 0.0) * one.settings["steps"] for one in known) / 60
    print(f"{len(known)} of {len(runs)} runs; {minutes:.0f} CPU minutes of steps\n")
    board = Board.read(study, store)
    print(shares(board), *overall(board), "", sep="\n")
    below = [words for problem in board.problems if (words := checked(board, problem.name))]
    print(f"a run is below the reference on: {', '.join(below) or 'none'}")
    return 1 if below else 0


def shares(board: Board) -> str:
    """As a table in Markdown."""
    lines = [
        [
            "method",
            *(PARTS[part] for part in board.parts),
            *(f"less, {PARTS[part]}" for part in board.parts),
        ]
    ]
    lines.append(["---"] * len(lines[0]))
    for i in next(iter(board.shares.values())).order:
        line = [board.names[i] + (" (own step)" if board.methods[i].own_step else "")]
        line += [share_words(one, i) for one in board.shares.values()]
        for one in board.shares.values() if board.baseline not in (None, i) else ():
            low, high = one.difference_interval[i, board.baseline]
            ends = interval(low, high, "{:z.2f}".format)
            line.append(f"{one.difference[i, board.baseline]:+.2f} {ends}")
        lines.append(line + [""] * (len(lines[0]) - len(line)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def checked(board: Board, name: str) -> str:
    """Prints how many methods solve a problem; which run is below its reference."""
    problem, instance = board.problem(name), InstanceName(name)
    reference = problem.reference
    solving = [method.name for method in board.methods if board.solved(method.name, instance).any()]
    least = {
        method: float(np.min(one.loss[one.violation <= 0.03 * reference.scale], initial=np.inf))
        for (method, where), one in board.curves.items()
        if where.problem == name
    }
    if not least:
        return ""
    first = min(least, key=lambda method: least[method])
    dropped = "; not counted" if instance in board.dropped else ""
    print(
        f"{name:<26} {len(solving):>2} methods solve it; least feasible loss"
        f" {least[first]:.4g}{dropped}"
    )
    margin = 0.01 * abs(reference.start - reference.loss)
    if reference.exact or least[first] >= reference.loss - margin:
        return ""
    return f"{name} ({first}: {least[first]:.4f} < {reference.loss:.4f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
