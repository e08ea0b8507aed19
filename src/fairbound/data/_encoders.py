"""Features become the columns of X.

Numbers stay as they are, integer codes too; text becomes one 0/1 column for each of its levels.
What is learned from data, the levels and the means that fill missing numbers, is fitted to the rows
that `Encoder.fit` is given: training rows, so that no held-out row influences the model.

Refused, with the culprit: infinite numbers, numbers that were read as text, dates, a column without
a single training value, and text with so many levels that it must be a name or a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import listed, marked_rows
from fairbound.columns._attributes import MISSING
from fairbound.columns._column import Column

# 0/1 columns that one text column may become: more is nearly always a name, an address or a key
MOST_LEVELS = 200
WRITTEN_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|[.,]\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class NumberFeature:
    """A column of numbers, and where the fitted rows lacked some, a column that marks them."""

    name: str
    mean: float  # of the fitted rows; fills missing numbers
    marks_missing: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} is missing")[: 1 + self.marks_missing]

    def transform(self, column: Column) -> NDArray[np.float64]:
        filled = np.where(column.missing, self.mean, column.numbers())
        return np.stack([filled, column.missing][: 1 + self.marks_missing], axis=1)


@dataclass(frozen=True)
class LevelsFeature:
    """A 0/1 column for each level; one that the fitted rows lack is all 0."""

    name: str
    levels: tuple[Any, ...]  # None: missing

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={MISSING if v is None else v}" for v in self.levels)

    def transform(self, column: Column) -> NDArray[np.float64]:
        codes, values = column.factorized()
        place = {level: i for i, level in enumerate(self.levels)}
        level_of = np.array([place.get(value, -1) for value in (*values, None)])
        one_hot = np.eye(len(self.levels) + 1)[:, :-1]  # the last row is of none
        return np.asarray(one_hot[level_of[codes]])


@dataclass(frozen=True)
class Encoder:
    """How features become the columns of X, fitted to some rows and applied to any.

    >>> columns = {
    ...     "hours": np.array([40.0, np.nan, 20.0]),
    ...     "work": np.array(["state", "own", "state"]),
    ... }
    >>> encoder = Encoder.fit(columns, ["hours", "work"], rows=[0, 1])
    >>> encoder.names
    ('hours', 'hours is missing', 'work=own', 'work=state')
    >>> encoder.transform(columns)[1].tolist()
    [40.0, 1.0, 1.0, 0.0]
    """

    features: tuple[NumberFeature | LevelsFeature, ...]

    @staticmethod
    def fit(
        columns: Mapping[str, NDArray[Any]],
        features: Sequence[str],
        rows: Sequence[int] | NDArray[np.int64] | None = None,
        *,
        categorical: Sequence[str] = (),
    ) -> Encoder:
        """Learn levels and means.

        Args:
            columns: (rows,) of each name.
            features: the names of the columns to encode, in the order of X.
            rows: the rows to learn from; all if None.
            categorical: columns whose values, also numbers, are levels.
        """
        fitted: list[NumberFeature | LevelsFeature] = []
        for name in features:
            column = Column.of(columns[name], name)
            chosen = column if rows is None else column[np.asarray(rows)]
            if name in categorical or not column.is_numeric:
                levels = tuple(_checked_levels(column, chosen, name in categorical))
                fitted.append(LevelsFeature(name, levels))
            else:
                _refuse_bad_numbers(column, chosen)
                mean = float(np.mean(chosen.numbers()[~chosen.missing]))
                fitted.append(NumberFeature(name, mean, bool(chosen.missing.any())))
        return Encoder(tuple(fitted))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of X."""
        return tuple(name for feature in self.features for name in feature.names)

    def transform(
        self, columns: Mapping[str, NDArray[Any]], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """(rows, names): the inputs of a model."""
        parts = [each.transform(Column.of(columns[each.name], each.name)) for each in self.features]
        return torch.cat([torch.from_numpy(part).to(dtype) for part in parts], 1)


# What is refused ----------------------------------------------------------------------------------


def _refuse_bad_numbers(column: Column, chosen: Column) -> None:
    infinite = np.isinf(column.numbers())
    if infinite.any():
        raise ValueError(
            f"column {column.name!r} is infinite in {marked_rows(infinite)}; correct or remove them"
        )
    if chosen.missing.all():
        raise ValueError(
            f"column {column.name!r} is missing in all {len(chosen)} training rows; drop it from"
            " the features"
        )


def _checked_levels(column: Column, chosen: Column, categorical: bool) -> list[Any]:
    name = column.name
    if column.kind == "date":
        raise ValueError(
            f"column {name!r} holds dates or times (such as {column.values[0]}); turn them into"
            " numbers, e.g. years, or drop the column from the features"
        )
    if not categorical:
        _refuse_written_numbers(column)
    levels = chosen.factorized()[1]
    if len(levels) > MOST_LEVELS:
        raise ValueError(
            f"column {name!r} holds {len(levels)} different values"
            f" ({listed(list(map(repr, levels)), 3)}), and each would be an input of its own; at"
            f" most {MOST_LEVELS} are taken: merge some, or drop the column from the features"
        )
    return [*levels, None] if chosen.missing.any() else levels


def _refuse_written_numbers(column: Column) -> None:
    """A column that is mostly numbers but was read as text is an accident; one-hot inputs would
    hide it."""
    codes, values = column.factorized()
    texts = [value for value in values if not WRITTEN_NUMBER.fullmatch(value.strip())]
    if len(values) - len(texts) <= len(texts):
        return
    remedy = f"; to take every value as a level all the same, say categorical=({column.name!r},)"
    if not texts:
        raise ValueError(
            f"column {column.name!r} holds numbers written as text (such as {values[0]!r}); convert"
            f" it{remedy}"
        )
    marked = np.array([*(value in texts for value in values), False])[codes]
    raise ValueError(
        f"column {column.name!r} holds numbers, but text such as {texts[0]!r} in"
        f" {marked_rows(marked)}; correct them, or read the file with missing=({texts[0]!r},) if it"
        f" marks a missing value{remedy}"
    )
