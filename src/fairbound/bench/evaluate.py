"""What a benchmark measures of a stack of runs on the parts of a split: losses by group, and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import vmap

from fairbound.data.dataset import Dataset, Split

AT_ONCE = 1 << 18  # rows x runs of a forward pass


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Losses and scores of many points on the parts of one split.

    A row goes through the model once, whatever parts and groups it belongs to: all means are one matrix product.
    """

    forward: Callable[[Tensor, Tensor], Tensor]  # flat parameters (n,), inputs -> outputs (rows,)
    loss: Callable[[Tensor, Tensor], Tensor]  # outputs, labels -> (rows,)
    data: Dataset
    group: str  # the column of groups
    split: Split
    parts: tuple[str, ...]  # the pools of the split that are measured

    def losses(self, x: Tensor) -> Tensor:
        """(R, parts, 1 + G) mean losses of everyone and of each group, at x (R, n)."""
        means = x.new_zeros(len(x), len(self.parts), self._averages.shape[-1])
        for rows, averages in self._blocks(len(x)):
            losses = vmap(self.loss, (0, None))(self._outputs(x, rows), self.data.y[rows])
            means += torch.einsum("rn,npg->rpg", losses, averages)
        return means

    def scores(self, x: Tensor, part: str) -> Tensor:
        """(R, rows of the part) outputs of the model."""
        blocks = self.split.pool(part).split(max(1, AT_ONCE // len(x)))
        return torch.cat([self._outputs(x, rows) for rows in blocks], 1)

    def _outputs(self, x: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return vmap(self.forward, (0, None))(x, self.data.X[rows])

    def _blocks(self, runs: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = max(1, AT_ONCE // runs)
        return zip(self._rows.split(size), self._averages.split(size), strict=True)

    @cached_property
    def _rows(self) -> Tensor:
        """(N,) the rows that are measured, part after part."""
        return torch.cat([self.split.pool(part) for part in self.parts])

    @cached_property
    def _averages(self) -> Tensor:
        """(N, parts, 1 + G) weights that turn losses of rows into means."""
        groups = self.data.groups[self.group]
        count = int(groups.max()) + 1
        sizes = [len(self.split.pool(part)) for part in self.parts]
        part_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        member = torch.zeros(len(self._rows), len(sizes), 1 + count, dtype=self.data.X.dtype)
        everyone = torch.arange(len(self._rows))
        member[everyone, part_of, 0] = 1.0
        member[everyone, part_of, 1 + groups[self._rows]] = 1.0
        return member / member.sum(0).clamp(min=1.0)
