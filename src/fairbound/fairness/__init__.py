"""Fairness notions as constraints (who, how, what, how much), subgroups, and metrics with intervals."""

from fairbound.fairness.cells import Cells
from fairbound.fairness.constraints import CellConstraint, Constraint, FunctionConstraint, together
from fairbound.fairness.contrasts import against_mean, against_pooled, pairwise
from fairbound.fairness.counts import Counts
from fairbound.fairness.groups import Against, Attribute, Banded, Coded, Grouping, Intersection
from fairbound.fairness.intervals import Measured
from fairbound.fairness.losses import Losses, group_losses, loss_gaps
from fairbound.fairness.metrics import METRICS, group_rates, intervals, values
from fairbound.fairness.notions import (
    accuracy_equality,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_parity,
    loss_parity,
    true_positive_parity,
)
from fairbound.fairness.regularisers import FairretNorm
from fairbound.fairness.scores import Scores, distances, w1, wd
from fairbound.fairness.values import soft_positive

__all__ = [
    "METRICS",
    "Against",
    "Attribute",
    "Banded",
    "CellConstraint",
    "Cells",
    "Coded",
    "Constraint",
    "Counts",
    "FairretNorm",
    "FunctionConstraint",
    "Grouping",
    "Intersection",
    "Losses",
    "Measured",
    "Scores",
    "accuracy_equality",
    "against_mean",
    "against_pooled",
    "demographic_parity",
    "distances",
    "equal_opportunity",
    "equalized_odds",
    "false_positive_parity",
    "group_losses",
    "group_rates",
    "intervals",
    "loss_gaps",
    "loss_parity",
    "pairwise",
    "soft_positive",
    "together",
    "true_positive_parity",
    "values",
    "w1",
    "wd",
]
