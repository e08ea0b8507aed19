"""Exact solutions of convex quadratic problems with quadratic constraints."""

from __future__ import annotations

import torch
from torch import Tensor

from fairbound.benchmark.problems import Solution


def minimizer(P: Tensor, q: Tensor, Q: Tensor, A: Tensor, b: Tensor, steps: int = 80) -> Solution:
    """min 1/2 x'Px + q'x s.t. 1/2 x'Q_i x + A_i x <= b_i, by a primal-dual interior-point method,
    to rounding.

    Args:
        P: (n, n) positive definite.
        q: (n,)
        Q: (m, n, n) positive semidefinite.
        A: (m, n)
        b: (m,)
    """
    x, y = -torch.linalg.solve(P, q), torch.ones_like(b)
    s = torch.ones_like(b)  # slacks: c(x) + s = 0
    for _ in range(steps):
        Qx = Q @ x
        c, J = 0.5 * Qx @ x + A @ x - b, Qx + A
        target = 0.1 * (s @ y) / len(b)  # of every product s_i y_i
        pull = target / s - y + y / s * (c + s)
        H = P + torch.einsum("i,ijk->jk", y, Q) + J.T @ ((y / s)[:, None] * J)
        dx = -torch.linalg.solve(H, P @ x + q + (y + pull) @ J)
        ds = -(c + s) - J @ dx
        dy = pull + y / s * (J @ dx)
        longest = torch.cat([-s / ds, -y / dy])[torch.cat([ds, dy]) < 0]
        t = min(1.0, 0.99 * float(longest.min())) if longest.numel() else 1.0
        x, s, y = x + t * dx, s + t * ds, y + t * dy
        if s @ y < 1e-14 and (c + s).abs().max() < 1e-13:
            break
    else:
        raise ValueError("the interior-point method did not converge: is the problem feasible?")
    return Solution(x, torch.where(y < 1e-9, 0.0, y))
