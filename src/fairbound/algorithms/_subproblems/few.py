"""A handful of easy instances with two rows, the case of Experiment 1, with the m-sized arithmetic in Python floats.

The general path makes some eighty torch calls whatever the size; for one to four instances of a small network that is
all its time. Here an instance takes about sixteen. What is not easy (the box is active, or kappa needs the LP, or a
number is not finite) is left to the general path.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .box_qp import ACCEPT
from .nnqp import pair_of_floats

FEW = 4  # instances: the mini-batches of one Ghost step


class Easy(NamedTuple):
    """The solution of one instance."""

    d: Tensor  # (n,)
    y: tuple[float, float]
    kappa: float
    violation: float
    gap: float
    kappa_gap: float


def solve(*args: Tensor) -> tuple[Tensor, ...] | None:
    """`_flat_ghost` for a few instances, or None if one of them is not easy."""
    g, c, J, *numbers = args
    settings = zip(*(x.tolist() for x in numbers), strict=True)
    found = [_one(*parts, *setting) for *parts, setting in zip(g, c, J, settings, strict=True)]
    solved = [easy for easy in found if easy is not None]
    if len(solved) < len(found):
        return None
    d = solved[0].d.unsqueeze(0) if len(solved) == 1 else torch.stack([easy.d for easy in solved])
    rest = J.new_tensor([(*easy.y, *easy[2:]) for easy in solved])  # (B, 6)
    return d, rest[:, :2], rest[:, 2], rest[:, 3], rest[:, 4], rest[:, 5]


def _one(g: Tensor, c: Tensor, J: Tensor, tau: float, beta: float, rho: float, lam: float) -> Easy | None:
    """g (n,), c (2,), J (2, n); the steps of `kappa_lp.solve` and `box_qp.solve`."""
    (a, p), (_, b) = torch.mm(J, J.mT).tolist()
    u, v = torch.mv(J, g).tolist()
    c0, c1 = c.tolist()
    if not math.isfinite(a + b + p + u + v + c0 + c1):
        return None
    t = _repaired(c0, c1, (a, p, b), J, rho)
    if t is None:
        return None
    kappa = (1 - lam) * max(c0, c1, 0.0) + lam * t
    h0, h1 = kappa - c0, kappa - c1
    y = pair_of_floats(a, p, b, -(u + tau * h0), -(v + tau * h1))
    d = torch.addmv(g, J.mT, J.new_tensor(y)).div_(-tau) if any(y) else g / -tau
    if float(torch.linalg.vector_norm(d, torch.inf)) > beta:
        return None
    j0, j1 = torch.mv(J, d).tolist()
    r0, r1 = j0 - h0, j1 - h1
    length = float(torch.linalg.vector_norm(d))
    for yi, ri, hi, square in ((y[0], r0, h0, a), (y[1], r1, h1, b)):
        if abs(min(yi * square / tau, -ri)) > ACCEPT * (abs(hi) + math.sqrt(square) * length):
            return None
    return Easy(d, y, kappa, max(r0, r1, 0.0), -(y[0] * r0 + y[1] * r1), t)


def _repaired(c0: float, c1: float, gram: tuple[float, float, float], J: Tensor, rho: float) -> float | None:
    """t if the shortest step with c + J d <= 0 lies in the box (then it is rounding, and its dual bound 0)."""
    if c0 <= 0 and c1 <= 0:
        return 0.0
    a, p, b = gram
    y0, y1 = pair_of_floats(a, p, b, c0, c1)
    left = max(c0 - a * y0 - p * y1, c1 - p * y0 - b * y1)
    if left > 10 * ACCEPT * max(abs(c0), abs(c1)):
        return None
    step = torch.mv(J.mT, J.new_tensor((y0, y1)))
    return max(left, 0.0) if float(torch.linalg.vector_norm(step, torch.inf)) <= rho else None
