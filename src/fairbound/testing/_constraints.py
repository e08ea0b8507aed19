"""`check_constraint(constraint, batch)`: does a constraint of yours work in every driver?

It checks a constraint with a new statistic, contrast or function on a mini-batch in double
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import AnyConstraint, Constraint, FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._linear import SumsCounts
from fairbound.testing._checks import expect, run_checks

_F64 = torch.float64
STEP = 1e-5  # of the finite differences, in double precision
MOST_CELLS = 20  # that are made absent, one after the other


def check_constraint(constraint: AnyConstraint, batch: MiniBatch) -> str:
    """Certify a constraint on a mini-batch with examples of every cell, as a loop has it: groups,
    labels, outputs.

    Returns one line that lists the checks. Raises an AssertionError that names the first that
    fails, and a remedy.

    >>> from fairbound import constraints
    >>> batch = MiniBatch(torch.rand(40), torch.arange(40) % 2)
    >>> check_constraint(constraints.loss_parity(["A", "B"], bound=0.1), batch)
    'Constraint passes 7 checks: names, value, order, gradient, chunks, absent cells, precision.'
    """
    if not isinstance(constraint, Constraint | FunctionConstraint):
        raise TypeError(
            f"check_constraint takes a Constraint or a FunctionConstraint, got {constraint!r}"
        )
    batch.check([constraint.by])
    checks: dict[str, Callable[[AnyConstraint, MiniBatch], None]] = {
        "names": _names,
        "value": _value,
        "order": _order,
        "gradient": _gradient,
    }
    if constraint.averages:
        checks["chunks"] = _chunks
    if isinstance(constraint, Constraint):
        checks["absent cells"] = _absent_cells
    checks["precision"] = _precision
    name = type(constraint).__name__
    run_checks(name, checks, constraint, _cast(batch, _F64))
    note = (
        ""
        if _vmaps(constraint, batch)
        else " Its function cannot be vmapped: for loops, not for stacked runs."
    )
    return f"{name} passes {len(checks)} checks: {', '.join(checks)}.{note}"


# Mini-batches -------------------------------------------------------------------------------------


def _cast(batch: MiniBatch, dtype: torch.dtype) -> MiniBatch:
    """The same without graphs, its real numbers in one precision."""

    def cast(value: Tensor) -> Tensor:
        return value.detach().to(dtype) if value.is_floating_point() else value

    return _examples_mapped(cast, batch)._replace(parameters=[cast(p) for p in batch.parameters])


def _chosen(batch: MiniBatch, which: Tensor) -> MiniBatch:
    """Some of the examples: their numbers, or a mask."""
    return _examples_mapped(lambda column: column[which], batch)


def _examples_mapped(change: Callable[[Tensor], Tensor], batch: MiniBatch) -> MiniBatch:
    """Every tensor with an entry for each example changed; handed-over values and parameters are
    not."""
    groups = dict(batch.groups) if isinstance(batch.groups, Mapping) else batch.groups
    changed: MiniBatch = tree_map_only(
        Tensor, change, batch._replace(groups=groups, values=None, parameters=())
    )
    return changed._replace(values=batch.values, parameters=batch.parameters)


def _totals(constraints: ConstraintSet, batch: MiniBatch) -> SumsCounts:
    values, functions = (
        constraints.example_values(batch),
        constraints.function_values(lambda _: batch),
    )
    return constraints.sums_counts(values, functions, constraints.layout(batch))


def _same(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


# Checks -------------------------------------------------------------------------------------------


def _names(constraint: AnyConstraint, batch: MiniBatch) -> None:
    wrong = [name for name in constraint.names if not isinstance(name, str) or not name]
    expect(
        not wrong,
        f"names are words, and {wrong[:1]} is none; a saved state identifies constraints by name",
    )
    expect(
        len(set(constraint.names)) == constraint.m,
        f"every row needs a distinct name, got {constraint.names}",
    )


def _value(constraint: AnyConstraint, batch: MiniBatch) -> None:
    copies = tree_map_only(Tensor, Tensor.clone, batch)
    c = constraint.evaluate(batch)
    expect(
        c.shape == (constraint.m,),
        f"its value must be of shape ({constraint.m},), got {tuple(c.shape)}",
    )
    expect(c.is_floating_point(), f"its value must be a real number, got {c.dtype}")
    absent = [
        name for name, value in zip(constraint.names, c.tolist(), strict=True) if value != value
    ]
    expect(
        not absent, f"{absent[:3]} is NaN on this mini-batch; give one with examples of every cell"
    )
    expect(bool(torch.isfinite(c).all()), f"its value must be finite, got {c.tolist()}")
    same = all(
        torch.equal(a, b)
        for a, b in zip(tree_leaves(copies), tree_leaves(batch), strict=True)
        if a is not None
    )
    expect(same, "it changes the mini-batch in place; compute with copies")
    expect(
        _same(constraint.evaluate(batch), c, 0.0),
        "its value differs from call to call; it must draw no random numbers",
    )


def _order(constraint: AnyConstraint, batch: MiniBatch) -> None:
    turned = _chosen(batch, torch.arange(batch.losses.shape[0]).flip(0))
    expect(
        _same(constraint.evaluate(turned), constraint.evaluate(batch)),
        "its value depends on the order of the examples, which is random; take means or sums over"
        " them",
    )


def _variables(batch: MiniBatch) -> list[Tensor]:
    """What a model changes: losses, outputs and parameters."""
    return [batch.losses, *([] if batch.outputs is None else [batch.outputs]), *batch.parameters]


def _with(batch: MiniBatch, variables: list[Tensor]) -> MiniBatch:
    rest = iter(variables)
    losses = next(rest)
    return batch._replace(
        losses=losses, outputs=None if batch.outputs is None else next(rest), parameters=list(rest)
    )


def _gradient(constraint: AnyConstraint, batch: MiniBatch) -> None:
    """The gradient of w'c by example weights against finite differences of the value, for every row
    and for all."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(constraint, Constraint) and constraint.proxy:
        constraint = replace(constraint, proxy=False)  # the surrogate is what is differentiated
    constraints = ConstraintSet((constraint,)).to(batch.losses.device, _F64)
    at = [v.clone().requires_grad_() for v in _variables(batch)]
    mine = _with(batch, at)
    values, functions = (
        constraints.example_values(mine),
        constraints.function_values(lambda _: mine),
    )
    layout = constraints.layout(mine)
    totals = constraints.sums_counts(values, functions, layout)
    means, differentiated = totals.means, [*values, *(value for value, _ in functions)]
    directions = [torch.randn(v.shape, dtype=_F64, generator=generator).to(v.device) for v in at]
    ahead, behind = (
        constraint.evaluate(
            _with(
                batch, [v.detach() + sign * STEP * u for v, u in zip(at, directions, strict=True)]
            )
        )
        for sign in (1, -1)
    )
    slopes = (ahead - behind) / (2 * STEP)
    if constraint.m > 1:
        w = torch.randn(constraint.m, dtype=_F64, generator=generator).to(slopes.device)
        rows = [*torch.eye(constraint.m, dtype=_F64, device=slopes.device)[:10], w]
    else:
        rows = [slopes.new_ones(1)]
    for w in rows:
        by_mean = constraints.mean_weights(means, torch.cat([w.new_zeros(1), w]))
        weights = constraints.example_weights(by_mean, totals.counts, layout, values)
        graphs = [
            (v, weight)
            for v, weight in zip(differentiated, weights, strict=True)
            if v.requires_grad
        ]
        gradients = torch.autograd.grad(
            [v for v, _ in graphs],
            at,
            [weight for _, weight in graphs],
            retain_graph=True,
            allow_unused=True,
        )
        slope = sum(
            (g * u).sum() for g, u in zip(gradients, directions, strict=True) if g is not None
        )
        expected = w @ slopes
        which = constraint.names[int(w.argmax())] if int((w != 0).sum()) == 1 else "w'c"
        expect(
            _same(torch.as_tensor(slope), expected, 1e-4),
            f"the gradient of {which!r} is {float(slope):.6g} along a direction in which its value"
            f" changes by {float(expected):.6g}; a statistic or function must be differentiable,"
            " without .detach() and .item(), and a contrast's transpose() must be that of apply()",
        )


