"""Scores by group: one table for distances, ROC curves, AUC, histograms and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound.columns._vectors import as_binary, as_vector, same_length
from fairbound.metrics._counts import examples_in_groups


class Scores(NamedTuple):
    """Examples of one group with one score are a cell; cells are ordered by group, then by score.

    There are far fewer cells than examples where scores are rounded, and never more.

    >>> scores = Scores.of([0.5, 0.0, 0.5], [0, 0, 0])
    >>> scores.values.tolist(), scores.examples.tolist()
    ([0.0, 0.5], [[1, 2]])
    """

    names: tuple[str, ...]  # of the groups
    groups: Tensor  # (cells,)
    values: Tensor  # (cells,) float64
    weights: (
        Tensor  # (labels, cells) sums of weights, of label 0 and of label 1; (1, cells) if none
    )
    squares: Tensor  # (labels, cells) sums of squared weights
    examples: Tensor  # (labels, cells) int64

    @staticmethod
    def of(
        scores: Any,
        groups: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        names: Sequence[str] = (),
    ) -> Scores:
        """The table of some examples.

        Args:
            scores: (n,) finite numbers.
            groups: (n,) the group 0, 1, ... of each example; -1: in no group, skipped.
            labels: (n,) 0 or 1; None: there are none, and what needs labels is not defined.
            weights: (n,) not negative; None: 1.
            names: of the groups 0, 1, ..., absent ones included; empty: their numbers.
        """
        y = None if labels is None else as_binary(labels, "labels").cpu()
        if y is not None:
            inside = as_vector(groups).cpu() >= 0
            same_length(groups=inside, labels=y)
            y = y[inside]
        s, g, w, listed = examples_in_groups(scores, groups, weights, names, "scores")
        order = torch.from_numpy(np.lexsort((s.numpy(), g.numpy())))
        s, g, w = s[order], g[order], w[order]
        first = torch.ones(len(s), dtype=torch.bool)
        first[1:] = (s[1:] != s[:-1]) | (g[1:] != g[:-1])
        rows, cells = 1 if y is None else 2, int(first.sum())
        place = rows * (first.cumsum(0) - 1)
        if y is not None:
            place += y[order]

        def sums(part: Tensor | None) -> Tensor:
            return torch.bincount(place, part, minlength=rows * cells).reshape(cells, rows).T

        return Scores(listed, g[first], s[first], sums(w), sums(w.square()), sums(None))

    def total(self, part: Tensor) -> Tensor:
        """(groups,) sums over the cells (cells,) of each group."""
        return torch.bincount(self.groups, part, minlength=len(self.names))

    def binned(self, place: Tensor, bins: int, part: Tensor) -> Tensor:
        """(groups, bins) sums over the cells of each group, by bin.

        Args:
            place: (cells,) the bin 0, 1, ... of each cell.
            bins: their number.
            part: (cells,) what is summed.
        """
        size = len(self.names) * bins
        return torch.bincount(self.groups * bins + place, part, minlength=size).reshape(-1, bins)

    def before(self, part: Tensor) -> Tensor:
        """(cells,) sums over the cells of the same group with lower scores."""
        running = part.cumsum(0) - part
        first = torch.searchsorted(self.groups, self.groups)  # the first cell of the same group
        return running - running[first]

    def cells(self, group: int) -> slice:
        """The cells of one group."""
        start, end = (int(torch.searchsorted(self.groups, g)) for g in (group, group + 1))
        return slice(start, end)

    def only(self, groups: Sequence[int]) -> Scores:
        """The table of some of the groups, which are numbered anew, in ascending order."""
        number = torch.full((len(self.names),), -1)
        number[list(groups)] = torch.arange(len(groups))
        numbers = number[self.groups]
        inside = numbers >= 0
        return Scores(
            tuple(self.names[g] for g in groups),
            numbers[inside],
            *(part[..., inside] for part in self[2:]),
        )

    def present(self, fewest: int = 1) -> list[int]:
        """The groups that have weight, and at least so many examples."""
        weight, examples = self.total(self.weights.sum(0)), self.total(self.examples.sum(0))
        return ((weight > 0) & (examples >= fewest)).nonzero().flatten().tolist()
