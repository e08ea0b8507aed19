"""What `Constrained` is made of: rows, their statistics, parameters and gradients, saved states, the KKT report."""

from fairbound.loop.kkt import KKT, kkt
from fairbound.loop.rows import Rows

__all__ = ["KKT", "Rows", "kkt"]
