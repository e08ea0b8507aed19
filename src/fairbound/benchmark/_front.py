"""The rows of a study that are on the front of loss against violation.

`front_finding` says in words which row has the smallest loss of those that keep the bound, and
whether that is certain.

A row is on the front of a part of the split if no other has both a mean loss and a mean violation
there that are at most as large, one of them smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fairbound._utils.sentences import counted
from fairbound.benchmark._results import Results, student_interval
from fairbound.reports import _words as words

# above the bound: rows within it keep their constraints well enough to be compared by loss
BOUND_TOLERANCE = 0.01


def on_front(points: Sequence[Sequence[float]]) -> list[bool]:
    """Say of each point whether no other dominates it, small numbers being good; those that are not
    finite are never on the front.

    >>> on_front([(0.40, 0.08), (0.41, 0.01), (0.42, 0.01), (0.39, float("nan"))])
    [True, True, False, False]
    """
    finite = [tuple(point) for point in points if np.isfinite(point).all()]

    def dominated(point: tuple[float, ...]) -> bool:
        return any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in finite
        )

    return [bool(np.isfinite(point).all()) and not dominated(tuple(point)) for point in points]


def fronts(results: Results, parts: Sequence[str]) -> pd.Series:
    """Parts, by row, on which no other row has a mean loss and a mean violation at most as large;
    None: on none."""
    rows = results.rows().index
    on: dict[str, list[str]] = {row: [] for row in rows}
    for part in parts:
        summary = results.summary(part).reindex(rows)
        means = summary[[("loss", "mean"), ("violation", "mean")]].to_numpy(dtype=float).tolist()
        for row, strong in zip(rows, on_front(means), strict=True):
            on[row] += [part] * strong
    return pd.Series({row: " and ".join(names) or None for row, names in on.items()}, dtype=object)


# In words -----------------------------------------------------------------------------------------


def front_finding(results: Results) -> str:
    """Say which row has the smallest loss of those near the bound, whether the second differs, and
    how it does on held-out examples."""
    part, words = ("validation", "validation") if results.tuning else ("train", "training")
    summary, bound = results.summary(part), results.bound
    means = summary[[("loss", "mean"), ("violation", "mean")]].set_axis(
        ["loss", "violation"], axis=1
    )
    means = means[np.isfinite(means).all(axis=1)]
    near = means[means["violation"] <= BOUND_TOLERANCE].sort_values("loss", kind="stable")
    if means.empty:
        return "No run ended with finite numbers."
    if near.empty:
        least = means["violation"].idxmin()
        return (
            f"On {words} examples no method ends within {BOUND_TOLERANCE:g} of the bound {bound:g};"
            f" the nearest is {least}, with a violation of {means['violation'][least]:.3f}."
        )
    first, *others = near.index
    said = (
        f"On {words} examples, of the methods that end within {BOUND_TOLERANCE:g} of the bound"
        f" {bound:g}, {first} has the smallest loss ({mean_and_std(summary, first, 'loss')})"
    )
    said += (
        f"; {loss_difference(results, part, first, others[0])}."
        if others
        else "; no other one does."
    )
    if results.tuning or "test" not in results.study.measured:
        return said
    held = results.final[(results.final["part"] == "test") & (results.final["row"] == first)]
    return (
        f"{said} On held-out examples its largest violation is"
        f" {mean_and_std(results.summary('test'), first, 'violation')}; every bound is met in"
        f" {int((held['violation'] == 0).sum())} of {len(held)} runs."
    )


def mean_and_std(summary: pd.DataFrame, row: str, name: str) -> str:
    """Mean and standard deviation over runs."""
    return words.with_deviation(summary[name, "mean"][row], summary[name, "std"][row])


def loss_difference(results: Results, part: str, first: str, second: str) -> str:
    """Runs with the same seed and split are compared with each other."""
    final = results.final[results.final["part"] == part]
    losses = [
        final[final["row"] == row].set_index(["split", "seed"])["loss"] for row in (first, second)
    ]
    apart = (losses[1] - losses[0]).dropna()
    low, high = student_interval(apart.to_numpy())
    pair = f"the difference in loss between the first two, {first} and {second},"
    if math.isnan(low):
        return f"{pair} cannot be judged from one run"
    certain = "is significant" if low > 0 else "is not significant"
    size = words.estimate(apart.mean(), low, high, "{:.3f}".format)
    return f"{pair} {certain}: {size}, 95 % over {counted(len(apart), 'run')}"
