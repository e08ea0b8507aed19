"""The rows of a multiplier method's state: gathered before a step, written back after it.

With very many constraints a step reads and writes the rows of those that its mini-batch shows. A state may be that of
one run, its tables (m,), or of R runs, (R, m).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fairbound.core import Iterate


def gathered(state: Any, rows: Tensor) -> Any:
    """The state with these rows (..., m') of its constraints, as copies."""
    if isinstance(state, Iterate):
        return state._replace(method=gathered(state.method, rows))
    return type(state)(*(leaf.gather(-1, rows) if leaf.ndim == rows.ndim else leaf for leaf in state))


def scattered(state: Any, new: Any, rows: Tensor) -> Any:
    """The new state, with these rows written into the tables of the old one, in place."""
    if isinstance(new, Iterate):
        return new._replace(method=scattered(state.method, new.method, rows))
    pairs = zip(state, new, strict=True)
    return type(new)(*(table.scatter_(-1, rows, leaf) if leaf.ndim == rows.ndim else leaf for table, leaf in pairs))


def with_own_tables(state: Any) -> Any:
    """A state whose tables share no memory, so that they can be written in place."""
    return type(state)(*(leaf.clone() for leaf in state))
