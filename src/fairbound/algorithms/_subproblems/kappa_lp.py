"""The LP of a Ghost step: how far the linearized constraints can be repaired inside a box.

    t     = min_d  max_i [c_i + J_i d]_+   s.t.  |d|_inf <= rho
    kappa = (1 - lam) max_i [c_i]_+  +  lam t

Its dual is  t = max_{y >= 0, e'y <= 1}  c'y - rho |J'y|_1.  It is 0 if c <= 0, or if the shortest d
with c + J d <= 0 (a nonnegative QP of the Gram matrix) lies in the box: the usual case, since n
coordinates move a row far. Otherwise m = 1 is explicit, and the rest use the interior point method.
"""

import torch
from torch import Tensor

from .algebra import adjoint, select, times
from .box_qp import ACCEPT, BoxQP, newton, point
from .interior import interior
from .nnqp import nnqp

_FINAL = 1e-12  # gap, relative to |c|, at which t is final: kappa needs far less
POLISH_STEPS = 10  # Newton steps of `_polish`: 2..6 or in vain


def repaired(c: Tensor, G: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Mask (B,) of where t is 0 for sure, and what rounding leaves of it: without a pass over n.

    The shortest d with c + J d <= 0 is -J'y; its length bounds its coordinates, and J d = -G y.
    """
    y = nnqp(G, c)
    Gy = times(G, y)
    left = (c - Gy).amax(-1)
    inside = (y * Gy).sum(-1).clamp_min(0).sqrt() <= rho
    return (left <= 10 * ACCEPT * c.abs().amax(-1)) & inside, left.clamp_min(0)


def solve(
    c: Tensor, J: Tensor, G: Tensor, rho: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """kappa, t, gap, each (B,), of c (B, m), J (B, m, n), its Gram matrix G (B, m, m), rho (B,),
    lam (B,)."""
    worst = c.amax(-1).clamp_min_(0)  # (B,) value at d = 0
    y = nnqp(G, c)
    d = adjoint(J, -y)  # (B, n) shortest step that repairs the linearization, if any does
    left = (c + times(J, d)).amax(-1)  # (B,)
    # Only rounding of c + J d may remain: then t is left and its dual bound 0.
    easy = (left <= 10 * ACCEPT * c.abs().amax(-1)) & (
        torch.linalg.vector_norm(d, torch.inf, dim=-1) <= rho
    )
    t = left.clamp_min_(0)
    gap = t.clone()
    if not bool(easy.all()):
        index = (~easy).nonzero().squeeze(-1)
        hard = _hard(*select(index, c, J, rho))
        t, gap = t.index_copy(0, index, hard[0]), gap.index_copy(0, index, hard[1])
    return torch.lerp(worst, t, lam), t, gap


def _hard(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """t (B,) and its gap (B,)."""
    reach = rho.unsqueeze(-1) * J.abs().sum(-1)  # (B, m) how far d can move each row
    sure = (c - reach).amax(-1).clamp_min(0)  # (B,) <= t
    if c.shape[-1] == 1:
        return sure, torch.zeros_like(rho)
    t, y, d = _interior_point(c, J, rho)
    dual = _lower_bound(y, c, J, rho)
    rough = t - dual > _FINAL * c.abs().amax(-1)
    if bool(rough.any()):
        index = rough.nonzero().squeeze(-1)
        better = _polish(*select(index, t, dual, d, y, c, J, rho))
        t, dual = t.index_copy(0, index, better[0]), dual.index_copy(0, index, better[1])
    t = t.maximum(sure)
    return t, t - dual.maximum(sure)


def _lower_bound(y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> Tensor:
    """max(0, c'y - rho |J'y|_1) (B,), a lower bound of t, for y on the simplex."""
    return ((y * c).sum(-1) - rho * adjoint(J, y).abs().sum(-1)).clamp_min(0)


def _interior_point(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t (B,), y (B, m) and d (B, n) by the interior point method; variable n + 1 of the box is t =
    half + a d_{n+1}."""
    size = c.abs().amax(-1)
    most = c.amax(-1)
    # (B,) 0 <= t <= 2 half
    half = most.maximum(1e-3 * size).clamp_min(torch.finfo(c.dtype).tiny) / 2
    a = half / rho
    wide = torch.cat([J, -a[:, None, None].expand(*J.shape[:2], 1)], -1)  # (B, m, n+1)
    g = torch.zeros_like(wide[:, 0])  # (B, n+1)
    g[:, -1] = a
    d, y = interior(g, half.unsqueeze(-1) - c, wide, None, rho)
    # The dual value is positively homogeneous in y, so a positive one is largest on e'y = 1.
    y = y / y.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    d = d[:, :-1]
    return (c + times(J, d)).amax(-1).minimum(most).clamp_min(0), y, d


def _polish_dual(dual: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> Tensor:
    """A better dual value (B,): where J'y is nearly 0 it is made exactly 0, by a projection."""
    near = adjoint(J, y).abs() <= 1e-6 * torch.linalg.vector_norm(J, dim=-2)  # (B, n)
    row = torch.linalg.vector_norm(J, dim=-1)  # (B, m)
    # (B, m) only the support of y takes part
    unit = torch.where((y > 1e-9) & (row > 0), 1 / row, 0.0)
    M = torch.bmm(J * near.unsqueeze(-2), J.mT) * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    values, U = torch.linalg.eigh(M)  # (B, m), (B, m, m)
    kernel = values <= 1e-10 * values.amax(-1, keepdim=True)
    new = times(U, kernel * times(U.mT, y * row)) * unit
    new = torch.where(unit > 0, new, torch.where(row > 0, 0.0, y)).clamp_min(0)
    new = new / new.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    return dual.maximum(_lower_bound(new, c, J, rho))


def _polish(
    t: Tensor, dual: Tensor, d: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """Better bounds of t: from a better y, and from the projection of d onto {c + J d <= dual,
    |d|_inf <= rho}."""
    dual = _polish_dual(dual, y, c, J, rho)
    size = c.abs().amax(-1) + rho * torch.linalg.vector_norm(J, dim=-1).amax(-1)
    # (B, m) without the slack rounding could empty the set
    h = (dual + 1e-15 * size).unsqueeze(-1) - c
    qp = BoxQP(-d, h, J, torch.bmm(J, J.mT), torch.ones_like(rho), rho)
    nearest = point(newton(torch.zeros_like(c), qp, steps=POLISH_STEPS)[0], qp).d
    return t.minimum((c + times(J, nearest)).amax(-1).clamp_min(0)), dual
