"""A method's state by name: what belongs to a constraint, to a parameter, or to neither.

A saved state identifies constraints and parameters by name, never by their order, so that it can be read by a process
that lists them in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound._utils.sequences import LazySequence
from fairbound.integrations.torch.flat_params import FlatParams
from fairbound.integrations.torch.vectors import Combination
from fairbound.training.state_rows import CELL, CONSTRAINT, PARAMETER


def leaf_names(state: Any) -> list[str]:
    """A name for every leaf: its field where the state is a plain NamedTuple, else its number."""
    fields: tuple[str, ...] = getattr(state, "_fields", ())
    flat = tree_leaves(state)
    return list(fields) if len(fields) == len(flat) else [f"leaf {i}" for i in range(len(flat))]


def kept_where(constraints: Tensor, cells: Tensor, old: Any, new: Any, of: list[str]) -> Any:
    """The new state, but for the marked constraints (m,) and cells (q,): those stay as they were."""
    keep = {CONSTRAINT: constraints, CELL: cells[:, None]}
    triples = zip(tree_leaves(old), tree_leaves(new), of, strict=True)
    made = [torch.where(keep[kind], before, after) if kind in keep else after for before, after, kind in triples]
    return tree_unflatten(new, iter(made))


def in_precision_of(old: Any, new: Any) -> Any:
    """The new state in the old one's precision: losses in another one than the model's would change it.

    Vectors that were moved in place are the old ones.
    """
    pairs = [*zip(tree_leaves(old), tree_leaves(new), strict=True)]
    if all(isinstance(b, Tensor) and a.dtype is b.dtype for b, a in pairs):
        return new
    kept = [b if isinstance(b, Combination) else a if a.dtype is b.dtype else a.to(b.dtype) for b, a in pairs]
    return tree_unflatten(new, iter(kept))


def saved(
    state: Any, of: list[str], names: Sequence[str], cells: Sequence[str], parameters: FlatParams
) -> dict[str, Any]:
    """Copies of a state's tensors, by the names of constraints, cells and parameters."""
    found: dict[str, Any] = {}
    for name, kind, leaf in zip(leaf_names(state), of, tree_leaves(state), strict=True):
        if kind == CONSTRAINT:
            found[name] = by_name(leaf.detach().clone(), names)
        elif kind == CELL:
            found[name] = {cell: parameters.by_name(row) for cell, row in zip(cells, leaf, strict=True)}
        else:
            found[name] = parameters.by_name(leaf) if kind == PARAMETER else leaf.detach().clone()
    return found


def loaded(
    kept: dict[str, Any], like: Any, of: list[str], names: Sequence[str], cells: Sequence[str], parameters: FlatParams
) -> Any:
    """The state that `saved` gave; `like` has its form."""
    expected = leaf_names(like)
    if sorted(kept) != sorted(expected):
        raise ValueError(
            f"the saved state has {sorted(kept)}, this method's {sorted(expected)}; it is of another method"
        )
    made = []
    for name, kind, leaf in zip(expected, of, tree_leaves(like), strict=True):
        value = kept[name]
        if kind == PARAMETER:
            made.append(parameters.from_names(value, leaf))
            continue
        if kind == CELL:
            if sorted(value) != sorted(cells):
                raise ValueError(f"the saved state has the cells {sorted(value)[:6]}, this loop {sorted(cells)[:6]}")
            value = torch.stack([parameters.from_names(value[cell], leaf[0]) for cell in cells])  # type: ignore[misc]
        if kind == CONSTRAINT:
            value = by_constraint(value, names, len(leaf))
        made.append(value.detach().to(leaf).clone())
    return tree_unflatten(like, iter(made))


def by_name(values: Tensor, names: Sequence[str]) -> Any:
    """(m,) values of constraints by name; as they are where there are very many, whose groups are numbered."""
    return values if isinstance(names, LazySequence) else dict(zip(names, values[: len(names)].unbind(), strict=True))


def by_constraint(values: Any, names: Sequence[str], rows: int) -> Tensor:
    """(rows,) what `by_name` gave, in the order of `names`."""
    if isinstance(names, LazySequence):
        if not isinstance(values, Tensor) or len(values) != rows:
            raise ValueError(f"the saved state has {len(values)} entries for constraints, this loop {rows}")
        return values
    missing, extra = set(names) - set(values), set(values) - set(names)
    if missing or extra:
        what = f"has no constraint {min(missing)!r}" if missing else f"has a constraint {min(extra)!r} more"
        raise ValueError(f"the saved state {what}; it has {sorted(values)[:6]}, this loop {sorted(names)[:6]}")
    found = torch.stack([values[name] for name in names])
    return torch.cat([found, found.new_zeros(rows - len(names))])
