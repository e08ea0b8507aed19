"""A problem as a function of flat parameters, and `run`: one run of a method or thousands at
once."""

from fairbound.training._functional import initial_points, load_flat, make_functional
from fairbound.training._hyperparams import grid
from fairbound.training._problem import Problem
from fairbound.training._records import Record
from fairbound.training._runner import Result, Run, run

__all__ = [
    "Problem",
    "Record",
    "Result",
    "Run",
    "grid",
    "initial_points",
    "load_flat",
    "make_functional",
    "run",
]
