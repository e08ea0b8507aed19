"""What a benchmark measures of a stack of runs on the parts of a split: losses by group, and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fairbound.data.dataset import Dataset, Split
from fairbound.training.compile import Compiler

AT_ONCE = 8_192  # rows of a forward pass: of fewer, the calls cost more than the cache of a CPU's core saves


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
            for inputs, labels, averages in self._blocks:
                for total, point in zip(means, x, strict=True):
                    total += self._means(point, inputs, labels, averages)
        return means

    def scores(self, x: Tensor, part: str) -> Tensor:
        """(rows of the part,) outputs of the model at x (n,)."""
        with torch.no_grad():
            return torch.cat([self.forward(x, self.data.X[rows]) for rows in self.split.pool(part).split(AT_ONCE)])

    @cached_property
    def _means(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Of one run on one block: compiled once for all stacks, whatever their size."""

        def means(x: Tensor, inputs: Tensor, labels: Tensor, averages: Tensor) -> Tensor:
            losses = self.loss(self.forward(x, inputs), labels)
            found: Tensor = (losses @ averages.flatten(1)).unflatten(0, averages.shape[1:])
            return found

        return Compiler(self.forward, forced=False)(means, "losses") if self.compiled else means

    @cached_property
    def _blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and weights of all rows, in blocks of one size; what fills up the last one has no weight."""
        count = -(-len(self._rows) // AT_ONCE)
        size = -(-len(self._rows) // count)
        missing = count * size - len(self._rows)
        rows = torch.cat([self._rows, self._rows[:1].expand(missing)])
        averages = torch.cat([self._averages, self._averages.new_zeros(missing, *self._averages.shape[1:])])
        blocks = zip(rows.split(size), averages.split(size), strict=True)
        return [(self.data.X[block], self.data.y[block], weights) for block, weights in blocks]

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
