r"""Stochastic gradient descent, the unconstrained baseline.

    x+ = x - tau_k * grad f(x, xi)

It never asks for the constraints, so they cost nothing. On a problem with a Fairret regularizer it
is the paper's SGD-Fairret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, require
from fairbound.core import MultiplierMethod, Schedule


class State(NamedTuple):
    k: Tensor  # () step


@dataclass(frozen=True, kw_only=True)
class SGD(MultiplierMethod[State]):
    """Stochastic gradient descent on the objective alone.

    >>> SGD(tau=0.05)
    SGD(tau=0.05)
    """

    evaluates = ("f",)
    row_wise = True

    # step; the rate of the paper's Fairret table (none is printed for plain SGD)
    tau: float | Schedule = 0.05

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        return State(like.new_zeros(()))

    def step(self, state: State, *values: Tensor) -> tuple[None, State]:
        return None, State(state.k + 1)
