r"""The augmented Lagrangian of Powell, Hestenes and Rockafellar on a tracked constraint value.

    w  = [y + rho u]_+
            u: the value before this mini-batch (`lag=True`), or after it
    x+ = x - tau (grad f(x, xi) + J(x, zeta)' w)
    u+ = (1 - a) u + a (c(x, zeta') - y / alpha)
            zeta' = zeta, or a second draw (`second=True`); u = 0 at the start
    y+ = min(max(y + eta u+, [1 - eta / rho]_+ y), y_max)

For eta <= rho the last line is y + kappa ([y + rho u+]_+ - y) with the gain kappa = eta / rho:
kappa = 1 is the classical multiplier step. It has no 0/0: rho = 0 is projected ascent, and with a =
1 that is `DescentAscent`. Where c = 0 nothing is projected: w = y + rho u, y+ = y + eta u+. There
is no slack: a constraint that does not bind costs nothing.

The function is Rockafellar's (1973), F + sum ([y + rho c]_+^2 - y^2) / (2 rho).

Differs from it: the tracked value, the lag and the gain, for mini-batches (a gain is also in arXiv
2606.07088, by its abstract); eta = rho, a = 1, lag=False is the classical method on one mini-batch.

Its bias: [.]_+ of a noisy value is too large on average, so that x ends on the safe side: w is too
large by up to rho sd(u) / sqrt(2 pi), where y is small. Averaging with a = 0.2 leaves one third of
a mini-batch's noise, the factor sqrt(a / (2 - a)). With `lag=False` the mini-batch of the Jacobian
is also in w: a second bias, rho a times their covariance.

`resilient=alpha` relaxes the bounds by what they cost: min F + alpha/2 |v|^2 s.t. C <= v, whose v
is y / alpha (Hounie, Ribeiro, Chamon 2023). For a problem that may be infeasible: its multipliers
are finite.

With `second=True` and a held-out dual set, everything that weighs the constraints comes from
examples that the primal step never sees.

It oscillates, then diverges, for tau rho |J|^2 >= 1 (2 without lag), and where rho is below the
negative curvature of L (problem P4 of benchmarks/defaults.py needs rho > 1).

The defaults were chosen from 54 settings on P1 to P5 (benchmarks/defaults.py), for constraints of
size 0.1 to 1: divide a larger constraint by its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import CAP, NONNEGATIVE, SHARE, require, require_switch
from fairbound.algorithms.schedules import ForEach, per_constraint
from fairbound.core import MultiplierMethod, Schedule, capped, equality_mask


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    u: Tensor  # (m,) tracked value of the constraints
    k: Tensor  # () step
    capped: Tensor  # () steps after which a multiplier stood at y_max
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class PHRALM(MultiplierMethod[State]):
    """Augmented Lagrangian without slacks, on a running mean of the constraints.

    >>> PHRALM(rho=2.0, eta=2.0, a=1.0, lag=False).draws  # the classical one, on one mini-batch
    1
    """

    solves = "kkt"

    tau: float | Schedule = 0.01  # primal step
    # dual step, or a tuple with one for each constraint; eta = rho is the classical one
    eta: ForEach = 0.3
    rho: float = 2.0  # penalty
    a: float = 0.2  # weight of the newest mini-batch in the tracked value; 1: of it alone
    y_max: float = inf  # cap on every multiplier
    resilient: float = inf  # alpha, what relaxing a bound costs; infinity: no bound is relaxed
    lag: bool = True  # the penalty sees the tracked value without this step's mini-batch
    second: bool = False  # track the constraints of a second, independent draw

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, NONNEGATIVE, "rho")
        require(self, SHARE, "a")
        require(self, CAP, "y_max", "resilient")
        require_switch(self, "lag", "second")

    @property
    def evaluates(self) -> tuple[str, ...]:
        return ("fc", "c") if self.second else ("fc",)

    @property
    def row_wise(self) -> bool:
        return not isinstance(self.eta, tuple)

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        y, u, zero = like.new_zeros(m), like.new_zeros(m), like.new_zeros(())
        return State(y, u, zero, zero.clone(), equality_mask(like, m, equality))

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        c = values[-1]
        y, free = state.y, state.equality > 0
        eta = y.new_zeros(()) + per_constraint(self.eta, state.k, len(c))

        u = (1 - self.a) * state.u + self.a * (c - y / self.resilient)
        w = y + self.rho * (state.u if self.lag else u)
        w = torch.where(free, w, torch.relu(w))

        rho = y.new_zeros(()) + self.rho
        least = y * torch.relu(rho - eta) / rho.clamp(min=torch.finfo(y.dtype).tiny)
        moved = y + eta * u
        y, at_cap = capped(
            torch.where(free, moved, torch.maximum(moved, least)), self.y_max, state.capped
        )
        return w, State(y, u, state.k + 1, at_cap, state.equality)