def _chunks(constraint: AnyConstraint, batch: MiniBatch) -> None:
    """Means over examples: sums and counts add up, so a large batch may come in parts."""
    size = batch.losses.shape[0]
    if isinstance(constraint, FunctionConstraint):  # two halves of equal size average
        half = size // 2
        parts = [constraint.evaluate(_chosen(batch, torch.arange(i, 2 * half, 2))) for i in (0, 1)]
        expect(
            _same(
                (parts[0] + parts[1]) / 2,
                constraint.evaluate(_chosen(batch, torch.arange(2 * half))),
            ),
            "mean=True says that it is a plain mean over examples, and the mean over two halves is"
            " another one; omit mean",
        )
        return
    constraints = ConstraintSet((constraint,)).to(batch.losses.device, _F64)
    totals, added = _totals(constraints, batch), SumsCounts(torch.zeros(2, 1, dtype=_F64))
    for i in range(3):
        added = added.plus(_totals(constraints, _chosen(batch, torch.arange(i, size, 3))))
    expect(
        _same(added.sums, totals.sums) and _same(added.counts, totals.counts),
        "sums of its statistic over three parts of a mini-batch do not add up to the whole's; a"
        " statistic must be a value of each example by itself, not of the batch",
    )


def _without_cells(constraint: Constraint, batch: MiniBatch) -> Iterator[tuple[int, MiniBatch]]:
    """The mini-batch without the examples of one cell, for each of some cells."""
    cells = constraint.cells
    groups = batch.column(constraint.by) if cells.needs_groups else None
    layers = cells.assign(batch.losses.shape[0], groups, batch.labels, batch.losses.device)
    for k in range(min(len(cells), MOST_CELLS)):
        inside = torch.stack([layer == k for layer in layers]).any(0)
        if not inside.all():
            yield k, _chosen(batch, ~inside)


