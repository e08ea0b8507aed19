r"""Level-constrained moving balls: every step stays inside an upper model of the constraints.

    d = argmin g'd + |d|^2 / (2 tau_k)   s.t.  c_i + J_i d + L_i/2 |d|^2 <= eta_i;
            y = its multipliers
    x+ = x + d

If L_i is a Lipschitz constant of the gradient of C_i, the left side is at least C_i(x + d): with
exact estimates and a feasible start every iterate is feasible (C_i <= eta_i), and so is each x + t
d, t <= 1. The levels eta rise to 0, from half of what the start has:

    eta_i = level_k min(C_i(x_0), 0) - z sd(c_i)

Boob, Deng, Lan, "Level constrained first order methods for function constrained optimization",
Mathematical Programming 209 (2025), arXiv 2205.08011 (known from its abstract; `_subproblems.level`
derives the dual of the subproblem).

Differs from it:
- Mini-batches: g, c and J are running averages with weight a_k, c corrected along the path
  (`_tracking`), and the level has a margin of z standard deviations of the averaged c, from the
  deviations of mini-batches from it. Feasible is then likely, not sure.
- exact=True is for estimates without noise (all examples in every step): no averages, no margin,
  and L_i is twice the largest curvature that was seen, 2 max_k |J_i(x_k) - J_i(x_{k-1})| / |x_k -
  x_{k-1}|. The first step relies on `L`. With mini-batches `L` holds throughout: differences of
  noisy Jacobians say nothing about curvature.
- Where c is above its level nevertheless (a noisy estimate, an L too small) the levels are
  softened, which leads back.

It needs a feasible start with room to move; the drivers warn of another, from which it is led back.
For constraints on gaps in loss between groups a last layer of 0 is one, every group has the same
loss: `initial_points(build, seeds, feasible="zero-last-layer")`, or `zero_last_layer(model)` of
training.functional before a loop. There the learning rate may be below `primal_step`, and the path
stays feasible, not above.

Where it fails: L too small, and the path leaves the feasible set; L too large, and it hardly moves,
for along an active constraint it is gradient descent with the step size 1 / (1/tau + L'y).
Constraints with kinks have no L: with exact=True it leaves the feasible set of P5, and a small ReLU
net stays within its bound but comes to a stop at a kink. A step costs a backward pass for the
objective and one for each group, and the state has 2 + groups vectors of the model's size.
Constraints c <= 0 only.

Defaults: tau and a_k are those of TrackedSQP; 11 settings, one changed at a time, were compared on
P1, P2 and P4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, POSITIVE, UNIT, require, require_switch
from fairbound.algorithms._subproblems.level import level_direction
from fairbound.algorithms._tracking import Averages, absent, combined
from fairbound.algorithms.schedules import ForEach, Power, per_constraint
from fairbound.core import Algorithm, Draw, Estimate, Schedule, refuse_equality, value


class State(NamedTuple):
    averages: Averages
    k: Tensor  # () step
    c0: Tensor  # (m,) c at the start
    var: Tensor  # (m,) variance of one mini-batch's c
    var_mean: Tensor  # (m,) variance of the averaged c
    L: Tensor  # (m,) twice the largest curvature that was seen, for exact=True
    y: Tensor  # (m,) multipliers of the last subproblem
    length: Tensor  # () its |d|: 0 at a stationary point
    outside: Tensor  # () 1 if c was above its level


@dataclass(frozen=True, kw_only=True)
class LevelConstrained(Algorithm[State]):
    """Steps within balls that lie in the feasible set.

    >>> LevelConstrained(exact=True).needs_feasible_start
    True
    """

    solves = "kkt"
    needs_feasible_start = True

    tau: float | Schedule = Power(0.5, 0.6)  # noqa: RUF009  (frozen)  primal step
    # curvature of the constraints; with exact=True for the first step, then it is measured
    L: ForEach = 1.0
    level: float | Schedule = Power(0.5, 1.0)  # noqa: RUF009  (frozen)  share of the start's c in the level
    z: float = 1.0  # standard deviations of the averaged c in the level
    average: float | Schedule = Power(1.0, 0.67)  # noqa: RUF009  (frozen)  a_k, what a new estimate counts
    exact: bool = False  # whether estimates have no noise

    def __post_init__(self) -> None:
        require(self, POSITIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "L", also=(Schedule,), for_each_constraint=True)
        require(self, UNIT, "level", "average", also=(Schedule,))
        require(self, NONNEGATIVE, "z")
        require_switch(self, "exact")

    def primal_step(self, state: State) -> float | Tensor:
        return value(self.tau, state.k)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        refuse_equality(self, equality)
        zero, zeros = x.new_zeros(()), x.new_zeros(m)
        c0 = zeros if first is None else first.c.to(x)
        return State(Averages.start(x, m, first), zero, c0, zeros, zeros, zeros, zeros, zero, zero)

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        first = state.k == 0
        one = torch.ones_like(state.k)
        a = one if self.exact else torch.where(first, one, one * value(self.average, state.k))
        averages, J = state.averages.updated(x, e, a)
        c0 = torch.where(first, averages.c, state.c0)
        var, var_mean = self._variances(state, averages.c, e.c, a)
        measured = (
            self._curvature(state, x, J - combined(e, state.averages.rows))
            if self.exact
            else state.L
        )
        setting = per_constraint(self.L, state.k, len(e.c)) + torch.zeros_like(measured)
        L = torch.where(first, setting, measured) if self.exact else setting
        eta = value(self.level, state.k) * c0.clamp(max=0.0) - self.z * var_mean.sqrt()
        c, L = (
            torch.where(absent(e), torch.minimum(averages.c, eta), averages.c),
            L.masked_fill(absent(e), 0.0),
        )
        solved = level_direction(
            averages.g, c, J, gamma=1 / self.primal_step(state), L=L, level=eta
        )
        outside = (c > eta).any().to(x)
        new = State(
            averages,
            state.k + 1,
            c0,
            var,
            var_mean,
            measured,
            solved.multipliers,
            solved.d.norm(),
            outside,
        )
        return solved.d, new

    def _variances(self, state: State, mean: Tensor, c: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of one mini-batch's c and of the average: c - mean is (1 - a) times c's
        deviation from what was expected.

        At the start, where there is no average, the deviation is that from the first estimate,
        which is as noisy.
        """
        if self.exact:
            return state.var, state.var_mean
        first = state.k == 0
        deviation = torch.where(
            first, (c - state.c0) / 2**0.5, (c - mean) / (1 - a).clamp(min=1e-3)
        )
        var = torch.lerp(state.var, deviation.square(), a)
        return var, (1 - a).square() * state.var_mean + a.square() * var

    def _curvature(self, state: State, x: Tensor, change: Tensor) -> Tensor:
        """Curvature of every row, with exact estimates: twice the largest change of a row of J (m,
        n) against that of x."""
        moved = (x - state.averages.x).norm()
        secant = torch.where(
            moved > 0, 2 * change.norm(dim=-1) / moved.clamp(min=torch.finfo(x.dtype).tiny), 0.0
        )
        return torch.where(state.k > 0, torch.maximum(state.L, secant), state.L)

    def multipliers(self, state: State) -> Tensor:
        return state.y

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"direction": state.length, "outside": state.outside}
