"""What a sample tells of cells: their means, how far off these may be, and how they vary together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.auditing.tail_bounds import mean_above, rate_above
from fairbound.auditing.verdict_inputs import Columns
from fairbound.constraints.constraint import Constraint

FEWEST = 30  # effective rows of a cell that is judged: of fewer, spread and skewness are hardly known


class CellSummary(NamedTuple):
    """One cell of one limit."""

    name: str
    rows: int
    effective: float  # unweighted rows that would tell as much: (sum w)^2 / sum w^2
    mean: float
    error: float  # standard error of the mean
    skewness: float  # of the mean
    rate: bool  # whether the mean is a share of rows
    trouble: str  # why nothing can be said of it; empty where something can


class VerdictSample(NamedTuple):
    """The cells of all limits, one after the other."""

    cells: list[CellSummary]
    mean: Tensor  # (K,) 0 where there are no rows
    error: Tensor  # (K,)
    correlation: Tensor  # (K, K) of the means: the same people may be in cells of several limits

    def above_and_below(self, tail: float) -> tuple[Tensor, Tensor]:
        """(K,) each: how far above and below its estimate a mean may lie, each except with probability `tail`."""
        rate = torch.tensor([cell.rate for cell in self.cells])
        effective = torch.tensor([max(cell.effective, float(FEWEST)) for cell in self.cells], dtype=torch.float64)
        skewness = torch.tensor([cell.skewness for cell in self.cells], dtype=torch.float64)
        p = torch.where(rate, self.mean, 0.5)
        above = torch.where(rate, rate_above(p, effective, tail), mean_above(self.error, skewness, effective, tail))
        below = torch.where(
            rate, rate_above(1 - p, effective, tail), mean_above(self.error, -skewness, effective, tail)
        )
        return above, below


def sampled(limits: Sequence[Constraint], columns: Columns) -> VerdictSample:
    """Every cell of every limit."""
    cells: list[CellSummary] = []
    places: list[Tensor] = []  # the rows of every cell, and
    influences: list[Tensor] = []  # how much each moves its mean
    for limit in limits:
        values = columns.values(limit)
        shares = bool(((values == 0) | (values == 1)).all())
        for name, rows in _members(limit, columns):
            cell, influence = _cell(name, values[rows], columns.weight[rows], shares)
            cells.append(cell)
            places.append(rows)
            influences.append(influence)
    mean = torch.tensor([cell.mean for cell in cells], dtype=torch.float64)
    error = torch.tensor([cell.error for cell in cells], dtype=torch.float64)
    return VerdictSample(cells, mean, error, _correlation(places, influences, columns.rows))


def _members(limit: Constraint, columns: Columns) -> list[tuple[str, Tensor]]:
    """The rows of every cell that have a weight."""
    cells = limit.cells.bind(columns.codes(limit), columns.labels)
    return [(name, rows[columns.weight[rows] > 0]) for name, rows in zip(cells.names, cells.examples, strict=True)]


def _cell(name: str, values: Tensor, weight: Tensor, shares: bool) -> tuple[CellSummary, Tensor]:
    """A cell, and how much each of its rows moves the mean."""
    if len(values) == 0:
        return CellSummary(name, 0, 0.0, 0.0, 0.0, 0.0, shares, f"{name!r} has no rows"), values
    share = weight / weight.sum()
    effective = 1 / float(share.square().sum())
    mean = float(share @ values)
    mean = min(max(mean, 0.0), 1.0) if shares else mean  # rounding
    influence = share * (values - mean)
    square = float(influence.square().sum())
    error, skewness = 0.0, 0.0
    if effective > 2 and square > 0:
        error = (square * effective / (effective - 1)) ** 0.5
        small = (effective * (effective - 1)) ** 0.5 / (effective - 2)  # the usual correction of a sample's skewness
        skewness = float(influence.pow(3).sum()) / square**1.5 * small
    alike = _alike(values)
    if shares and not alike:
        effective = min(effective, mean * (1 - mean) / square)  # fewer where the heavy rows are the rare ones
    if shares:
        shrunk = (mean * effective + 1) / (effective + 2)  # a share of 0 or 1 is not known without error
        error = (shrunk * (1 - shrunk) / (effective + 2)) ** 0.5
    trouble = _trouble(name, len(values), effective, constant=alike and not shares)
    return CellSummary(name, len(values), effective, mean, error, skewness, shares, trouble), influence


def _alike(values: Tensor) -> bool:
    low, high = values.aminmax()
    return float(high - low) <= 1e-12 * max(abs(float(low)), abs(float(high)))


def _trouble(name: str, rows: int, effective: float, constant: bool) -> str:
    if rows < FEWEST:
        return f"{name!r} has {rows} rows, and a verdict needs at least {FEWEST}"
    if effective < FEWEST * (1 - 1e-9):
        return (
            f"{name!r} has {rows} rows, but their weights differ so much that they tell as much as "
            f"{effective:.0f}, and a verdict needs at least {FEWEST}"
        )
    return f"all {rows} values of {name!r} are the same, so that their spread is not known" if constant else ""


def _correlation(places: Sequence[Tensor], influences: Sequence[Tensor], rows: int) -> Tensor:
    """Of cell means, from the rows that two cells share."""
    K = len(places)
    correlation = torch.eye(K, dtype=torch.float64)
    length = [float(influence.square().sum()) ** 0.5 for influence in influences]
    for k in range(K):
        of_rows = torch.zeros(rows, dtype=torch.float64)
        of_rows[places[k]] = influences[k]
        for j in range(k + 1, K):
            both = length[k] * length[j]
            if both > 0:
                correlation[k, j] = correlation[j, k] = of_rows[places[j]] @ influences[j] / both
    return correlation
