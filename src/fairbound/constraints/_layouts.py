"""Layouts say where the examples of a mini-batch count: in the objective, and in the cells of every
constraint.

A user's mini-batch comes in any order, and groups and labels say which cells an example is in
(`GroupedLayout`). A sampler draws equally many examples of each cell, one cell after the other
(`BlockedLayout`). Both add per-example values up to sums by cell, and hand weights of sums back to
examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints._cells import Layers


class Term(NamedTuple):
    """What one constraint adds up."""

    # the place of the values that are differentiated; None for a function, which adds up nothing
    statistic: int | None
    cells: int
    # the place of the values that are added up, where those are others (a proxy constraint)
    exact: int | None = None
    values: int = 0  # of a function

    @property
    def added(self) -> int | None:
        return self.statistic if self.exact is None else self.exact

    @property
    def means(self) -> int:
        return self.cells if self.statistic is not None else self.values


class GroupedLayout:
    """Examples in any order; their cells are given by index. A mini-batch costs O(examples +
    cells).

    All sums are in one table, in double precision: the objective's, those of every term, and two
    more, of examples in no cell and of unknown groups. A scatter of every layer fills it; a gather
    hands weights back.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        layers: Sequence[Layers],  # for each term; empty for a function
        like: Tensor,  # (B,) the losses
        objective: Tensor | None = None,  # (B,) bool
        weight: Tensor | None = None,  # (B,)
    ) -> None:
        self.terms, self.layers, self.like = terms, layers, like
        self.weight = None if weight is None else weight.double()
        # what an example counts in f
        self.objective = self.weight if objective is None else objective.double()
        if objective is not None and self.weight is not None:
            self.objective = objective * self.weight
        means = [term.means for term in terms]
        self.slots = sum(means)  # of which two more follow
        # for every layer its statistic, and (B,) the slots of examples
        self._places: list[tuple[int, Tensor]] = []
        start = 0
        for term, own, term_layers in zip(terms, means, layers, strict=True):
            for layer in term_layers:
                place = layer + start
                if start + own < self.slots:  # no cell and unknown groups come after all terms
                    place = torch.where(
                        layer < term.cells, place, layer + (self.slots - term.cells)
                    )
                self._places.append((term.added or 0, place))
            start += own

    def table(self, values: Sequence[Tensor]) -> Tensor:
        """(2, 1 + slots + 2) sums of per-example values, and counts, in double precision; without a
        graph.

        The sum of unknown groups is NaN.
        """
        table, one = _empty_table(self.slots + 2, self.like.device)
        ones = one.expand(self.like.shape[0])
        weight = ones if self.weight is None else self.weight

        def weighted(s: int, weight: Tensor) -> Tensor:
            value = values[s].detach().double()
            return torch.stack([value if weight is ones else value * weight, weight])

        added = {s: weighted(s, weight) for s in {0, *(statistic for statistic, _ in self._places)}}
        objective = weight if self.objective is None else self.objective
        of_objective = added[0] if objective is weight else weighted(0, objective)
        for statistic, place in self._places:
            table = table.index_add(1, place, added[statistic])
        return torch.cat([of_objective.sum(1, keepdim=True), table], 1)

    def spread(self, weights: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
        """(B,) for each of the values: what every example counts, from a weight on every entry of
        the table."""
        example_weights: list[Tensor | None] = [None] * len(values)
        f, by_slot = weights[0], weights[1:]
        example_weights[0] = None if self.objective is None else f * self.objective
        places = iter(self._places)
        for term, layers in zip(self.terms, self.layers, strict=True):
            for _ in layers:
                added, before = (
                    by_slot.index_select(0, next(places)[1]),
                    example_weights[term.statistic or 0],
                )
                added = added if self.weight is None else added * self.weight
                example_weights[term.statistic or 0] = added if before is None else before + added
        if self.objective is None:
            example_weights[0] = (
                f.expand(self.like.shape[0])
                if example_weights[0] is None
                else example_weights[0] + f
            )
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
                tuple(
                    torch.where(_rank(layer) % 2 == keep, layer, term.cells)
                    for layer in term_layers
                )
                for term, term_layers in zip(self.terms, self.layers, strict=True)
            ]
            halves.append(GroupedLayout(self.terms, layers, self.like, None, self.weight))
            inside = (turn if keep == 0 else ~turn).double()
            halves[-1].objective = inside if self.objective is None else self._turns(keep)
        return halves[0], halves[1]

    def _turns(self, keep: int) -> Tensor:
        assert self.objective is not None
        rank = (self.objective != 0).long().cumsum(0) - 1
        return self.objective * (rank % 2 == keep)


@lru_cache(maxsize=256)
def _empty_table(slots: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(2, slots) no sums and no counts, but a NaN for unknown groups; and a one (1,)."""
    table = torch.zeros(2, slots, dtype=torch.float64, device=device)
    table[0, -1] = torch.nan
    return table, torch.ones(1, dtype=torch.float64, device=device)


def _rank(layer: Tensor) -> Tensor:
    """(B,) how many examples of its cell stand before an example."""
    order = layer.argsort(stable=True)
    ordered = layer[order]
    start = torch.searchsorted(ordered, ordered)
    place = torch.arange(len(layer), device=layer.device) - start
    return torch.empty_like(place).scatter(0, order, place)


class BlockedLayout:
    """The objective's examples, then equally many of each cell, cell after cell, term after
    term."""

    def __init__(self, terms: Sequence[Term], objective: int, cell: int) -> None:
        self.terms, self.objective, self.cell = terms, objective, cell
        self.starts = list(accumulate((term.cells * cell for term in terms), initial=objective))

    def block(self, i: int, values: Tensor, of_cells: bool = False) -> Tensor:
        """The examples of term i, (cells * cell, ...), of all, or of those of the cells alone."""
        start = self.starts[i] - (self.objective if of_cells else 0)
        return values[start : start + self.terms[i].cells * self.cell]

    def means(self, values: Sequence[Tensor], *, surrogates: bool = False) -> list[Tensor]:
        """(1,) of the objective, then (cells,) of every term, empty for a function, from
        per-example values, (B,) each.

        `surrogates`: of what is differentiated instead.
        """
        means = [values[0][: self.objective].sum(-1, keepdim=True) / self.objective]
        for i, term in enumerate(self.terms):
            place = term.statistic if surrogates else term.added
            if place is None:
                means.append(values[0].new_zeros(0))
            else:
                means.append(
                    self.block(i, values[place]).unflatten(0, (term.cells, self.cell)).sum(-1)
                    / self.cell
                )
        return means

    def spread_means(self, weights: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
        """(B,) for each of the values: what every example counts, from a weight on every mean."""
        example_weights = []
        for s, value in enumerate(values):
            of_objective = (weights[0] / self.objective).expand(self.objective)
            parts = [of_objective if s == 0 else value.new_zeros(self.objective)]
            for term, weight in zip(self.terms, weights[1:], strict=True):
                if term.statistic == s:
                    parts.append((weight / self.cell)[:, None].expand(-1, self.cell).flatten())
                else:
                    parts.append(value.new_zeros(term.cells * self.cell))
            example_weights.append(torch.cat(parts))
        return example_weights
