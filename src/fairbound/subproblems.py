"""The two subproblems of a Ghost step, solved exactly through their m-dimensional duals, in a batch.

    t     = min_d  max_i [c_i + J_i d]_+            s.t.  |d|_inf <= rho                                 (LP)
    kappa = (1 - lam) max_i [c_i]_+  +  lam t
    d     = argmin_d  g'd + tau/2 |d|^2             s.t.  c + J d <= kappa e,  |d|_inf <= beta           (QP)

Reference: Facchinei, Kungurtsev, Lampariello, Scutari, "Ghost penalties in nonconvex constrained
optimization: diminishing stepsizes and iteration complexity", Mathematics of Operations Research 46 (2021).

Dual of the QP. With h = kappa e - c and multipliers y >= 0 of J d <= h, the Lagrangian splits over
coordinates:

    v(y) = g + J'y,   d(y) = clip(-v/tau, -beta, beta),   grad theta(y) = J d(y) - h =: r(y),

theta is concave, once differentiable and piecewise quadratic with second derivative -J_F J_F'/tau, where F
are the coordinates with |v| < tau beta. Since d(y) minimises the Lagrangian, primal minus dual value at d(y)
is -y'r, so (max r_+, -y'r) certify it. If no coordinate is clipped, y solves the nonnegative QP of the Gram
matrix G = JJ': that is the usual case, and costs one Gram matrix and four passes over J. Otherwise:
semismooth Newton steps on theta, each a nonnegative QP of m variables with a line search (`_newton`), and an
interior point method (`_interior`) where those stall.

Dual of the LP.  t = max_{y >= 0, e'y <= 1}  c'y - rho |J'y|_1.  It is 0 if c <= 0, or if the shortest d
with c + J d <= 0 (again a nonnegative QP of G) lies in the box. Otherwise m = 1 is explicit, m = 2 is
concave in one variable because y is on the edge e'y = 1 of the simplex (`_edge`), and the rest use the
interior point method, for large n on a few columns at a time (`_sieve`).

Everything is computed in float64 and returned in the dtype of the inputs. An instance's result does not
depend on what shares its batch. Nothing fails silently: the residuals are computed from d, y and J
themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .nnqp import nnqp

Number = float | Tensor

ACCEPT = 1e-13  # relative residual at which a solution is final; rounding of sums over n is of this size
STALLED = 1e-11  # relative residual that is accepted when steps no longer improve it
NEWTON_STEPS = 40  # 2..6 are usual
CHUNK = 2**18  # numbers in J that stay in a CPU's cache with their temporaries
SIEVE = 2048  # columns that one round of `_sieve` keeps free
INTERIOR_STEPS = 60  # 10..20 are usual


class Kappa(NamedTuple):
    """kappa, t and the certificate of t, each (...)."""

    value: Tensor  # (...) kappa, from the primal value of t, so that the QP is feasible
    t: Tensor  # (...) primal value of the LP
    gap: Tensor  # (...) t minus a lower bound from its dual


class QP(NamedTuple):
    """Solution of the QP with its certificate (residuals of the float64 solution)."""

    d: Tensor  # (..., n)
    multipliers: Tensor  # (..., m) >= 0
    violation: Tensor  # (...) max_i [J_i d - h_i]_+
    gap: Tensor  # (...) primal minus dual value, -multipliers'(J d - h)


class Direction(NamedTuple):
    """Ghost direction with its certificates."""

    d: Tensor  # (..., n)
    multipliers: Tensor  # (..., m) >= 0
    kappa: Tensor  # (...)
    violation: Tensor  # (...) max_i [c_i + J_i d - kappa]_+
    gap: Tensor  # (...) primal minus dual value of the QP
    kappa_gap: Tensor  # (...) t minus a lower bound from its dual


def kappa(c: Tensor, J: Tensor, *, rho: Number, lam: Number) -> Kappa:
    """(1 - lam) max [c]_+ + lam t, the bound that the linearised constraints are asked to meet.

    c (..., m), J (..., m, n); rho and lam are numbers or tensors that broadcast to the leading dimensions.

    >>> kappa(torch.tensor([1.0]), torch.tensor([[0.5, 0.5]]), rho=0.4, lam=0.5).value
    tensor(0.8000)
    """
    _check(None, c, J, rho=rho, lam=lam)
    args = _broadcast((c, J), (1, 2), (rho, lam))
    return Kappa(*torch.ops.fairbound.ghost_kappa(*args))


def direction_qp(g: Tensor, h: Tensor, J: Tensor, *, tau: Number, beta: Number) -> QP:
    """argmin_d g'd + tau/2 |d|^2  s.t.  J d <= h, |d|_inf <= beta.   g (..., n), h (..., m), J (..., m, n).

    >>> g, h, J = torch.tensor([1.0, 0.0]), torch.tensor([-1.0]), torch.tensor([[0.0, 1.0]])
    >>> direction_qp(g, h, J, tau=1.0, beta=5.0).d
    tensor([-1., -1.])
    """
    _check(g, h, J, name="h", tau=tau, beta=beta)
    args = _broadcast((g, h, J), (1, 1, 2), (tau, beta))
    return QP(*torch.ops.fairbound.ghost_qp(*args))


def ghost_direction(
    g: Tensor, c: Tensor, J: Tensor, *, tau: Number, beta: Number, rho: Number, lam: Number
) -> Direction:
    """The Ghost direction d and its kappa, sharing one Gram matrix.   g (..., n), c (..., m), J (..., m, n).

    tau, beta, rho, lam are numbers or tensors that broadcast to the leading dimensions. Works inside
    `torch.func.vmap`, `torch.compile` and `make_fx`; no gradient passes through it.

    >>> g, c, J = torch.tensor([1.0, 0.0]), torch.tensor([1.0]), torch.tensor([[0.0, 1.0]])
    >>> ghost_direction(g, c, J, tau=1.0, beta=5.0, rho=0.5, lam=0.5).d
    tensor([-1.0000, -0.2500])
    """
    _check(g, c, J, tau=tau, beta=beta, rho=rho, lam=lam)
    args = _broadcast((g, c, J), (1, 1, 2), (tau, beta, rho, lam))
    return Direction(*torch.ops.fairbound.ghost_direction(*args))


# --------------------------------------------------------------------------------------------------- borders


def _check(g: Tensor | None, c: Tensor, J: Tensor, name: str = "c", **numbers: Number) -> None:
    if c.ndim < 1 or J.ndim < 2:
        raise ValueError(
            f"{name} needs shape (..., m) and J (..., m, n); got {tuple(c.shape)} and {tuple(J.shape)}"
        )
    if J.shape[-2] != c.shape[-1]:
        raise ValueError(
            f"J has {J.shape[-2]} rows but {name} has {c.shape[-1]} entries; give one row per constraint"
        )
    if J.shape[-2] == 0:
        raise ValueError("J has no rows; without constraints the direction is clip(-g/tau, -beta, beta)")
    if g is not None and (g.ndim < 1 or J.shape[-1] != g.shape[-1]):
        raise ValueError(
            f"J has {J.shape[-1]} columns but g has shape {tuple(g.shape)}; give one column per parameter"
        )
    plain = {key: float(x) for key, x in numbers.items() if not isinstance(x, Tensor)}
    for key in ("tau", "beta", "rho"):
        if not plain.get(key, 1.0) > 0:
            raise ValueError(f"{key} must be positive, got {plain[key]}")
    if not 0 <= plain.get("lam", 0.5) <= 1:
        raise ValueError(f"lam must be in [0, 1], got {plain['lam']}")
    if "rho" in plain and "beta" in plain and plain["rho"] > plain["beta"]:
        raise ValueError(
            f"rho={plain['rho']} exceeds beta={plain['beta']}: the QP could be infeasible; choose rho < beta"
        )


def _broadcast(tensors: Sequence[Tensor], own: Sequence[int], numbers: Sequence[Number]) -> list[Tensor]:
    """Expand all to common leading dimensions; `own` counts the trailing dimensions that are not leading."""
    leads = {x.shape[: x.ndim - k] for x, k in zip(tensors, own, strict=True)}
    leads |= {x.shape for x in numbers if isinstance(x, Tensor)}
    lead = leads.pop() if len(leads) == 1 else torch.broadcast_shapes(*leads)
    device = tensors[0].device
    scalars = [
        x.to(device, torch.float64).expand(lead)
        if isinstance(x, Tensor)
        else torch.full(lead, x, dtype=torch.float64, device=device)
        for x in numbers
    ]
    shapes = [lead + x.shape[x.ndim - k :] for x, k in zip(tensors, own, strict=True)]
    wide = [x if x.shape == shape else x.expand(shape) for x, shape in zip(tensors, shapes, strict=True)]
    # No gradient passes through the solution, so none is asked for.
    return [x.detach() if x.requires_grad else x for x in wide + scalars]


def _by_chunks(solve: Callable[..., tuple[Tensor, ...]], J: Tensor, *args: Tensor) -> Sequence[Tensor]:
    """solve(*args) with the leading dimensions flattened to one and the numbers in float64.

    On a CPU, in chunks of instances whose J fits the cache; that is worth a factor of three for large
    batches.
    """
    lead = J.ndim - 2
    flat = args if lead == 1 else [x.reshape(-1, *x.shape[lead:]) for x in args]
    size = flat[0].shape[0]
    room = max(1, CHUNK // (J.shape[-1] * J.shape[-2])) if J.device.type == "cpu" else size
    if size <= room:
        return solve(*(x.double() for x in flat))
    parts = [solve(*(x[i : i + room].double() for x in flat)) for i in range(0, size, room)]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _unflat(
    out: Sequence[Tensor], lead: torch.Size, first: torch.dtype, rest: torch.dtype
) -> tuple[Tensor, ...]:
    """Leading dimensions and dtypes as the caller had them."""
    shaped = out if len(lead) == 1 else [x.reshape(lead + x.shape[1:]) for x in out]
    return tuple(x.to(rest if i else first) for i, x in enumerate(shaped))


def _solve_kappa(c: Tensor, J: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
    def solve(c: Tensor, J: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
        return _kappa(c, J, torch.bmm(J, J.mT), rho, lam)

    return _unflat(_by_chunks(solve, J, c, J, rho, lam), c.shape[:-1], c.dtype, c.dtype)


def _solve_qp(g: Tensor, h: Tensor, J: Tensor, tau: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    def solve(g: Tensor, h: Tensor, J: Tensor, tau: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        return _qp(g, h, J, torch.bmm(J, J.mT), tau, beta)

    return _unflat(_by_chunks(solve, J, g, h, J, tau, beta), h.shape[:-1], g.dtype, h.dtype)


def _solve_ghost(
    g: Tensor, c: Tensor, J: Tensor, tau: Tensor, beta: Tensor, rho: Tensor, lam: Tensor
) -> tuple[Tensor, ...]:
    def solve(
        g: Tensor, c: Tensor, J: Tensor, tau: Tensor, beta: Tensor, rho: Tensor, lam: Tensor
    ) -> tuple[Tensor, ...]:
        G = torch.bmm(J, J.mT)  # (B, m, m)
        value, _, kappa_gap = _kappa(c, J, G, rho, lam)
        d, y, violation, gap = _qp(g, value.unsqueeze(-1) - c, J, G, tau, beta)
        return d, y, value, violation, gap, kappa_gap

    return _unflat(_by_chunks(solve, J, g, c, J, tau, beta, rho, lam), c.shape[:-1], g.dtype, c.dtype)


# ------------------------------------------------------------------------------ solvers; B = flattened batch


def _times(J: Tensor, d: Tensor) -> Tensor:
    """J d: (B, m, n), (B, n) -> (B, m)."""
    return torch.bmm(J, d.unsqueeze(-1)).squeeze(-1)


def _adjoint(J: Tensor, y: Tensor) -> Tensor:
    """J'y: (B, m, n), (B, m) -> (B, n)."""
    return torch.bmm(y.unsqueeze(-2), J).squeeze(-2)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """a'b: (B, n), (B, n) -> (B,)."""
    return torch.bmm(a.unsqueeze(-2), b.unsqueeze(-1)).flatten()


