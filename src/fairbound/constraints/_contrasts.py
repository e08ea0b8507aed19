"""How cells are compared: contrasts, linear maps from the means of K cells to m constraints.

Every contrast has its map and the transposed one. "Each" and "against the mean" are computed as
such: nothing of size groups x groups is built, and `restricted` gives the part of them that a
mini-batch with a few of the cells needs.

>>> pairwise(["A", "B"]).names
('A - B', 'B - A')
>>> against_mean(["A", "B"]).apply(torch.tensor([0.5, 0.3], dtype=torch.float64))
tensor([ 0.1000, -0.1000, -0.1000,  0.1000], dtype=torch.float64)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.sequences import LazySequence, sequence


class Others(NamedTuple):
    """The mean of all cells, as far as a mini-batch does not show them."""

    present: Tensor  # (S,) bool: the cells with examples
    share: Tensor  # () of all cells of which something is known, the present ones included
    part: Tensor  # () what those that are not present add to the mean


@dataclass(frozen=True, eq=False)
class Contrast(ABC):
    """A linear map on cell means, with a name for each of its rows."""

    names: Sequence[str]  # (m,)

    @abstractmethod
    def apply(self, means: Tensor) -> Tensor:
        """(..., K) -> (..., m)."""

    @abstractmethod
    def transpose(self, w: Tensor) -> Tensor:
        """(..., m) -> (..., K): the weight of every cell mean in w'C."""

    @abstractmethod
    def observed(self, present: Tensor) -> Tensor:
        """(m,) whether every cell that a row compares is present, (K,)."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """K."""

    @property
    def offset(self) -> Tensor | None:
        """(m,) what is added to the linear map; None: nothing."""
        return None

    @property
    def shares_of_mean(self) -> Tensor | None:
        """(K,) what every cell counts in a mean that all rows refer to; None where rows refer to no
        such mean."""
        return None

    def restricted(self, cells: Tensor | None, others: Others | None) -> Contrast:
        """The same for the cells that a mini-batch shows, (S,), K for no cell; None: all K of them,
        some absent.

        Rows that refer to the mean of all cells need what the `others` count in it; they are added
        as `others.part`.
        """
        if cells is not None:
            raise ValueError(
                f"{type(self).__name__} compares all cells, and cannot be restricted to some"
            )
        return self

    def rows(self, cells: Tensor) -> Tensor:
        """The rows that are about these cells, in the order of the restricted contrast."""
        raise ValueError(
            f"{type(self).__name__} compares all cells, and cannot be restricted to some"
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Contrast:
        """The same with its numbers on a device, in a precision."""
        return self

    def direct(self) -> Tensor:
        """(m, K) in double precision: the map, but for the mean of all cells that `shares_of_mean`
        is about."""
        return self.matrix()

    def matrix(self) -> Tensor:
        """(m, K) in double precision, for those who need all entries (a verdict); large for many
        cells."""
        return (
            self.to(torch.device("cpu"), torch.float64)
            .apply(torch.eye(self.cells, dtype=torch.float64))
            .T
        )


@dataclass(frozen=True, eq=False)
class Each(Contrast):
    """Every cell alone: sign * mean."""

    sign: float = 1.0

    @property
    def cells(self) -> int:
        return len(self.names)

    def apply(self, means: Tensor) -> Tensor:
        return self.sign * means

    def transpose(self, w: Tensor) -> Tensor:
        return self.sign * w

    def observed(self, present: Tensor) -> Tensor:
        return present

    def restricted(self, cells: Tensor | None, others: Others | None) -> Contrast:
        return self if cells is None else Each((), self.sign)

    def rows(self, cells: Tensor) -> Tensor:
        return cells


@dataclass(frozen=True, eq=False)
class AgainstMean(Contrast):
    """Every cell against the mean of all, weighted by `shares`; both signs as two rows, unless
    one-sided."""

    shares: Tensor  # (K,) they sum to 1
    two_sided: bool = True
    known: Tensor | None = None  # () what other cells add to the mean

    @property
    def cells(self) -> int:
        return self.shares.shape[0]

    def apply(self, means: Tensor) -> Tensor:
        gaps = means - (means * self.shares).sum(-1, keepdim=True)
        return self._sides(gaps)

    def _sides(self, gaps: Tensor) -> Tensor:
        return torch.stack([gaps, -gaps], -1).flatten(-2) if self.two_sided else gaps

    def transpose(self, w: Tensor) -> Tensor:
        net = w[..., ::2] - w[..., 1::2] if self.two_sided else w
        return net - self.shares * net.sum(-1, keepdim=True)

    def observed(self, present: Tensor) -> Tensor:
        if self.known is None:
            return present.all().expand(len(self.names))
        return present.repeat_interleave(2) if self.two_sided else present

    @property
    def shares_of_mean(self) -> Tensor:
        return self.shares

    def direct(self) -> Tensor:
        return self._sides(torch.eye(self.cells, dtype=torch.float64)).T

    def restricted(self, cells: Tensor | None, others: Others | None) -> Contrast:
        assert others is not None
        shares = self.shares if cells is None else self.shares[cells.clamp(max=self.cells - 1)]
        return AgainstMean(
            (), shares * others.present / others.share, self.two_sided, others.part / others.share
        )

    @property
    def offset(self) -> Tensor | None:
        return None if self.known is None else self._sides((-self.known).expand(self.cells))

    def rows(self, cells: Tensor) -> Tensor:
        return torch.stack([2 * cells, 2 * cells + 1], -1).flatten() if self.two_sided else cells

    def to(self, device: torch.device, dtype: torch.dtype) -> Contrast:
        return replace(self, shares=self.shares.to(device, dtype))


@dataclass(frozen=True, eq=False)
class Matrix(Contrast):
    """Any linear map, written out: pairs, sums of gaps, a user's own."""

    entries: Tensor  # (m, K)

    @property
    def cells(self) -> int:
        return self.entries.shape[1]

    def apply(self, means: Tensor) -> Tensor:
        return means @ self.entries.T

    def transpose(self, w: Tensor) -> Tensor:
        return w @ self.entries

    def observed(self, present: Tensor) -> Tensor:
        return ((self.entries != 0) & ~present).sum(-1) == 0

    def to(self, device: torch.device, dtype: torch.dtype) -> Contrast:
        return replace(self, entries=self.entries.to(device, dtype))


