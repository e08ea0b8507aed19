r"""Stochastic gradient descent-ascent on the Lagrangian L(x, y) = F(x) + y'C(x), y_i >= 0 where C_i <= 0.

    x+ = x - tau_k * (grad f(x, xi) + J(x, zeta)' y)             primal step with the old multipliers
    y+ = min([y + eta_k * c(x, zeta')]_+, y_max)                 zeta' = zeta, or a second draw (`second=True`)

The primal step acts as one of length tau (1 + sum |y|) on a weighted mean of f and c: with many constraints, or large
multipliers, it grows until it diverges. `normalized_step=True` divides by that sum, x+ = x - tau_k / (1 + sum |y|) *
(...), which moves no fixed point.

The primal step uses the old y: with the new one the same mini-batch would stand in the weight and in the Jacobian, a
hidden one-sample penalty of size eta (algorithms.md, C1). A second draw may come from a held-out dual set, so that the
multipliers are moved by examples that the primal step never sees. The multiplier of an equality is not projected.

The dual step belongs to the size s of c: it acts as eta s^2, which takes some 1 / (eta s^2) steps to arrive and
oscillates above the curvature of L, so no one number serves every size. The default .1 is for constraints of size .1 to
1, as losses and rates are: on P1, P2, P3 and P5 of the known answers the mean of 10,000 steps ends within .09 of
|x_0 - x*|, with noise or without; .005 leaves .18 to .87 at size .1. At size 10 it is .04 to .13, with noise .20 to .46
(.005: .06), and at size 50 it diverges: divide such a constraint by its size (benchmarks/defaults.py).

It diverges where L(., y*) has negative curvature (problem P4 of the known answers): use an augmented Lagrangian there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.algorithms.schedules import ForEach, Schedule, value, values
from fairbound.core import CAP, NONNEGATIVE, Algorithm, Draw, Estimate, equality_mask, require, require_switch


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    k: Tensor  # () step
    capped: Tensor  # () steps after which a multiplier stood at y_max
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class DescentAscent(Algorithm[State]):
    """Descent on the Lagrangian in x, projected ascent in the multipliers.

    >>> DescentAscent(tau=0.05, eta=0.1).draws
    1
    """

    solves = "kkt"
    is_gradient_step = True
    dual = ("y",)

    tau: float | Schedule = 0.05  # primal step
    eta: ForEach = 0.1  # dual step, or a tuple with one for each constraint
    y_max: float = inf  # cap on every multiplier
    second: bool = False  # move the multipliers by a second, independent draw
    normalized_step: bool = False  # divide the primal step by 1 + sum |y|

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, CAP, "y_max")
        require_switch(self, "second", "normalized_step")

    @property
    def draws(self) -> int:
        return 2 if self.second else 1

    @property
    def evaluates(self) -> tuple[str, ...]:
        return ("fc", "c") if self.second else ("fc",)

    @property
    def row_wise(self) -> bool:
        # a tuple's entries belong to the constraints in their order; 1 + sum |y| is of all of them
        return not isinstance(self.eta, tuple) and not self.normalized_step

    def primal_step(self, state: State) -> float | Tensor:
        return value(self.tau, state.k)

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> State:
        return State(x.new_zeros(m), x.new_zeros(()), x.new_zeros(()), equality_mask(x, m, equality))

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        estimates = [sample(x) for sample in draw.unpack(self)]
        e, c = estimates[0], estimates[-1].c
        total = 1 + state.y.abs().sum() if self.normalized_step else 1.0
        d = -value(self.tau, state.k) * e.grad(f=1 / total, c=state.y / total)
        y = state.y + values(self.eta, state.k, len(c)) * c
        y = torch.where(state.equality > 0, y, torch.relu(y)).clamp(-self.y_max, self.y_max)
        return d, State(y, state.k + 1, state.capped + (y.abs() >= self.y_max).any(), state.equality)

    def multipliers(self, state: State) -> Tensor:
        return state.y

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"capped": state.capped}
