"""The QP of a Ghost step, by its m-dimensional dual.

    d = argmin_d  g'd + tau/2 |d|^2   s.t.  J d <= h,  |d|_inf <= beta

With multipliers y >= 0 of J d <= h, the Lagrangian splits over coordinates:

    v(y) = g + J'y,   d(y) = clip(-v/tau, -beta, beta),   grad theta(y) = J d(y) - h =: r(y),

theta is concave, once differentiable and piecewise quadratic with second derivative -J_F J_F'/tau,
where F are the coordinates with |v| < tau beta. Since d(y) minimizes the Lagrangian, primal minus
dual value at d(y) is -y'r, so (max r_+, -y'r) certify it. If no coordinate is clipped, y solves the
nonnegative QP of the Gram matrix G = JJ': that is the usual case, and costs one Gram matrix and
four passes over J. Otherwise: semismooth Newton steps on theta, each a nonnegative QP of m
variables with a line search (`newton`), and an interior point method where those stall.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .algebra import adjoint, dot, line_search, select, times
from .interior import interior
from .nnqp import nnqp

# relative residual at which a solution is final; rounding of sums over n is of this size
ACCEPT = 1e-13
STALLED = 1e-11  # relative residual that is accepted when steps no longer improve it
_NOISE = 0.01  # weight of g/tau in the size of a residual
NEWTON_STEPS = 40  # 2..6 are usual


class BoxQP(NamedTuple):
    """A batch of QPs."""

    g: Tensor  # (B, n)
    h: Tensor  # (B, m)
    J: Tensor  # (B, m, n)
    G: Tensor  # (B, m, m) JJ'
    tau: Tensor  # (B,)
    beta: Tensor  # (B,)


class BoxPoint(NamedTuple):
    """What belongs to the multipliers y (B, m)."""

    y: Tensor  # (B, m)
    v: Tensor  # (B, n)
    d: Tensor  # (B, n)
    r: Tensor  # (B, m)
    error: Tensor  # (B,) relative residual


def unclipped(G: Tensor, h: Tensor, tau: Tensor, Jg: Tensor) -> Tensor:
    """The multipliers (B, m) if no coordinate of d is clipped: without a pass over n."""
    return nnqp(G, torch.addcmul(Jg, h, tau.unsqueeze(-1)).neg_())


class FromProducts(NamedTuple):
    """What the products of J and g tell of the point of multipliers y."""

    sure: Tensor  # (B,) whether no coordinate of d can be clipped, and y is the solution
    violation: Tensor  # (B,)
    gap: Tensor  # (B,)


def known(
    y: Tensor, G: Tensor, Jg: Tensor, gg: Tensor, h: Tensor, tau: Tensor, beta: Tensor
) -> FromProducts:
    """The same numbers as `point` has without clipping, from JJ', J g and g'g (B,): without a pass
    over n.

    No coordinate of v is larger than |v|, and v = g + J'y, J v = J g + JJ'y.
    """
    Jv = torch.baddbmm(Jg.unsqueeze(-1), G, y.unsqueeze(-1)).squeeze(-1)
    r = Jv / -tau.unsqueeze(-1) - h
    vv = (gg + ((Jg + Jv) * y).sum(-1)).clamp_min_(0)
    error = _error(y, r, h, G, vv.sqrt() / tau, tau)
    sure = (error <= ACCEPT) & (vv <= 0.999 * (tau * beta).square())
    return FromProducts(sure, r.amax(-1).clamp_min_(0), -(y * r).sum(-1))


def finished(y: Tensor, qp: BoxQP) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d (B, n), multipliers (B, m), violation (B,), gap (B,); where y is not the solution it is
    looked for."""
    at = point(y, qp)
    bad = ~(at.error <= ACCEPT)
    if bool(bad.any()):
        index = bad.nonzero().squeeze(-1)
        at = point(at.y.index_copy(0, index, _hard(at.y[index], BoxQP(*select(index, *qp)))), qp)
    return at.d, at.y, at.r.amax(-1).clamp_min_(0), -(at.y * at.r).sum(-1)


def _hard(y: Tensor, qp: BoxQP) -> Tensor:
    """Multipliers by Newton steps; where they stall, by Newton steps from the interior point
    solution."""
    y, error = newton(y, qp)
    bad = error > STALLED
    if bool(bad.any()):
        index = bad.nonzero().squeeze(-1)
        part = BoxQP(*select(index, *qp))
        y_interior, error_interior = newton(
            interior(part.g, part.h, part.J, part.tau, part.beta)[1], part
        )
        better = error_interior < error[index]
        y = y.index_copy(0, index, torch.where(better.unsqueeze(-1), y_interior, y[index]))
    return y


