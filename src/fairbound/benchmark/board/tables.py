"""The numbers of boards as files: CSV and parquet of everything, LaTeX of what fits on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairbound._utils.files import write_text
from fairbound.benchmark.board.findings import BY_EPOCHS, Summary, epochs_words
from fairbound.benchmark.board.scoring import LOSS_TARGETS, VIOLATION_TARGETS, track_hits
from fairbound.benchmark.report_table import ReportTable, frame_csv, frame_of

MEASURED = ("train_loss", "train_violation", "loss", "violation", "accuracy")


def write_tables(summaries: Sequence[Summary], folder: Path) -> dict[str, list[str]]:
    """scores, hits, records, heldout and shift, where there are any; the endings of the files, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, list[str]] = {}
    for name, make in FRAMES.items():
        rows = [{"rules": one.board.rules, **row} for one in summaries for row in make(one)]
        if rows:
            frame = pd.DataFrame(rows)
            write_text(folder / f"{name}.csv", frame_csv(frame))
            frame.to_parquet(folder / f"{name}.parquet", index=False)
            written[name] = ["csv", "parquet"]
    for name, table in latex_tables(summaries).items():
        write_text(folder / f"{name}.tex", table.to_latex())
        written[name].append("tex")
    return written


def score_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    for track, ranking in summary.rankings.items():
        for i in ranking.order:
            method = summary.board.methods[i].name
            row = {
                "track": track, "method": method, "rank": int(ranking.rank[i]), "score": ranking.score[i],
                "low": ranking.interval[i, 0], "high": ranking.interval[i, 1], "first": ranking.first[i],
                "rank_low": int(ranking.rank_range[i, 0]), "rank_high": int(ranking.rank_range[i, 1]),
            }  # fmt: skip
            found = summary.speeds.get(track, {}).get(method)
            yield row | ({} if found is None else vars(found))


def hit_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """Epochs to each target; of known answers, a distance is the loss target and there is no other."""
    for track in (one for one in summary.tracks if one in BY_EPOCHS):
        pairs = [(e, np.nan) for e in LOSS_TARGETS] if track == "known" else product(LOSS_TARGETS, VIOLATION_TARGETS)
        targets = list(pairs)
        for problem, method in product(summary.board.on(track), summary.board.methods):
            found = track_hits(summary.board, track, method.name, problem.name)
            for run, epochs in enumerate([] if found is None else found):
                for (loss, violation), epoch in zip(targets, epochs, strict=True):
                    yield {
                        "track": track, "problem": problem.name, "method": method.name, "run": run,
                        "loss_target": loss, "violation_target": violation, "epochs": epoch,
                    }  # fmt: skip


def record_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """Everything that was recorded along the way; instance 0 is the problem as stated."""
    cells = [(cell, 0, one) for cell, one in summary.board.curves.items()]
    cells += [(cell, i, one) for cell, some in summary.board.robust.items() for i, one in enumerate(some, start=1)]
    for (method, problem), instance, one in cells:
        for run, k in product(range(one.loss.shape[0]), range(one.epochs.size)):
            yield {
                "problem": problem, "method": method, "instance": instance, "run": run, "epochs": one.epochs[k],
                "loss": one.loss[run, k], "violation": one.violation[run, k],
                "mean_violation": one.mean_violation[run, k],
                "distance": np.nan if one.distance is None else one.distance[run, k],
            }  # fmt: skip


def heldout_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    for (method, problem), ends in summary.board.heldout.items():
        for split, decision in enumerate(ends.decisions):
            numbers = {name: getattr(ends, name)[split] for name in MEASURED}
            yield {"problem": problem, "method": method, "split": split, **numbers, "decision": decision}


def shift_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    for (method, problem), ends in summary.board.shift.items():
        for run, (at, population) in product(range(len(ends.loss)), enumerate(ends.populations)):
            yield {
                "problem": problem, "method": method, "run": run, "population": population,
                "loss": ends.loss[run, at], "violation": ends.violation[run, at],
            }  # fmt: skip


FRAMES = {
    "scores": score_rows, "hits": hit_rows, "records": record_rows, "heldout": heldout_rows, "shift": shift_rows,
}  # fmt: skip


def latex_tables(summaries: Sequence[Summary]) -> dict[str, ReportTable]:
    """Scores by track, median epochs to the middle target by problem and method, and held-out means."""
    found = {}
    scores = pd.DataFrame([{"rules": s.board.rules, **row} for s in summaries for row in score_rows(s)])
    if len(scores):
        columns = ["method", "rules", "track", "rank"]
        numbers = scores[["score", "low", "high"]].rename(columns={"score": ""})
        found["scores"] = ReportTable(
            "Scores by track, with 95 % bootstrap intervals",
            frame_of({name: scores[name] for name in columns} | {"score": numbers}),
            digits=2, formats={"rank": "{:.0f}"},
        )  # fmt: skip
    hits = [
        {"problem": one.name, "rules": s.board.rules}
        | {
            method.name: epochs_words(float(np.median(epochs)) if epochs.size else np.inf)
            for method in s.board.methods
            for epochs in [s.middle_hits(method.name, one.name, s.first_track(one))]
        }
        for s in summaries
        for one in s.board.problems
        if s.first_track(one) in BY_EPOCHS
    ]
    if hits:
        frame = pd.DataFrame(hits).fillna("—")
        found["hits"] = ReportTable(
            "Median epochs to the target (.1, .3)", frame_of({name: frame[name] for name in frame})
        )
    heldout = pd.DataFrame([{"rules": s.board.rules, **row} for s in summaries for row in heldout_rows(s)])
    if len(heldout):
        keys = ["method", "rules", "problem"]
        groups = heldout.groupby(keys, sort=False)
        means = groups[list(MEASURED)].agg(["mean", "std"]).reset_index()
        holds = groups["decision"].agg(lambda some: (some == "holds").mean()).reset_index(drop=True)
        written = {name: means[name] for name in MEASURED}
        found["heldout"] = ReportTable(
            "Held-out data: mean ± standard deviation over splits, and the share of splits in which the bound holds",
            frame_of({name: means[name, ""] for name in keys} | written | {"holds": holds}),
            digits=3,
        )  # fmt: skip
    return found
