"""The LP of a Ghost step: how far the linearized constraints can be repaired inside a box.

    t     = min_d  max_i [c_i + J_i d]_+   s.t.  |d|_inf <= rho
    kappa = (1 - lam) max_i [c_i]_+  +  lam t

Its dual is  t = max_{y >= 0, e'y <= 1}  c'y - rho |J'y|_1.  It is 0 if c <= 0, or if the shortest d with c + J d <= 0
(a nonnegative QP of the Gram matrix) lies in the box. Otherwise m = 1 is explicit, m = 2 is concave in one variable
because y is on the edge e'y = 1 of the simplex (`_edge`: 9 ms instead of 38 for 40 instances of 2,753 columns), and the
rest use the interior point method, for large n on a few columns at a time (`_sieve`: 3 to 5 times faster).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .algebra import adjoint, pick, times
from .box_qp import ACCEPT, BoxQP, newton, point
from .interior import interior
from .nnqp import nnqp

FINAL = 1e-12  # gap, relative to |c|, at which t is final: kappa needs far less
SIEVE = 128  # columns that one round of `_sieve` keeps free; so few cost no more than their torch calls
PENALTY = 1e3  # of `_guess`, relative to the curvature
ROUNDS = 8  # of `_sieve`; 1 is usual
POLISH_STEPS = 10  # Newton steps of `_polish`: 2..6 or in vain


def repaired(c: Tensor, G: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Where t is 0 for sure, (B,), and what rounding leaves of it: without a pass over n.

    The shortest d with c + J d <= 0 is -J'y; its length bounds its coordinates, and J d = -G y.
    """
    y = nnqp(G, c)
    Gy = times(G, y)
    left = (c - Gy).amax(-1)
    inside = (y * Gy).sum(-1).clamp_min(0).sqrt() <= rho
    return (left <= 10 * ACCEPT * c.abs().amax(-1)) & inside, left.clamp_min(0)


