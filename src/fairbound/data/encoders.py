"""Features become the columns of X.

Numbers stay as they are, integer codes too; text becomes one 0/1 column for each of its levels. What is learned from
data, the levels and the means that fill missing numbers, is learned from the rows that `Encoder.fit` is given:
training rows, so that nothing of a held-out row reaches the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.constraints.subgroups import MISSING, is_missing

MOST_LEVELS = 200  # 0/1 columns that one text column may become: more is nearly always a name, an address or a key
NUMBERS = "biuf"  # numpy's kinds of truth values and numbers
DATES = "mM"
WRITTEN_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|[.,]\d+)([eE][+-]?\d+)?")

Column = NDArray[Any]  # (rows,) numbers, truth values or text


@dataclass(frozen=True)
class Number:
    """A column of numbers: as it is, missing entries filled with a mean and, where the fitted rows had any, marked."""

    name: str
    mean: float  # of the fitted rows
    marked: bool  # whether a 0/1 column says which entries were missing

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} is missing") if self.marked else (self.name,)

    def encode(self, column: Column, dtype: torch.dtype) -> Tensor:
        """(rows, 1 or 2)"""
        numbers = _numbers(column)
        missing = np.isnan(numbers)
        filled = np.where(missing, self.mean, numbers)
        both = (filled, missing) if self.marked else (filled,)
        return torch.stack([torch.from_numpy(part).to(dtype) for part in both], 1)


@dataclass(frozen=True)
class OneHot:
    """A column of text: one 0/1 column per level, missing text a level too. One that the fitted rows lack is all 0."""

    name: str
    levels: tuple[Any, ...]  # None: missing

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={MISSING if level is None else level}" for level in self.levels)

    def encode(self, column: Column, dtype: torch.dtype) -> Tensor:
        """(rows, levels)"""
        place = {level: i for i, level in enumerate(self.levels)}
        at = torch.tensor([place.get(value, -1) for value in _values(column)])
        known = (at >= 0).nonzero().flatten()
        encoded = torch.zeros(len(column), len(self.levels), dtype=dtype)
        encoded[known, at[known]] = 1
        return encoded


@dataclass(frozen=True)
class Encoder:
    """How features become the columns of X, learned from some rows and applied to any.

    >>> columns = {"hours": np.array([40.0, np.nan, 20.0]), "work": np.array(["state", "own", "state"])}
    >>> encoder = Encoder.fit(columns, ["hours", "work"], rows=[0, 1])
    >>> encoder.names
    ('hours', 'hours is missing', 'work=own', 'work=state')
    >>> encoder.transform(columns)[1].tolist()
    [40.0, 1.0, 1.0, 0.0]
    """

    parts: tuple[Number | OneHot, ...]  # one for each feature, in order

    @staticmethod
    def fit(
        columns: Mapping[str, Column],
        features: Sequence[str],
        rows: Sequence[int] | NDArray[np.int64] | None = None,
        *,
        missing: Literal["mean", "refuse"] = "mean",
        categorical: Sequence[str] = (),
    ) -> Encoder:
        """Learn levels and means from `rows` (all, where None). `categorical` names columns whose values, also numbers,
        are levels."""
        if missing not in ("mean", "refuse"):
            raise ValueError(f'missing values are filled with the "mean" or "refuse"d, got {missing!r}')
        parts: list[Number | OneHot] = []
        for name in features:
            column = columns[name]
            if missing == "refuse":
                _refuse_missing(name, column)
            fitted = column if rows is None else column[np.asarray(rows)]
            as_levels = name in categorical or not holds_numbers(column)
            parts.append(
                _fit_levels(name, column, fitted, name in categorical) if as_levels else _fit_mean(name, column, fitted)
            )
        return Encoder(tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of X."""
        return tuple(output for part in self.parts for output in part.outputs)

    def transform(self, columns: Mapping[str, Column], dtype: torch.dtype = torch.float32) -> Tensor:
        """(rows, names): the inputs of a model."""
        return torch.cat([part.encode(columns[part.name], dtype) for part in self.parts], 1)


def _fit_mean(name: str, column: Column, fitted: Column) -> Number:
    every = _numbers(column)
    infinite = np.isinf(every)
    if infinite.any():
        raise ValueError(
            f"column {name!r} is infinite in {int(infinite.sum())} rows (first: row {int(infinite.argmax())}); "
            "correct or remove them"
        )
    numbers = _numbers(fitted)
    missing = np.isnan(numbers)
    if missing.all():
        raise ValueError(f"column {name!r} is missing in all {len(fitted)} training rows; leave it out of the features")
    return Number(name, float(numbers[~missing].mean()), bool(missing.any()))


def _fit_levels(name: str, column: Column, fitted: Column, wanted: bool) -> OneHot:
    if column.dtype.kind in DATES:
        raise ValueError(
            f"column {name!r} holds dates or times (such as {column[0]}); turn them into numbers, e.g. years, or leave "
            "the column out of the features"
        )
    if not wanted:
        _refuse_written_numbers(name, column)
    levels = _ordered(set(_values(fitted)))
    if len(levels) > MOST_LEVELS:
        shown = ", ".join(repr(level) for level in levels[:3])
        raise ValueError(
            f"column {name!r} holds {len(levels)} different values ({shown}, ...), and each would be an input of its "
            f"own; at most {MOST_LEVELS} are taken: merge some, or leave the column out of the features"
        )
    return OneHot(name, tuple(levels))


def _refuse_written_numbers(name: str, column: Column) -> None:
    """A column that is mostly numbers but was read as text is an accident; one-hot inputs would hide it."""
    values = _values(column)
    numbers = {value for value in set(values) if value is not None and WRITTEN_NUMBER.fullmatch(value.strip())}
    texts = set(values) - numbers - {None}
    if len(numbers) <= len(texts):
        return
    remedy = f"; to take every value as a level all the same, say categorical=({name!r},)"
    if not texts:
        raise ValueError(
            f"column {name!r} holds numbers written as text (such as {min(numbers)!r}); convert it{remedy}"
        )
    row = next(i for i, value in enumerate(values) if value in texts)
    count = sum(value in texts for value in values)
    raise ValueError(
        f"column {name!r} holds numbers, but text in {count} of {len(values)} rows (first: {values[row]!r} in row {row}"
        f"); correct them, or read the file with missing=({values[row]!r},) if it stands for a missing value{remedy}"
    )


def holds_numbers(column: Column) -> bool:
    """Whether a column is numbers or truth values, missing ones aside."""
    if column.dtype.kind != "O":
        return column.dtype.kind in NUMBERS
    return set(map(type, column)) <= {bool, type(None)}  # truth values with missing ones; other numbers are not objects


def _numbers(column: Column) -> NDArray[np.float64]:
    """(rows,) NaN where missing; numpy reads None as NaN."""
    return column.astype(np.float64)


def _values(column: Column) -> list[Any]:
    """The entries as Python's own values, None where missing."""
    values = column.astype(object)
    values[is_missing(column)] = None
    listed: list[Any] = values.tolist()
    return listed


def _ordered(levels: Iterable[Any]) -> list[Any]:
    """In ascending order, missing last."""
    levels = set(levels)
    return [*sorted(levels - {None}), *(levels & {None})]


def _refuse_missing(name: str, column: Column) -> None:
    missing = is_missing(column)
    if missing.any():
        raise ValueError(
            f"the column {name!r} is missing in {int(missing.sum())} of {len(column)} rows (first: row "
            f"{int(missing.argmax())}); fill them or leave them out"
        )
