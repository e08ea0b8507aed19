"""Fairness metrics beside Fairlearn's MetricFrame, and subgroups at scale: CPU seconds, contestants
alternating.

    make metrics

195,000 rows, 9 groups. Fairlearn: MetricFrame with 4 metrics (accuracy, selection rate, true and
false positive rate), overall, by group, and their differences. fairbound: the whole table, i.e. 11
rates of every group and 18 metrics. Intervals are timed apart: Fairlearn's are bootstraps of the
whole frame.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from fairlearn import metrics as fairlearn

from fairbound.columns import _codebook as codebook
from fairbound.columns._attributes import Intersection
from fairbound.metrics import metric_intervals
from fairbound.metrics._counts import Counts
from fairbound.metrics.fairness_metrics import group_rates, values

ROWS, GROUPS, ROUNDS = 195_000, 9, 5
TARGET = 500  # times faster than MetricFrame
MANY = 960_360  # rows of the 42-state extract
CENSUS = ("SEX", "RAC1P", "MAR", "AGEP", "SCHL", "POBP")


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, predictions and groups, as integer arrays for both."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, GROUPS, ROWS)
    label = (rng.random(ROWS) < 0.3 + 0.02 * group).astype(np.int64)
    made = (rng.random(ROWS) < 0.2 + 0.5 * label).astype(np.int64)
    return label, made, group


def ours(y: np.ndarray, p: np.ndarray, g: np.ndarray) -> dict[str, float]:
    counts = Counts.of(y, p, g)
    found = values(counts)
    rates = counts.rates()
    assert bool(rates.defined.all())
    return {
        "positive_rate": found["demographic_parity_difference"],
        "equalized_odds": found["equalized_odds_difference"],
        "accuracy": found["accuracy_difference"],
    }


def theirs(y: np.ndarray, p: np.ndarray, g: np.ndarray) -> dict[str, float]:
    frame = fairlearn.MetricFrame(
        metrics={
            "accuracy": lambda a, b: float((a == b).mean()),
            "selection_rate": fairlearn.selection_rate,
            "tpr": fairlearn.true_positive_rate,
            "fpr": fairlearn.false_positive_rate,
        },
        y_true=y,
        y_pred=p,
        sensitive_features=g,
    )
    by, differences = frame.by_group, frame.difference()
    assert len(by) == GROUPS
    return {
        "positive_rate": differences["selection_rate"],
        "equalized_odds": max(differences["tpr"], differences["fpr"]),
        "accuracy": differences["accuracy"],
    }


def cpu(call: Callable[[], object], repeats: int = 1) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def main() -> None:
    torch.set_num_threads(1)
    y, p, g = rows()
    mine, other = ours(y, p, g), theirs(y, p, g)
    worst = max(abs(mine[name] - other[name]) for name in mine)
    times = [(cpu(lambda: ours(y, p, g), 20), cpu(lambda: theirs(y, p, g))) for _ in range(ROUNDS)]
    fast, slow = (statistics.median(side) for side in zip(*times, strict=True))
    print(
        f"{platform.machine()}, {platform.python_version()}, torch {torch.__version__}, 1 thread;"
        " CPU time, medians"
    )
    print(f"values agree to {worst:.1e}")
    print(f"fairbound, the whole table   {fast * 1e3:10.2f} ms")
    print(
        f"Fairlearn, 4 metrics         {slow * 1e3:10.2f} ms   {slow / fast:,.0f}x   (target"
        f" {TARGET}x)"
    )
    counts = Counts.of(y, p, g)
    with_intervals = cpu(lambda: (metric_intervals(counts), group_rates(counts)))
    print(f"with intervals, 10,000 draws {(fast + with_intervals) * 1e3:10.2f} ms")
    by = Intersection(tuple(codebook.attribute(name) for name in CENSUS))
    rng = np.random.default_rng(1)
    columns = {name: _codes(name, rng) for name in CENSUS}
    grouping = statistics.median(cpu(lambda: by.group(columns)) for _ in range(3))
    found = by.group(columns)
    print(f"grouping {MANY:,} random rows by {' x '.join(CENSUS)}: {grouping:.2f} s (target 1 s);")
    print(f"  {found.definable:,} groups definable, {found.populated:,} populated")
    if worst > 1e-12 or slow / fast < TARGET or grouping > 1.0:
        raise SystemExit("a target is missed")


def _codes(name: str, rng: np.random.Generator) -> np.ndarray:
    if name == "AGEP":
        return rng.integers(17, 95, MANY)
    return rng.choice([code for code in codebook.codes(name) if code is not None], MANY)


if __name__ == "__main__":
    main()
