"""Constraints: which examples (cells), which statistic, which contrast, which bound; the named
notions.

>>> demographic_parity(["A", "B"], bound=0.05).names
('A - B', 'B - A')
"""

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import Constraint, FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet, combine
from fairbound.constraints._contrasts import (
    Contrast,
    Matrix,
    against_mean,
    against_pooled,
    each,
    pairwise,
)
from fairbound.constraints._notions import (
    NOTIONS,
    bounded_group_loss,
    demographic_parity,
    demographic_parity_ratio,
    equal_opportunity,
    equalized_odds,
    false_positive_parity,
    function,
    given,
    loss_parity,
    make_constraint,
    maximum_rate,
    minimum_rate,
    pairwise_loss_parity,
    weight_norm,
)
from fairbound.constraints._regularizers import FairretNorm
from fairbound.constraints._statistics import Statistic, soft_positive

__all__ = [
    "NOTIONS",
    "Cell",
    "Cells",
    "Constraint",
    "ConstraintSet",
    "Contrast",
    "FairretNorm",
    "FunctionConstraint",
    "Matrix",
    "MiniBatch",
    "Statistic",
    "against_mean",
    "against_pooled",
    "bounded_group_loss",
    "combine",
    "demographic_parity",
    "demographic_parity_ratio",
    "each",
    "equal_opportunity",
    "equalized_odds",
    "false_positive_parity",
    "function",
    "given",
    "loss_parity",
    "make_constraint",
    "maximum_rate",
    "minimum_rate",
    "pairwise",
    "pairwise_loss_parity",
    "soft_positive",
    "weight_norm",
]
