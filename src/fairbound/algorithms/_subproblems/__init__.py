"""The two subproblems of a Ghost step, solved exactly through their m-dimensional duals, in a batch.

    t     = min_d  max_i [c_i + J_i d]_+            s.t.  |d|_inf <= rho                                 (LP)
    kappa = (1 - lam) max_i [c_i]_+  +  lam t
    d     = argmin_d  g'd + tau/2 |d|^2             s.t.  c + J d <= kappa e,  |d|_inf <= beta           (QP)

Reference: Facchinei, Kungurtsev, Lampariello, Scutari, "Ghost penalties in nonconvex constrained
optimization: diminishing stepsizes and iteration complexity", Mathematics of Operations Research 46 (2021).

The QP is in `box_qp`, the LP in `kappa_lp`; both use the nonnegative QPs of `nnqp` and, where those do not settle it,
the interior point method of `interior`. Everything is computed in float64 and returned in the dtype of the inputs. An
instance's result does not depend on what shares its batch. Nothing fails silently: the residuals are computed from d, y
and J themselves, or from JJ', Jg and g'g where no coordinate of d can be clipped. An instance with a number that is not
finite (or whose square is not) gets NaN.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import box_qp, few, kappa_lp
from .algebra import pick, times
from .sides import both, halved, net

__all__ = ["QP", "Direction", "Kappa", "direction_qp", "ghost_direction", "kappa"]

Number = float | Tensor

CHUNK = 2**21  # numbers in J at once: more leave a CPU's caches, fewer pay for more torch calls
PIECE = 2**17  # numbers in J that stay in the cache of a core with their temporaries


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
    """(1 - lam) max [c]_+ + lam t, the bound that the linearized constraints are asked to meet.

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


