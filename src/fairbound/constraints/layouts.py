"""Where the examples of a mini-batch count: in the objective, and in the cells of every constraint.

A user's mini-batch comes in any order, and groups and labels say which cells an example is in (`GroupedLayout`). A
sampler draws equally many examples of each cell, one cell after the other (`BlockedLayout`). Both add per-example
values up to sums by cell, and hand weights of sums back to examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.cells import Layers


class Term(NamedTuple):
    """What one constraint adds up."""

    statistic: int | None  # the place of the values that are differentiated; None for a function, which adds up nothing
    cells: int
    exact: int | None = None  # the place of the values that are added up, where those are others (a proxy constraint)

    @property
    def added(self) -> int | None:
        return self.statistic if self.exact is None else self.exact


class Layout(ABC):
    """The examples of one mini-batch by cell."""

    terms: Sequence[Term]

    @property
    @abstractmethod
    def counts(self) -> list[Tensor]:
        """(1,) of the objective, then (cells,) of every term; empty for a function."""

    @abstractmethod
    def sums(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The same of per-example values, (B,) each; without a graph."""

    @abstractmethod
    def spread(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        """(B,) for each of the values: what every example counts, from a weight on every sum."""


class GroupedLayout(Layout):
    """Examples in any order; their cells are given by index. A mini-batch costs O(examples + cells)."""

    def __init__(
        self,
        terms: Sequence[Term],
        layers: Sequence[Layers],  # for each term; empty for a function
        like: Tensor,  # (B,) the losses
        objective: Tensor | None = None,  # (B,) bool
        weight: Tensor | None = None,  # (B,)
        counts: list[Tensor] | None = None,  # where they are known, as `counts`
    ) -> None:
        self._known = counts
        self.terms, self.layers, self.like = terms, layers, like.detach()
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.weight = None if weight is None else weight.to(self.dtype)
        self.objective = self.weight if objective is None else objective.to(self.dtype)  # what an example counts in f
        if objective is not None and self.weight is not None:
            self.objective = objective * self.weight

    @cached_property
    def counts(self) -> list[Tensor]:
        if self._known is not None:
            return self._known
        if self.objective is None:
            objective = self.like.new_full((1,), self.like.shape[-1], dtype=self.dtype)
        else:
            objective = self.objective.sum(-1, keepdim=True)
        counts = [objective]
        for term, layers in zip(self.terms, self.layers, strict=True):
            if not layers:
                counts.append(objective[:0])
                continue
            count = objective.new_zeros(term.cells + 2, dtype=torch.float64)
            for layer in layers:  # not `bincount`, which waits for a GPU
                count = count.index_add(0, layer, self._weights)
            # A group that no constraint knows must not count as no group: the objective becomes NaN.
            counts[0] = torch.where(count[-1:] > 0, torch.nan, counts[0])
            counts.append(count[:-2].to(self.dtype))
        return counts

    @cached_property
    def _weights(self) -> Tensor:
        """(B,) what every example counts in its cells."""
        if self.weight is None:
            return self.like.new_ones(self.like.shape[0], dtype=torch.float64)
        return self.weight.double()

    def sums(self, values: Sequence[Tensor]) -> list[Tensor]:
        plain = [value.detach().to(self.dtype) for value in values]
        sums = [(plain[0] if self.objective is None else plain[0] * self.objective).sum(-1, keepdim=True)]
        for term, layers in zip(self.terms, self.layers, strict=True):
            # One example after the other, which in single precision would lose four digits of ten thousand.
            total = plain[0].new_zeros(term.cells + 2 if layers else 2, dtype=torch.float64)
            for layer in layers:
                value = plain[term.added or 0]
                value = value if self.weight is None else value * self.weight
                total = total.index_add(0, layer, value.double())
            sums.append(total[:-2].to(self.dtype))
        return sums

    def spread(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        f = weights[0].expand(self.like.shape[0])
        example_weights: list[Tensor | None] = [None] * len(values)
        example_weights[0] = f if self.objective is None else f * self.objective
        for term, layers, weight in zip(self.terms, self.layers, weights[1:], strict=True):
            if term.statistic is None:
                continue
            by_cell = torch.cat([weight, weight.new_zeros(2)])
            for layer in layers:
                added, before = by_cell[layer], example_weights[term.statistic]
                added = added if self.weight is None else added * self.weight
                example_weights[term.statistic] = added if before is None else before + added
        return [
            torch.zeros_like(value) if weight is None else weight.to(value.dtype)
            for weight, value in zip(example_weights, values, strict=True)
        ]

    def halves(self) -> tuple[GroupedLayout, GroupedLayout]:
        """The examples of every cell, assigned alternately to two mini-batches."""
        turn = torch.arange(self.like.shape[0], device=self.like.device) % 2 == 0
        halves = []
        for keep in (0, 1):
            layers = [
                tuple(torch.where(_rank(layer) % 2 == keep, layer, term.cells) for layer in term_layers)
                for term, term_layers in zip(self.terms, self.layers, strict=True)
            ]
            halves.append(GroupedLayout(self.terms, layers, self.like, None, self.weight))
            inside = (turn if keep == 0 else ~turn).to(self.dtype)
            halves[-1].objective = inside if self.objective is None else self._turns(keep)
        return halves[0], halves[1]

    def _turns(self, keep: int) -> Tensor:
        assert self.objective is not None
        rank = (self.objective != 0).long().cumsum(0) - 1
        return self.objective * (rank % 2 == keep)


def _rank(layer: Tensor) -> Tensor:
    """(B,) how many examples of its cell stand before an example."""
    order = layer.argsort(stable=True)
    ordered = layer[order]
    start = torch.searchsorted(ordered, ordered)
    place = torch.arange(len(layer), device=layer.device) - start
    return torch.empty_like(place).scatter(0, order, place)


class BlockedLayout(Layout):
    """The objective's examples, then equally many of each cell, cell after cell, term after term."""

    def __init__(self, terms: Sequence[Term], objective: int, cell: int, like: Tensor) -> None:
        self.terms, self.objective, self.cell, self.like = terms, objective, cell, like
        starts, start = [], objective
        for term in terms:
            starts.append(start)
            start += term.cells * cell
        self.starts, self.size = starts, start

    @cached_property
    def counts(self) -> list[Tensor]:
        cells = [
            self.like.new_full((term.cells if term.statistic is not None else 0,), self.cell) for term in self.terms
        ]
        return [self.like.new_full((1,), self.objective), *cells]

    def block(self, i: int, values: Tensor, of_cells: bool = False) -> Tensor:
        """The examples of term i, (cells * cell, ...), of all, or of those of the cells alone."""
        start = self.starts[i] - (self.objective if of_cells else 0)
        return values[start : start + self.terms[i].cells * self.cell]

    def sums(self, values: Sequence[Tensor], *, surrogates: bool = False) -> list[Tensor]:
        """`surrogates`: what is differentiated, in place of what is added up."""
        sums = [values[0][: self.objective].sum(-1, keepdim=True)]
        for i, term in enumerate(self.terms):
            place = term.statistic if surrogates else term.added
            if place is None:
                sums.append(values[0].new_zeros(0))
            else:
                sums.append(self.block(i, values[place]).unflatten(0, (term.cells, self.cell)).sum(-1))
        return sums

    @property
    def _sizes(self) -> list[int]:
        return [self.objective, *[self.cell] * len(self.terms)]

    def means(self, values: Sequence[Tensor], *, surrogates: bool = False) -> list[Tensor]:
        """The sums divided by their counts, which are numbers here."""
        sums = self.sums(values, surrogates=surrogates)
        return [total / size for total, size in zip(sums, self._sizes, strict=True)]

    def spread_means(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        """(B,) for each of the values: what every example counts, from a weight on every mean."""
        return self.spread([weight / size for weight, size in zip(weights, self._sizes, strict=True)], values)

    def spread(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        example_weights = []
        for s, value in enumerate(values):
            parts = [weights[0].expand(self.objective) if s == 0 else value.new_zeros(self.objective)]
            for term, weight in zip(self.terms, weights[1:], strict=True):
                if term.statistic == s:
                    parts.append(weight[:, None].expand(-1, self.cell).flatten())
                else:
                    parts.append(value.new_zeros(term.cells * self.cell))
            example_weights.append(torch.cat(parts))
        return example_weights
