"""A method's state by name: what belongs to a constraint, to a parameter, or to neither.

A saved state identifies constraints and parameters by name, never by their order, so that it can be
read by a process that lists them in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from fairbound._utils.sequences import LazySequence
from fairbound.integrations.torch._parameters import Parameters

# what a leaf of a state belongs to
CONSTRAINT, PARAMETER, CELL, OTHER_LEAF = "constraint", "parameter", "cell", "other"


def leaf_names(state: Any) -> list[str]:
    """A name for every leaf: its field where the state is a plain NamedTuple, else its number."""
    fields: tuple[str, ...] = getattr(state, "_fields", ())
    flat = tree_leaves(state)
    return list(fields) if len(fields) == len(flat) else [f"leaf {i}" for i in range(len(flat))]


def kept_where(constraints: Tensor, cells: Tensor, old: Any, new: Any, kinds: list[str]) -> Any:
    """The new state, but for the marked constraints (m,) and cells (q,): those stay as they
    were."""
    keep = {CONSTRAINT: constraints, CELL: cells[:, None]}
    afters, form = tree_flatten(new)
    triples = zip(tree_leaves(old), afters, kinds, strict=True)
    leaves = [
        torch.where(keep[kind], before, after) if kind in keep else after
        for before, after, kind in triples
    ]
    return tree_unflatten(leaves, form)


def saved(
    state: Any, kinds: list[str], names: Sequence[str], cells: Sequence[str], parameters: Parameters
) -> dict[str, Any]:
    """Copies of a state's tensors, by the names of constraints, cells and parameters."""

    def vector(flat: Tensor) -> dict[str, Tensor]:
        return parameters.by_name(parameters.parts(flat))

    saved_leaves: dict[str, Any] = {}
    for name, kind, leaf in zip(leaf_names(state), kinds, tree_leaves(state), strict=True):
        if kind == CONSTRAINT:
            saved_leaves[name] = by_name(leaf.detach().clone(), names)
        elif kind == CELL:
            saved_leaves[name] = {cell: vector(row) for cell, row in zip(cells, leaf, strict=True)}
        else:
            saved_leaves[name] = vector(leaf) if kind == PARAMETER else leaf.detach().clone()
    return saved_leaves


def loaded(
    saved_leaves: dict[str, Any],
    like: Any,
    kinds: list[str],
    names: Sequence[str],
    cells: Sequence[str],
    parameters: Parameters,
) -> Any:
    """The state that `saved` gave; `like` has its form."""
    expected = leaf_names(like)
    if sorted(saved_leaves) != sorted(expected):
        raise ValueError(
            f"the saved state has {sorted(saved_leaves)}, this method's {sorted(expected)}; it is"
            " of another method"
        )

    def vector(tensors: dict[str, Tensor]) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in parameters.in_order(tensors)])

    leaves = []
    for name, kind, leaf in zip(expected, kinds, tree_leaves(like), strict=True):
        value = saved_leaves[name]
        if kind == PARAMETER:
            value = vector(value)
        if kind == CELL:
            if sorted(value) != sorted(cells):
                raise ValueError(
                    f"the saved state has the cells {sorted(value)[:6]}, this loop"
                    f" {sorted(cells)[:6]}"
                )
            value = torch.stack([vector(value[cell]) for cell in cells])
        if kind == CONSTRAINT:
            value = by_constraint(value, names, len(leaf))
        leaves.append(value.detach().to(leaf).clone())
    return tree_unflatten(leaves, tree_structure(like))


def by_name(values: Tensor, names: Sequence[str]) -> Any:
    """(m,) values of constraints by name; as they are where there are very many, whose groups are
    numbered."""
    return (
        values
        if isinstance(names, LazySequence)
        else dict(zip(names, values[: len(names)].unbind(), strict=True))
    )


def by_constraint(values: Any, names: Sequence[str], rows: int) -> Tensor:
    """(rows,) what `by_name` gave, in the order of `names`."""
    if isinstance(names, LazySequence):
        if not isinstance(values, Tensor) or len(values) != rows:
            raise ValueError(
                f"the saved state has {len(values)} entries for constraints, this loop {rows}"
            )
        return values
    missing, extra = set(names) - set(values), set(values) - set(names)
    if missing or extra:
        difference = (
            f"has no constraint {min(missing)!r}"
            if missing
            else f"has a constraint {min(extra)!r} more"
        )
        raise ValueError(
            f"the saved state {difference}; it has {sorted(values)[:6]}, this loop"
            f" {sorted(names)[:6]}"
        )
    ordered = torch.stack([values[name] for name in names])
    return torch.cat([ordered, ordered.new_zeros(rows - len(names))])
