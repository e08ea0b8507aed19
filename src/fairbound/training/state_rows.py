"""The rows of a method's state that belong to constraints: gathered before a step, written back after it.

With very many constraints a step reads and writes the rows of those that its mini-batch shows. A state may be that of
one run, its tables (m,), or of R runs, (R, m).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.core import Algorithm, Estimate
from fairbound.training.contract import checked_init

CONSTRAINT, PARAMETER, CELL, OTHER = "constraint", "parameter", "cell", "other"


def kinds(algorithm: Algorithm[Any]) -> list[str]:
    """What every leaf of a method's state belongs to: seen from how its shape goes with m and n."""

    def shapes(n: int, m: int) -> list[torch.Size]:
        x, c = torch.zeros(n), torch.zeros(m)
        first = Estimate(torch.zeros(()), c, lambda w: x) if algorithm.needs_initial_estimate else None
        return [leaf.shape for leaf in tree_leaves(checked_init(algorithm, x, m, first))]

    found = []
    for here, wider, longer in zip(shapes(3, 5), shapes(3, 6), shapes(4, 5), strict=True):
        with_m, with_n = here != wider, here != longer  # a gradient for every cell goes with both
        found.append(CELL if with_m and with_n else CONSTRAINT if with_m else PARAMETER if with_n else OTHER)
    return found


def gathered(state: Any, rows: Tensor, of: list[str]) -> Any:
    """The state with these rows (..., m') of its constraints, as copies; `of` are the kinds of its leaves."""
    pairs = zip(tree_leaves(state), of, strict=True)
    return tree_unflatten(state, iter([leaf.gather(-1, rows) if kind == CONSTRAINT else leaf for leaf, kind in pairs]))


def scattered(state: Any, new: Any, rows: Tensor, of: list[str]) -> Any:
    """The new state, with these rows written into the tables of the old one, in place."""
    leaves = zip(tree_leaves(state), tree_leaves(new), of, strict=True)
    made = [table.scatter_(-1, rows, leaf) if kind == CONSTRAINT else leaf for table, leaf, kind in leaves]
    return tree_unflatten(new, iter(made))


def with_own_tables(state: Any, of: list[str]) -> Any:
    """The state with tables of constraints that share no memory, so that they can be written in place."""
    pairs = zip(tree_leaves(state), of, strict=True)
    return tree_unflatten(state, iter([leaf.clone() if kind == CONSTRAINT else leaf for leaf, kind in pairs]))
