"""Batched products, with B the flattened batch, m constraints and n parameters."""

from collections.abc import Callable

import torch
from torch import Tensor


def times(J: Tensor, d: Tensor) -> Tensor:
    """J d: (B, m, n), (B, n) -> (B, m)."""
    return torch.bmm(J, d.unsqueeze(-1)).squeeze(-1)


def adjoint(J: Tensor, y: Tensor) -> Tensor:
    """J'y: (B, m, n), (B, m) -> (B, n)."""
    return torch.bmm(y.unsqueeze(-2), J).squeeze(-2)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """a'b: (B, n), (B, n) -> (B,)."""
    return torch.bmm(a.unsqueeze(-2), b.unsqueeze(-1)).flatten()


def select(index: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Entries `index` of each tensor; without a copy when that is all of them."""
    if index.shape[0] == tensors[0].shape[0]:
        return tensors
    return tuple(x[index] for x in tensors)


def line_search(slope: Callable[[Tensor], Tensor], f0: Tensor) -> Tensor:
    """Steps (B,) with |slope| <= 0.3 slope(0), or 1 if still rising there: regula falsi (Illinois)
    on a falling slope.

    >>> line_search(lambda s: 1 - 4 * s, torch.ones(1))
    tensor([0.2500])
    """
    lo, hi = torch.zeros_like(f0), torch.ones_like(f0)
    f_lo, f_hi = f0, slope(hi)
    step = torch.where(f_hi >= -0.3 * f0, hi, -hi)  # -1: not found yet
    for _ in range(12):
        if bool((step >= 0).all()):
            break
        s = lo + (hi - lo) * (f_lo / (f_lo - f_hi)).clamp(0.01, 0.99)
        f = slope(s)
        step = torch.where((step < 0) & (f.abs() <= 0.3 * f0), s, step)
        up = f > 0
        lo, hi = torch.where(up, s, lo), torch.where(up, hi, s)
        f_lo, f_hi = torch.where(up, f, f_lo / 2), torch.where(up, f_hi / 2, f)
    return torch.where(step < 0, lo, step)
