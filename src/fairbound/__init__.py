"""Train neural networks within bounds: stochastic algorithms for `min E f(x) s.t. E c(x) <= 0`."""

from fairbound.algorithms import (
    ALGORITHMS,
    SGD,
    SSLALM,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.auditing import Audit, audit, audit_columns
from fairbound.balanced import BalancedBatches
from fairbound.constrained import Constrained
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.data import Dataset, Split
from fairbound.fairness import limits
from fairbound.loop import KKT, Rows, kkt
from fairbound.modules import functional, initial_points, load_flat
from fairbound.problem import Problem
from fairbound.recorded import Record
from fairbound.runner import Result, Run, run
from fairbound.sampling import Sampler, Take
from fairbound.stacking import grid
from fairbound.verdicts import Verdict, verdict

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "KKT",
    "SGD",
    "SSLALM",
    "Algorithm",
    "Audit",
    "BalancedBatches",
    "Constrained",
    "Dataset",
    "DescentAscent",
    "Draw",
    "Estimate",
    "Penalty",
    "Problem",
    "Record",
    "Result",
    "Rows",
    "Run",
    "Sample",
    "Sampler",
    "Split",
    "StochasticGhost",
    "SwitchingSubgradient",
    "Take",
    "Verdict",
    "audit",
    "audit_columns",
    "functional",
    "grid",
    "initial_points",
    "kkt",
    "limits",
    "load_flat",
    "run",
    "verdict",
]
