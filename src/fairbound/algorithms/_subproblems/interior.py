"""Mehrotra's predictor-corrector interior point method for a batch of box-constrained QPs and LPs.

    min_d  g'd + tau/2 |d|^2   s.t.  J d + s = h (y),   low = d + beta (zl),   up = beta - d (zu),
            s, low, up >= 0

Slacks P = (low, up, s) and their multipliers Z = (zl, zu, y) are kept strictly positive. A step is
Newton's on the optimality conditions with P Z = target; eliminating everything but dy leaves (J
D^-1 J' + diag(s/y)) dy = rhs, (m, m), with D = tau + zl/low + zu/up. The code keeps P and Z as one
tensor each because on small problems a step costs its number of torch calls.

Reference: Mehrotra, "On the implementation of a primal-dual interior point method", SIAM Journal on
Optimization 2 (1992).
"""

from typing import NamedTuple

import torch
from torch import Tensor

_STEPS = 60  # 10..20 are usual
_FINAL = 1e-13  # relative gap plus relative infeasibility that ends the steps


class _Inner(NamedTuple):
    """A strictly interior point. All vectors are columns, (B, size, 1)."""

    d: Tensor  # n
    P: Tensor  # 2n + m: slacks low, up, s
    Z: Tensor  # 2n + m: their multipliers zl, zu, y


def interior(
    g: Tensor, h: Tensor, J: Tensor, tau: Tensor | None, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """d (B, n) and multipliers (B, m) of g (B, n), h (B, m), J (B, m, n), tau (B,) or None for an
    LP, beta (B,).

    Rounding ends the progress somewhere below 1e-10, so the best point is kept.
    """
    m, n = J.shape[-2:]
    tiny = torch.finfo(g.dtype).tiny
    g, h, beta = g.unsqueeze(-1), h.unsqueeze(-1), beta[:, None, None]
    tau = tau if tau is None else tau[:, None, None]
    # size of J_i d - h_i
    row = (torch.linalg.vector_norm(J, dim=-1, keepdim=True) * beta + h.abs()).clamp_min(tiny)
    cost = g.abs().amax(1, keepdim=True)  # (B, 1, 1) size of the gradient
    cost = (cost if tau is None else cost + tau * beta).clamp_min(tiny)
    worth = cost * beta
    walls = beta.expand(-1, 2 * n, 1)
    x = _Inner(
        torch.zeros_like(g),
        torch.cat([walls, h.maximum(row)], 1),
        torch.cat([cost.expand_as(walls), worth / row], 1),
    )
    best_d, best_y = x.d, x.Z[:, 2 * n :]
    best = torch.full_like(beta, torch.inf)  # (B, 1, 1) relative gap plus relative infeasibility
    done = torch.zeros_like(best, dtype=torch.bool)
    for _ in range(_STEPS):
        zl, zu, y = x.Z.split([n, n, m], 1)
        rp = torch.baddbmm(h, J, x.d, beta=-1)  # J d - h, infeasible by rp + s
        rd = torch.baddbmm(g, J.mT, y)  # g + J'y + tau d, infeasible by rd - zl + zu
        rd = rd if tau is None else rd.addcmul_(tau, x.d)
        W = x.P * x.Z  # complementarity products
        total = W.sum(1, keepdim=True)
        off = (rd - zl + zu).abs_().amax(1, keepdim=True) / cost
        off = off.maximum(((rp + x.P[:, 2 * n :]) / row).abs_().amax(1, keepdim=True))
        merit = torch.addcdiv(off, total, worth)
        better = (merit < best) & ~done
        best_d, best_y = torch.where(better, x.d, best_d), torch.where(better, y, best_y)
        # also where merit is NaN
        done = done | ~(merit > _FINAL) | ((best < 1e-9) & (merit > 0.5 * best))
        if bool(done.all()):
            break
        best = torch.where(better, merit, best)
        x = _step(x, W, total, rp, rd, J, tau)
    return best_d.maximum(-beta).minimum(beta).squeeze(-1), best_y.squeeze(-1)


def _step(
    x: _Inner, W: Tensor, total: Tensor, rp: Tensor, rd: Tensor, J: Tensor, tau: Tensor | None
) -> _Inner:
    """Predict with target 0, then correct with the target that the prediction calls for."""
    m, n = J.shape[-2:]
    E = x.Z / x.P
    el, eu, es = E.split([n, n, m], 1)
    D = el + eu
    inv = (D if tau is None else D + tau).reciprocal_()
    y = x.Z[:, 2 * n :]
    K = torch.bmm(J * inv.mT, J.mT)
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(es.reciprocal().squeeze(-1))
    unit = diagonal.rsqrt().unsqueeze(-1)
    LU, pivots, _ = torch.linalg.lu_factor_ex(K * (unit * unit.mT))

    def newton(q: Tensor, rp: Tensor, rest: Tensor) -> Tensor:
        """dP for P Z = target, with (cl, cu, cs) = target / P, q = rd - cl + cu, rp + cs/es and
        rest = cs - y."""
        rhs = torch.baddbmm(rp, J, inv * q, alpha=-1)
        dy = torch.linalg.lu_solve(LU, pivots, rhs * unit) * unit
        dd = torch.baddbmm(q, J.mT, dy).mul_(inv)  # minus the step in d
        return torch.cat([-dd, dd, (rest - dy) / es], 1)

    u = newton(rd, rp, -y) / x.P  # predictor: dP/P = u, so that dZ/Z = -1 - u
    w = u + 1
    primal, dual = _reach(-u, w, 1.0, tau)
    left = (W * (1 + primal * u) * (1 - dual * w)).sum(1, keepdim=True)
    target = (left / total) ** 3 * total / W.shape[1]  # Mehrotra's cube rule
    C = torch.addcmul(target, W * u, w) / x.P  # (target - dP dZ) / P
    cl, cu, cs = C.split([n, n, m], 1)
    dP = newton(rd - cl + cu, torch.addcdiv(rp, cs, es), cs - y)
    dZ = torch.addcmul(C - x.Z, E, dP, value=-1)
    primal, dual = _reach(dP / -x.P, dZ / -x.Z, 0.995, tau)
    return _Inner(
        torch.addcmul(x.d, primal, dP[:, :n]),
        torch.addcmul(x.P, primal, dP),
        torch.addcmul(x.Z, dual, dZ),
    )


def _reach(p: Tensor, z: Tensor, keep: float, tau: Tensor | None) -> tuple[Tensor, Tensor]:
    """Primal and dual step, (B, 1, 1) and at most 1: `keep` times the way to 0 if a full step takes
    p P and z Z away.

    In an LP the two are independent; in a QP the dual residual contains d, so both take the shorter
    one.
    """
    primal, dual = (keep / x.amax(1, keepdim=True).clamp_min_(keep) for x in (p, z))
    if tau is None:
        return primal, dual
    both = torch.minimum(primal, dual)
    return both, both
