r"""Stochastic gradient descent, the unconstrained baseline.

    x+ = x - tau_k * grad f(x, xi)

It never asks for the constraints, so they cost nothing. On a problem with a Fairret regularizer it is the paper's
SGD-Fairret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fairbound.algorithms.schedules import Schedule, value
from fairbound.core import NONNEGATIVE, Algorithm, Draw, Estimate, require


class State(NamedTuple):
    k: Tensor  # () step


@dataclass(frozen=True, kw_only=True)
class SGD(Algorithm[State]):
    """Stochastic gradient descent on the objective alone.

    >>> SGD(tau=0.05)
    SGD(tau=0.05)
    """

    evaluates = ("f",)
    is_gradient_step = True
    row_wise = True

    tau: float | Schedule = 0.05  # step; the rate of the paper's Fairret table (none is printed for plain SGD)

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))

    def primal_step(self, state: State) -> float | Tensor:
        return value(self.tau, state.k)

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> State:
        return State(k=x.new_zeros(()))

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        return -value(self.tau, state.k) * e.grad(f=1.0), State(state.k + 1)
