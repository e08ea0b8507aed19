"""Checks that certify what a user adds: an algorithm, a constraint."""

from fairbound.testing._algorithms import check_algorithm
from fairbound.testing._constraints import check_constraint

__all__ = ["check_algorithm", "check_constraint"]
