r"""nuPI: descent on the Lagrangian, the multipliers moved by a proportional-integral controller.

    x+  = x - tau (grad f(x, zeta) + J(x, zeta)' y)
            primal step with the old multipliers
    xi+ = nu xi + (1 - nu) c(x, zeta)                                        xi = 0 at the start
    y+  = min([y + eta (K_I c(x, zeta) + K_P (xi+ - xi))]_+, y_max)
            not projected where c = 0

Sohrabi, Ramirez, Zhang, Lacoste-Julien, Gallego-Posada, ICML 2024; the recursion as in Cooper's
`nuPI`, with which a test compares it. K_P damps the oscillation of descent-ascent as a curvature
eta K_P J'J would.

One method, many names: K_P = 0 is `DescentAscent`, a gradient ascent or integral controller; nu = 0
is a PI controller, with K_P = K_I it is optimistic ascent. On equalities nu = 0 is the augmented
Lagrangian method on one mini-batch, in this order the lagged one, to rounding: `SSLALM(samples=1,
lag=True, mu=0.0)` with penalty eta K_P and dual step eta K_I (arXiv 2509.22500 has it for the other
order, by its abstract). On inequalities the two differ where [.]_+ acts.

Differs from it:
- The primal step comes first and uses the old y. After the dual step, y and the Jacobian would
  share a mini-batch, whose covariance biases the multipliers by (K_P (1 - nu) + K_I) eta Var(c). In
  this order there is no bias.
- xi starts at 0, so that the first dual step is eta (K_I + K_P (1 - nu)) c: then no constraint
  depends on when a mini-batch first shows it. The other usual start is xi = c(x_0).

K_P (1 - nu) multiplies the noise of a mini-batch, which nu near 1 averages. Where L(., y*) has
negative curvature (problem P4 of benchmarks/defaults.py) it diverges as descent-ascent does, unless
eta K_P is above that curvature or eta is large beside tau.

The defaults were chosen from 72 settings on P1 to P5 (benchmarks/defaults.py), for constraints of
size 0.1 to 1: divide a larger constraint by its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import BELOW_ONE, CAP, NONNEGATIVE, require
from fairbound.algorithms.schedules import ForEach, per_constraint
from fairbound.core import MultiplierMethod, Schedule, capped, equality_mask


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    xi: Tensor  # (m,) running mean of the constraints
    k: Tensor  # () step
    capped: Tensor  # () steps after which a multiplier stood at y_max
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class NuPI(MultiplierMethod[State]):
    """Descent on the Lagrangian in x, a PI controller on the multipliers.

    >>> NuPI(kp=0.0)  # descent-ascent
    NuPI(tau=0.01, eta=0.3, kp=0.0, ki=1.0, nu=0.9, y_max=inf)
    """

    solves = "kkt"

    tau: float | Schedule = 0.01  # primal step
    eta: ForEach = 0.3  # dual step, or a tuple with one for each constraint
    kp: float = 2.0  # K_P, proportional gain
    ki: float = 1.0  # K_I, integral gain
    nu: float = 0.9  # what the running mean keeps
    y_max: float = inf  # cap on every multiplier

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, NONNEGATIVE, "kp", "ki")
        require(self, BELOW_ONE, "nu")
        require(self, CAP, "y_max")

    @property
    def row_wise(self) -> bool:
        return not isinstance(self.eta, tuple)

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        y, xi, zero = like.new_zeros(m), like.new_zeros(m), like.new_zeros(())
        return State(y, xi, zero, zero.clone(), equality_mask(like, m, equality))

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        (c,) = values
        xi = self.nu * state.xi + (1 - self.nu) * c
        y = state.y + per_constraint(self.eta, state.k, len(c)) * (
            self.ki * c + self.kp * (xi - state.xi)
        )
        y, at_cap = capped(
            torch.where(state.equality > 0, y, torch.relu(y)), self.y_max, state.capped
        )
        return state.y, State(y, xi, state.k + 1, at_cap, state.equality)
