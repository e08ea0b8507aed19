"""Train neural networks within bounds: stochastic algorithms for `min E f(x) s.t. E c(x) <= 0`."""

from fairbound.algorithms import ALGORITHMS
from fairbound.auditing import Audit, audit, audit_columns
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.data import Dataset, Split
from fairbound.modules import functional, initial_points, load_flat
from fairbound.problem import Problem
from fairbound.runner import Result, Run, run
from fairbound.sampling import Sampler, Take
from fairbound.stacking import grid
from fairbound.stepping import Record

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Audit",
    "Dataset",
    "Draw",
    "Estimate",
    "Problem",
    "Record",
    "Result",
    "Run",
    "Sample",
    "Sampler",
    "Split",
    "Take",
    "audit",
    "audit_columns",
    "functional",
    "grid",
    "initial_points",
    "load_flat",
    "run",
]
