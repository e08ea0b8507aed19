"""Fairness metrics of predictions by group, with intervals."""

from fairbound.metrics._counts import Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._wasserstein import Scores, distances, w1, wd
from fairbound.metrics.fairness_metrics import METRICS, group_rates, metric_intervals, values

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
