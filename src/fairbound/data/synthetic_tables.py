"""The calibrated tables behind the synthetic census, read from `synthetic.toml` into arrays that can be drawn from.

Every column but race and marital status is drawn from a table of shares, given columns that were drawn before it:

    P(code | cell)  =  P(code | band) P(band | cell),        P(band | cell)  ~  share(band | cell) * tilt(band)

A *band* is a run of neighboring codes (ages 25 to 29, the occupations of one major group), a *cell* a combination of
bands of the given columns. The shares are those of 42 states; the tilts, which may depend on the first given column,
move them to the margins of one state. So one set of tables serves every state, and a state costs some 200 numbers.

Only `Generator.random` is ever called, and the rest is inverse distribution functions: numpy keeps the stream of PCG64
the same on every platform, but not the algorithms of its other samplers.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]


@cache
def facts() -> dict[str, Any]:
    """The numbers that `tools/calibrate_synthetic.py` wrote: aggregates, never rows."""
    return tomllib.loads(resources.files("fairbound.data").joinpath("synthetic.toml").read_text(encoding="utf-8"))


def band_of(codes: NDArray[Any], starts: Sequence[int]) -> NDArray[np.int64]:
    """The last band that starts at or below each code.

    >>> band_of(np.array([17, 24, 25, 80]), (17, 25, 65))
    array([0, 0, 1, 2])
    """
    return np.searchsorted(np.asarray(starts), codes, side="right") - 1


def pick(cumulative: Floats, cell: NDArray[np.int64], uniform: Floats) -> NDArray[np.int64]:
    """Draw from a different distribution in every row: the inverse of row `cell` of `cumulative` at `uniform`.

    Row c is moved to the interval [c, c + 1], which makes all rows one ascending list and one binary search.

    >>> pick(np.array([[0.5, 1.0], [0.0, 1.0]]), np.array([0, 0, 1]), np.array([0.4, 0.6, 0.4]))
    array([0, 1, 1])
    """
    cells, codes = cumulative.shape
    ascending = (cumulative + np.arange(cells)[:, None]).ravel()
    found = np.searchsorted(ascending, cell + uniform, side="right") - cell * codes
    index: NDArray[np.int64] = np.minimum(found, codes - 1)  # cell + uniform may round up to the next whole number
    return index


def cumulated(shares: Floats) -> Floats:
    """(cells, codes) distribution functions; the last code with a share ends at exactly 1."""
    sums = np.cumsum(shares, axis=-1)
    cumulative: Floats = sums / sums[..., -1:]
    return cumulative


@dataclass(frozen=True, eq=False)
class Variable:
    """A column, and its distribution given the columns before it."""

    name: str
    given: tuple[tuple[str, tuple[int, ...]], ...]  # columns drawn before, each with the starts of its bands
    codes: NDArray[Any]  # (codes,) ascending
    cumulative: Floats  # (cells, codes)

    def draw(self, columns: Columns, uniform: Floats) -> NDArray[Any]:
        """(rows,) codes."""
        cell = np.zeros(len(uniform), dtype=np.int64)
        for name, starts in self.given:
            cell = cell * len(starts) + band_of(columns[name], starts)
        drawn: NDArray[Any] = self.codes[pick(self.cumulative, cell, uniform)]
        return drawn


def variables(state: str, facts: Mapping[str, Any]) -> tuple[Variable, ...]:
    """The columns of a state, in the order in which they are drawn."""
    return tuple(_variable(table, facts["states"][state]) for table in facts["variables"])


def _variable(table: Mapping[str, Any], state: Mapping[str, Any]) -> Variable:
    name, given = table["name"], table["given"]
    shares = band_shares(np.asarray(table["shares"], dtype=np.float64), np.asarray(state["tilts"][name]))
    row = _rows_within(given, table["within"])
    codes, blocks = [], []
    for band, (listed, weights) in enumerate(zip(table["codes"], table["code_shares"], strict=True)):
        own = state["codes"].get(name, {}).get(str(band))  # where a state has codes of its own: its places of birth
        listed, weights = (own["codes"], own["shares"]) if own else (listed, weights)
        codes += listed
        blocks.append(shares[:, band, None] * _normed(np.asarray(weights, dtype=np.float64))[row])
    dtype = np.uint8 if max(codes) < 256 else np.uint16
    return Variable(
        name,
        tuple((column, tuple(starts)) for column, starts in given.items()),
        np.asarray(codes, dtype=dtype),
        cumulated(np.concatenate(blocks, axis=1)),
    )


def _rows_within(given: Mapping[str, list[int]], within: Mapping[str, list[int]]) -> NDArray[np.int64]:
    """(cells,) the row of the code shares that holds in each cell: `within` cuts some of the given columns coarser."""
    row = np.zeros(math.prod(len(starts) for starts in given.values()), dtype=np.int64)
    firsts = dict(zip(given, np.meshgrid(*given.values(), indexing="ij"), strict=True))
    for name, starts in within.items():
        row = row * len(starts) + band_of(firsts[name].ravel(), starts)
    return row


def band_shares(shares: Floats, tilts: Floats) -> Floats:
    """(cells, bands) P(band | cell) in a state; row i of `tilts` belongs to band i of the first given column.

    >>> band_shares(np.array([[500.0, 500.0]]), np.array([[3.0, 1.0]]))
    array([[0.75, 0.25]])
    """
    return _normed(shares * np.repeat(tilts, len(shares) // len(tilts), axis=0))


def _normed(weights: Floats) -> Floats:
    normed: Floats = weights / weights.sum(axis=1, keepdims=True)
    return normed
