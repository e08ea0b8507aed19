"""The numbers of boards as files: CSV and parquet of everything, LaTeX of what fits on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairbound._utils.files import write_text
from fairbound.benchmark.board.results import Board
from fairbound.benchmark.board.scoring import TARGETS, target_of
from fairbound.benchmark.problems.changes import CHANGES
from fairbound.benchmark.report_table import ReportTable, frame_csv, frame_of

MEASURED = ("train_loss", "train_violation", "loss", "violation", "accuracy")


def write_tables(boards: Sequence[Board], folder: Path) -> dict[str, list[str]]:
    """shares, solved, records, problems and heldout, where there are any; the endings of the files, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, list[str]] = {}
    for name, make in FRAMES.items():
        rows = [{"rules": board.rules, **row} for board in boards for row in make(board)]
        if rows:
            frame = pd.DataFrame(rows)
            write_text(folder / f"{name}.csv", frame_csv(frame))
            frame.to_parquet(folder / f"{name}.parquet", index=False)
            written[name] = ["csv", "parquet"]
            if name in LATEX:
                write_text(folder / f"{name}.tex", LATEX[name](frame).to_latex())
                written[name].append("tex")
    return written


def share_rows(board: Board) -> Iterator[dict[str, Any]]:
    """Of every method, as stated and changed: the share solved, and the difference to the baseline."""
    for part, shares in board.shares.items():
        instances = [one for some in board.instances_of(part).values() for one in some]
        for i in shares.order:
            row = {
                "part": part, "method": board.names[i], "share": shares.share[i], "low": shares.interval[i, 0],
                "high": shares.interval[i, 1],
            }  # fmt: skip
            row |= {f"share_{target:g}": board.share(board.names[i], instances, target) for target in TARGETS}
            if board.baseline is not None:
                low, high = shares.difference_interval[i, board.baseline]
                difference = shares.difference[i, board.baseline]
                row |= {"difference": difference, "difference_low": low, "difference_high": high}
            yield row


def solved_rows(board: Board) -> Iterator[dict[str, Any]]:
    """Every run: its merit at the end, the target, and whether the instance counts."""
    for method, one in product(board.names, board.instances):
        target = target_of(CHANGES[one.change].slack)
        for run, merit in enumerate(board.ends(method, one)):
            yield {
                "method": method, "problem": one.problem, "change": one.change, "run": run, "merit": merit,
                "target": target, "solved": bool(merit <= target), "counts": one in board.counted,
            }  # fmt: skip


def record_rows(board: Board) -> Iterator[dict[str, Any]]:
    """Everything that was recorded along the way, with the merit."""
    for (method, instance), one in board.curves.items():
        merits, distance = board.merits(method, instance), board.distance(method, instance)
        for run, k in product(range(one.loss.shape[0]), range(one.share.size)):
            yield {
                "problem": instance.problem, "change": instance.change, "method": method, "run": run,
                "budget": one.share[k], "loss": one.loss[run, k], "violation": one.violation[run, k],
                "mean_violation": one.mean_violation[run, k],
                "distance": np.nan if distance is None else distance[run, k], "merit": merits[run, k],
            }  # fmt: skip


def problem_rows(board: Board) -> Iterator[dict[str, Any]]:
    """What merits are measured with."""
    for card in board.problems:
        one = card.reference
        yield {
            "problem": card.name, "class": card.family, "reference": one.loss, "start": one.start, "scale": one.scale,
            "exact": one.exact, "how": one.how, "primal": card.primal,
        }  # fmt: skip


def heldout_rows(board: Board) -> Iterator[dict[str, Any]]:
    for (method, problem), ends in board.heldout.items():
        for split, decision in enumerate(ends.decisions):
            numbers = {name: getattr(ends, name)[split] for name in MEASURED}
            yield {"problem": problem, "method": method, "split": split, **numbers, "decision": decision}


FRAMES = {
    "shares": share_rows, "solved": solved_rows, "records": record_rows, "problems": problem_rows,
    "heldout": heldout_rows,
}  # fmt: skip


def shares_table(shares: pd.DataFrame) -> ReportTable:
    numbers = shares[["share", "low", "high"]].rename(columns={"share": ""})
    return ReportTable(
        "Shares of instances solved, with 95 % bootstrap intervals",
        frame_of({name: shares[name] for name in ("method", "rules", "part")} | {"share": numbers}),
        digits=2,
    )


def heldout_table(heldout: pd.DataFrame) -> ReportTable:
    keys = ["method", "rules", "problem"]
    groups = heldout.groupby(keys, sort=False)
    means = groups[list(MEASURED)].agg(["mean", "std"]).reset_index()
    holds = groups["decision"].agg(lambda some: (some == "holds").mean()).reset_index(drop=True)
    columns = {name: means[name, ""] for name in keys} | {name: means[name] for name in MEASURED} | {"holds": holds}
    return ReportTable(
        "Held-out data: mean ± standard deviation over splits, and the share of splits in which the bound holds",
        frame_of(columns),
        digits=3,
    )


LATEX = {"shares": shares_table, "heldout": heldout_table}
