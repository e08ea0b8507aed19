"""Fairness notions as constraints: who (cells), how (contrast), what (value), how much (bound)."""

from fairbound.fairness.cells import Cells
from fairbound.fairness.constraints import (
    CellConstraint,
    Constraint,
    FunctionConstraint,
    accuracy_equality,
    against_mean,
    against_pooled,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    false_positive_parity,
    loss_parity,
    pairwise,
    soft_positive,
    together,
    true_positive_parity,
)
from fairbound.fairness.regularisers import FairretNorm

__all__ = [
    "CellConstraint",
    "Cells",
    "Constraint",
    "FairretNorm",
    "FunctionConstraint",
    "accuracy_equality",
    "against_mean",
    "against_pooled",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "false_positive_parity",
    "loss_parity",
    "pairwise",
    "soft_positive",
    "together",
    "true_positive_parity",
]
