r"""Exact penalty on tracked constraint values: SGD on F + weight sum_i h(C_i), h a smoothed hinge.

    u+ = (1 - g) u + g c(x, xi)
            tracked values; g = max(gamma, 1 / (k + 1))
    w  = weight * clip(u+ / nu, 0, 1)
    x+ = x - tau_k * (grad f(x, xi) + J(x, xi)' w)

An equality is penalized by |c|: clip(u / nu, -1, 1). The multipliers are a running mean of w (1 % a
step), which itself jumps between 0 and `weight` where tau weight |J|^2 > nu. h'(u) = clip(u / nu,
0, 1), so h is quadratic up to nu.

Liu and Xu (arXiv 2501.19214), Yang et al. (2504.15243) and the momentum form of 2506.02504 track c
in an exact penalty. Only their abstracts were read, so this is the idea and not one of their
algorithms: a plain average (momentum), without the correction by a second point (STORM, MSVR) and
without restarts with large mini-batches (SPIDER).

Differs from `Penalty`, the hinge of one mini-batch: that is gamma = 1, whose noise alone makes it
positive, and whose limit lies inside the feasible set. The bias falls with the standard deviation
of u, by sqrt(gamma / (2 - gamma)). The current mini-batch has the share g in u: with u of the
mini-batches before alone the bias is the same, and the delay destabilizes.

It reaches the KKT point where `weight` exceeds every multiplier, up to a violation of nu y /
weight. Otherwise it stops at the minimizer of F + weight sum [C]_+: `diagnostics` then reports a
penalty that stands at its full weight. It does not raise the weight by itself: on noisy values that
is a ratchet, and on an infeasible problem it has no end.

The defaults were chosen on P1 to P5 for constraints of size 1 and multipliers up to 5
(benchmarks/defaults.py). No weight serves every size, as for `Penalty`. Where tau weight |J|^2 > nu
it circles within about tau weight |J|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, POSITIVE, UNIT, require
from fairbound.core import Iterate, MultiplierMethod, Schedule, equality_mask, inner, value

MEAN = 0.01  # rate of the running mean of w


class State(NamedTuple):
    u: Tensor  # (m,) tracked values of c
    y: Tensor  # (m,) running mean of the weights w
    k: Tensor  # () step
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class ExactPenalty(MultiplierMethod[State]):
    """SGD on the objective plus `weight` times a smoothed hinge of tracked constraint values.

    >>> ExactPenalty(weight=10.0).tau
    0.02
    """

    solves = "kkt"  # where weight exceeds the multipliers
    row_wise = True

    tau: float | Schedule = 0.02  # step
    weight: float = 5.0  # of the penalty, beta; above every multiplier
    gamma: float | Schedule = 0.05  # rate of the tracked values; 1: of one mini-batch (biased)
    nu: float = 0.05  # width of the smoothed hinge, in units of c

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, UNIT, "gamma", also=(Schedule,))
        require(self, NONNEGATIVE, "weight")
        require(self, POSITIVE, "nu")

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        return State(
            like.new_zeros(m),
            like.new_zeros(m),
            like.new_zeros(()),
            equality_mask(like, m, equality),
        )

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        (c,) = values
        u = torch.lerp(state.u, c, torch.clamp(1 / (state.k + 1), min=value(self.gamma, state.k)))
        slope = (u / self.nu).clamp(-1, 1)
        w = self.weight * torch.where(state.equality > 0, slope, torch.relu(slope))
        y = torch.lerp(state.y, w, MEAN)
        return w, State(u, y, state.k + 1, state.equality)

    def monitor(self, state: State | Iterate) -> dict[str, Tensor]:
        return {"full_weight": inner(state).y.abs().max() / self.weight}
