r"""Stochastic gradient descent-ascent on the Lagrangian L(x, y) = F(x) + y'C(x), y_i >= 0 where C_i
<= 0.

    x+ = x - tau_k * (grad f(x, xi) + J(x, zeta)' y)
            primal step with the old multipliers
    y+ = min([y + eta_k * c(x, zeta')]_+, y_max)
            zeta' = zeta, or a second draw (`second=True`)

The primal step acts as one of length tau (1 + sum |y|) on a weighted mean of f and c: with many
constraints, or large multipliers, it grows until it diverges.

The primal step uses the old y: with the new one the same mini-batch would stand in the weight and
in the Jacobian, a hidden one-sample penalty of size eta. A second draw may come from a held-out
dual set, so that examples which the primal step never sees move the multipliers. The multiplier of
an equality is not projected.

The dual step belongs to the size s of c: it acts as eta s^2, which takes some 1 / (eta s^2) steps
to arrive and oscillates above the curvature of L, so no one number serves every size. The default
0.1 is for constraints of size 0.1 to 1, as losses and rates are (benchmarks/defaults.py): divide a
larger constraint by its size.

It diverges where L(., y*) has negative curvature (problem P4 of benchmarks/defaults.py): use an
augmented Lagrangian there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import CAP, NONNEGATIVE, require, require_switch
from fairbound.algorithms.schedules import ForEach, per_constraint
from fairbound.core import MultiplierMethod, Schedule, capped, equality_mask


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    k: Tensor  # () step
    capped: Tensor  # () steps after which a multiplier stood at y_max
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class DescentAscent(MultiplierMethod[State]):
    """Descent on the Lagrangian in x, projected ascent in the multipliers.

    >>> DescentAscent(tau=0.05, eta=0.1).draws
    1
    """

    solves = "kkt"

    tau: float | Schedule = 0.05  # primal step
    eta: ForEach = 0.1  # dual step, or a tuple with one for each constraint
    y_max: float = inf  # cap on every multiplier
    second: bool = False  # move the multipliers by a second, independent draw

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, CAP, "y_max")
        require_switch(self, "second")

    @property
    def evaluates(self) -> tuple[str, ...]:
        return ("fc", "c") if self.second else ("fc",)

    @property
    def row_wise(self) -> bool:
        # a tuple's entries belong to the constraints in their order
        return not isinstance(self.eta, tuple)

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        return State(
            like.new_zeros(m),
            like.new_zeros(()),
            like.new_zeros(()),
            equality_mask(like, m, equality),
        )

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        c = values[-1]
        y = state.y + per_constraint(self.eta, state.k, len(c)) * c
        y, at_cap = capped(
            torch.where(state.equality > 0, y, torch.relu(y)), self.y_max, state.capped
        )
        return state.y, State(y, state.k + 1, at_cap, state.equality)
