"""A random quadratic problem as a torch `Sample` and, independently, as numpy: for steps against the equations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize

from fairbound.core import Sample


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
        root @ root.T / n, rng.normal(size=n), rng.normal(size=m), rng.normal(size=(m, n)), rng.normal(size=m)
    )
    return [Quadratic(*(part + 0.3 * rng.normal(size=part.shape) for part in base)) for _ in range(count)]


def symmetric(quadratic: Quadratic) -> Quadratic:
    return quadratic._replace(P=(quadratic.P + quadratic.P.T) / 2)


def draws(count: int, n: int = 6, m: int = 3, seed: int = 0) -> tuple[list[Quadratic], list[Sample], np.ndarray]:
    """Quadratics, their samples, and a point."""
    functions = [symmetric(q) for q in quadratics(count, n, m, seed)]
    x = np.random.default_rng(seed + 1).normal(size=n)
    return functions, [q.sample() for q in functions], x


def ghost_direction(
    g: np.ndarray, c: np.ndarray, J: np.ndarray, tau: float, beta: float, rho: float, lam: float
) -> np.ndarray:
    """(A1.1) and (A1.2) as printed: kappa by a linear program, d by a general solver."""
    n, m = len(g), len(c)
    linear = optimize.linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=np.c_[J, -np.ones(m)],
        b_ub=-c,
        bounds=[(-rho, rho)] * n + [(0, None)],
        method="highs",
    )
    kappa = (1 - lam) * max(c.max(), 0) + lam * linear.fun
    solved = optimize.minimize(
        lambda d: g @ d + tau / 2 * d @ d,
        linear.x[:n],  # feasible: its violation is at most kappa
        jac=lambda d: g + tau * d,
        bounds=[(-beta, beta)] * n,
        constraints={"type": "ineq", "fun": lambda d: kappa - c - J @ d, "jac": lambda d: -J},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert solved.success
    return solved.x