def point(y: Tensor, qp: BoxQP, noise: Tensor | float = 0.0) -> BoxPoint:
    """The point of y; `noise` (B,) is a length of d below which it is rounding (`newton`)."""
    g, h, J, G, tau, beta = qp
    v = torch.baddbmm(g.unsqueeze(-2), y.unsqueeze(-2), J).squeeze(-2)
    d = _clip(v, tau, beta)
    r = times(J, d) - h
    error = _error(y, r, h, G, torch.linalg.vector_norm(d, dim=-1).add_(noise), tau)
    return BoxPoint(y, v, d, r, error)


def _error(y: Tensor, r: Tensor, h: Tensor, G: Tensor, length: Tensor, tau: Tensor) -> Tensor:
    """The relative residual (B,) of multipliers y with residuals r (B, m), for a d of this length
    (B,)."""
    square = G.diagonal(dim1=-2, dim2=-1)  # (B, m) |J_i|^2
    size = torch.addcmul(h.abs(), square.sqrt(), length.unsqueeze(-1))  # (B, m) what r_i is made of
    # Of y_i >= 0 and -r_i >= 0 one must be 0; y_i |J_i|^2/tau, what y_i does to row i, has the unit
    # of r_i.
    complement = torch.minimum(y * square / tau.unsqueeze(-1), -r).abs_()
    return complement.div_(size.clamp_min_(torch.finfo(r.dtype).tiny)).amax(-1)


def _clip(v: Tensor, tau: Tensor, beta: Tensor) -> Tensor:
    """d(y) = clip(-v/tau, -beta, beta); (B, n)."""
    bound = beta.unsqueeze(-1)
    return (v / -tau.unsqueeze(-1)).clamp_(-bound, bound)


def newton(y: Tensor, qp: BoxQP, *, steps: int = NEWTON_STEPS) -> tuple[Tensor, Tensor]:
    """Semismooth Newton ascent on theta from y; returns the best y (B, m) and its relative residual
    (B,)."""
    out, out_error = y.clone(), torch.full_like(qp.tau, torch.inf)
    index = torch.arange(y.shape[0], device=y.device)  # instances still at work
    damping = torch.full_like(qp.tau, 1e-12)  # (B,) relative to the largest possible curvature
    since = torch.zeros_like(qp.tau)  # (B,) steps since the residual last fell clearly
    # Near a solution of the outer problem d is much smaller than g/tau, from which it comes by
    # cancellation: then no residual can be below the rounding of g/tau, which weighs 1e-15 = _NOISE
    # * ACCEPT.
    noise = _NOISE * torch.linalg.vector_norm(qp.g, dim=-1) / qp.tau  # (B,)
    for _ in range(steps):
        at = point(y, qp, noise)
        old = out_error[index]
        better = at.error < old
        out = out.index_copy(0, index, torch.where(better.unsqueeze(-1), y, out[index]))
        out_error = out_error.index_copy(0, index, torch.where(better, at.error, old))
        since = torch.where(at.error < 0.5 * old, 0.0, since + 1)
        stop = (
            (at.error <= ACCEPT)
            | ((since >= 2) & (out_error[index] <= STALLED))
            | ~at.error.isfinite()
        )
        if bool(stop.any()):
            keep = (~stop).nonzero().squeeze(-1)
            if keep.numel() == 0:
                break
            index, damping, since, noise = select(keep, index, damping, since, noise)
            at, qp = BoxPoint(*select(keep, *at)), BoxQP(*select(keep, *qp))
        y, damping = _newton_step(at, qp, damping)
    return out, out_error


def _newton_step(at: BoxPoint, qp: BoxQP, damping: Tensor) -> tuple[Tensor, Tensor]:
    """The next y (B, m) and damping (B,)."""
    free = (at.v.abs() < (qp.tau * qp.beta).unsqueeze(-1)).to(qp.J.dtype)  # (B, n)
    H = torch.bmm(qp.J * free.unsqueeze(-2), qp.J.mT)  # (B, m, m) curvature, times tau
    # m diag(G) bounds every curvature, so a damping of 1 makes the full step an ascent step.
    ridge = damping.unsqueeze(-1) * qp.G.diagonal(dim1=-2, dim2=-1) * H.shape[-1]
    H.diagonal(dim1=-2, dim2=-1).add_(ridge)
    H = H / qp.tau[:, None, None]
    p = nnqp(H, at.r + times(H, at.y)) - at.y  # (B, m) ascent direction: r'p >= p'Hp
    step = _line_search(p, adjoint(qp.J, p), at.v, (at.r * p).sum(-1), qp)
    damping = torch.where(step < 0.1, damping * 1000, damping / 30).clamp(1e-13, 1.0)
    return (at.y + step.unsqueeze(-1) * p).clamp_min(0), damping


def _line_search(p: Tensor, w: Tensor, v: Tensor, f0: Tensor, qp: BoxQP) -> Tensor:
    """How far along p (B,)."""
    ph = (p * qp.h).sum(-1)  # (B,)

    def slope(s: Tensor) -> Tensor:  # of theta along p
        return dot(w, _clip(torch.addcmul(v, s.unsqueeze(-1), w), qp.tau, qp.beta)) - ph

    return line_search(slope, f0)
