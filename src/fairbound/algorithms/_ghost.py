r"""Stochastic Ghost: a sequential convex programming step made unbiased by a random number of
examples.

For the averages (g, c, J) over a mini-batch X, d(X) solves

    min_d g'd + tau/2 |d|^2   s.t.  c + J d <= kappa e,  |d|_inf <= beta
    kappa = (1 - lam) max_i [c_i]_+ + lam min{ max_i [c_i + J_i d]_+ : |d|_inf <= rho }

(an equality c_i = 0 is the two rows (c_i, J_i) and (-c_i, -J_i), |c_i + J_i d| <= kappa, and its
multiplier their difference),
and the step combines four of them:

    N ~ geometric(p0) on 0..cap, p_N its probability;
            X1 has B0 examples, X has B0 2^(N+1), its halves B0 2^N
    d = d(X1) + (d(X) - (d(odd half) + d(even half)) / 2) / p_N
    x+ = x + alpha_k d,   alpha_k = alpha_{k-1} (1 - decay alpha_{k-1}),  alpha_0 = alpha

Facchinei and Kungurtsev 2023 (arXiv 2307.02943) on Facchinei et al. 2021; the paper's Algorithm 1.
B0 is the sampler's batch.

Differs from it:
- N is capped and its law renormalized: p_N = p0 (1 - p0)^N / (1 - (1 - p0)^(cap + 1)). Without a
  cap the mean number of examples is infinite for p0 <= 1/2 (the paper's 0.4), and near a solution
  no p0 gives both finite cost and finite variance. What remains is the bias of one mini-batch of B0
  2^(cap+1) examples.
- The smallest mini-batch, B0, is a setting: the paper has 1, its studies here 8 or 32.
- The paper's recursion for alpha is undefined at k = 0; alpha_0 = alpha. A `schedule` may take its
  place.
- The subproblems are solved exactly through their duals in m dimensions (`_subproblems`).

At equal examples it makes a sixth of the steps of the others; `TrackedSQP` has its subproblem
without its examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import CAP, NONNEGATIVE, OPEN_UNIT, POSITIVE, require, require_whole
from fairbound.algorithms._subproblems import ghost_direction
from fairbound.core import Algorithm, Draw, Estimate, Schedule, equality_mask, value


class State(NamedTuple):
    k: Tensor  # () step
    alpha: Tensor  # () the recursion's step size
    # (m,) multipliers of the subproblems, combined as the directions are: unbiased, so not always
    # >= 0
    y: Tensor
    kappa: Tensor  # () kappa of the full mini-batch
    length: Tensor  # () |d| of the full mini-batch: 0 at a stationary point
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class StochasticGhost(Algorithm[State]):
    """Stochastic Ghost; the samples of a draw are X1, X, and X's odd and even half.

    >>> [round(p, 3) for p in StochasticGhost(p0=0.5, cap=2).batch_size_probs]
    [0.571, 0.286, 0.143]
    """

    solves = "kkt"
    evaluates = ("fc",) * 4

    alpha: float = 0.05  # first step size
    decay: float = 0.05  # alpha-hat: decay of the step size
    p0: float = 0.4  # the geometric law's parameter
    cap: int = 7  # largest level N
    tau: float = 1.0  # weight of |d|^2 in the subproblem
    beta: float = 20.0  # largest coordinate of d
    # largest coordinate in kappa's subproblem; the appendix picks 0.1, the text of Exp. 1 says 0.8
    rho: float = 0.1
    lam: float = 0.5  # lambda: share of the attainable violation in kappa
    schedule: Schedule | None = None  # step sizes in place of the recursion of alpha and decay
    # cap on every coordinate of the combined direction; biased where it acts, off unless set
    d_max: float = inf

    def __post_init__(self) -> None:
        require(self, POSITIVE, "tau", "beta", "rho")
        require(self, NONNEGATIVE, "alpha", "decay")
        require(self, OPEN_UNIT, "p0", "lam")
        require(self, CAP, "d_max")
        require_whole(self, 0, 20, "cap")
        if self.rho >= self.beta:
            raise ValueError(
                f"StochasticGhost: rho must be smaller than beta, got rho={self.rho} and"
                f" beta={self.beta}"
            )
        if not (self.schedule is None or isinstance(self.schedule, Schedule)):
            raise TypeError(
                f"StochasticGhost: schedule must be a schedule or None, got {self.schedule!r}; use"
                " alpha="
            )
        if self.alpha * self.decay >= 1:
            raise ValueError(
                f"StochasticGhost: alpha * decay must be below 1, got {self.alpha} * {self.decay}"
            )

    @property
    def batch_size_probs(self) -> tuple[float, ...]:
        law = [self.p0 * (1 - self.p0) ** level for level in range(self.cap + 1)]
        return tuple(p / sum(law) for p in law)

    def primal_step(self, state: State) -> float | Tensor:
        return state.alpha if self.schedule is None else value(self.schedule, state.k)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        zero = x.new_zeros(())
        return State(
            zero, zero + self.alpha, x.new_zeros(m), zero, zero, equality_mask(x, m, equality)
        )

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        estimates = [sample(x) for sample in draw.unpack(self)]
        g = torch.stack([e.grad(f=1.0) for e in estimates])  # (4, n)
        c = torch.stack([e.c for e in estimates])  # (4, m)
        J = torch.stack([e.jac() for e in estimates])  # (4, m, n)
        solved = ghost_direction(
            g,
            c,
            J,
            tau=self.tau,
            beta=self.beta,
            rho=self.rho,
            lam=self.lam,
            equality=state.equality,
        )

        d = self._combine(solved.d, draw.weight)
        d = d.clamp(max=self.d_max).clamp(min=-self.d_max)
        following = state.alpha * (1 - self.decay * state.alpha)
        y = self._combine(solved.multipliers, draw.weight)
        new = State(state.k + 1, following, y, solved.kappa[1], solved.d[1].norm(), state.equality)
        return self.primal_step(state) * d, new

    def _combine(self, parts: Tensor, weight: Tensor) -> Tensor:
        single, full, odd, even = parts
        combined: Tensor = single + weight * (full - (odd + even) / 2)
        return combined.to(parts.dtype)

    def multipliers(self, state: State) -> Tensor:
        return state.y

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"kappa": state.kappa, "direction": state.length}
