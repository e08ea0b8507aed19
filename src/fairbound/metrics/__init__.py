"""Fairness metrics of predictions by group, with intervals."""

from fairbound.metrics._counts import Counts
from fairbound.metrics._group_losses import Losses, group_loss_intervals, loss_gaps
from fairbound.metrics._intervals import IntervalEstimate
from fairbound.metrics._scores import Scores
from fairbound.metrics._wasserstein import largest_w1, largest_wd, w1, wd
from fairbound.metrics.fairness_metrics import METRICS, group_rates, metric_intervals, values

__all__ = [
    "METRICS",
    "Counts",
    "IntervalEstimate",
    "Losses",
    "Scores",
    "group_loss_intervals",
    "group_rates",
    "largest_w1",
    "largest_wd",
    "loss_gaps",
    "metric_intervals",
    "values",
    "w1",
    "wd",
]