def _pick(index: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Rows `index` of each tensor; without a copy when that is all of them."""
    if index.shape[0] == tensors[0].shape[0]:
        return tensors
    return tuple(x[index] for x in tensors)


def _kappa(c: Tensor, J: Tensor, G: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """kappa, t, gap: each (B,)."""
    worst = c.amax(-1).clamp_min_(0)  # (B,) value at d = 0
    d = _adjoint(J, -nnqp(G, c))  # (B, n) shortest step that repairs the linearisation, if any does
    left = (c + _times(J, d)).amax(-1)  # (B,)
    # Only rounding of c + J d may remain: then t is left and its dual bound 0.
    easy = (left <= 10 * ACCEPT * c.abs().amax(-1)) & (torch.linalg.vector_norm(d, torch.inf, dim=-1) <= rho)
    t = left.clamp_min(0)
    gap = t.clone()
    if not bool(easy.all()):
        index = (~easy & left.isfinite()).nonzero().squeeze(-1)
        hard = _hard_kappa(*_pick(index, c, J, rho))
        t, gap = t.index_copy(0, index, hard[0]), gap.index_copy(0, index, hard[1])
    return torch.lerp(worst, t, lam), t, gap


def _hard_kappa(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """t (B,) and its gap (B,)."""
    if c.shape[-1] == 1:
        t = (c - rho.unsqueeze(-1) * J.abs().sum(-1)).squeeze(-1).clamp_min(0)
        return t, torch.zeros_like(t)
    if c.shape[-1] == 2:
        return _edge(c, J, rho)[:2]
    if J.shape[-1] > 4 * SIEVE:
        return _sieve(c, J, rho)
    t, y = _interior_kappa(c, J, rho)
    return t, t - _lower_bound(y, c, J, rho)


class _Cut(NamedTuple):
    """phi at s for one instance of `_edge`: its value and slope, and c + J d for the d that belongs to s."""

    s: float
    value: float
    slope: float
    rows: tuple[float, float]


def _edge(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m = 2: maximise phi(s) = c'y - rho |J'y|_1 over y = (s, 1 - s), 0 <= s <= 1; t, gap and s, each (B,).

    phi is concave and piecewise linear. Between a point where it rises and one where it falls, the tangents'
    crossing bounds it from above; that bound is the primal value of the d on the segment between the two
    points' d which makes both constraints equal. The few numbers per instance are Python floats: faster.
    """

    def cuts(points: list[float]) -> list[_Cut]:
        v = _adjoint(J, J.new_tensor([(s, 1 - s) for s in points]))  # (B, n)
        r = (c - _times(J, torch.copysign(rho.unsqueeze(-1), v))).tolist()
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


def _lower_bound(y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> Tensor:
    """max(0, c'y - rho |J'y|_1) (B,) for y on the simplex."""
    return ((y * c).sum(-1) - rho * _adjoint(J, y).abs().sum(-1)).clamp_min(0)


def _sieve(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """t and gap (B,) for large n: at a solution almost every |d_j| is rho, with the sign of -(J'y)_j.

    So: guess y from an even sample of the columns, then free only the columns where J'y is nearly 0, hold
    the others at their bound, and solve that LP of SIEVE columns. The next guess is the best point between y
    and its y (without this line search the guesses jump to and fro). Upper and lower bounds are those of the
    whole LP. Rounds end when they meet (1..4 are usual); otherwise the LP is solved with all columns.
    """
    every = J.shape[-1] // SIEVE
    y = _interior_kappa(c, J[..., ::every].contiguous(), rho * every)[1]
    v = _adjoint(J, y)  # (B, n)
    dual = ((y * c).sum(-1) - rho * v.abs().sum(-1)).clamp_min(0)
    t = c.amax(-1).clamp_min(0)  # (B,)
    goal = STALLED * c.abs().amax(-1)
    size = torch.linalg.vector_norm(J, dim=-2)  # (B, n)
    for _ in range(8):
        near = torch.where(size > 0, v.abs() / size, torch.inf).topk(SIEVE, largest=False, sorted=False)[1]
        held = (-rho.unsqueeze(-1) * v.sign()).scatter(-1, near, 0.0)  # (B, n)
        some = J.gather(-1, near.unsqueeze(-2).expand(-1, J.shape[-2], -1))  # (B, m, SIEVE)
        upper, new = _interior_kappa(c + _times(J, held), some, rho)
        live = t - dual > goal  # a finished instance stays as it is, whatever the others need
        ends = torch.stack([new, y], -2)  # (B, 2, m)
        both = torch.bmm(ends, J)  # (B, 2, n)
        part = _edge(_times(ends, c), both, rho)[2].unsqueeze(-1)  # (B, 1)
        y, v = torch.lerp(y, new, part), torch.lerp(v, both[:, 0], part)
        lower = ((y * c).sum(-1) - rho * v.abs().sum(-1)).clamp_min(0)
        t, dual = torch.where(live, t.minimum(upper), t), torch.where(live, dual.maximum(lower), dual)
        if bool((t - dual <= goal).all()):
            return t, t - dual
    index = (t - dual > goal).nonzero().squeeze(-1)
    args = _pick(index, c, J, rho)
    upper, y = _interior_kappa(*args)
    t = t.index_copy(0, index, upper.minimum(t[index]))
    return t, t - dual.index_copy(0, index, _lower_bound(y, *args).maximum(dual[index]))


def _interior_kappa(c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """t (B,) and y (B, m) by the interior point method; variable n + 1 of the box is t = half + a d_{n+1}."""
    size = c.abs().amax(-1)
    half = c.amax(-1).maximum(1e-3 * size).clamp_min(torch.finfo(c.dtype).tiny) / 2  # (B,) 0 <= t <= 2 half
    a = half / rho
    wide = torch.cat([J, -a[:, None, None].expand(*J.shape[:2], 1)], -1)  # (B, m, n+1)
    g = torch.zeros_like(wide[:, 0])  # (B, n+1)
    g[:, -1] = a
    d, y = _interior(g, half.unsqueeze(-1) - c, wide, torch.zeros_like(rho), rho)
    # The dual value is positively homogeneous in y, so a positive one is largest on e'y = 1.
    y = y / y.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    dual = _lower_bound(y, c, J, rho)
    t = (c + _times(J, d[:, :-1])).amax(-1).minimum(c.amax(-1)).clamp_min(0)
    rough = t - dual > ACCEPT * size
    if bool(rough.any()):
        index = rough.nonzero().squeeze(-1)
        t_, y_ = _polish(*_pick(index, t, dual, d[:, :-1], y, c, J, rho))
        t, y = t.index_copy(0, index, t_), y.index_copy(0, index, y_)
    return t, y


def _polish_dual(dual: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """A better dual value (B,) and its y: where J'y is nearly 0 it is made exactly 0, by a projection."""
    near = _adjoint(J, y).abs() <= 1e-6 * torch.linalg.vector_norm(J, dim=-2)  # (B, n)
    row = torch.linalg.vector_norm(J, dim=-1)  # (B, m)
    unit = torch.where((y > 1e-9) & (row > 0), 1 / row, 0.0)  # (B, m) only the support of y takes part
    M = torch.bmm(J * near.unsqueeze(-2), J.mT) * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    values, U = torch.linalg.eigh(M)  # (B, m), (B, m, m)
    kept = values <= 1e-10 * values.amax(-1, keepdim=True)
    new = _times(U, kept * _times(U.mT, y * row)) * unit
    new = torch.where(unit > 0, new, torch.where(row > 0, 0.0, y)).clamp_min(0)
    new = new / new.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    bound = _lower_bound(new, c, J, rho)
    better = bound > dual
    return torch.where(better, bound, dual), torch.where(better.unsqueeze(-1), new, y)


def _polish(
    t: Tensor, dual: Tensor, d: Tensor, y: Tensor, c: Tensor, J: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """A better y, then a better t: that of the projection of d onto {c + J d <= dual, |d|_inf <= rho}."""
    dual, y = _polish_dual(dual, y, c, J, rho)
    size = c.abs().amax(-1) + rho * torch.linalg.vector_norm(J, dim=-1).amax(-1)
    h = (dual + 1e-15 * size).unsqueeze(-1) - c  # (B, m) without the slack rounding could empty the set
    qp = (-d, h, J, torch.bmm(J, J.mT), torch.ones_like(rho), rho)
    multipliers, _ = _newton(torch.zeros_like(c), *qp, accept=1e-15)
    _, nearest, _, _ = _point(multipliers, *qp)
    return t.minimum((c + _times(J, nearest)).amax(-1).clamp_min(0)), y


def _clip(v: Tensor, tau: Tensor, beta: Tensor) -> Tensor:
    """d(y) = clip(-v/tau, -beta, beta); (B, n)."""
    bound = beta.unsqueeze(-1)
    return (v / -tau.unsqueeze(-1)).clamp_(-bound, bound)


def _point(
    y: Tensor, g: Tensor, h: Tensor, J: Tensor, G: Tensor, tau: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v (B, n), d (B, n), r (B, m) at y, and the relative residual (B,)."""
    v = torch.baddbmm(g.unsqueeze(-2), y.unsqueeze(-2), J).squeeze(-2)
    d = _clip(v, tau, beta)
    r = torch.baddbmm(h.unsqueeze(-1), J, d.unsqueeze(-1), beta=-1).squeeze(-1)
    square = G.diagonal(dim1=-2, dim2=-1)  # (B, m) |J_i|^2
    size = torch.addcmul(h.abs(), square.sqrt(), torch.linalg.vector_norm(d, dim=-1, keepdim=True))
    # Of y_i >= 0 and -r_i >= 0 one must be 0; y_i |J_i|^2/tau, what y_i does to row i, has the unit of r_i.
    complement = torch.minimum(y * square / tau.unsqueeze(-1), -r).abs_()
    error = complement.div_(size.clamp_min_(torch.finfo(r.dtype).tiny)).amax(-1)
    return v, d, r, error


def _qp(
    g: Tensor, h: Tensor, J: Tensor, G: Tensor, tau: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d (B, n), multipliers (B, m), violation (B,), gap (B,)."""
    y = nnqp(G, torch.addcmul(_times(J, g), h, tau.unsqueeze(-1)).neg_())
    _, d, r, error = _point(y, g, h, J, G, tau, beta)
    bad = ~(error <= ACCEPT)
    if bool(bad.any()):
        index = (bad & error.isfinite()).nonzero().squeeze(-1)
        args = _pick(index, g, h, J, G, tau, beta)
        y = y.index_copy(0, index, _hard_qp(y[index], *args))
        _, d, r, error = _point(y, g, h, J, G, tau, beta)
    return d, y, r.amax(-1).clamp_min(0), -(y * r).sum(-1)


def _hard_qp(y: Tensor, *qp: Tensor) -> Tensor:
    """Multipliers by Newton steps; where they stall, by Newton steps from the interior point solution."""
    y, error = _newton(y, *qp)
    bad = error > STALLED
    if bool(bad.any()):
        index = bad.nonzero().squeeze(-1)
        args = _pick(index, *qp)
        g, h, J, _, tau, beta = args
        again, error_again = _newton(_interior(g, h, J, tau, beta)[1], *args)
        better = error_again < error[index]
        y = y.index_copy(0, index, torch.where(better.unsqueeze(-1), again, y[index]))
    return y


def _newton(
    y: Tensor,
    g: Tensor,
    h: Tensor,
    J: Tensor,
    G: Tensor,
    tau: Tensor,
    beta: Tensor,
    *,
    accept: float = ACCEPT,
) -> tuple[Tensor, Tensor]:
    """Semismooth Newton ascent on theta from y; returns the best y (B, m) and its relative residual (B,)."""
    out, out_error = y.clone(), torch.full_like(tau, torch.inf)
    index = torch.arange(y.shape[0], device=y.device)  # instances still at work
    damping = torch.full_like(tau, 1e-12)  # (B,) relative to the largest possible curvature
    since = torch.zeros_like(tau)  # (B,) steps since the residual last fell clearly
    for _ in range(NEWTON_STEPS):
        v, d, r, error = _point(y, g, h, J, G, tau, beta)
        old = out_error[index]
        better = error < old
        out = out.index_copy(0, index, torch.where(better.unsqueeze(-1), y, out[index]))
        out_error = out_error.index_copy(0, index, torch.where(better, error, old))
        since = torch.where(error < 0.5 * old, 0.0, since + 1)
        stop = (error <= accept) | ((since >= 2) & (out_error[index] <= STALLED)) | ~error.isfinite()
        if bool(stop.any()):
            keep = (~stop).nonzero().squeeze(-1)
            if keep.numel() == 0:
                break
            index, y, v, d, r, damping, since = _pick(keep, index, y, v, d, r, damping, since)
            g, h, J, G, tau, beta = _pick(keep, g, h, J, G, tau, beta)
        y, damping = _newton_step(y, v, r, h, J, G, tau, beta, damping)
    return out, out_error


def _newton_step(
    y: Tensor,
    v: Tensor,
    r: Tensor,
    h: Tensor,
    J: Tensor,
    G: Tensor,
    tau: Tensor,
    beta: Tensor,
    damping: Tensor,
) -> tuple[Tensor, Tensor]:
    """The next y (B, m) and damping (B,)."""
    free = (v.abs() < (tau * beta).unsqueeze(-1)).to(J.dtype)  # (B, n)
    H = torch.bmm(J * free.unsqueeze(-2), J.mT)  # (B, m, m) curvature, times tau
    # m diag(G) bounds every curvature, so a damping of 1 makes the full step an ascent step.
    ridge = damping.unsqueeze(-1) * G.diagonal(dim1=-2, dim2=-1) * y.shape[-1]
    H = (H + torch.diag_embed(ridge)) / tau[:, None, None]
    p = nnqp(H, r + _times(H, y)) - y  # (B, m) ascent direction: r'p >= p'Hp
    step = _line_search(p, _adjoint(J, p), v, (r * p).sum(-1), h, tau, beta)
    damping = torch.where(step < 0.1, damping * 1000, damping / 30).clamp(1e-13, 1.0)
    return (y + step.unsqueeze(-1) * p).clamp_min(0), damping


def _line_search(p: Tensor, w: Tensor, v: Tensor, f0: Tensor, h: Tensor, tau: Tensor, beta: Tensor) -> Tensor:
    """Step with |slope| <= 0.3 slope(0), or 1 if still rising there: regula falsi (Illinois) on the slope."""
    ph = (p * h).sum(-1)  # (B,)

    def slope(s: Tensor) -> Tensor:  # of theta along p
        return _dot(w, _clip(torch.addcmul(v, s.unsqueeze(-1), w), tau, beta)) - ph

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


class _Inner(NamedTuple):
    """A strictly interior point:  J d + s = h (y),  low = d + beta (zl),  up = beta - d (zu)."""

    d: Tensor  # (B, n)
    low: Tensor  # (B, n)
    up: Tensor  # (B, n)
    s: Tensor  # (B, m)
    y: Tensor  # (B, m)
    zl: Tensor  # (B, n)
    zu: Tensor  # (B, n)

    def moved(self, by: "_Inner", primal: Tensor, dual: Tensor) -> "_Inner":
        return _Inner(*(x + a * dx for x, dx, a in zip(self, by, (primal,) * 4 + (dual,) * 3, strict=True)))

    def products(self) -> Tensor:
        """Sum of all complementarity products, (B, 1)."""
        return ((self.low * self.zl + self.up * self.zu).sum(-1) + (self.s * self.y).sum(-1)).unsqueeze(-1)


def _interior(g: Tensor, h: Tensor, J: Tensor, tau: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Mehrotra's predictor-corrector on the QP (tau = 0: the LP); d (B, n) and multipliers (B, m).

    Eliminating everything but y leaves (J D^-1 J' + diag(s/y)) dy = rhs with D = tau + zl/low + zu/up, (m,
    m). Rounding ends the progress somewhere below 1e-10, so the best point is kept.
    """
    tau, beta = tau.unsqueeze(-1), beta.unsqueeze(-1)  # (B, 1)
    tiny = torch.finfo(g.dtype).tiny
    row = (torch.linalg.vector_norm(J, dim=-1) * beta + h.abs()).clamp_min(tiny)  # (B, m) size of J_i d - h_i
    cost = (g.abs().amax(-1, keepdim=True) + tau * beta).clamp_min(tiny)  # (B, 1) size of the gradient
    wall, price = beta.expand_as(g), cost.expand_as(g)
    x = _Inner(torch.zeros_like(g), wall, wall, h.maximum(row), cost * beta / row, price, price)
    best_d, best_y = x.d, x.y
    best = torch.full_like(beta, torch.inf)  # (B, 1) relative gap plus relative infeasibility
    done = torch.zeros_like(best, dtype=torch.bool)
    for _ in range(INTERIOR_STEPS):
        rp = _times(J, x.d) - h  # (B, m), infeasible by rp + s
        rd = torch.addcmul(g + _adjoint(J, x.y), tau, x.d)  # (B, n), infeasible by rd - zl + zu
        off = (
            ((rp + x.s).abs() / row)
            .amax(-1, keepdim=True)
            .maximum((rd - x.zl + x.zu).abs().amax(-1, keepdim=True) / cost)
        )
        merit = x.products() / (cost * beta) + off
        better = (merit < best) & ~done
        best_d, best_y = torch.where(better, x.d, best_d), torch.where(better, x.y, best_y)
        done = done | (merit <= 1e-13) | ((best < 1e-9) & (merit > 0.5 * best)) | ~merit.isfinite()
        best = torch.where(better, merit, best)
        if bool(done.all()):
            break
        x = _interior_step(x, rp, rd, J, tau)
    return best_d.maximum(-beta).minimum(beta), best_y


def _interior_step(x: _Inner, rp: Tensor, rd: Tensor, J: Tensor, tau: Tensor) -> _Inner:
    """Predict with no centring, then correct with the centring that the prediction calls for."""
    el, eu, es = x.zl / x.low, x.zu / x.up, x.s / x.y
    inv = 1 / (tau + el + eu)  # (B, n)
    K = torch.bmm(J * inv.unsqueeze(-2), J.mT) + torch.diag_embed(es)
    unit = K.diagonal(dim1=-2, dim2=-1).rsqrt()  # (B, m)
    LU, pivots, _ = torch.linalg.lu_factor_ex(K * unit.unsqueeze(-1) * unit.unsqueeze(-2))

    def solve(cl: Tensor | float, cu: Tensor | float, cs: Tensor | float) -> _Inner:
        """Newton step towards low zl = low cl, up zu = up cu, s y = y cs."""
        q = rd - cl + cu
        rhs = (rp + cs - _times(J, inv * q)) * unit
        dy = torch.linalg.lu_solve(LU, pivots, rhs.unsqueeze(-1)).squeeze(-1) * unit
        dd = -inv * (q + _adjoint(J, dy))
        return _Inner(dd, dd, -dd, cs - x.s - es * dy, dy, cl - x.zl - el * dd, cu - x.zu + eu * dd)

    def reach(by: _Inner, keep: float) -> tuple[Tensor, Tensor]:
        """Primal and dual step, `keep` times the way to the boundary; one step for both in a QP."""
        primal = torch.minimum(torch.minimum(_room(x.low, by.low), _room(x.up, by.up)), _room(x.s, by.s))
        dual = torch.minimum(torch.minimum(_room(x.zl, by.zl), _room(x.zu, by.zu)), _room(x.y, by.y))
        both = torch.minimum(primal, dual)
        lengths = (torch.where(tau > 0, both, primal), torch.where(tau > 0, both, dual))
        return lengths[0].mul(keep).clamp_max(1), lengths[1].mul(keep).clamp_max(1)

    count = 2 * rd.shape[-1] + rp.shape[-1]
    now = x.products()  # (B, 1)
    a = solve(0.0, 0.0, 0.0)
    target = (x.moved(a, *reach(a, 1.0)).products() / now) ** 3 * now / count  # (B, 1) Mehrotra's cube rule
    b = solve((target - a.low * a.zl) / x.low, (target - a.up * a.zu) / x.up, (target - a.s * a.y) / x.y)
    return x.moved(b, *reach(b, 0.995))


def _room(x: Tensor, dx: Tensor) -> Tensor:
    """Largest step that keeps x + step dx >= 0; (B, 1), at most 1e10."""
    return 1 / (-dx / x).amax(-1, keepdim=True).clamp_min(1e-10)


# ----------------------------------------------------------------------------------- registration with torch


def _register(
    name: str, schema: str, solve: Callable[..., tuple[Tensor, ...]], shapes: Callable[..., Any]
) -> None:
    """An operator that vmap batches, and that compile and make_fx treat as opaque."""
    op = torch.library.custom_op(f"fairbound::{name}", solve, mutates_args=(), schema=schema)
    op.register_fake(shapes)

    def batch(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        front = [
            x.expand(size, *x.shape) if k is None else x.movedim(k, 0)
            for x, k in zip(args, in_dims, strict=True)
        ]
        out = op(*front)
        return out, (0,) * len(out)

    op.register_vmap(batch)


def _like(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape)


_register(
    "ghost_kappa",
    "(Tensor c, Tensor J, Tensor rho, Tensor lam) -> (Tensor, Tensor, Tensor)",
    _solve_kappa,
    lambda c, J, rho, lam: tuple(_like(c, *c.shape[:-1]) for _ in range(3)),
)
_register(
    "ghost_qp",
    "(Tensor g, Tensor h, Tensor J, Tensor tau, Tensor beta) -> (Tensor, Tensor, Tensor, Tensor)",
    _solve_qp,
    lambda g, h, J, tau, beta: (
        _like(g, *g.shape),
        _like(h, *h.shape),
        _like(h, *h.shape[:-1]),
        _like(h, *h.shape[:-1]),
    ),
)
_register(
    "ghost_direction",
    "(Tensor g, Tensor c, Tensor J, Tensor tau, Tensor beta, Tensor rho, Tensor lam)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _solve_ghost,
    lambda g, c, J, tau, beta, rho, lam: (
        _like(g, *g.shape),
        _like(c, *c.shape),
        *(_like(c, *c.shape[:-1]) for _ in range(4)),
    ),
)