def _check(g: Tensor | None, c: Tensor, J: Tensor, name: str = "c", **numbers: Number) -> None:
    if c.ndim < 1 or J.ndim < 2:
        raise ValueError(f"{name} needs shape (..., m) and J (..., m, n); got {tuple(c.shape)} and {tuple(J.shape)}")
    if J.shape[-2] != c.shape[-1]:
        raise ValueError(f"J has {J.shape[-2]} rows but {name} has {c.shape[-1]} entries; give one row per constraint")
    if J.shape[-2] == 0:
        raise ValueError("J has no rows; without constraints the direction is clip(-g/tau, -beta, beta)")
    if g is not None and (g.ndim < 1 or J.shape[-1] != g.shape[-1]):
        raise ValueError(f"J has {J.shape[-1]} columns but g has shape {tuple(g.shape)}; give one column per parameter")
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
    leads = [x.shape[: x.ndim - k] for x, k in zip(tensors, own, strict=True)]
    leads += [x.shape for x in numbers if isinstance(x, Tensor)]
    lead = leads[0] if all(x == leads[0] for x in leads) else torch.broadcast_shapes(*leads)
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

    On a CPU, in chunks of instances whose J fits the caches.
    """
    lead = J.ndim - 2
    flat = args if lead == 1 else [x.reshape(-1, *x.shape[lead:]) for x in args]
    size = flat[0].shape[0]
    room = max(1, CHUNK // (J.shape[-1] * J.shape[-2])) if J.device.type == "cpu" else size
    if size <= room:
        return solve(*(x.double() for x in flat))
    parts = [solve(*(x[i : i + room].double() for x in flat)) for i in range(0, size, room)]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _unflat(out: Sequence[Tensor], lead: torch.Size, first: torch.dtype, rest: torch.dtype) -> tuple[Tensor, ...]:
    """Leading dimensions and dtypes as the caller had them."""
    shaped = out if len(lead) == 1 else [x.reshape(lead + x.shape[1:]) for x in out]
    return tuple(x.to(rest if i else first) for i, x in enumerate(shaped))


def _solve_kappa(c: Tensor, J: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
    return _unflat(_by_chunks(_flat_kappa, J, c, J, rho, lam), c.shape[:-1], c.dtype, c.dtype)


def _solve_qp(g: Tensor, h: Tensor, J: Tensor, tau: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return _unflat(_by_chunks(_flat_qp, J, g, h, J, tau, beta), h.shape[:-1], g.dtype, h.dtype)


def _solve_ghost(
    g: Tensor, c: Tensor, J: Tensor, tau: Tensor, beta: Tensor, rho: Tensor, lam: Tensor
) -> tuple[Tensor, ...]:
    lead = c.ndim - 1
    g_flat, c_flat, J_flat, *numbers = (x.reshape(-1, *x.shape[lead:]) for x in (g, c, J, tau, beta, rho, lam))
    out = _flat_ghost(g_flat, c_flat.double(), J_flat, *(x.double() for x in numbers))
    return _unflat(out, c.shape[:-1], g.dtype, c.dtype)


# --------------------------------------------------------------------- one chunk: B instances, float64, finite or not


def _flat_kappa(c: Tensor, J: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
    G = torch.bmm(J, J.mT)  # (B, m, m)
    finite = _finite(c, G.flatten(1))
    if finite is not None:
        return _only(finite, _flat_kappa, c, J, rho, lam)
    return kappa_lp.solve(c, J, G, rho, lam)


def _flat_qp(g: Tensor, h: Tensor, J: Tensor, tau: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    G, Jg = torch.bmm(J, J.mT), times(J, g)
    finite = _finite(h, G.flatten(1), Jg)
    if finite is not None:
        return _only(finite, _flat_qp, g, h, J, tau, beta)
    return box_qp.solve(box_qp.Program(g, h, J, G, tau, beta), Jg)


def _flat_ghost(
    g: Tensor, c: Tensor, J: Tensor, tau: Tensor, beta: Tensor, rho: Tensor, lam: Tensor
) -> tuple[Tensor, ...]:
    """Small numbers for all instances at once; g and J, in their own precision, in pieces that a cache holds."""
    if c.shape[1] == 2 and c.shape[0] <= few.FEW and J.device.type == "cpu":
        easy = few.solve(g.double(), c, J.double(), tau, beta, rho, lam)
        if easy is not None:
            return easy
    half = halved(J, _room(J))
    rows = J if half is None else half
    G, Jg, gg = _products(rows, g)
    if half is not None:
        G, Jg = both(both(G).mT), both(Jg)
    finite = _finite(c, G.flatten(1), Jg)
    if finite is not None:
        return _only(finite, _flat_ghost, g, c, J, tau, beta, rho, lam)
    value, kappa_gap = _kappa(c, J, G, rho, lam)
    h = value.unsqueeze(-1) - c
    y = box_qp.unclipped(G, h, tau, Jg)
    known = box_qp.known(y, G, Jg, gg, h, tau, beta)
    found = [_unclipped(rows, g, y if half is None else net(y), tau), y, known.violation, known.gap]
    if not bool(known.sure.all()):
        index = (~known.sure).nonzero().squeeze(-1)
        looked_for = _in_pieces(partial(_finished, half is not None), *pick(index, rows, g, y, h, G, tau, beta))
        found = [own.index_copy(0, index, b.to(own.dtype)) for own, b in zip(found, looked_for, strict=True)]
    return found[0], found[1], value, found[2], found[3], kappa_gap


def _finished(half: bool, J: Tensor, g: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    y, h, G, tau, beta = rest
    return box_qp.finished(y, box_qp.Program(g, h, J, G, tau, beta), half=half)


def _together(J: Tensor, g: Tensor) -> Tensor:
    """The rows of J and g as one (B, m+1, n) in float64."""
    found = torch.empty(len(J), J.shape[1] + 1, J.shape[2], dtype=torch.float64, device=J.device)
    found[:, :-1], found[:, -1] = J, g
    return found


def _products(J: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """JJ' (B, m, m), J g (B, m) and g'g (B,)."""
    pieces = (_together(*parts) for parts in zip(J.split(_room(J)), g.split(_room(J)), strict=True))
    whole = torch.cat([torch.bmm(piece, piece.mT) for piece in pieces])
    return whole[:, :-1, :-1], whole[:, :-1, -1], whole[:, -1, -1]


def _unclipped(J: Tensor, g: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    """d = -(g + J'y)/tau, (B, n), computed in float64 and rounded to the precision of g."""
    d, weights = torch.empty_like(g), torch.cat([y, torch.ones_like(tau).unsqueeze(-1)], -1) / -tau.unsqueeze(-1)
    for into, rows, own, weight in zip(*(x.split(_room(J)) for x in (d, J, g, weights)), strict=True):
        into.copy_(torch.bmm(weight.unsqueeze(-2), _together(rows, own)).squeeze(-2))
    return d


def _kappa(c: Tensor, J: Tensor, G: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """kappa and its gap, each (B,); only instances that need J are given it."""
    easy, t = kappa_lp.repaired(c, G, rho)
    value, gap = torch.lerp(c.amax(-1).clamp_min(0), t, lam), t
    if bool(easy.all()):
        return value, gap
    index = (~easy).nonzero().squeeze(-1)
    hard = _in_pieces(lambda J, *rest: kappa_lp.solve(rest[0], J, *rest[1:]), *pick(index, J, c, G, rho, lam))
    return value.index_copy(0, index, hard[0]), gap.index_copy(0, index, hard[2])


def _in_pieces(solve: Callable[..., tuple[Tensor, ...]], J: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
    """solve(J, *args) in float64, on a CPU in pieces of instances whose J stays in the cache of a core."""
    room = _room(J)
    if len(J) <= room:
        return solve(J.double(), *(x.double() for x in args))
    pieces = zip(*(x.split(room) for x in (J, *args)), strict=True)
    found = [solve(*(x.double() for x in piece)) for piece in pieces]
    return tuple(torch.cat(column) for column in zip(*found, strict=True))


def _room(J: Tensor) -> int:
    """How many instances stay in the cache of a core with their temporaries."""
    return max(1, PIECE // (J.shape[-1] * J.shape[-2])) if J.device.type == "cpu" else max(1, len(J))


def _finite(*parts: Tensor) -> Tensor | None:
    """Which instances (B,) have only finite numbers; None if all.

    A number of J or g that is not finite shows in JJ' and J g, since also 0 * inf is NaN: no pass over n is needed.
    """
    numbers = torch.cat(parts, -1)
    if math.isfinite(float(numbers.sum())):
        return None
    return numbers.isfinite().all(-1)


def _only(finite: Tensor, solve: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> tuple[Tensor, ...]:
    """NaN where not finite. The solver gets ones there: an instance that costs nothing."""

    def masked(x: Tensor, other: float) -> Tensor:
        return torch.where(finite.view(-1, *[1] * (x.ndim - 1)), x, other)

    return tuple(masked(x, torch.nan) for x in solve(*(masked(x, 1.0) for x in args)))


def _register(name: str, schema: str, solve: Callable[..., tuple[Tensor, ...]], shapes: Callable[..., Any]) -> None:
    """An operator that vmap batches, and that compile and make_fx treat as opaque.

    Not `torch.library.custom_op`, whose wrappers cost a fifth of an easy solve: they serve gradients and mutation.
    """
    if hasattr(torch.ops.fairbound, name):
        return  # pytest imports modules under two names; torch takes a name once
    name = f"fairbound::{name}"
    torch.library.define(name, schema)
    torch.library.impl(name, "default", solve)
    torch.library.register_fake(name, shapes)
    op = getattr(torch.ops.fairbound, name.split("::")[1])

    def batch(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        front = [x.expand(size, *x.shape) if k is None else x.movedim(k, 0) for x, k in zip(args, in_dims, strict=True)]
        out = op(*front)
        return out, (0,) * len(out)

    torch.library.register_vmap(name, batch)


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
