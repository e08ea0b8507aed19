"""The subproblem of level-constrained moving balls, by its m-dimensional dual, in a batch.

    d = argmin_d  g'd + gamma/2 |d|^2   s.t.  q_i(d) = c_i + J_i d + L_i/2 |d|^2 <= level_i

For L_i > 0 the constraint is a ball around -J_i/L_i. With multipliers y >= 0,

    w = gamma + L'y,   d(y) = -(g + J'y)/w,   theta(y) = y'(c - level) - |g + J'y|^2 / (2 w)
    grad theta = q(d(y)) - level =: r,        second derivative  -A A'/w  with the rows
            A_i = J_i + L_i d

theta is concave, and d(y) minimizes the Lagrangian: (max r_+, -y'r) certify it, -y'r being primal
minus dual value. Everything but d itself comes from JJ', Jg and g'g. Newton steps, each a
nonnegative QP of m variables with a line search; with L = 0 the first is the solution. At the end d
is shortened to the largest t d, t <= 1, within all levels: 0 is, and the set is convex, so that
feasibility holds to rounding however accurate y is.

Where d = 0 is not within the levels the set may be empty. Each level is then softened, which always
has a solution:

    d = argmin_d  g'd + gamma/2 |d|^2 + sum_i [q_i(d) - level_i]_+^2 / (2 s_i),
            s_i = SOFT u |J_i|^2 / gamma
    u = min(1, max_i [c_i - level_i]_+ / (|J_i| |g| / gamma)),

so that r_i = s_i y_i: if some d is within the levels, about SOFT times the excess of c remains, and
a d of little violation if none is.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import Number, _broadcast, _finite, _only, _products, _unclipped
from .algebra import line_search, select, times
from .nnqp import nnqp
from .operators import register

__all__ = ["LevelDirection", "level_direction"]

_ACCEPT = 1e-13  # residual at which a solution is final, relative to what q_i is made of
_NOISE = 0.01  # weight of g/w in the size of a residual: d comes from it by cancellation
# 10 are usual, 1 with L = 0; from y = 0, w grows by half of itself a step where |g| is very large
_STEPS = 100
_SOFT = 1e-3  # how soft a level is, relative to what a step of |g| / gamma changes


class LevelDirection(NamedTuple):
    """The direction with its certificates."""

    d: Tensor  # (..., n)
    multipliers: Tensor  # (..., m) >= 0
    violation: Tensor  # (...) max_i [q_i(d) - level_i]_+: rounding where c <= level
    gap: Tensor  # (...) primal minus dual value before d is shortened


def level_direction(
    g: Tensor, c: Tensor, J: Tensor, *, gamma: Number, L: Number, level: Number
) -> LevelDirection:
    """The direction d within the levels.   g (..., n), c (..., m), J (..., m, n).

    gamma > 0 is a number or a tensor that broadcasts to the leading dimensions, L >= 0 and level
    numbers or tensors that broadcast to c. Works inside `torch.func.vmap`, `torch.compile` and
    `make_fx`; no gradient passes through it.

    >>> g, c, J = torch.tensor([-1.0, 0.0]), torch.tensor([-0.5]), torch.tensor([[1.0, 0.0]])
    >>> level_direction(g, c, J, gamma=1.0, L=0.0, level=0.0).d  # up to the constraint
    tensor([0.5000, 0.0000])
    >>> level_direction(g, c, J, gamma=1.0, L=3.0, level=0.0).d  # 3/2 d^2 + d = 1/2
    tensor([0.3333, 0.0000])
    """
    _check(g, c, J, gamma=gamma, L=L)
    curved, levels = (
        torch.as_tensor(x, dtype=c.dtype, device=c.device).expand_as(c) for x in (L, level)
    )
    args = _broadcast((g, c, J, curved, levels), (1, 1, 2, 1, 1), (gamma,))
    return LevelDirection(*torch.ops.fairbound.level_direction(*args))


def _check(g: Tensor, c: Tensor, J: Tensor, gamma: Number, L: Number) -> None:
    if (
        c.ndim < 1
        or J.ndim < 2
        or g.ndim < 1
        or J.shape[-2:] != (c.shape[-1], g.shape[-1])
        or c.shape[-1] == 0
    ):
        raise ValueError(
            "g needs shape (..., n), c (..., m) and J (..., m, n) with m > 0; got"
            f" {tuple(g.shape)}, {tuple(c.shape)} and {tuple(J.shape)}"
        )
    if not isinstance(gamma, Tensor) and not gamma > 0:
        raise ValueError(f"gamma must be positive, got {gamma}")
    if not isinstance(L, Tensor) and not L >= 0:
        raise ValueError(f"L must not be negative, got {L}")


class Products(NamedTuple):
    """What the dual needs of a batch of subproblems."""

    G: Tensor  # (B, m, m) JJ'
    Jg: Tensor  # (B, m)
    gg: Tensor  # (B,) |g|^2
    h: Tensor  # (B, m) c - level
    L: Tensor  # (B, m)
    gamma: Tensor  # (B,)
    soft: Tensor  # (B, m) s, 0 for an instance with c <= level


class LevelPoint(NamedTuple):
    """What belongs to the multipliers y (B, m)."""

    y: Tensor  # (B, m)
    w: Tensor  # (B,)
    Jd: Tensor  # (B, m)
    dd: Tensor  # (B,) |d|^2
    q: Tensor  # (B, m) q - level
    r: Tensor  # (B, m) grad theta: q - level - s y
    size: Tensor  # (B, m) what q is made of
    error: Tensor  # (B,) relative residual


def _solve(
    g: Tensor, c: Tensor, J: Tensor, L: Tensor, level: Tensor, gamma: Tensor
) -> tuple[Tensor, ...]:
    """Solve with the leading dimensions flattened to one and the small numbers in float64; dtypes
    as the caller had them."""
    lead = c.shape[:-1]
    flat = [x.reshape(-1, *x.shape[len(lead) :]) for x in (g, J, c, L, level, gamma)]
    d, *results = _flat(*flat[:2], *(x.double() for x in flat[2:]))
    return (
        d.reshape(g.shape).to(g.dtype),
        *(x.reshape(lead + x.shape[1:]).to(c.dtype) for x in results),
    )


def _flat(
    g: Tensor, J: Tensor, c: Tensor, L: Tensor, level: Tensor, gamma: Tensor
) -> tuple[Tensor, ...]:
    G, Jg, gg = _products(J, g)
    finite = _finite(c, L, level, gamma[:, None], gg[:, None], G.flatten(1), Jg)
    if finite is not None:
        return _only(finite, _flat, g, J, c, L, level, gamma)
    square = G.diagonal(dim1=-2, dim2=-1)  # (B, m) |J_i|^2
    # (B, m) both
    over, row = (c - level).clamp_min(0), square.sqrt().clamp_min(torch.finfo(c.dtype).tiny)
    # (B,)
    share = (
        (over / row * gamma[:, None] / gg.sqrt()[:, None])
        .nan_to_num(0.0, 1.0)
        .amax(-1)
        .clamp_max(1)
    )
    soft = (_SOFT * share / gamma)[:, None] * torch.maximum(
        square, 1e-6 * square.amax(-1, keepdim=True)
    )
    products = Products(G, Jg, gg, c - level, L, gamma, soft)
    at = _point(_newton(products), products)
    t = torch.where((over > 0).any(-1), 1.0, _shortened(at, products.h))
    within = products.h + t[:, None] * at.Jd + (t.square() * at.dd)[:, None] * L / 2
    return (
        _unclipped(J, g, at.y, at.w / t),
        at.y,
        within.amax(-1).clamp_min(0),
        -(at.y * at.r).sum(-1),
    )


def _point(y: Tensor, qp: Products) -> LevelPoint:
    """The point of y, without a pass over n: v = g + J'y has J v = J g + JJ'y and |v|^2 = g'g +
    y'(J g + J v)."""
    w = qp.gamma + (qp.L * y).sum(-1)
    Jv = qp.Jg + times(qp.G, y)
    vv = (qp.gg + (y * (qp.Jg + Jv)).sum(-1)).clamp_min(0)
    Jd, dd = -Jv / w[:, None], vv / w.square()
    q = qp.h + Jd + qp.L / 2 * dd[:, None]
    r = q - qp.soft * y
    square = qp.G.diagonal(dim1=-2, dim2=-1)
    length = dd.sqrt() + _NOISE * qp.gg.sqrt() / w
    size = qp.h.abs() + square.sqrt() * length[:, None] + qp.L / 2 * dd[:, None] + qp.soft * y
    # Of y_i >= 0 and -r_i >= 0 one must be 0; times the curvature y_i has the unit of r_i.
    curvature = (square + qp.L.square() * dd[:, None]) / w[:, None] + qp.soft
    error = torch.minimum(y * curvature, -r).abs() / size.clamp_min(torch.finfo(r.dtype).tiny)
    return LevelPoint(y, w, Jd, dd, q, r, size, error.amax(-1))


