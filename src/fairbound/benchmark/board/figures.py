"""The numbers that `board.js` draws figures from, rounded to what a figure shows: the page stays small."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbound.benchmark.board.findings import BY_EPOCHS, Finding, Summary
from fairbound.benchmark.board.results import Board
from fairbound.benchmark.board.scoring import Numbers, track_hits

SHOWN_FROM = 0.5  # epochs; scores begin at 1
DIVERGED = 1e6  # a loss or a violation beyond it, or not finite


def figure_data(summary: Summary, findings: Mapping[str, Finding]) -> dict[str, Any]:
    """A JSON object: None is not a number, 0 epochs is never."""
    board = summary.board
    methods, problems = [one.name for one in board.methods], [one.name for one in board.problems]
    tracks = {
        track: {
            "problems": [problems.index(one.name) for one in board.on(track)],
            "order": ranking.order,
            "hits": [[_hits(summary, track, m, one.name) for one in board.on(track)] for m in methods],
        }
        for track, ranking in summary.rankings.items()
        if track in BY_EPOCHS
    }
    return {
        "methods": methods, "problems": problems, "tracks": tracks,
        "cards": [
            {
                "finding": [one.title + ".", findings[one.name].sentence, findings[one.name].heldout],
                "safest": methods.index(findings[one.name].safest) if findings[one.name].safest else None,
                "best": [methods.index(name) for name in findings[one.name].best],
                "order": summary.by_problem[one.name].order if one.name in summary.by_problem else [],
                "track": summary.first_track(one), "last": one.epochs, "loss": _short(one.reference.loss),
                "start": _short(one.reference.start), "scale": _short(one.reference.scale),
                "bound": one.bound, "ends": [_ends(board, m, one.name) for m in methods],
            }
            for one in board.problems
        ],
        "curves": [[_curve(board, m, p) for p in problems] for m in methods],
    }  # fmt: skip


def _hits(summary: Summary, track: str, method: str, problem: str) -> list[list[float | None]] | None:
    found = track_hits(summary.board, track, method, problem)
    return None if found is None else [[_short(0.0 if math.isinf(e) else e, 3) for e in run] for run in found]


def _ends(board: Board, method: str, problem: str) -> list[list[float | None] | None]:
    """Training and held-out: mean and standard deviation of the loss and of the violation."""
    if (method, problem) in board.heldout:
        ends = board.heldout[method, problem]
        return [_means(ends.train_loss, ends.train_violation), _means(ends.loss, ends.violation)]
    curve = board.curves.get((method, problem))
    return [None if curve is None else _means(curve.loss[:, -1], curve.violation[:, -1]), None]


def _means(*values: Numbers) -> list[float | None] | None:
    if not all((np.abs(one) < DIVERGED).all() for one in values):
        return None  # some run diverged: a mean of the others would flatter it
    return [_short(number) for one in values for number in (one.mean(), one.std())]


def _curve(board: Board, method: str, problem: str) -> list[list[float | None]] | None:
    """Epochs; low, middle, high of the loss; the same of the violation: quartiles over seeds."""
    one = board.curves.get((method, problem))
    if one is None:
        return None
    quartiles = [np.quantile(np.nan_to_num(v, nan=np.inf), [0.25, 0.5, 0.75], axis=0, method="nearest")
                 for v in (one.loss, one.violation)]  # fmt: skip
    lines = [(one.epochs, 3), *((line, 3) for line in quartiles[0]), *((line, 2) for line in quartiles[1])]
    shown = one.epochs >= min(SHOWN_FROM, one.epochs[-1])
    return [[_short(x, digits) for x in line[shown]] for line, digits in lines]


def _short(number: float, digits: int = 4) -> float | None:
    """Few digits: the page stays small. None where a run diverged."""
    return float(f"{number:.{digits}g}") if abs(number) < DIVERGED else None
