r"""SSL-ALM: the stochastic smoothed and linearized augmented Lagrangian method, with slacks for c
<= 0.

    y+ = y + eta (c(x, zeta0) + s);  y+ = 0 if |y+| >= M_y
    w  = y+ + rho (c(x, zeta2) + s)
    x+ = x - tau (grad f(x, xi) + J(x, zeta1)' w + mu (x - z_x))
    s+ = [s - tau (w + mu (s - z_s))]_+
    z+ = z + beta ((x, s) - z)                                   with the old (x, s)

Huang, Zhang, Alacaoglu, ICML 2025 (arXiv 2504.07607), Algorithm 2, for E c(x) + s = 0, s >= 0; the
paper's Algorithm 2 and eq. (defG). An equality E c(x) = 0 has no slack. mu = 0 is the plain
augmented Lagrangian method, the paper's "ALM".

`lag=True` takes the penalty's value from the previous mini-batch, and moves y after x, on one
mini-batch a step:

    w  = y + rho r;  x+, s+, z+ as above
    r+ = c(x, zeta) + s;  y+ = y + eta r+;  y+ = 0 if |y+| >= M_y          r: 0 at the start

Differs from it:
- `samples=2` is the paper's: zeta0 = zeta1, zeta2 independent. `samples=3` is the original's: all
  three independent. `samples=1` uses one mini-batch for everything: cheapest, and its multipliers
  are off by (rho + eta) Var(c).
- `lag=True`, with `samples=1`, is ours: y and r are functions of the past, independent of the
  mini-batch whose Jacobian they weigh, so that one mini-batch is unbiased. The price is a delay of
  one step: stable for tau rho |J|^2 < 1, where the other forms have 2 (plus 1 in |J|^2 while the
  slack moves).
- The defaults are for constraints of size 0.1 to 1, with a penalty that is stable up to 10 (tau rho
  |J|^2 below 2); divide a larger constraint by its size (benchmarks/defaults.py). M_y = 10 is below
  the multipliers of a small c, so it is off.
- `clamp=True` scales y back to the ball |y| <= M_y instead of starting again from 0. Either way the
  event is counted.
- `slack_from_first=True` starts the slacks at [-c(x0)]_+ instead of 0: from 0 a strictly feasible
  start is pulled to the boundary until the slack has caught up. A custom loop gives that estimate
  as `init(x, m, first=sample(x))`; without it the slacks start at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import CAP, NONNEGATIVE, UNIT, require, require_switch, require_whole
from fairbound.algorithms.schedules import ForEach, per_constraint
from fairbound.core import MultiplierMethod, Schedule, equality_mask, value


class State(NamedTuple):
    y: Tensor  # (m,) multipliers, free in sign
    s: Tensor  # (m,) slacks, >= 0
    r: Tensor  # (m,) c + s of the last step, for the lag
    zs: Tensor  # (m,) smoothed s
    k: Tensor  # () step
    resets: Tensor  # () times the multipliers met M_y
    equality: Tensor  # (m,) 1 where c = 0, which has no slack; 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class SSLALM(MultiplierMethod[State]):
    """Smoothed, linearized augmented Lagrangian; `mu=0.0` is the plain ALM.

    >>> SSLALM(mu=0.0).draws
    2
    """

    solves = "kkt"

    tau: float | Schedule = 0.01  # primal step
    eta: ForEach = 0.1  # dual step, or a tuple with one for each constraint
    rho: float = 0.3  # penalty
    mu: float = 2.0  # smoothing weight
    beta: float = 0.5  # smoothing rate
    y_max: float = inf  # dual safeguard, M_y; the paper has 10
    # mini-batches a step: 2 as the paper, 3 as the original, 1 for everything (biased without lag)
    samples: int = 2
    # the penalty's value is the previous mini-batch's; for samples=1, which is then unbiased
    lag: bool = False
    clamp: bool = False  # scale the multipliers back to M_y instead of resetting them to 0
    slack_from_first: bool = True  # start the slacks at the first estimate instead of 0

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, NONNEGATIVE, "rho", "mu")
        require(self, UNIT, "beta")
        require(self, CAP, "y_max")
        require_whole(self, 1, 3, "samples")
        require_switch(self, "lag", "clamp", "slack_from_first")
        if self.lag and self.samples != 1:
            raise ValueError(
                f"SSLALM: lag=True makes one mini-batch a step unbiased, and samples={self.samples}"
                " draws more; use samples=1 with it, or lag=False"
            )

    @property
    def evaluates(self) -> tuple[str, ...]:
        return {1: ("fc",), 2: ("fc", "c"), 3: ("c", "fc", "c")}[self.samples]

    @property
    def row_wise(self) -> bool:
        # y_max bounds the norm of all multipliers
        return self.y_max == inf and not isinstance(self.eta, tuple)

    @property
    def smoothing(self) -> tuple[float, float] | None:
        # A stack of runs, whose mu is a tensor, always smooths.
        return (self.mu, self.beta) if isinstance(self.mu, Tensor) or self.mu != 0 else None

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        y, equality = like.new_zeros(m), equality_mask(like, m, equality)
        s = y if first is None or not self.slack_from_first else (1 - equality) * torch.relu(-first)
        return State(y, s, y.clone(), s.clone(), like.new_zeros(()), like.new_zeros(()), equality)

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        c_dual, c_penalty = values[0], values[-1]  # zeta0 and zeta2; the gradient is that of zeta1

        y = state.y + per_constraint(self.eta, state.k, len(c_dual)) * (c_dual + state.s)
        norm = torch.linalg.vector_norm(y)
        over = norm >= self.y_max
        y = (
            torch.where(over, y * (self.y_max / norm), y)
            if self.clamp
            else y.masked_fill(over, 0.0)
        )
        r = c_penalty + state.s
        w = state.y + self.rho * state.r if self.lag else y + self.rho * r

        tau = value(self.tau, state.k)
        s = (1 - state.equality) * torch.relu(state.s - tau * (w + self.mu * (state.s - state.zs)))
        zs = torch.lerp(state.zs, state.s, self.beta)
        return w, State(y, s, r, zs, state.k + 1, state.resets + over, state.equality)
