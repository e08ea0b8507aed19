"""The two subproblems of a Ghost step, solved exactly through their m-dimensional duals, in a
batch.

    t     = min_d  max_i [c_i + J_i d]_+            s.t.  |d|_inf <= rho
            (LP)
    kappa = (1 - lam) max_i [c_i]_+  +  lam t
    d     = argmin_d  g'd + tau/2 |d|^2             s.t.  c + J d <= kappa e,  |d|_inf <= beta
            (QP)

An equality c_i = 0 is the two rows (c_i, J_i) and (-c_i, -J_i), so that |c_i + J_i d| <= kappa and
|c_i| stands in kappa; its multiplier, of either sign, is their difference.

Reference: Facchinei, Kungurtsev, Lampariello, Scutari, "Ghost penalties in nonconvex constrained
optimization: diminishing stepsizes and iteration complexity", Mathematics of Operations Research 46
(2021).

The QP is in `box_qp`, the LP in `kappa_lp`; both use the nonnegative QPs of `nnqp` and, where those
do not settle it, the interior point method of `interior`. Everything is computed in float64 and
returned in the dtype of the inputs. An instance's result does not depend on what shares its batch.
Nothing fails silently: the residuals are computed from d, y and J themselves, or from JJ', Jg and
g'g where no coordinate of d can be clipped. An instance with a number that is not finite (or whose
square is not) gets NaN.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import box_qp, kappa_lp
from .algebra import select
from .operators import register

__all__ = ["Direction", "ghost_direction"]

Number = float | Tensor

PIECE = 2**17  # numbers in J that stay in the cache of a core with their temporaries


class Direction(NamedTuple):
    """Ghost direction with its certificates."""

    d: Tensor  # (..., n)
    multipliers: Tensor  # (..., m) >= 0, of either sign for an equality
    kappa: Tensor  # (...)
    # (...) max_i [c_i + J_i d - kappa]_+, for an equality [|c_i + J_i d| - kappa]_+
    violation: Tensor
    gap: Tensor  # (...) primal minus dual value of the QP
    kappa_gap: Tensor  # (...) t minus a lower bound from its dual


def ghost_direction(
    g: Tensor,
    c: Tensor,
    J: Tensor,
    *,
    tau: Number,
    beta: Number,
    rho: Number,
    lam: Number,
    equality: Tensor | None = None,
    scale: Tensor | None = None,
) -> Direction:
    """The Ghost direction d and its kappa, sharing one Gram matrix.   g (..., n), c (..., m), J
    (..., m, n).

    `scale` (..., n) gives a diagonal metric: tau/2 |d / scale|^2 in place of tau/2 |d|^2, and d /
    scale in the boxes.

    tau, beta, rho, lam are numbers or tensors that broadcast to the leading dimensions; `equality`
    (..., m) is not 0 for the constraints c_i = 0. Works inside `torch.func.vmap`, `torch.compile`
    and `make_fx`; no gradient passes through it.

    >>> g, c, J = torch.tensor([1.0, 0.0]), torch.tensor([1.0]), torch.tensor([[0.0, 1.0]])
    >>> ghost_direction(g, c, J, tau=1.0, beta=5.0, rho=0.5, lam=0.5).d
    tensor([-1.0000, -0.2500])
    """
    _check(g, c, J, tau=tau, beta=beta, rho=rho, lam=lam)
    equality = torch.zeros_like(c) if equality is None else equality
    if scale is not None:
        g, J = g * scale, J * scale.unsqueeze(-2)
    args = _broadcast((g, c, J, equality), (1, 1, 2, 1), (tau, beta, rho, lam))
    direction = Direction(*torch.ops.fairbound.ghost_direction(*args))
    return direction if scale is None else direction._replace(d=direction.d * scale)


def _check(g: Tensor, c: Tensor, J: Tensor, **numbers: Number) -> None:
    if c.ndim < 1 or J.ndim < 2:
        raise ValueError(
            f"c needs shape (..., m) and J (..., m, n); got {tuple(c.shape)} and {tuple(J.shape)}"
        )
    if J.shape[-2] != c.shape[-1]:
        raise ValueError(
            f"J has {J.shape[-2]} rows but c has {c.shape[-1]} entries; give one row per constraint"
        )
    if J.shape[-2] == 0:
        raise ValueError(
            "J has no rows; without constraints the direction is clip(-g/tau, -beta, beta)"
        )
    if g.ndim < 1 or J.shape[-1] != g.shape[-1]:
        raise ValueError(
            f"J has {J.shape[-1]} columns but g has shape {tuple(g.shape)}; give one column per"
            " parameter"
        )
    plain = {key: float(x) for key, x in numbers.items() if not isinstance(x, Tensor)}
    for key in ("tau", "beta", "rho"):
        if not plain.get(key, 1.0) > 0:
            raise ValueError(f"{key} must be positive, got {plain[key]}")
    if not 0 <= plain.get("lam", 0.5) <= 1:
        raise ValueError(f"lam must be in [0, 1], got {plain['lam']}")
    if plain.get("rho", 0.0) > plain.get("beta", math.inf):
        raise ValueError(
            f"rho={plain['rho']} exceeds beta={plain['beta']}: the QP could be infeasible; choose"
            " rho < beta"
        )


def _broadcast(
    tensors: Sequence[Tensor], trailing: Sequence[int], numbers: Sequence[Number]
) -> list[Tensor]:
    """Expand all to common leading dimensions; `trailing` counts the dimensions of each tensor that
    are not leading."""
    leads = [x.shape[: x.ndim - k] for x, k in zip(tensors, trailing, strict=True)]
    leads += [x.shape for x in numbers if isinstance(x, Tensor)]
    lead = leads[0] if all(x == leads[0] for x in leads) else torch.broadcast_shapes(*leads)
    device = tensors[0].device
    scalars = [
        (
            x.to(device, torch.float64).expand(lead)
            if isinstance(x, Tensor)
            else torch.full(lead, x, dtype=torch.float64, device=device)
        )
        for x in numbers
    ]
    shapes = [lead + x.shape[x.ndim - k :] for x, k in zip(tensors, trailing, strict=True)]
    wide = [
        x if x.shape == shape else x.expand(shape) for x, shape in zip(tensors, shapes, strict=True)
    ]
    # No gradient passes through the solution, so none is asked for.
    return [x.detach() if x.requires_grad else x for x in wide + scalars]


def _solve_ghost(
    g: Tensor,
    c: Tensor,
    J: Tensor,
    equality: Tensor,
    tau: Tensor,
    beta: Tensor,
    rho: Tensor,
    lam: Tensor,
) -> tuple[Tensor, ...]:
    """Solve with the leading dimensions flattened to one and the small numbers in float64; dtypes
    as the caller had them."""
    lead = c.shape[:-1]
    flat = [x.reshape(-1, *x.shape[len(lead) :]) for x in (g, c, J, equality, tau, beta, rho, lam)]
    g_flat, c_flat, J_flat, equal, *numbers = flat
    rows = _with_both_signs(c_flat.double(), J_flat, equal > 0)
    d, y, *rest = _flat_ghost(g_flat, rows.c, rows.J, *(x.double() for x in numbers))
    results = (rows.joined(y, c.shape[-1]), *rest)
    return (
        d.reshape(g.shape).to(g.dtype),
        *(x.reshape(lead + x.shape[1:]).to(c.dtype) for x in results),
    )


class _Rows(NamedTuple):
    """Constraints as inequalities, B instances."""

    c: Tensor  # (B, M)
    J: Tensor  # (B, M, n)
    constraint: Tensor | None  # (M,) index of each row's constraint; None: row i is constraint i
    sign: Tensor | None  # (M,) -1 for the second row of an equality

    def joined(self, y: Tensor, m: int) -> Tensor:
        """The multipliers of the constraints, (B, m), from those of the rows."""
        if self.constraint is None or self.sign is None:
            return y
        return y.new_zeros(len(y), m).index_add_(1, self.constraint, self.sign * y)


def _with_both_signs(c: Tensor, J: Tensor, equality: Tensor) -> _Rows:
    """Every equality followed by its negative; where another instance alone has one, by a row that
    never binds."""
    twice = equality.any(0)
    if not bool(twice.any()):
        return _Rows(c, J, None, None)
    constraint = torch.arange(c.shape[1], device=c.device).repeat_interleave(1 + twice.long())
    second = torch.cat(
        [constraint.new_zeros(1, dtype=torch.bool), constraint[1:] == constraint[:-1]]
    )
    sign = torch.where(second, -1.0, 1.0).to(c.dtype)
    idle = second & ~equality[:, constraint]
    c = torch.where(idle, -1.0, sign * c[:, constraint])
    J = torch.where(idle[..., None], 0.0, sign.to(J.dtype)[:, None] * J[:, constraint])
    return _Rows(c, J, constraint, sign)


# ------------------------------------ B instances, finite or not


def _flat_ghost(
    g: Tensor, c: Tensor, J: Tensor, tau: Tensor, beta: Tensor, rho: Tensor, lam: Tensor
) -> tuple[Tensor, ...]:
    """Small numbers for all instances at once; g and J, in their own precision, in pieces that a
    cache holds."""
    G, Jg, gg = _products(J, g)
    finite = _finite(c, G.flatten(1), Jg)
    if finite is not None:
        return _only(finite, _flat_ghost, g, c, J, tau, beta, rho, lam)
    value, kappa_gap = _kappa(c, J, G, rho, lam)
    h = value.unsqueeze(-1) - c
    y = box_qp.unclipped(G, h, tau, Jg)
    known = box_qp.known(y, G, Jg, gg, h, tau, beta)
    results = [_unclipped(J, g, y, tau), y, known.violation, known.gap]
    if not bool(known.sure.all()):
        index = (~known.sure).nonzero().squeeze(-1)
        solutions = _in_pieces(_finished, *select(index, J, g, y, h, G, tau, beta))
        pairs = zip(results, solutions, strict=True)
        results = [
            result.index_copy(0, index, solution.to(result.dtype)) for result, solution in pairs
        ]
    return results[0], results[1], value, results[2], results[3], kappa_gap


def _finished(J: Tensor, g: Tensor, y: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    h, G, tau, beta = rest
    return box_qp.finished(y, box_qp.BoxQP(g, h, J, G, tau, beta))


def _together(J: Tensor, g: Tensor) -> Tensor:
    """The rows of J and g as one (B, m+1, n) in float64."""
    rows = torch.empty(len(J), J.shape[1] + 1, J.shape[2], dtype=torch.float64, device=J.device)
    rows[:, :-1], rows[:, -1] = J, g
    return rows


def _products(J: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """JJ' (B, m, m), J g (B, m) and g'g (B,)."""
    pieces = (_together(*parts) for parts in zip(J.split(_room(J)), g.split(_room(J)), strict=True))
    products = torch.cat([torch.bmm(piece, piece.mT) for piece in pieces])
    return products[:, :-1, :-1], products[:, :-1, -1], products[:, -1, -1]


def _unclipped(J: Tensor, g: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    """d = -(g + J'y)/tau, (B, n), computed in float64 and rounded to the precision of g."""
    d, weights = (
        torch.empty_like(g),
        torch.cat([y, torch.ones_like(tau).unsqueeze(-1)], -1) / -tau.unsqueeze(-1),
    )
    for into, rows, gradient, weight in zip(
        *(x.split(_room(J)) for x in (d, J, g, weights)), strict=True
    ):
        into.copy_(torch.bmm(weight.unsqueeze(-2), _together(rows, gradient)).squeeze(-2))
    return d


def _kappa(c: Tensor, J: Tensor, G: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """kappa and its gap, each (B,); only instances that need J are given it."""
    easy, t = kappa_lp.repaired(c, G, rho)
    value, gap = torch.lerp(c.amax(-1).clamp_min(0), t, lam), t
    if bool(easy.all()):
        return value, gap
    index = (~easy).nonzero().squeeze(-1)
    hard = _in_pieces(
        lambda J, *rest: kappa_lp.solve(rest[0], J, *rest[1:]), *select(index, J, c, G, rho, lam)
    )
    return value.index_copy(0, index, hard[0]), gap.index_copy(0, index, hard[2])


def _in_pieces(
    solve: Callable[..., tuple[Tensor, ...]], J: Tensor, *args: Tensor
) -> tuple[Tensor, ...]:
    """solve(J, *args) in float64, on a CPU in pieces of instances whose J stays in the cache of a
    core."""
    room = _room(J)
    if len(J) <= room:
        return solve(J.double(), *(x.double() for x in args))
    pieces = zip(*(x.split(room) for x in (J, *args)), strict=True)
    results = [solve(*(x.double() for x in piece)) for piece in pieces]
    return tuple(torch.cat(column) for column in zip(*results, strict=True))


def _room(J: Tensor) -> int:
    """How many instances stay in the cache of a core with their temporaries."""
    return (
        max(1, PIECE // (J.shape[-1] * J.shape[-2])) if J.device.type == "cpu" else max(1, len(J))
    )


def _finite(*parts: Tensor) -> Tensor | None:
    """Mask (B,) of the instances with only finite numbers; None if all.

    A number of J or g that is not finite shows in JJ' and J g, since also 0 * inf is NaN: no pass
    over n is needed.
    """
    numbers = torch.cat(parts, -1)
    if math.isfinite(float(numbers.sum())):
        return None
    return numbers.isfinite().all(-1)


def _only(
    finite: Tensor, solve: Callable[..., tuple[Tensor, ...]], *args: Tensor
) -> tuple[Tensor, ...]:
    """NaN where not finite. The solver gets ones there: an instance that costs nothing."""

    def masked(x: Tensor, other: float) -> Tensor:
        return torch.where(finite.view(-1, *[1] * (x.ndim - 1)), x, other)

    return tuple(masked(x, torch.nan) for x in solve(*(masked(x, 1.0) for x in args)))


def _shapes(g: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.empty_like(g),
        torch.empty_like(c),
        *(c.new_empty(c.shape[:-1]) for _ in range(4)),
    )


register(
    "ghost_direction",
    "(Tensor g, Tensor c, Tensor J, Tensor equality, Tensor tau, Tensor beta, Tensor rho, Tensor"
    " lam) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _solve_ghost,
    _shapes,
)
