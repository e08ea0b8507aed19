"""The front: accuracy against |gap| for the two rates, log loss against |gap| for the loss, means
over the tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from claims import LOSS_BOUND, RATE_BOUND, SHORT, THRESHOLDS, Results, error, plain
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS, TREES, REDUCED, MOVED, GRAY = "#0b5394", "#c0392b", "#2e7d32", "#8e44ad", "#555555"
# contestant -> (color, marker); hollow: with the group at prediction
STYLE = {
    "fair_classifier": (OURS, "o"),
    "fair_classifier_aware": (OURS, "o"),
    "fair_postprocessor": (TREES, "s"),
    "fair_postprocessor_aware": (TREES, "s"),
    "exponentiated_gradient": (REDUCED, "^"),
    "exponentiated_gradient_tight": (REDUCED, ">"),
    "fairret": (GRAY, "P"),
    "threshold_optimizer": (MOVED, "D"),
    "threshold_optimizer_train": (MOVED, "d"),
    "error_parity": (GRAY, "h"),
    "error_parity_train": (GRAY, "p"),
}
HOLLOW = {"fair_classifier_aware", "fair_postprocessor_aware", *THRESHOLDS}
TITLES = {"demographic_parity": "Demographic parity", "equal_opportunity": "Equal opportunity"}


def draw(results: Results, path: Path) -> None:
    """7 inches wide: readable at 700 pixels."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7, 6.6), layout="constrained")
        grid = figure.subplots(2, 2)
        for ax, notion in zip(grid[0], TITLES, strict=True):
            rates(ax, results, notion)
        loss(grid[1, 0], results)
        legend(grid[1, 1], grid[0, 0], grid[1, 0])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)


def rates(ax: Axes, results: Results, notion: str) -> None:
    bases = {t: results.of("lightgbm", "none", t) for t in results.has("lightgbm", "none")}
    for name, (color, marker) in STYLE.items():
        there = [t for t in results.has(name, notion) if t in bases]
        if not there:
            continue
        rows = {t: results.of(name, notion, t) for t in there}
        cost = [100 * (r["accuracy"] - bases[t]["accuracy"]).mean() for t, r in rows.items()]
        gaps = [r[notion].abs().mean() for r in rows.values()]
        point(ax, gaps, cost, color, marker, SHORT[name], name in HOLLOW)
    gaps = [r[notion].abs().mean() for r in bases.values()]
    point(ax, gaps, [0.0] * len(gaps), "black", "*", "LightGBM, no constraint", hollow=False)
    ax.axvline(RATE_BOUND, color="black", lw=0.8, ls=":")
    ax.set(title=TITLES[notion], xlabel="held-out |gap|", ylabel="accuracy less LightGBM's, points")
    ax.set_xlim(left=0)


def loss(ax: Axes, results: Results) -> None:
    """Each table's |mean gap| over splits, then the mean over tables."""
    for name, label in (("fair_classifier", "network"), ("fair_postprocessor", "LightGBM")):
        there = results.has(name, "loss")
        if not there:
            continue
        color, marker = STYLE[name]
        rows = [results.of(name, "loss", t) for t in there]
        rise = [r["log_loss"].mean() - plain(r, "log_loss").mean() for r in rows]
        point(
            ax,
            [abs(r["loss"].mean()) for r in rows],
            rise,
            color,
            marker,
            SHORT[name],
            hollow=False,
        )
        curves = np.array(
            [[[(p["log_loss"], p["loss"]) for p in c] for c in r["temperatures"]] for r in rows]
        ).mean(1)
        x, y = np.abs(curves[:, :, 1]).mean(0), (curves[:, :, 0] - curves[:, :1, 0]).mean(0)
        ax.plot(x, y, color=color, lw=1, marker=".", ms=4, label=f"one temperature, {label}")
        ax.plot(x[0], 0, color=color, marker="*", ms=9)
    ax.axvline(LOSS_BOUND, color="black", lw=0.8, ls=":")
    ax.axhline(0.06, color="black", lw=0.8, ls=":")
    ax.set(title="Loss gap", xlabel="held-out |gap|", ylabel="log loss less unconstrained")
    ax.set_xlim(left=0)
    ax.set_ylim(-0.01, 0.2)


def point(
    ax: Axes, x: list[float], y: list[float], color: str, marker: str, label: str, hollow: bool
) -> None:  # mean over tables, bars of one standard error
    ax.errorbar(
        np.mean(x),
        np.mean(y),
        xerr=error(x),
        yerr=error(y),
        color=color,
        marker=marker,
        mfc="white" if hollow else color,
        ms=7,
        lw=0,
        elinewidth=0.8,
        label=label,
        zorder=3,
    )


def legend(ax: Axes, *drawn: Axes) -> None:
    ax.axis("off")
    entries = {
        label: handle
        for one in drawn
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True)
    }
    note = (
        "star: no constraint; hollow: the group at prediction\nbars: one standard error over"
        " tables; dotted: bounds"
    )
    ax.legend(
        entries.values(),
        entries.keys(),
        loc="center left",
        frameon=False,
        fontsize=8,
        title=note,
        title_fontsize=7.5,
        alignment="left",
        labelspacing=0.35,
    )
