r"""SQP-Adam: an SQP step in Adam's diagonal metric, whose moments are those of the projected
gradient.

    A  = the constraints with a multiplier, those with c_i > 0, the equalities;
            y_A(g) = -(J_A J_A')^-1 J_A g
    p  = g + J_A' y_A(g)
            the mini-batch's gradient along the active constraints
    m+ = b1 m + (1 - b1) p,   q+ = b2 q + (1 - b2) p^2,   H = diag(max(sqrt(q^ + mu), floor |g|)),
            hats: bias-corrected
    d  = argmin (m^ - J_A' y_A)'d + 1/2 d'H d  s.t.  c + J d <= kappa e,  |H^(1/2) d|_inf <= beta;
            y = its multipliers
    x+ = x + alpha_k d

c, J and the g of the last y_A are running averages, c corrected as x moves (`_tracking`); kappa as
in Stochastic Ghost, in the metric H. With the gradient itself in place of p, the part of it that
the constraints balance would stay in q for ever and shorten every step.

"Projected stochastic momentum" (arXiv 2601.11795, known from its abstract and public code):
equalities, exact c, and the solution of this subproblem with kappa = 0 in closed form, d = v - r +
H^-1 J'(J H^-1 J')^-1 J r with v = -J'(J J')^-1 c and r = H^-1 m^ + v, which the tests compare.

Differs from it:
- Inequalities by the working set A, which is ours. The part of the gradient that was projected out
  comes back in the subproblem, averaged: it is what pushes against an active constraint, and y its
  multiplier.
- Averages of c and J: mini-batches of them bias d. Kappa in place of c + J d = 0, which may have no
  solution.
- The public code starts the first moment from the squared gradient; here both start at 0.
- The floor of H. Where the active constraints balance the whole gradient, p is 0 and sqrt(mu) alone
  would be left: from x = 3 on min (x - 2)^2 / 2 s.t. x <= 1 the first step would be 200 long. With
  floor = 0.1 the objective moves no coordinate by more than 10 alpha; 0 is the form as published.

A step changes every coordinate by about alpha, also where p is noise alone, and a curved constraint
is then violated by some |d|^2: alpha must fall. Where c has a kink (P5) the averaged J is of no one
side of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import BELOW_ONE, NONNEGATIVE, OPEN_UNIT, POSITIVE, UNIT, require
from fairbound.algorithms._subproblems import ghost_direction
from fairbound.algorithms._tracking import Averages, absent
from fairbound.algorithms.schedules import Power
from fairbound.core import Algorithm, Draw, Estimate, Schedule, equality_mask, value

_RIDGE = 1e-10  # of the largest diagonal entry, where active rows are dependent


class State(NamedTuple):
    averages: Averages
    momentum: Tensor  # (n,) m
    square: Tensor  # (n,) q
    k: Tensor  # () step
    y: Tensor  # (m,) multipliers of the last subproblem
    kappa: Tensor  # () its kappa
    length: Tensor  # () its |d|
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class SQPAdam(Algorithm[State]):
    """SQP in Adam's metric, with moments of the projected gradient.

    >>> SQPAdam(alpha=1e-3).draws
    1
    """

    solves = "kkt"

    alpha: float | Schedule = Power(0.1, 0.5)  # noqa: RUF009  (frozen)  step size
    b1: float = 0.9  # momentum
    b2: float = 0.999  # of the squared gradient
    mu: float = 1e-8  # in the root
    average: float | Schedule = Power(1.0, 0.67)  # noqa: RUF009  (frozen)  a_k, what a new estimate of c and J counts
    least: float = 0.0  # a_k does not fall below this
    beta: float = 20.0  # largest coordinate of H^(1/2) d
    rho: float = 0.2  # the same in kappa's subproblem
    floor: float = 0.1  # smallest entry of H, as a share of the averaged gradient's
    lam: float = 0.9  # share of the attainable violation in kappa

    def __post_init__(self) -> None:
        require(self, POSITIVE, "mu", "beta", "rho")
        require(self, NONNEGATIVE, "alpha", also=(Schedule,))
        require(self, BELOW_ONE, "b1", "b2")
        require(self, UNIT, "average", also=(Schedule,))
        require(self, UNIT, "least", "floor")
        require(self, OPEN_UNIT, "lam")
        if self.rho >= self.beta:
            raise ValueError(
                f"SQPAdam: rho must be smaller than beta, got rho={self.rho} and beta={self.beta}"
            )

    def primal_step(self, state: State) -> float | Tensor:
        return value(self.alpha, state.k)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        zero, vector = x.new_zeros(()), torch.zeros_like(x)
        mask = equality_mask(x, m, equality)
        return State(
            Averages.start(x, m, first), vector, vector, zero, x.new_zeros(m), zero, zero, mask
        )

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        a = (x.new_zeros(()) + value(self.average, state.k)).clamp(min=self.least)
        averages, J = state.averages.updated(x, e, torch.where(state.k == 0, 1.0, a))
        c = averages.c.masked_fill(absent(e), 0.0)
        active = (state.y != 0) | (c > 0) | (state.equality > 0)
        J_A = J * active.to(x)[:, None]
        p = e.grad(f=1.0)
        p = p + least_squares_multipliers(p, J_A) @ J_A
        momentum = self.b1 * state.momentum + (1 - self.b1) * p
        square = self.b2 * state.square + (1 - self.b2) * p.square()
        k = state.k + 1
        root = torch.sqrt(square / (1 - (x.new_zeros(()) + self.b2) ** k) + self.mu)
        root = torch.maximum(root, self.floor * averages.g.abs())
        solved = ghost_direction(
            momentum / (1 - (x.new_zeros(()) + self.b1) ** k)
            - least_squares_multipliers(averages.g, J_A) @ J_A,
            c,
            J,
            tau=1.0,
            beta=self.beta,
            rho=self.rho,
            lam=self.lam,
            equality=state.equality,
            scale=root.rsqrt(),
        )
        new = State(
            averages,
            momentum,
            square,
            k,
            solved.multipliers,
            solved.kappa,
            solved.d.norm(),
            state.equality,
        )
        return value(self.alpha, state.k) * solved.d, new

    def multipliers(self, state: State) -> Tensor:
        return state.y

    def monitor(self, state: State) -> dict[str, Tensor]:
        return {"kappa": state.kappa, "direction": state.length}


def least_squares_multipliers(g: Tensor, J: Tensor) -> Tensor:
    """y (m,) with the shortest g + J'y, for J (m, n) some of whose rows may be 0 or dependent."""
    gram = J @ J.mT
    size = gram.diagonal()
    share = max(_RIDGE, 10 * torch.finfo(J.dtype).eps)
    ridge = torch.where(size > 0, share * size.amax(), 1.0)
    y: Tensor = torch.linalg.solve_ex(gram + torch.diag(ridge), -(J @ g))[0]
    return y
