"""Cells: the sets of rows over which a constraint takes means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cells:
    """Named sets of row numbers, over the whole dataset; a sampler restricts them to its pools. Cells may overlap.

    >>> Cells.by_group(torch.tensor([0, 1, 1]), ["white", "non-white"]).members
    (tensor([0]), tensor([1, 2]))
    """

    names: tuple[str, ...]
    members: tuple[Tensor, ...]  # row numbers of each cell, ascending

    @staticmethod
    def by_group(groups: Tensor, names: Sequence[str] | None = None) -> Cells:
        """One cell per group; `groups` (rows,) holds 0, 1, ..."""
        names = level_names(groups, names)
        return Cells(tuple(names), tuple((groups == level).nonzero().flatten().cpu() for level in range(len(names))))

    def __len__(self) -> int:
        return len(self.members)

    def __add__(self, other: Cells) -> Cells:
        """Both sets of cells, one after the other."""
        return Cells(self.names + other.names, self.members + other.members)

    def same(self, other: Cells) -> bool:
        """Whether both have the same rows in the same order of cells."""
        return len(self) == len(other) and all(
            mine is theirs or torch.equal(mine, theirs)
            for mine, theirs in zip(self.members, other.members, strict=True)
        )

    def within(self, pool: Tensor, rows: int) -> Cells:
        """The members that lie in the pool; `rows` is the number of rows of the dataset."""
        inside = torch.zeros(rows, dtype=torch.bool)
        inside[pool.cpu()] = True
        return Cells(self.names, tuple(member[inside[member]] for member in self.members))


def level_names(groups: Tensor, names: Sequence[str] | None) -> Sequence[str]:
    """The names of groups that are numbered 0, 1, ...: those given, else the numbers."""
    if groups.ndim != 1 or groups.is_floating_point():
        raise ValueError(f"groups must be a vector of whole numbers, got {groups.dtype} of shape {tuple(groups.shape)}")
    if groups.numel() == 0:
        raise ValueError("groups are empty")
    low, high = int(groups.min()), int(groups.max())
    if low < 0:
        raise ValueError(f"groups must be numbered 0, 1, ...; found {low}")
    if names is None:
        return [str(level) for level in range(high + 1)]
    if high >= len(names):
        raise ValueError(f"groups go up to {high} but only {len(names)} names are given")
    return names
