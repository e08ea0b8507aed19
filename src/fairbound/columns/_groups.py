"""Columns of sensitive features as numbered groups: what the front ends for tables share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.columns._attributes import is_missing

MAX_GROUPS = 500  # whose pairs still fit in memory
# groups that may be small: beyond, a column with small groups holds numbers, not groups
MAX_SMALL_GROUPS = 20
MIN_GROUP_SIZE = 10  # mean number of examples in a group that is not small
SUBGROUPS = ("intersectional", "marginal", "both")


@dataclass(frozen=True, eq=False)
class GroupColumn:
    """Groups made from one or several columns of the sensitive features."""

    columns: tuple[int, ...]
    entries: dict[tuple[str, ...], int]  # entries of these columns -> number of the group
    names: tuple[str, ...]

    @staticmethod
    def fit(table: NDArray[Any], columns: tuple[int, ...]) -> GroupColumn:
        """The groups of a table of text (N, columns)."""
        groups = sorted(
            {tuple(row) for row in table[:, columns].tolist()},
            key=lambda group: (", ".join(group), group),
        )
        if len(groups) > MAX_GROUPS or (
            len(groups) > MAX_SMALL_GROUPS and len(table) < MIN_GROUP_SIZE * len(groups)
        ):
            raise ValueError(
                f"sensitive_features has {len(groups):,} different entries for {len(table):,}"
                " examples; bin it into a few groups"
            )
        return GroupColumn(
            columns, {group: code for code, group in enumerate(groups)}, _names(groups)
        )

    def codes(self, table: NDArray[Any]) -> Tensor:
        """(N,) the number of every example's group."""
        rows = [tuple(row) for row in table[:, self.columns].tolist()]
        unknown = next((row for row in rows if row not in self.entries), None)
        if unknown is not None:
            raise ValueError(
                f"sensitive_features has the group {', '.join(unknown)!r}, which fit has not seen;"
                f" its groups are {list(self.names)[:20]}"
            )
        return torch.tensor([self.entries[row] for row in rows], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class GroupEncoder:
    """The groups of a fit, by the name of their column.

    >>> encoder = GroupEncoder.fit([["f", 1], ["m", 2], ["f", 1]], 3, "intersectional")
    >>> {name: column.names for name, column in encoder.columns.items()}
    {'0 x 1': ('f, 1', 'm, 2')}
    >>> encoder.transform([["m", 2]], 1)
    {'0 x 1': tensor([1])}
    """

    columns: dict[str, GroupColumn]

    @staticmethod
    def fit(sensitive: Any, examples: int, subgroups: str) -> GroupEncoder:
        """From one entry, or one row of entries, for each example."""
        table, names = _table(sensitive, examples)
        every = tuple(range(len(names)))
        single: list[tuple[int, ...]] = (
            [(j,) for j in every] if subgroups != "intersectional" else []
        )
        wanted = (
            [*single, every] if subgroups != "marginal" and len(names) > 1 else single or [every]
        )
        return GroupEncoder(
            {" x ".join(names[j] for j in part): GroupColumn.fit(table, part) for part in wanted}
        )

    def transform(self, sensitive: Any, examples: int) -> dict[str, Tensor]:
        """(N,) the number of every example's group, by column."""
        table, _ = _table(sensitive, examples)
        width = 1 + max(j for column in self.columns.values() for j in column.columns)
        if table.shape[1] != width:
            raise ValueError(
                f"sensitive_features has {table.shape[1]} columns, and fit was given {width}"
            )
        return {name: column.codes(table) for name, column in self.columns.items()}


def _table(sensitive: Any, examples: int) -> tuple[NDArray[Any], list[str]]:
    """(N, columns) of text, and the names of the columns."""
    # as objects: numpy would turn a missing entry among strings into the string 'nan'
    columns = np.asarray(
        sensitive.to_numpy() if hasattr(sensitive, "to_numpy") else sensitive, dtype=object
    )
    if columns.ndim not in (1, 2) or columns.shape[0] != examples:
        raise ValueError(
            "sensitive_features must have one entry, or one row of entries, for each of the"
            f" {examples} rows of X, got shape {columns.shape}"
        )
    if is_missing(columns.reshape(-1)).any():
        raise ValueError(
            "sensitive_features has missing entries; fill them with a category of their own, or"
            " drop those rows"
        )
    table = np.vectorize(str, otypes=[object])(columns.reshape(examples, -1))
    named = [str(name) for name in getattr(sensitive, "columns", range(table.shape[1]))]
    return table, named if table.shape[1] > 1 else ["group"]


def _names(groups: list[tuple[str, ...]]) -> tuple[str, ...]:
    """A distinct name for each: ("a, b", "c") and ("a", "b, c") are two groups."""
    joined = [", ".join(group) for group in groups]
    return tuple(
        name if joined.count(name) == 1 else " x ".join(map(repr, group))
        for name, group in zip(joined, groups, strict=True)
    )
