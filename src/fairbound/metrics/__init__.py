"""Fairness metrics of predictions by group, with intervals."""

from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import METRICS, group_rates, intervals, values
from fairbound.metrics.group_losses import Losses, group_losses, loss_gaps
from fairbound.metrics.intervals import IntervalEstimate
from fairbound.metrics.wasserstein import Scores, distances, w1, wd

__all__ = [
    "METRICS",
    "Counts",
    "IntervalEstimate",
    "Losses",
    "Scores",
    "distances",
    "group_losses",
    "group_rates",
    "intervals",
    "loss_gaps",
    "values",
    "w1",
    "wd",
]
