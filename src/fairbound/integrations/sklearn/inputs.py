"""What `fit` is given, as tensors: inputs, labels, groups and weights of the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.constraints.subgroups import is_missing

MAX_DEVIATIONS = 1e6  # standard deviations from the mean at which inputs are clipped
MAX_GROUPS = 500  # whose pairs still fit in memory
MAX_SMALL_GROUPS = 20  # groups that may be small: beyond, a column with small groups holds numbers, not groups
MIN_GROUP_SIZE = 10  # mean number of examples in a group that is not small


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The N examples of a fit; groups are numbered 0, 1, ... in the order of their sorted names."""

    X: Tensor  # (N, features) standardized
    y: Tensor  # (N,) the number of the class: float for two classes, as the loss needs it, integer for more
    classes: int
    groups: Tensor  # (N,)
    names: tuple[str, ...]  # of the groups
    weight: Tensor | None  # (N,) with mean 1


@dataclass(frozen=True, eq=False)
class Scaler:
    """Means and standard deviations of the columns, over the training examples."""

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
        """Standardized columns, clipped at `MAX_DEVIATIONS`: the network computes in float32."""
        with np.errstate(over="ignore"):  # 1e308 - (-1e308), which is clipped here
            columns = ((X - self.mean) / self.deviation).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        return torch.from_numpy(columns.astype(np.float32))


def group_codes(sensitive: Any, examples: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of the group of every example, and the groups' names; several columns give their intersections.

    >>> group_codes([["f", 1], ["m", 2], ["f", 1]], 3)
    (array([0, 1, 0]), ('f, 1', 'm, 2'))
    """
    # as objects: numpy would turn a missing entry among strings into the string 'nan'
    columns = np.asarray(sensitive.to_numpy() if hasattr(sensitive, "to_numpy") else sensitive, dtype=object)
    if columns.ndim not in (1, 2) or columns.shape[0] != examples:
        raise ValueError(
            f"sensitive_features must have one entry, or one row of entries, for each of the {examples} rows of X, "
            f"got shape {columns.shape}"
        )
    if is_missing(columns.reshape(-1)).any():
        raise ValueError(
            "sensitive_features has missing entries; fill them with a category of their own, or drop those rows"
        )
    entries = [tuple(map(str, row)) for row in columns.reshape(examples, -1).tolist()]
    groups = sorted(set(entries), key=lambda group: (", ".join(group), group))
    too_small = len(groups) > MAX_SMALL_GROUPS and examples < MIN_GROUP_SIZE * len(groups)
    if len(groups) > MAX_GROUPS or too_small:
        raise ValueError(
            f"sensitive_features has {len(groups):,} different entries for {examples:,} examples; bin it into a few "
            "groups"
        )
    number = {group: code for code, group in enumerate(groups)}
    return np.array([number[entry] for entry in entries], dtype=np.int64), _names(groups)


def _names(groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    """A distinct name for each: ("a, b", "c") and ("a", "b, c") are two groups."""
    joined = [", ".join(group) for group in groups]
    return tuple(
        name if joined.count(name) == 1 else " x ".join(map(repr, group))
        for name, group in zip(joined, groups, strict=True)
    )