def _absent_cells(constraint: AnyConstraint, batch: MiniBatch) -> None:
    """A row that needs a cell without examples is not observed; the others are what they were."""
    assert isinstance(constraint, Constraint)
    entries = constraint.contrast.matrix()
    sizes = constraint.cells.names
    expect(
        entries.shape == (constraint.m, len(sizes)),
        f"its contrast's matrix is {tuple(entries.shape)}",
    )
    for k, rest in _without_cells(constraint, batch):
        constraints = ConstraintSet((constraint,)).to(batch.losses.device, _F64)
        counts = _totals(constraints, rest).counts[1:]
        c = constraint.evaluate(rest)
        needs = ((entries != 0) & (counts == 0).cpu()).any(1).to(c.device)
        expect(
            torch.equal(c.isnan(), needs),
            f"without examples of the cell {sizes[k]!r}, {_few(constraint, c.isnan() & ~needs)} is"
            f" not observed, or {_few(constraint, ~c.isnan() & needs)} is; observed() must say"
            " which rows need which cells",
        )


def _few(constraint: AnyConstraint, rows: Tensor) -> str:
    return str(
        [name for name, marked in zip(constraint.names, rows.tolist(), strict=True) if marked][:3]
    )


def _precision(constraint: AnyConstraint, batch: MiniBatch) -> None:
    """Single precision gives the same numbers, on every device."""
    expected = constraint.evaluate(batch)
    single = constraint.evaluate(_cast(batch, torch.float32))
    expect(
        _same(single, expected, 1e-3),
        f"in single precision its value is {single.tolist()[:4]} instead of"
        f" {expected.tolist()[:4]}",
    )
    if torch.cuda.is_available():
        on_gpu = constraint.evaluate(tree_map_only(Tensor, Tensor.cuda, batch))
        expect(_same(on_gpu.cpu(), expected, 1e-6), f"on a GPU its value is {on_gpu.tolist()[:4]}")


def _vmaps(constraint: AnyConstraint, batch: MiniBatch) -> bool:
    """Whether a function can be evaluated for many runs at once; our own code can."""
    if isinstance(constraint, Constraint):
        return True
    at = _variables(_cast(batch, _F64))
    try:
        torch.func.vmap(lambda *v: constraint.evaluate(_with(batch, list(v))))(
            *(torch.stack([v, v]) for v in at)
        )
    except Exception:
        return False
    return True