def _newton(qp: Products) -> Tensor:
    """Newton ascent on theta from y = 0; the best y (B, m)."""
    y = torch.zeros_like(qp.h)
    out, out_error = y, torch.full_like(qp.gamma, torch.inf)
    index = torch.arange(len(y), device=y.device)  # instances still at work
    damping = torch.full_like(qp.gamma, 1e-13)  # (B,) relative to the largest possible curvature
    since = torch.zeros_like(qp.gamma)  # (B,) steps since the residual last fell clearly
    for _ in range(_STEPS):
        at = _point(y, qp)
        old = out_error[index]
        better = at.error < old
        out = out.index_copy(0, index, torch.where(better[:, None], y, out[index]))
        out_error = out_error.index_copy(0, index, torch.where(better, at.error, old))
        since = torch.where(at.error < 0.5 * old, 0.0, since + 1)
        stop = (
            (at.error <= _ACCEPT)
            | ((since >= 3) & (out_error[index] <= 100 * _ACCEPT))
            | ~at.error.isfinite()
        )
        if bool(stop.any()):
            keep = (~stop).nonzero().squeeze(-1)
            if keep.numel() == 0:
                break
            index, damping, since = select(keep, index, damping, since)
            at, qp = LevelPoint(*select(keep, *at)), Products(*select(keep, *qp))
        y, damping = _newton_step(at, qp, damping)
    return out


