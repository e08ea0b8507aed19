"""The figures of a board's page: shares, how soon targets are reached, and the runs on one
problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairbound.benchmark._plots import End, draw_ends
from fairbound.benchmark._stored_study import Card
from fairbound.benchmark.board._findings import problem_finding, share_words
from fairbound.benchmark.board._results import Board, InstanceName
from fairbound.benchmark.board._scoring import Numbers
from fairbound.benchmark.board._tables import DIVERGED, means_and_stds
from fairbound.reports._figures import (
    DOT,
    FAINT,
    INK,
    PAPER,
    error_bars,
    label_points,
    legend,
    look,
    panels,
    style,
    thinned,
    titled,
)

_FIRST = 0.01  # of the budget, where axes begin
TICKS = {0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}
_GRID = np.geomspace(_FIRST, 1.0, 30)
_MAX_POINTS = 18  # of a curve
DATA = ("Training data", "Held-out data")


@style()
def scatter(board: Board) -> Any:
    """The share solved of problems as stated against that of changed ones; None without either."""
    if set(board.shares) != {"stated", "changed"}:
        return None
    stated, changed = board.shares["stated"], board.shares["changed"]
    figure, (panel,) = panels(1, 560, 460)
    axes = panel.subplots()
    most = max(0.1, *stated.share, *changed.share) + 0.08
    axes.set(
        xlim=(-0.04, most),
        ylim=(-0.04, most),
        xlabel="share solved, problems as stated",
        ylabel="changed",
    )
    points = list(zip(stated.share.tolist(), changed.share.tolist(), strict=True))
    for i, (name, point) in enumerate(zip(board.names, points, strict=True)):
        error_bars(axes, point, tuple(stated.interval[i]), tuple(changed.interval[i]), FAINT)
        words = f"{name}: {share_words(stated, i)}, {share_words(changed, i)}"
        fill = PAPER if board.methods[i].own_step else DOT
        mark = {"marker": "o", "markersize": 8, "markerfacecolor": fill, "markeredgecolor": DOT}
        titled(axes.plot(*point, **mark, zorder=3, clip_on=False)[0], words)
    label_points(axes, points, board.names, [INK] * len(points))
    figure.set_label(
        "Share of instances solved, as stated and changed: upper right is better. Filled: a"
        " multiplier method under the problem's primal step; hollow: a method with a step of its"
        " own. Bars: 95 % intervals"
    )
    return figure


@style()
def profiles(board: Board) -> Any:
    """The share of (problem, target, run) that is reached against the budget, a panel for each
    class of problems."""
    if not board.families:
        return None
    figure, places = panels(len(board.families) + 1, 380, 330)
    for panel, (family, problems) in zip(places, board.families.items(), strict=False):
        axes = panel.subplots()
        for i, name in enumerate(board.names):
            line = board.profile(name, problems, _GRID)
            titled(
                axes.plot(_GRID, line, **look(i), label=name)[0],
                f"{name}: {line[-1]:.0%} at the end",
            )
        axes.set(title=f"{family.capitalize()} ({len(problems)})", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter("{x:.0%}")
        _set_budget(axes)
    legend(places[-1], [places[0].axes[0]], ncols=2, columnspacing=1.0, handlelength=1.6)
    figure.set_label(
        "Share of (problem, target, run) that is reached within that share of the budget, for each"
        " class of problems as stated; in brackets the number of problems. 25 targets of the merit,"
        " from 0.3 to 0.01; a larger merit counts as not reached. The classes are not added up: a"
        " method may be quick in one and slow in another"
    )
    return figure


def draw_run_ends(board: Board, problem: Card) -> Any:
    """Draw where runs end, on training and on held-out data; None where nothing was measured."""
    parts: dict[str, list[End]] = {part: [] for part in DATA}
    for method in board.names:
        solves = bool(board.solved(method, InstanceName(problem.name)).mean() > 0.5)
        for part, numbers in zip(DATA, _measured_ends(board, method, problem.name), strict=True):
            # else some run diverged
            if numbers and all((np.abs(one) < DIVERGED).all() for one in numbers):
                loss, violation = means_and_stds(numbers).itertuples(index=False)
                parts[part].append(
                    End(method, loss.mean, loss.std, violation.mean, violation.std, solves)
                )
    shown = {part: measured for part, measured in parts.items() if measured}
    if not shown:
        return None
    reference = problem.reference
    widths = (
        max(0.1 * reference.scale, 1e-9),
        max(0.03 * abs(reference.start - reference.loss), 1e-9),
    )
    x_label = "largest excess over the bound" + (
        "" if problem.bound is None else f" of {problem.bound:g}"
    )
    caption = (
        f"{problem.title}. {problem_finding(board, problem)} Loss against violation on"
        f" {problem.name}: lower left is better. Filled: solves it in most runs. Bars: one"
        " standard deviation to each side, over splits, or over seeds where held-out data were not"
        " measured"
    )
    return draw_ends(shown, caption, x_label, widths)


def _measured_ends(
    board: Board, method: str, problem: str
) -> tuple[Sequence[Numbers], Sequence[Numbers]]:
    """Losses and violations of runs, on training and on held-out data."""
    if (method, problem) in board.heldout:
        held = board.heldout[method, problem]
        return (held.train_loss, held.train_violation), (held.loss, held.violation)
    curve = board.curves.get((method, InstanceName(problem)))
    return (() if curve is None else (curve.loss[:, -1], curve.violation[:, -1])), ()


@style()
def draw_curves(board: Board, problem: Card) -> Any:
    """Loss and violation of every method along the budget: medians."""
    reference, instance = problem.reference, InstanceName(problem.name)
    figure, (left, right, names) = panels(3, 360, 330)
    loss, violation = left.subplots(), right.subplots()
    floor, least = 0.01 * reference.scale, reference.loss
    for i, method in enumerate(board.names):
        curve = board.curves.get((method, instance))
        if curve is None:
            continue
        shown = np.flatnonzero(curve.share >= min(_FIRST, curve.share[-1]))
        shares = curve.share[shown := shown[thinned(len(shown), _MAX_POINTS)]]
        solves = bool(board.solved(method, instance).mean() > 0.5)
        for axes, values, lowest in (
            (loss, curve.loss, -math.inf),
            (violation, curve.violation, floor),
        ):
            middle = np.quantile(
                np.nan_to_num(values[:, shown], nan=np.inf), 0.5, axis=0, method="nearest"
            )
            middle = np.where(middle < DIVERGED, np.maximum(middle, lowest), np.nan)
            (line,) = axes.plot(
                shares, middle, **look(i), linewidth=2 if solves else 1, label=method
            )
            titled(line, f"{method}: {middle[-1]:.3g} at the end")
            if axes is loss and np.isfinite(middle).any():
                least = min(least, float(np.nanmin(middle)))
    most = reference.start + 0.15 * abs(reference.start - reference.loss)
    margin = 0.05 * abs(most - least) or 1.0
    loss.set(title="Loss", ylim=sorted((least - margin, most + margin)))
    loss.locator_params(axis="y", nbins=6)
    loss.axhline(reference.loss, color=INK, linestyle="--", linewidth=1)
    violation.axhline(reference.scale, color=INK, linestyle="--", linewidth=1)
    violation.set(
        title="Largest violation", yscale="log", ylim=(0.8 * floor, 200 * reference.scale)
    )
    ticks = [floor, *(factor * reference.scale for factor in (0.1, 1, 10, 100))]
    violation.set_yticks(
        ticks, [f"{'≤ ' if tick == floor else ''}{tick:.2g}" for tick in ticks], minor=False
    )
    for axes in (loss, violation):
        _set_budget(axes)
    legend(names, [loss], ncols=2, columnspacing=1.0, handlelength=1.6)
    figure.set_label(
        f"Loss and violation of every method on {problem.name} along the budget: medians over"
        " seeds; thick: solves the problem in most runs. Dashed: the reference's loss, and the"
        " scale of the constraints"
    )
    return figure


def _set_budget(axes: Any) -> None:
    axes.set(xscale="log", xlim=(_FIRST, 1.0), xlabel="budget used")
    axes.set_xticks(list(TICKS), list(TICKS.values()), minor=False)
    axes.minorticks_off()