def solve(c: Tensor, J: Tensor, G: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """kappa, t, gap, each (B,), of c (B, m), J (B, m, n), its Gram matrix G (B, m, m), rho (B,), lam (B,)."""
    worst = c.amax(-1).clamp_min_(0)  # (B,) value at d = 0
    y = nnqp(G, c)
    d = adjoint(J, -y)  # (B, n) shortest step that repairs the linearization, if any does
    left = (c + times(J, d)).amax(-1)  # (B,)
    # Only rounding of c + J d may remain: then t is left and its dual bound 0.
    easy = (left <= 10 * ACCEPT * c.abs().amax(-1)) & (torch.linalg.vector_norm(d, torch.inf, dim=-1) <= rho)
    t = left.clamp_min_(0)
    gap = t.clone()
    if not bool(easy.all()):
        index = (~easy).nonzero().squeeze(-1)
        hard = _hard(*pick(index, c, J, rho, y))
        t, gap = t.index_copy(0, index, hard[0]), gap.index_copy(0, index, hard[1])
    return torch.lerp(worst, t, lam), t, gap


def _hard(c: Tensor, J: Tensor, rho: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """t (B,) and its gap (B,); y (B, m) is a guess of the multipliers, up to a factor."""
    m = c.shape[-1]
    if m == 2:
        return _edge(c, J, rho)[:2]
    reach = rho.unsqueeze(-1) * J.abs().sum(-1)  # (B, m) how far d can move each row
    sure = (c - reach).amax(-1).clamp_min(0)  # (B,) <= t
    if m == 1:
        return sure, torch.zeros_like(rho)
    t, gap = (_sieve if J.shape[-1] > 2 * SIEVE else _all_columns)(c, J, rho, y)
    low = (t - gap).maximum(sure)
    t = t.maximum(sure)
    return t, t - low


class _Cut(NamedTuple):
    """phi at s for one instance of `_edge`: its value and slope, and c + J d for the d that belongs to s."""

    s: float
    value: float
    slope: float
    rows: tuple[float, float]


def _edge(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m = 2: maximize phi(s) = c'y - rho |J'y|_1 over y = (s, 1 - s), 0 <= s <= 1; t, gap and s, each (B,).

    phi is concave and piecewise linear. Between a point where it rises and one where it falls, the tangents'
    crossing bounds it from above; that bound is the primal value of the d on the segment between the two
    points' d which makes both constraints equal. The few numbers per instance are Python floats: faster.
    """

    def cuts(points: list[float]) -> list[_Cut]:
        v = adjoint(J, J.new_tensor([(s, 1 - s) for s in points]))  # (B, n)
        r = (c - times(J, torch.copysign(rho.unsqueeze(-1), v))).tolist()
        return [_Cut(s, s * a + (1 - s) * b, a - b, (a, b)) for s, (a, b) in zip(points, r, strict=True)]

    lo, hi = cuts([0.0] * len(c)), cuts([1.0] * len(c))
    best = [max(a, b, key=lambda cut: cut.value) for a, b in zip(lo, hi, strict=True)]
    rounding = [1e-15 * max(map(abs, a.rows + b.rows)) for a, b in zip(lo, hi, strict=True)]
    for k in range(100):
        states = zip(lo, hi, best, rounding, strict=True)
        points = [_between(a, b, top.value + tol, exact=k % 2 == 1) for a, b, top, tol in states]
        if all(s is None for s in points):
            break
        for i, cut in enumerate(cuts([0.0 if s is None else s for s in points])):
            if points[i] is not None:  # a finished instance stays as it is
                (lo if cut.slope > 0 else hi)[i] = cut
                best[i] = max(best[i], cut, key=lambda cut: cut.value)
    t = c.new_tensor([_balanced(a, b) for a, b in zip(lo, hi, strict=True)]).clamp_min(0)
    dual = c.new_tensor([top.value for top in best]).clamp_min(0)
    return t, t - dual, c.new_tensor([top.s for top in best])


def _between(lo: _Cut, hi: _Cut, enough: float, exact: bool) -> float | None:
    """The next s, or None if the crossing of the tangents is not above `enough`.

    The crossing is the maximum once one kink is left between lo and hi; the secant of the slopes is fast
    while there are many. `_edge` alternates.
    """
    if lo.slope <= 0 or hi.slope >= 0:
        return None  # an end of the interval is optimal
    width = hi.s - lo.s
    cross = (hi.value - lo.value - hi.slope * width) / (lo.slope - hi.slope)
    if lo.value + lo.slope * cross <= enough or not 0 < cross < width:
        return None
    return lo.s + (cross if exact else width * min(max(lo.slope / (lo.slope - hi.slope), 0.02), 0.98))


def _balanced(lo: _Cut, hi: _Cut) -> float:
    """Larger constraint at the best d on the segment between the d of lo and that of hi."""
    part = lo.slope / (lo.slope - hi.slope) if lo.slope > hi.slope else 0.0
    part = min(max(part, 0.0), 1.0)
    return max((1 - part) * a + part * b for a, b in zip(lo.rows, hi.rows, strict=True))


def _value(y: Tensor, v: Tensor, c: Tensor, rho: Tensor) -> Tensor:
    """max(0, c'y - rho |v|_1) (B,), a lower bound of t, for y on the simplex and v = J'y."""
    return ((y * c).sum(-1) - rho * v.abs().sum(-1)).clamp_min(0)


def _lower_bound(y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> Tensor:
    return _value(y, adjoint(J, y), c, rho)


def _guess(c: Tensor, J: Tensor, rho: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """y (B, m) on the simplex near the solution, and J'y (B, n), from a first y >= 0 of any size.

    Newton steps on the dual with |v| replaced by Huber's function of a falling width w: its gradient is
    c - rho J clip(v/w, -1, 1), its second derivative -rho/w J_F J_F' with F the columns where |v| < w. The more
    columns, the smoother the dual is, and the better the steps. e'y = 1 is a penalty: so a step is a nonnegative QP.
    """
    y = y / y.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    v = adjoint(J, y)
    w = v.abs().mean(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)  # (B, 1)
    # The last width leaves about 2 SIEVE columns free: w falls by 0.4 from the mean of |v|.
    for _ in range(max(2, math.ceil(1 + math.log(J.shape[-1] / (3 * SIEVE), 2.5)))):
        part = (v / w).clamp_(-1, 1)
        curve = torch.where(part.abs() < 1, rho.unsqueeze(-1) / w, 0.0)  # (B, n)
        H = torch.bmm(J * curve.unsqueeze(-2), J.mT)  # (B, m, m)
        q = torch.addcmul(c, times(J, part), rho.unsqueeze(-1), value=-1) + times(H, y)
        weight = PENALTY * H.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)  # (B, 1)
        new = nnqp(H + weight.unsqueeze(-1), q - q.amin(-1, keepdim=True) + weight)
        total = new.sum(-1, keepdim=True)
        y = torch.where(total > 0, new / total, y)
        v, w = adjoint(J, y), w * 0.4
    return y, v


def _sieve(c: Tensor, J: Tensor, rho: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """t and gap (B,) for large n: at a solution almost every |d_j| is rho, with the sign of -(J'y)_j.

    So: guess y, then free only the columns where J'y is nearly 0, hold the others at their bound, and solve that LP of
    SIEVE columns. If the bounds of the whole LP do not meet yet, the next guess is the best point between y and its y
    (without this line search the guesses jump to and fro). What ROUNDS do not settle is solved with all columns.
    """
    t, dual = torch.empty_like(rho), torch.empty_like(rho)
    index = torch.arange(rho.shape[0], device=rho.device)  # instances still at work
    work: Sequence[Tensor] = (
        c,
        J,
        rho,
        *_guess(c, J, rho, y),
        torch.linalg.vector_norm(J, dim=-2),
        c.amax(-1),
        torch.zeros_like(rho),
    )
    for _ in range(ROUNDS):
        c, J, rho, y, v, size, upper, lower = work
        near = torch.where(size > 0, v.abs() / size, torch.inf).topk(SIEVE, largest=False, sorted=False)[1]
        held = torch.copysign(rho.unsqueeze(-1), -v).scatter(-1, near, 0.0)  # (B, n)
        free_columns = J.gather(-1, near.unsqueeze(-2).expand(-1, J.shape[-2], -1))  # (B, m, SIEVE)
        t_new, y_new, _ = _interior_point(c + times(J, held), free_columns, rho)
        v_new = adjoint(J, y_new)
        upper, lower = upper.minimum(t_new), lower.maximum(_value(y_new, v_new, c, rho))
        t, dual = t.index_copy(0, index, upper), dual.index_copy(0, index, lower)
        open_ = (upper - lower > FINAL * c.abs().amax(-1)).nonzero().squeeze(-1)
        if open_.numel() == 0:
            return t, t - dual
        index, *work = pick(open_, index, c, J, rho, y, v, size, upper, lower, y_new, v_new)
        c, J, rho, y, v, size, upper, lower, y_new, v_new = work
        part = _edge(torch.stack([(y_new * c).sum(-1), (y * c).sum(-1)], -1), torch.stack([v_new, v], -2), rho)[2]
        y, v = (torch.lerp(a, b, part.unsqueeze(-1)) for a, b in ((y, y_new), (v, v_new)))
        work = (c, J, rho, y, v, size, upper, lower.maximum(_value(y, v, c, rho)))
    t_new, gap = _all_columns(c, J, rho, y)
    upper, lower = work[-2].minimum(t_new), work[-1].maximum(t_new - gap)
    return t.index_copy(0, index, upper), (t - dual).index_copy(0, index, upper - lower)


def _all_columns(c: Tensor, J: Tensor, rho: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """t and gap (B,) with all columns; no use is made of the guess y."""
    t, y, d = _interior_point(c, J, rho)
    dual = _lower_bound(y, c, J, rho)
    rough = t - dual > FINAL * c.abs().amax(-1)
    if bool(rough.any()):
        index = rough.nonzero().squeeze(-1)
        better = _polish(*pick(index, t, dual, d, y, c, J, rho))
        t, dual = t.index_copy(0, index, better[0]), dual.index_copy(0, index, better[1])
    return t, t - dual


def _interior_point(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t (B,), y (B, m) and d (B, n) by the interior point method; variable n + 1 of the box is t = half + a d_{n+1}."""
    size = c.abs().amax(-1)
    most = c.amax(-1)
    half = most.maximum(1e-3 * size).clamp_min(torch.finfo(c.dtype).tiny) / 2  # (B,) 0 <= t <= 2 half
    a = half / rho
    wide = torch.cat([J, -a[:, None, None].expand(*J.shape[:2], 1)], -1)  # (B, m, n+1)
    g = torch.zeros_like(wide[:, 0])  # (B, n+1)
    g[:, -1] = a
    d, y = interior(g, half.unsqueeze(-1) - c, wide, None, rho)
    # The dual value is positively homogeneous in y, so a positive one is largest on e'y = 1.
    y = y / y.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    d = d[:, :-1]
    return (c + times(J, d)).amax(-1).minimum(most).clamp_min(0), y, d


def _polish_dual(dual: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """A better dual value (B,) and its y: where J'y is nearly 0 it is made exactly 0, by a projection."""
    near = adjoint(J, y).abs() <= 1e-6 * torch.linalg.vector_norm(J, dim=-2)  # (B, n)
    row = torch.linalg.vector_norm(J, dim=-1)  # (B, m)
    unit = torch.where((y > 1e-9) & (row > 0), 1 / row, 0.0)  # (B, m) only the support of y takes part
    M = torch.bmm(J * near.unsqueeze(-2), J.mT) * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    values, U = torch.linalg.eigh(M)  # (B, m), (B, m, m)
    kernel = values <= 1e-10 * values.amax(-1, keepdim=True)
    new = times(U, kernel * times(U.mT, y * row)) * unit
    new = torch.where(unit > 0, new, torch.where(row > 0, 0.0, y)).clamp_min(0)
    new = new / new.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    bound = _lower_bound(new, c, J, rho)
    better = bound > dual
    return torch.where(better, bound, dual), torch.where(better.unsqueeze(-1), new, y)


def _polish(t: Tensor, dual: Tensor, d: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Better bounds of t: from a better y, and from the projection of d onto {c + J d <= dual, |d|_inf <= rho}."""
    dual, _ = _polish_dual(dual, y, c, J, rho)
    size = c.abs().amax(-1) + rho * torch.linalg.vector_norm(J, dim=-1).amax(-1)
    h = (dual + 1e-15 * size).unsqueeze(-1) - c  # (B, m) without the slack rounding could empty the set
    qp = BoxQP(-d, h, J, torch.bmm(J, J.mT), torch.ones_like(rho), rho)
    nearest = point(newton(torch.zeros_like(c), qp, steps=POLISH_STEPS)[0], qp).d
    return t.minimum((c + times(J, nearest)).amax(-1).clamp_min(0)), dual
