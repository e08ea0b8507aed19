"""How cells are compared: contrasts, linear maps on cell means.

>>> pairwise(["A", "B"]).names
('A - B', 'B - A')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import NamedTuple

import torch
from torch import Tensor


class Contrast(NamedTuple):
    """Rows of a linear map on cell means, with their names."""

    matrix: Tensor  # (m, K)
    names: tuple[str, ...]


Compare = Callable[[Sequence[str]], Contrast]  # names of cells -> their contrast


def pairwise(names: Sequence[str]) -> Contrast:
    """Every pair of cells, both signs: K (K - 1) rows."""
    rows, labels = [], []
    for i, j in combinations(range(len(names)), 2):
        difference = torch.zeros(len(names), dtype=torch.float64)
        difference[i], difference[j] = 1.0, -1.0
        rows += [difference, -difference]
        labels += [f"{names[i]} - {names[j]}", f"{names[j]} - {names[i]}"]
    if not rows:
        raise ValueError(f"a comparison needs at least two cells, got {len(names)}")
    return Contrast(torch.stack(rows), tuple(labels))


def against_mean(names: Sequence[str]) -> Contrast:
    """Every cell against the unweighted mean of the cells, both signs: 2 K rows. The paper's eq. (4)."""
    return against_pooled([1 / len(names)] * len(names))(names)


def against_pooled(shares: Sequence[float]) -> Compare:
    """Every cell against the mean weighted by `shares` (of the population, say), both signs."""

    if min(shares, default=-1.0) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares must be >= 0 and sum to 1, got {list(shares)}; divide counts by their sum")

    def contrast(names: Sequence[str]) -> Contrast:
        if len(shares) != len(names) or len(names) < 2:
            raise ValueError(
                f"against the mean of {len(names)} cells with {len(shares)} shares; needs as many, and two or more"
            )
        one_sided = torch.eye(len(names), dtype=torch.float64) - torch.tensor(shares, dtype=torch.float64)
        labels = [label for name in names for label in (f"{name} - mean", f"mean - {name}")]
        return Contrast(torch.stack([one_sided, -one_sided], 1).flatten(0, 1), tuple(labels))

    return contrast


def sums_of_pairs(names: Sequence[str]) -> Contrast:
    """|a| + |b| for every pair of groups, a and b its difference in the first and in the second half of the cells."""
    half = len(names) // 2
    groups = [name.rsplit(", y=", 1)[0] for name in names[:half]]
    rows, labels = [], []
    for i, j in combinations(range(half), 2):
        for first, second in product((1.0, -1.0), repeat=2):
            row = torch.zeros(len(names), dtype=torch.float64)
            row[i], row[j], row[half + i], row[half + j] = first, -first, second, -second
            rows.append(row)
            labels.append(f"{groups[i]} - {groups[j]}: {'+' if first > 0 else '-'}pos {'+' if second > 0 else '-'}neg")
    if not rows:
        raise ValueError(f"a comparison needs at least two groups, got {half}")
    return Contrast(torch.stack(rows), tuple(labels))
