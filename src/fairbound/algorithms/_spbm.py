r"""SPBM: the stochastic penalty-barrier method, for c <= 0 with multipliers that stay positive.

    L(x, y, p) = f(x) + sum_i y_i p_i phi(c_i(x) / p_i)
    x+ = x - tau (grad f(x, xi) + J(x, zeta)' (y * phi'(t))),    t = min(c(x, zeta) / p, t_max)
    y+ = clip((1 - eta) y + eta y phi'(t), y_min, y_max)
    p+ = clip(p (K + (1 - K) / phi'(c(x, zeta))) F_k, p_min, p_0),
            F_k = F after every epoch, else 1

    phi'(t) = 1 + t  for t >= -1/2,   -1 / (4 t)  below            quadratic-logarithmic
    phi'(t) = 1 + t  for t >= -1/3,   (32/27) / (1 - t)^2  below
            quadratic-reciprocal (`reciprocal=True`)

phi is a quadratic penalty where c > 0 and a barrier's branch, which has no pole, where c < 0;
phi'(0) = 1 makes y* a fixed point. K = F = 1 keep p (the default); K < 1 (`adapt`) lowers p where c
> 0 and raises it where c < 0; F < 1 (`shrink`) multiplies it after every epoch, of `every` steps.
Near c = 0 it is an augmented Lagrangian with rho = y / p.

Bosak et al. 2026 (arXiv 2605.18618); the functions and updates as in the authors' package
humancompatible-train, PBM, with whose steps a test compares ours.

Differs from it:
- eta is 1 - gamma there. Its gamma that tends to 1 over the epochs is an eta that falls, a schedule
  here.
- t_max bounds phi' by 1 + t_max; infinity is the method as published. Far from feasible its
  quadratic branch makes steps of size y c / p and moves y by as much, so that both explode in a few
  steps. Clipped, phi is linear from c = t_max p on. Where the noise of c exceeds p this weighs the
  signs of the mini-batches' values instead of their mean: no bias if the noise is symmetric, too
  small a weight if it has a long tail upwards. Raise t_max or p there.
- y starts at 1 instead of its floor, 1e-9 there: a multiplicative step takes log(y* / y) / log(1 +
  eta t) steps.

A multiplier of 0 would stay 0, hence the floor y_min, which keeps a pull of y_min phi' on
constraints that do not bind. An equality has no interior for the barrier: refused; |c| <= tolerance
are two inequalities.

Its bias: phi'(c) and J share a mini-batch, and phi' is convex below 0: x ends on the safe side by
O(Var(c) / p). It oscillates for tau y |J|^2 / p >= 2. Where L has negative curvature it needs y
|J|^2 / p above it: P4 with p < 1.

The defaults were chosen from 83 settings on P1 to P5 (benchmarks/defaults.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import (
    CAP,
    NONNEGATIVE,
    POSITIVE,
    SHARE,
    UNIT,
    require,
    require_switch,
    require_whole,
)
from fairbound.algorithms.schedules import ForEach, per_constraint
from fairbound.core import MultiplierMethod, Schedule, refuse_equality


def log_slope(t: Tensor) -> Tensor:
    """phi' of the quadratic-logarithmic penalty-barrier; both branches are finite everywhere."""
    return torch.where(t >= -0.5, 1 + t, -0.25 / t.clamp(max=-0.5))


def reciprocal_slope(t: Tensor) -> Tensor:
    """phi' of the quadratic-reciprocal one."""
    return torch.where(t >= -1 / 3, 1 + t, (32 / 27) / (1 - t.clamp(max=-1 / 3)) ** 2)


class State(NamedTuple):
    y: Tensor  # (m,) multipliers, > 0
    p: Tensor  # (m,) penalties
    k: Tensor  # () step
    capped: Tensor  # () steps after which a multiplier stood at y_max


@dataclass(frozen=True, kw_only=True)
class SPBM(MultiplierMethod[State]):
    """Penalty-barrier method with multiplicative steps of the multipliers.

    >>> SPBM(p=0.5).draws
    1
    """

    solves = "kkt"

    tau: float | Schedule = 0.01  # primal step
    # dual step, from 0 to 1, or a tuple with one for each constraint; 1 - gamma of the paper
    eta: ForEach = 0.05
    p: float = 0.5  # penalty at the start, in the unit of c, and its largest value
    adapt: float = 1.0  # K, what an adaptive penalty keeps a step; 1: not adaptive
    shrink: float = 1.0  # F, factor of the penalty after every epoch
    every: int = 1  # steps of an epoch
    p_min: float = 0.01  # smallest value of the penalty
    t_max: float = 2.0  # largest c / p that phi' sees; infinity: as published
    y_start: float = 1.0  # multipliers at the start, if y_max allows it
    y_min: float = 1e-6  # floor of every multiplier
    y_max: float = 1e3  # cap on every multiplier
    reciprocal: bool = False  # quadratic-reciprocal instead of quadratic-logarithmic

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, UNIT, "eta", also=(Schedule,), for_each_constraint=True)
        require(self, POSITIVE, "p", "p_min", "y_start", "y_min")
        require(self, UNIT, "adapt")
        require(self, SHARE, "shrink")
        require(self, CAP, "t_max", "y_max")
        require_whole(self, 1, None, "every")
        require_switch(self, "reciprocal")
        for low, high in (("p_min", "p"), ("y_min", "y_max")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"SPBM: {low} must be at most {high}, got {getattr(self, low):g} and"
                    f" {getattr(self, high):g}; lower {low} or raise {high}"
                )

    @property
    def row_wise(self) -> bool:
        return not isinstance(self.eta, tuple)

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        refuse_equality(self, equality)
        y = (like.new_zeros(m) + self.y_start).clamp(max=self.y_max)
        return State(y, like.new_zeros(m) + self.p, like.new_zeros(()), like.new_zeros(()))

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        (c,) = values
        slope = reciprocal_slope if self.reciprocal else log_slope
        eta = per_constraint(self.eta, state.k, len(c))

        w = state.y * slope((c / state.p).clamp(max=self.t_max))
        y = (state.y + eta * (w - state.y)).clamp(min=self.y_min).clamp(max=self.y_max)
        epoch_ends = (torch.remainder(state.k + 1, self.every) == 0).to(state.p)
        p = state.p * (self.adapt + (1 - self.adapt) / slope(c)) * self.shrink**epoch_ends
        p = p.clamp(min=self.p_min).clamp(max=self.p)
        return w, State(y, p, state.k + 1, state.capped + (y >= self.y_max).any())
