"""Equations in numpy, independent of the code under test: random quadratics, and subproblems by
general solvers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import clarabel
import numpy as np
import scipy.sparse as sparse
import torch
from scipy import optimize
from torch import Tensor

from fairbound.algorithms._subproblems.level import LevelDirection, level_direction
from fairbound.core import Algorithm, Draw, Estimate, Sample


class Quadratic(NamedTuple):
    """One mini-batch's random function: f = 1/2 x'Px + p'x, c_i = 1/2 q_i |x|^2 + A_i x - b_i."""

    P: np.ndarray  # (n, n)
    p: np.ndarray  # (n,)
    q: np.ndarray  # (m,)
    A: np.ndarray  # (m, n)
    b: np.ndarray  # (m,)

    def f(self, x: np.ndarray) -> float:
        return float(0.5 * x @ self.P @ x + self.p @ x)

    def c(self, x: np.ndarray) -> np.ndarray:
        return 0.5 * self.q * (x @ x) + self.A @ x - self.b

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.P @ x + self.p

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        return self.q[:, None] * x + self.A

    def sample(self) -> Sample:
        P, p, q, A, b = (torch.as_tensor(part) for part in self)
        return Sample.of(lambda x: (0.5 * x @ P @ x + p @ x, 0.5 * q * (x @ x) + A @ x - b))


def quadratics(count: int, n: int = 6, m: int = 3, seed: int = 0) -> list[Quadratic]:
    """Independent draws around one problem."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    base = Quadratic(
        root @ root.T / n,
        rng.normal(size=n),
        rng.normal(size=m),
        rng.normal(size=(m, n)),
        rng.normal(size=m),
    )
    return [
        Quadratic(*(part + 0.3 * rng.normal(size=part.shape) for part in base))
        for _ in range(count)
    ]


def draws(
    count: int, n: int = 6, m: int = 3, seed: int = 0
) -> tuple[list[Quadratic], list[Sample], np.ndarray]:
    """Quadratics, their samples, and a point."""
    functions = [one._replace(P=(one.P + one.P.T) / 2) for one in quadratics(count, n, m, seed)]
    x = np.random.default_rng(seed + 1).normal(size=n)
    return functions, [q.sample() for q in functions], x


def path(
    method: Algorithm[Any],
    samples: Sequence[Sample],
    x: np.ndarray | Tensor,
    m: int = 3,
    *,
    first: Estimate | None = None,
    equality: Any = None,
) -> Iterator[tuple[Tensor, Any]]:
    """Point and state after every step, which takes as many of the samples as the method draws."""
    point = torch.as_tensor(x)
    mask = None if equality is None else torch.as_tensor(equality)
    state = method.init(point, m, first, mask)
    for k in range(0, len(samples), method.draws):
        d, state = method.update(point, state, Draw.of(*samples[k : k + method.draws]))
        point = point + d
        yield point, state


def by_clarabel(P: Any, q: np.ndarray, A: Any, b: np.ndarray, cones: list[Any]) -> np.ndarray:
    """argmin x'Px/2 + q'x s.t. b - A x in the cones; matrices dense or sparse."""
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-12
    upper = sparse.triu(sparse.csc_matrix(P)).tocsc()
    return np.array(
        clarabel.DefaultSolver(upper, q, sparse.csc_matrix(A), b, cones, options).solve().x
    )


def ghost_direction(
    g: np.ndarray, c: np.ndarray, J: np.ndarray, tau: float, beta: float, rho: float, lam: float
) -> np.ndarray:
    """The subproblems as printed: kappa by a linear program, d by a general solver."""
    n, m = len(g), len(c)
    least, A = np.r_[np.zeros(n), 1.0], np.c_[J, -np.ones(m)]
    linear = optimize.linprog(
        least, A_ub=A, b_ub=-c, bounds=[(-rho, rho)] * n + [(0, None)], method="highs"
    )
    kappa = (1 - lam) * max(c.max(), 0) + lam * linear.fun
    box, within = np.eye(n), np.r_[kappa - c, np.full(2 * n, beta)]
    return by_clarabel(
        tau * box, g, np.r_[J, box, -box], within, [clarabel.NonnegativeConeT(m + 2 * n)]
    )


class MovingBalls(NamedTuple):
    """min g'd + gamma/2 |d|^2 s.t. h + J d + L/2 |d|^2 <= 0: the subproblem of LevelConstrained."""

    g: np.ndarray  # (n,)
    h: np.ndarray  # (m,) c - level
    J: np.ndarray  # (m, n)
    L: np.ndarray  # (m,)
    gamma: float

    def value(self, d: np.ndarray) -> float:
        return float(self.g @ d + self.gamma / 2 * d @ d)

    def q(self, d: np.ndarray) -> np.ndarray:
        return self.h + self.J @ d + self.L / 2 * (d @ d)

    def size(self, d: np.ndarray) -> np.ndarray:
        """What q is made of; d comes from g/gamma, whose rounding has a hundredth of the weight."""
        length = np.linalg.norm(d) + 0.01 * np.linalg.norm(self.g) / self.gamma
        return np.abs(self.h) + np.linalg.norm(self.J, axis=1) * length + self.L / 2 * (d @ d)

    def solved(self) -> LevelDirection:
        """By the solver under test."""
        g, c, J, L = (torch.as_tensor(part) for part in self[:4])
        return level_direction(g, c + 0.7, J, gamma=self.gamma, L=L, level=0.7)

    def by_clarabel(self) -> np.ndarray:
        """With u >= |d|^2 / 2 as a variable: a second-order cone, |(sqrt 2 d, u - 1)| <= u + 1."""
        m, n = self.J.shape
        cone = np.zeros((n + 2, n + 1))
        cone[:2, n] = -1
        cone[2:, :n] = -(2**0.5) * np.eye(n)
        A, b = np.r_[np.c_[self.J, self.L], cone], np.r_[-self.h, 1, -1, np.zeros(n)]
        cones = [clarabel.NonnegativeConeT(m), clarabel.SecondOrderConeT(n + 2)]
        return by_clarabel(np.zeros((n + 1, n + 1)), np.r_[self.g, self.gamma], A, b, cones)[:n]
