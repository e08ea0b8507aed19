"""What `fit` is given, as tensors: people with inputs, labels, groups and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.constraints.subgroups import is_missing

FARTHEST = 1e6  # deviations
MOST_GROUPS = 500  # whose pairs still fit in memory
FEW_ROWS = 10  # a group on average: more groups than that are no groups but numbers


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows of people; groups are numbered 0, 1, ... in the order of their sorted names."""

    X: Tensor  # (rows, columns) standardized
    y: Tensor  # (rows,) the number of the class: float for two classes, as the loss wants it, whole for more
    classes: int
    groups: Tensor  # (rows,)
    names: tuple[str, ...]  # of the groups
    weight: Tensor | None  # (rows,) with mean 1


@dataclass(frozen=True, eq=False)
class Scaler:
    """Means and standard deviations of the columns, over the rows that train."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @staticmethod
    def of(X: NDArray[Any]) -> Scaler:
        X = X.astype(np.float64)
        constant = X.max(0) == X.min(0)
        size = np.where(constant, 1.0, np.abs(X).max(0))  # squares of 1e200 would be infinite
        mean = np.where(constant, X[0], (X / size).mean(0) * size)
        deviation = (X / size).std(0) * size
        return Scaler(mean, np.where(constant | (deviation == 0), 1.0, deviation))

    def scaled(self, X: NDArray[Any]) -> Tensor:
        """Numbers beyond `FARTHEST` deviations are taken for that: the network computes in float32."""
        with np.errstate(over="ignore"):  # 1e308 - (-1e308), which is cut off here
            columns = ((X - self.mean) / self.deviation).clip(-FARTHEST, FARTHEST)
        return torch.from_numpy(columns.astype(np.float32))


def group_codes(sensitive: Any, rows: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A number for every row and the names of the groups; several columns give their intersections.

    >>> group_codes([["f", 1], ["m", 2], ["f", 1]], 3)
    (array([0, 1, 0]), ('f, 1', 'm, 2'))
    """
    # as objects: numpy would make the word 'nan' of a missing entry among strings
    columns = np.asarray(sensitive.to_numpy() if hasattr(sensitive, "to_numpy") else sensitive, dtype=object)
    if columns.ndim not in (1, 2) or columns.shape[0] != rows:
        raise ValueError(
            f"sensitive_features must have one entry, or one row of entries, for each of the {rows} rows of X, got "
            f"shape {columns.shape}"
        )
    if is_missing(columns.reshape(-1)).any():
        raise ValueError("sensitive_features has missing entries; fill them with a word of their own, or drop the rows")
    people = [tuple(map(str, row)) for row in columns.reshape(rows, -1).tolist()]
    groups = sorted(set(people), key=lambda group: (", ".join(group), group))
    if len(groups) > MOST_GROUPS or (len(groups) > 20 and rows < FEW_ROWS * len(groups)):
        raise ValueError(
            f"sensitive_features has {len(groups):,} different entries for {rows:,} rows; cut it into a few groups"
        )
    number = {group: code for code, group in enumerate(groups)}
    return np.array([number[person] for person in people], dtype=np.int64), _names(groups)


def _names(groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Each its own: ("a, b", "c") and ("a", "b, c") are two groups."""
    joined = [", ".join(group) for group in groups]
    return tuple(
        name if joined.count(name) == 1 else " x ".join(map(repr, group))
        for name, group in zip(joined, groups, strict=True)
    )
