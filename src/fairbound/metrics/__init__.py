"""Fairness metrics of predictions by group, with intervals."""

from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import METRICS, group_rates, metric_intervals, values
from fairbound.metrics.group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics.intervals import IntervalEstimate
from fairbound.metrics.wasserstein import Scores, distances, w1, wd

__all__ = [
    "METRICS",
    "Counts",
    "IntervalEstimate",
    "Losses",
    "Scores",
    "distances",
    "group_loss_intervals",
    "group_rates",
    "loss_gaps",
    "metric_intervals",
    "values",
    "w1",
    "wd",
]
