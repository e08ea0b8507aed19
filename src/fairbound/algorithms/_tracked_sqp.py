r"""Tracked SQP: one quadratic subproblem a step, on running averages of (g, c, J) instead of one
mini-batch.

    g, c, J: averages with weight a_k, c corrected to first order as x moves (`_tracking`)
    d = argmin g'd + tau/2 |d|^2   s.t.  c + J d <= r,  |d|_inf <= beta;      y = its multipliers
    x+ = x + alpha_k d

with a right-hand side r that leaves the subproblem a solution:

    "ghost"  r = kappa e,
            kappa = (1 - lam) max_i [c_i]_+ + lam min{ max_i [c_i + J_i d]_+ : |d|_inf <= rho }
    "crz"    r = [c + J v]_+,  v = -t J'[c]_+,
            t the step that reduces |[c + J v]_+| most, at most sigma
    "decay"  r = (1 - gamma) c: linearized constraints decay, J d <= -gamma c

The last two add what is missing, min{ max_i [c_i + J_i d - r_i]_+ : |d|_inf <= rho }, where that is
not 0. `alpha_c` gives a step size of their own to the constraints: v is the shortest d with c + J v
<= r, and x+ = x + alpha_c v + alpha_k (d - v).

Published settings: "ghost" is Ghost's subproblem (Facchinei et al. 2021) on averages as in Debiased
StoSQP (Na, Gao, Ng, Mahoney 2024, gradients and Hessians averaged, box constraints); "crz" is the
step of Curtis, Robinson, Zhou (SIOPT 2024, arXiv 2302.14790); "decay" is feedback linearization
(arXiv 2503.12665); `alpha_c` the two step sizes of O'Neill (arXiv 2408.16656). These have exact
constraints, and mini-batches of them bias d: the averages are what makes d usable.

Differs from them:
- c and J are averaged, and c is corrected along the path, which matters for long averages.
- v of "crz" is one step of steepest descent on |[c + J v]_+|^2 / 2, which is the decrease that the
  method asks for, not the minimizer within a ball.
- alpha_k has no merit function behind it: a schedule. No Hessian: tau I.

The average lags where J moves fast (a network early in training): `least` keeps a_k from falling
further, at the price of noise; the largest violation at the end is set by how long it averages. A
step costs a backward pass for the objective and one for each group, and the state has 2 + groups
vectors of the model's size. An equality is |c_i| as in Stochastic Ghost. In a loop the averages of
a group that a mini-batch lacks wait for the next one that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, require
from fairbound.algorithms._subproblems import ghost_direction
from fairbound.algorithms._tracking import Averages, absent
from fairbound.algorithms.schedules import Power
from fairbound.core import Algorithm, Draw, Estimate, Schedule, equality_mask, value

RIGHT_HAND_SIDES = ("ghost", "crz", "decay")


class State(NamedTuple):
    averages: Averages
    k: Tensor  # () step
    y: Tensor  # (m,) multipliers of the last subproblem
    kappa: Tensor  # () its kappa
    length: Tensor  # () its |d|: 0 at a stationary point
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class TrackedSQP(Algorithm[State]):
    """An SQP step on running averages of gradient, constraints and Jacobian.

    >>> TrackedSQP(rhs="crz").draws
    1
    """

    solves = "kkt"

    alpha: float | Schedule = Power(0.5, 0.6)  # noqa: RUF009  (frozen)  step size
    alpha_c: float | Schedule | None = None  # of the part that repairs the constraints; None: alpha
    average: float | Schedule = Power(1.0, 0.67)  # noqa: RUF009  (frozen)  a_k, what a new estimate counts
    least: float = 0.0  # a_k does not fall below this
    rhs: str = "ghost"  # right-hand side: "ghost", "crz" or "decay"
    tau: float = 1.0  # weight of |d|^2 in the subproblem
    beta: float = 20.0  # largest coordinate of d
    rho: float = 0.1  # largest coordinate in kappa's subproblem
    lam: float = 0.5  # "ghost": share of the attainable violation in kappa
    gamma: float = 0.5  # "decay": share of c that the linear model removes
    sigma: float = 1.0  # "crz": longest step t

    def __post_init__(self) -> None:
        require(self, POSITIVE, "tau", "beta", "rho", "sigma")
        require(self, NONNEGATIVE, "alpha", also=(Schedule,))
        require(self, UNIT, "average", also=(Schedule,))
        require(self, UNIT, "least", "gamma")
        require(self, OPEN_UNIT, "lam")
        if self.alpha_c is not None:
            require(self, UNIT, "alpha_c", also=(Schedule,))
        if self.rhs not in RIGHT_HAND_SIDES:
            raise ValueError(
                f"TrackedSQP: rhs must be one of {', '.join(RIGHT_HAND_SIDES)}, got {self.rhs!r}"
            )
        if self.rho >= self.beta:
            raise ValueError(
                f"TrackedSQP: rho must be smaller than beta, got rho={self.rho} and"
                f" beta={self.beta}"
            )

    def primal_step(self, state: State) -> float | Tensor:
        return value(self.alpha, state.k)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        zero = x.new_zeros(())
        return State(
            Averages.start(x, m, first),
            zero,
            x.new_zeros(m),
            zero,
            zero,
            equality_mask(x, m, equality),
        )

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        a = (x.new_zeros(()) + value(self.average, state.k)).clamp(min=self.least)
        averages, J = state.averages.updated(x, e, torch.where(state.k == 0, 1.0, a))
        c, lam = self._right_hand_side(averages.c.masked_fill(absent(e), 0.0), J, state.equality)
        # The second, of the objective 0, is the shortest d that repairs the constraints.
        g = averages.g if self.alpha_c is None else torch.stack([averages.g, torch.zeros_like(x)])
        solved = ghost_direction(
            g, c, J, tau=self.tau, beta=self.beta, rho=self.rho, lam=lam, equality=state.equality
        )
        alpha = value(self.alpha, state.k)
        if self.alpha_c is None:
            y, kappa, d, step = solved.multipliers, solved.kappa, solved.d, alpha * solved.d
        else:
            y, kappa, (d, v) = solved.multipliers[0], solved.kappa[0], solved.d
            step = value(self.alpha_c, state.k) * v + alpha * (d - v)
        return step, State(averages, state.k + 1, y, kappa, d.norm(), state.equality)

    def _right_hand_side(
        self, c: Tensor, J: Tensor, equality: Tensor
    ) -> tuple[Tensor, float | Tensor]:
        """c - r, and the share of the attainable violation that is left in kappa: d has c - r + J d
        <= kappa."""
        if self.rhs == "ghost":
            return c, self.lam
        if self.rhs == "decay":
            return self.gamma * c, 1.0
        over = torch.where(equality > 0, c, torch.relu(c))
        slope = J @ (over @ J)  # J v = -t slope
        along = torch.where(over != 0, slope, 0.0)
        t = ((over @ slope) / (along @ along).clamp(min=torch.finfo(c.dtype).tiny)).clamp(
            max=self.sigma
        )
        left = c - t * slope
        return c - torch.where(equality > 0, left, torch.relu(left)), 1.0

    def multipliers(self, state: State) -> Tensor:
        return state.y

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"kappa": state.kappa, "direction": state.length}
