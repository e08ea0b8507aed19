"""Fairness notions as constraints (who, how, what, how much), subgroups, and metrics with intervals."""

from fairbound.constraints.cells import Cells
from fairbound.constraints.constraint import CellConstraint, Constraint, FunctionConstraint, combine
from fairbound.constraints.contrasts import against_mean, against_pooled, pairwise
from fairbound.constraints.notions import (
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_parity,
    loss_parity,
    pairwise_loss_parity,
    true_positive_parity,
)
from fairbound.constraints.regularizers import FairretNorm
from fairbound.constraints.statistics import soft_positive
from fairbound.constraints.subgroups import Against, Attribute, Banded, Coded, Grouping, Intersection

__all__ = [
    "Against",
    "Attribute",
    "Banded",
    "CellConstraint",
    "Cells",
    "Coded",
    "Constraint",
    "FairretNorm",
    "FunctionConstraint",
    "Grouping",
    "Intersection",
    "against_mean",
    "against_pooled",
    "combine",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "false_positive_parity",
    "loss_parity",
    "pairwise",
    "pairwise_loss_parity",
    "soft_positive",
    "true_positive_parity",
]
