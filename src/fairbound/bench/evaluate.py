"""What a benchmark measures of a stack of runs on the parts of a split: losses by group, and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import vmap

from fairbound.compiling import Compiler
from fairbound.data.dataset import Dataset, Split

AT_ONCE = 1 << 16  # rows x runs of a forward pass: about what stays in a CPU's caches


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
    compiled: bool = False  # pays where the same number of points is measured many times

    def losses(self, x: Tensor) -> Tensor:
        """(R, parts, 1 + G) mean losses of everyone and of each group, at x (R, n)."""
        means = x.new_zeros(len(x), *self._averages.shape[1:])
        with torch.no_grad():
            for rows, averages in self._blocks(len(x)):
                means += self._block(x, self.data.X[rows], self.data.y[rows], averages)
        return means

    def scores(self, x: Tensor, part: str) -> Tensor:
        """(R, rows of the part) outputs of the model."""
        with torch.no_grad():
            blocks = self.split.pool(part).split(max(1, AT_ONCE // len(x)))
            return torch.cat([vmap(self.forward, (0, None))(x, self.data.X[rows]) for rows in blocks], 1)

    @cached_property
    def _block(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        def means(x: Tensor, inputs: Tensor, labels: Tensor, averages: Tensor) -> Tensor:
            outputs = vmap(self.forward, (0, None))(x, inputs)
            losses = vmap(self.loss, (0, None))(outputs, labels)
            found: Tensor = (losses @ averages.flatten(1)).unflatten(1, averages.shape[1:])
            return found

        return Compiler(self.forward, forced=False)(means, "losses") if self.compiled else means

    def _blocks(self, runs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and their weights in blocks of one size; what fills up the last one has no weight."""
        count = -(-len(self._rows) * runs // AT_ONCE)
        size = -(-len(self._rows) // count)
        missing = count * size - len(self._rows)
        rows = torch.cat([self._rows, self._rows[:1].expand(missing)])
        averages = torch.cat([self._averages, self._averages.new_zeros(missing, *self._averages.shape[1:])])
        return zip(rows.split(size), averages.split(size), strict=True)

    @cached_property
    def _rows(self) -> Tensor:
        """(N,) the rows that are measured, part after part."""
        return torch.cat([self.split.pool(part) for part in self.parts])

    @cached_property
    def _averages(self) -> Tensor:
        """(N, parts, 1 + G) weights that turn losses of rows into means."""
        groups = self.data.groups[self.group].cpu()
        count = int(groups.max()) + 1
        sizes = [len(self.split.pool(part)) for part in self.parts]
        part_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        member = torch.zeros(len(self._rows), len(sizes), 1 + count, dtype=self.data.X.dtype)
        everyone = torch.arange(len(self._rows))
        member[everyone, part_of, 0] = 1.0
        member[everyone, part_of, 1 + groups[self._rows]] = 1.0
        return (member / member.sum(0).clamp(min=1.0)).to(self.data.X.device)
