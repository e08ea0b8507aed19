r"""A proportional-integral controller of the multipliers whose gains are measured: it has no
setting to tune.

The driver measures two sizes of every constraint (`Sizes`): Y_i, the multiplier at which c_i pulls
as hard as f, and r_i, by how much one step of the optimizer can change c_i. With a horizon of T
steps, u a running mean of c, and sigma the standard deviation of u, the error of a constraint is
its value in units of what T steps can repair:

    e  = clip(u / (T r + 2 sigma), -1, 1)
    e  = e / max(1, |e|_A)
            A: those that pull, e > 0 or y > 0; together as hard as one at most
    w  = [y + 2 Y e]_+                the weights of this step: x moves along grad f + J'w
    y+ = [y + Y e / T_I]_+
            T_I = clip(k / 10, T, 3 T) at step k: fast at first, then slower against noise
    u+ = (u + c) / 2,   v+ = v + ((c - u)^2 - v) / 50,   sigma^2 = v / 3

Equalities are not projected, and always pull. u is that of earlier mini-batches, independent of
this one's Jacobian, so one mini-batch serves for everything without bias.

Why these gains: w / Y - 1 moves c by about -r a step, so that c' = -r (y / Y - 1) - 2 c / T and y'
= Y c / (r T T_I). Both poles are real and negative: -1/T twice at T_I = T (critical damping), 1/T
times -1 +- sqrt(2/3) at T_I = 3 T, whatever the units of f and c: c -> s c turns Y into Y / s and r
into s r, and x does not change. T is the only time scale. Noise counts as reach: where 2 sigma
exceeds T r, the gains fall with it.

The proportional part is that of nuPI (Sohrabi et al., ICML 2024), equal to an augmented
Lagrangian's penalty; the gains follow pole placement for an integrating plant (Skogestad, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, POSITIVE, require
from fairbound.core import MultiplierMethod, Schedule, Sizes, equality_mask

GAIN = 2.0  # of the proportional part: critical damping
# horizons in which the integral part follows after 30 of them; at first 1, critical damping
INTEGRAL = 3.0
_NOISE = 2.0  # standard deviations of u that count as reach
_MEMORY = 50.0  # mini-batches over which the variance of c is estimated


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    u: Tensor  # (m,) running mean of c
    v: Tensor  # (m,) variance of c over mini-batches
    n: Tensor  # (m,) mini-batches that showed it
    # () the largest |y_i| / Y_i of a constraint whose u exceeds its noise: it pulls, and stays
    # violated
    force: Tensor
    k: Tensor  # () step
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class AdaptivePI(MultiplierMethod[State]):
    """PI control of the multipliers in measured units: nothing to tune.

    >>> AdaptivePI().draws
    1
    """

    solves = "kkt"
    measures = True
    row_wise = True  # but for rows that pull together: they are those of the same mini-batch

    tau: float | Schedule = 0.05  # primal step, where no other primal is given
    horizon: float = 20.0  # T, the steps in which a violation is to be repaired

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, POSITIVE, "horizon")

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        rows, scalar = like.new_zeros(m), like.new_zeros(())
        return State(rows, rows, rows, rows, scalar, scalar, equality_mask(like, m, equality))

    def step(
        self, state: State, *values: Tensor, sizes: Sizes | None = None
    ) -> tuple[Tensor, State]:
        (c,), (y, u, v, n, _, k, equality) = values, state
        Y, r = Sizes(torch.zeros_like(c), torch.zeros_like(c)) if sizes is None else sizes
        tiny, free = torch.finfo(c.dtype).tiny, equality > 0

        noise = _NOISE * (v / 3).sqrt()
        scale = self.horizon * r + noise
        e = (u / scale.clamp(min=tiny)).clamp(-1.0, 1.0) * (r > 0)
        pulls = (e > 0) | (y > 0) | free
        e = e / torch.linalg.vector_norm(e * pulls).clamp(min=1.0)
        T_I = torch.clamp(k / 10, self.horizon, INTEGRAL * self.horizon)
        pull = Y * e
        w, y = (torch.where(free, q, torch.relu(q)) for q in (y + GAIN * pull, y + pull / T_I))
        violated = torch.where(free, u.abs(), u) > noise
        force = torch.where(violated & (Y > 0), y.abs() / Y, 0.0).amax() if len(c) else state.force

        later = n > 0
        v = v + later * ((c - u).square() - v) / n.clamp(min=1.0, max=_MEMORY)
        u = torch.where(later, (u + c) / 2, c)
        return w, State(y, u, v, n + 1, force, k + 1, equality)

    def noise(self, state: State, sizes: Sizes) -> Tensor:
        """(m,) what counts as noise, in units of what T steps can change: above 1 the method acts
        more slowly."""
        reach = (self.horizon * sizes.reach).clamp(min=torch.finfo(state.v.dtype).tiny)
        return torch.where(sizes.reach > 0, _NOISE * (state.v / 3).sqrt() / reach, 0.0)