Compare = Callable[[Sequence[str]], Contrast]  # names of cells -> their contrast


def each(names: Sequence[str]) -> Contrast:
    """Every cell alone."""
    return Each(names if isinstance(names, LazySequence) else tuple(names))


def pairwise(names: Sequence[str], *, two_sided: bool = True) -> Contrast:
    """Every pair of cells, both signs: K (K - 1) rows."""
    return ratios(names, 1.0, two_sided=two_sided)


def ratios(names: Sequence[str], bound: float, *, two_sided: bool = True) -> Contrast:
    """`bound` times one cell less the other, of every pair, both ways: at most 0 where their ratio
    is at least that."""
    times = "" if bound == 1 else f"{bound:g} "
    rows, labels = [], []
    for pair in combinations(range(len(names)), 2):
        for i, j in (pair, pair[::-1])[: 1 + two_sided]:
            row = torch.zeros(len(names), dtype=torch.float64)
            row[i], row[j] = bound, -1.0
            rows.append(row)
            labels.append(f"{times}{names[i]} - {names[j]}")
    if not rows:
        raise ValueError(f"a comparison needs at least two groups, got {len(names)}")
    return Matrix(tuple(labels), torch.stack(rows))


def against_mean(names: Sequence[str], *, two_sided: bool = True) -> Contrast:
    """Every cell against the unweighted mean of the cells, both signs: 2 K rows. The paper's eq.
    (4)."""
    return against_pooled([1 / len(names)] * len(names), two_sided=two_sided)(names)


def against_pooled(shares: Sequence[float], *, two_sided: bool = True) -> Compare:
    """Every cell against the mean weighted by `shares` (of the population, say), both signs."""
    if min(shares, default=-1.0) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"shares must be >= 0 and sum to 1, got {list(shares)[:6]}; divide counts by their sum"
        )

    def contrast(names: Sequence[str]) -> Contrast:
        if len(shares) != len(names) or len(names) < 2:
            raise ValueError(
                "a comparison with the mean needs at least two groups and a share for each, "
                f"got {len(names)} groups and {len(shares)} shares"
            )
        sides = ("{} - mean", "mean - {}")[: 1 + two_sided]
        labels = sequence(
            len(sides) * len(names), lambda i: sides[i % len(sides)].format(names[i // len(sides)])
        )
        return AgainstMean(labels, torch.tensor(shares, dtype=torch.float64), two_sided)

    return contrast


def sums_of_pairs(names: Sequence[str]) -> Contrast:
    """|a| + |b| for every pair of groups, a and b its difference in the first and in the second
    half of the cells."""
    half = len(names) // 2
    groups = [name.rsplit(", y=", 1)[0] for name in names[:half]]
    rows, labels = [], []
    for i, j in combinations(range(half), 2):
        for first, second in product((1.0, -1.0), repeat=2):
            row = torch.zeros(len(names), dtype=torch.float64)
            row[i], row[j], row[half + i], row[half + j] = first, -first, second, -second
            rows.append(row)
            labels.append(
                f"{groups[i]} - {groups[j]}: {'+' if first > 0 else '-'}pos"
                f" {'+' if second > 0 else '-'}neg"
            )
    if not rows:
        raise ValueError(f"a comparison needs at least two groups, got {half}")
    return Matrix(tuple(labels), torch.stack(rows))
