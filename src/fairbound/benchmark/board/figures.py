"""The figures of a board's page: the ends of runs and their way on one problem, and how soon targets are reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairbound._utils.drawing import COLORS, DASHES, INK, legend, panels, style, titled
from fairbound.benchmark.board.findings import Finding, Summary
from fairbound.benchmark.board.results import Board, ProblemInfo
from fairbound.benchmark.board.scoring import FIRST, LAST, Numbers, track_hits
from fairbound.benchmark.plots import End, draw_ends

SHOWN_FROM = 0.5  # epochs; scores begin at 1
DIVERGED = 1e6  # a loss or a violation beyond it, or not finite
GRID = np.geomspace(FIRST, LAST, 33)  # epochs at which a profile is drawn
MAX_POINTS = 24  # of a curve
BANDS = 3  # of the best methods
DRAWS, SEED = 200, 18  # of a band
EPOCHS = (1, 2, 5, 10, 20, 50, 100)  # labels of the axis
PARTS = ("Training data", "Held-out data")


# Loss against violation -----------------------------------------------------------------------------------------------


def ends(summary: Summary, problem: ProblemInfo, found: Finding) -> Any:
    """Where runs end, on training and on held-out data; None where nothing was measured."""
    parts: dict[str, list[End]] = {part: [] for part in PARTS}
    for method in summary.board.methods:
        for part, numbers in zip(PARTS, _measured_ends(summary.board, method.name, problem.name), strict=True):
            if numbers and all((np.abs(one) < DIVERGED).all() for one in numbers):  # else some run diverged
                loss, violation = numbers
                means = float(loss.mean()), float(loss.std()), float(violation.mean()), float(violation.std())
                parts[part].append(End(method.name, *means, method.name in found.best, method.name == found.safest))
    shown = {part: measured for part, measured in parts.items() if measured}
    if not shown:
        return None
    reference = problem.reference
    widths = max(0.1 * reference.scale, 1e-9), max(0.03 * abs(reference.start - reference.loss), 1e-9)
    x_label = "largest excess over the bound" + ("" if problem.bound is None else f" of {problem.bound:g}")
    caption = f"Loss against violation of every method on {problem.name}; the numbers are in the problem's table"
    return draw_ends(shown, caption, x_label, widths)


def _measured_ends(board: Board, method: str, problem: str) -> tuple[Sequence[Numbers], Sequence[Numbers]]:
    """Losses and violations of runs, on training and on held-out data."""
    if (method, problem) in board.heldout:
        held = board.heldout[method, problem]
        return (held.train_loss, held.train_violation), (held.loss, held.violation)
    curve = board.curves.get((method, problem))
    return (() if curve is None else (curve.loss[:, -1], curve.violation[:, -1])), ()


# Along the way --------------------------------------------------------------------------------------------------------


@style()
def curves(summary: Summary, problem: ProblemInfo) -> Any:
    """Loss and violation of every method along the epochs: medians, quartiles of the best."""
    board, reference = summary.board, problem.reference
    ranking = summary.by_problem.get(problem.name)
    best = list(ranking.order)[:BANDS] if ranking is not None else []
    figure, (left, right, names) = panels(3, 360, 330)
    loss, violation = left.subplots(), right.subplots()
    floor, least = 0.01 * reference.scale, reference.loss
    for i, method in enumerate(board.methods):
        curve = board.curves.get((method.name, problem.name))
        if curve is None:
            continue
        shown = np.flatnonzero(curve.epochs >= min(SHOWN_FROM, curve.epochs[-1]))
        epochs = curve.epochs[shown := shown[_spread(len(shown))]]
        for axes, values, lowest in ((loss, curve.loss, -math.inf), (violation, curve.violation, floor)):
            low, middle, high = np.quantile(
                np.nan_to_num(values[:, shown], nan=np.inf), [0.25, 0.5, 0.75], axis=0, method="nearest"
            )
            low, middle, high = (
                np.where(line < DIVERGED, np.maximum(line, lowest), np.nan) for line in (low, middle, high)
            )
            color = COLORS[i % len(COLORS)]
            if i in best:
                axes.fill_between(epochs, low, high, color=color, alpha=0.18, linewidth=0)
            width = 2 if i in best else 1
            (line,) = axes.plot(
                epochs, middle, DASHES[i // len(COLORS) % 4], color=color, linewidth=width, label=method.name
            )
            titled(line, f"{method.name}: {middle[-1]:.4g} at the end")
            if axes is loss and np.isfinite(middle).any():
                least = min(least, float(np.nanmin(middle)))
    most = reference.start + 0.15 * abs(reference.start - reference.loss)
    margin = 0.05 * (most - least) or 1.0
    loss.set(title="Loss", ylim=(least - margin, most + margin))
    loss.axhline(reference.loss, color=INK, linestyle="--", linewidth=1)
    violation.axhline(reference.scale, color=INK, linestyle="--", linewidth=1)
    violation.set(title="Largest violation", yscale="log", ylim=(0.8 * floor, 200 * reference.scale))
    ticks = [floor, *(factor * reference.scale for factor in (0.1, 1, 10, 100))]
    violation.set_yticks(ticks, [f"{'≤ ' if tick == floor else ''}{tick:.2g}" for tick in ticks], minor=False)
    for axes in (loss, violation):
        _set_epochs(axes, SHOWN_FROM, problem.epochs)
    legend(names, [loss], ncols=2, columnspacing=1.0, handlelength=1.6)
    figure.set_label(
        f"Loss and violation of every method on {problem.name} along the epochs; the table has the figures"
    )
    return figure


def _spread(count: int) -> Any:
    """Places of the points that are drawn, closer at the beginning as on an axis of logarithms."""
    if count <= MAX_POINTS:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, MAX_POINTS).round().astype(int) - 1)


def _set_epochs(axes: Any, first: float, last: float) -> None:
    axes.set(xscale="log", xlim=(first, max(last, 2 * first)), xlabel="epochs")
    ticks = [tick for tick in EPOCHS if first <= tick <= last]
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()


# How soon targets are reached -----------------------------------------------------------------------------------------


@style()
def profile(summary: Summary, track: str, target: int | None = None) -> Any:
    """The share of (problem, target, seed) that is reached against epochs; of all targets, or of one."""
    figure, (panel, names) = panels(2, 440, 360, columns=2)
    axes, problems = panel.subplots(), [problem.name for problem in summary.board.on(track)]
    for place, i in enumerate(summary.rankings[track].order):
        name, color = summary.board.methods[i].name, COLORS[i % len(COLORS)]
        shares = [_shares(track_hits(summary.board, track, name, problem), target) for problem in problems]
        middle = np.mean([runs.mean(0) for runs in shares], axis=0)
        if place < BANDS:
            axes.fill_between(GRID, *_band(shares), color=color, alpha=0.16, linewidth=0)
        look = {"color": color, "linestyle": DASHES[i // len(COLORS) % 4], "linewidth": 2 if place < BANDS else 1}
        titled(axes.plot(GRID, middle, **look, label=name)[0], f"{name}: {middle[-1]:.0%} at the end")
    axes.set(ylim=(0, 1.02), ylabel="share reached")
    axes.yaxis.set_major_formatter("{x:.0%}")
    _set_epochs(axes, FIRST, LAST)
    legend(names, [axes], ncols=2)
    figure.set_label(
        "Share of problems, targets and seeds reached against epochs, by method; scores are in the ranking"
    )
    return figure


def _shares(hits: Numbers | None, target: int | None) -> Numbers:
    """(R, len(GRID)) the share of a run's targets that is reached."""
    if hits is None or not len(hits):
        return np.zeros((1, len(GRID)))
    chosen = hits if target is None else hits[:, [target]]
    shares: Numbers = (chosen[..., None] <= GRID).mean(1)
    return shares


def _band(shares: Sequence[Numbers]) -> Numbers:
    """(2, len(GRID)) 95 %, by a bootstrap over runs and problems; the same draws for every method."""
    rng = np.random.default_rng(SEED)
    drawn = np.stack([rng.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), DRAWS) @ runs / len(runs)
                      for runs in shares], axis=1)  # fmt: skip
    chosen = rng.integers(len(shares), size=(DRAWS, len(shares)))
    band: Numbers = np.quantile(drawn[np.arange(DRAWS)[:, None], chosen].mean(1), [0.025, 0.975], axis=0)
    return band
