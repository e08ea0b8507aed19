"""What a user's loop shows of one mini-batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class MiniBatch(NamedTuple):
    """The rows of one mini-batch after the model's forward pass, B of them.

    >>> MiniBatch(torch.tensor([0.3, 0.7]), groups=torch.tensor([0, 1])).losses.mean()
    tensor(0.5000)
    """

    losses: Tensor  # (B,) one loss per row, reduction="none"
    groups: Tensor | Mapping[str, Tensor] | None = None  # (B,) 0, 1, ..., or -1 for a row of no group; or columns of it
    labels: Tensor | None = None  # (B,), for limits about rows with a certain label
    outputs: Tensor | None = None  # (B, ...) the model's outputs, for rates
    weight: Tensor | None = None  # (B,) what a row counts, in the objective and in its group
    objective: Tensor | None = None  # (B,) bool: the rows of the objective; None: all of them
    parameters: Sequence[Tensor] = ()  # the model's trained ones, for functions of them; filled in by Constrained

    def column(self, by: str | None) -> Tensor:
        """The column of groups that a limit is about."""
        if self.groups is None:
            raise ValueError("the limits are about groups; pass groups=, one number 0, 1, ... for every row")
        if isinstance(self.groups, Tensor):
            return self.groups
        if by is None and len(self.groups) == 1:
            return next(iter(self.groups.values()))
        if by is None or by not in self.groups:
            raise ValueError(
                f"groups has the columns {sorted(self.groups)}; a limit must name one of them with by=, got by={by!r}"
            )
        return self.groups[by]

    def needed(self, name: str, why: str) -> Tensor:
        """A field that a limit cannot do without."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise ValueError(f"{why} needs {name}; pass {name}= with the mini-batch")
        return found

    def check(self, columns: Collection[str | None] = ()) -> None:
        """Look at the shapes, and at the columns that limits are about; a sentence for what is wrong."""
        if isinstance(self.groups, Tensor) and len(set(columns) - {None}) > 1:
            raise ValueError(
                f"the limits are about the columns {sorted(str(by) for by in columns)} but groups is one vector; "
                "pass groups as a mapping of columns"
            )
        if not isinstance(self.losses, Tensor) or self.losses.ndim != 1:
            shape = tuple(self.losses.shape) if isinstance(self.losses, Tensor) else type(self.losses).__name__
            raise ValueError(f"losses must be one number per row, (B,), got {shape}; use a loss with reduction='none'")
        rows = self.losses.shape[0]
        for name in ("labels", "outputs", "weight", "objective"):
            _check_rows(name, getattr(self, name), rows)
        for name in ("weight", "objective"):
            values = getattr(self, name)
            if values is not None and values.ndim != 1:
                raise ValueError(f"{name} must be a vector, one entry for every row, got shape {tuple(values.shape)}")
        if self.weight is not None and self.weight.numel() and not float(self.weight.min()) >= 0:
            raise ValueError(f"weights must be >= 0, found {float(self.weight.min())}")
        given = self.groups if isinstance(self.groups, Mapping) else {"groups": self.groups}
        for name, column in given.items():
            _check_rows(name, column, rows)
            if column is not None and (column.ndim != 1 or column.is_floating_point()):
                raise ValueError(
                    f"{name} must be a vector of whole numbers, got {column.dtype} of shape {tuple(column.shape)}"
                )
        if self.objective is not None and self.objective.dtype != torch.bool:
            raise ValueError(f"objective must be True or False for every row, got {self.objective.dtype}")


def _check_rows(name: str, values: Tensor | None, rows: int) -> None:
    if values is not None and not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}; use torch.as_tensor(...)")
    if values is not None and values.shape[:1] != (rows,):
        raise ValueError(f"there are {rows} losses but {name} has shape {tuple(values.shape)}; one for every row")