def _newton_step(at: LevelPoint, qp: Products, damping: Tensor) -> tuple[Tensor, Tensor]:
    """The next y (B, m) and damping (B,)."""
    cross = at.Jd[:, :, None] * qp.L[:, None, :]
    H = qp.G + cross + cross.mT + at.dd[:, None, None] * qp.L[:, :, None] * qp.L[:, None, :]  # A A'
    H = H / at.w[:, None, None]
    # (B, m)
    most = (qp.G.diagonal(dim1=-2, dim2=-1) + qp.L.square() * at.dd[:, None]) / at.w[:, None]
    H.diagonal(dim1=-2, dim2=-1).add_(damping[:, None] * most * H.shape[-1] + qp.soft)
    p = nnqp(H, at.r + times(H, at.y)) - at.y  # (B, m) ascent direction: r'p >= p'Hp
    step = _line_search(p, at, qp)
    damping = torch.where(step < 0.1, damping * 1000, damping / 30).clamp(1e-14, 1.0)
    return (at.y + step[:, None] * p).clamp_min(0), damping


def _line_search(p: Tensor, at: LevelPoint, qp: Products) -> Tensor:
    """How far along p (B,)."""
    ph, Lp, pGp = (p * qp.h).sum(-1), (qp.L * p).sum(-1), (p * times(qp.G, p)).sum(-1)
    pv, vv = -at.w * (p * at.Jd).sum(-1), at.dd * at.w.square()  # p'J v, |v|^2
    psy, psp = (p * qp.soft * at.y).sum(-1), (p * qp.soft * p).sum(-1)

    def slope(s: Tensor) -> Tensor:  # of theta along p: p'r(y + s p)
        w, along = at.w + s * Lp, pv + s * pGp
        return ph - along / w + Lp / 2 * (vv + s * (pv + along)) / w.square() - psy - s * psp

    f0 = (p * at.r).sum(-1)
    return line_search(slope, f0)


def _shortened(at: LevelPoint, h: Tensor) -> Tensor:
    """The largest t (B,) in [0, 1] for which t d is within all levels: roots of a t^2 + b t =
    room."""
    a, b = (at.q - h - at.Jd).clamp_min(0), at.Jd  # a = L/2 |d|^2
    room = (-h).clamp_min(0) + _ACCEPT * at.size
    root = 2 * room / (b + (b.square() + 4 * a * room).sqrt()).clamp_min(torch.finfo(b.dtype).tiny)
    return torch.where(at.q > _ACCEPT * at.size, root, 1.0).amin(-1).clamp(0, 1)


def _shapes(g: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.empty_like(g),
        torch.empty_like(c),
        *(c.new_empty(c.shape[:-1]) for _ in range(2)),
    )


register(
    "level_direction",
    "(Tensor g, Tensor c, Tensor J, Tensor L, Tensor level, Tensor gamma) -> (Tensor, Tensor,"
    " Tensor, Tensor)",
    _solve,
    _shapes,
)
