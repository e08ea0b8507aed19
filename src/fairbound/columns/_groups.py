"""A user's groups as numbers 0, 1, ... with names: the only place where columns become groups."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import listing
from fairbound.columns._attributes import Coded, Intersection
from fairbound.columns._column import Column, ColumnKind
from fairbound.columns._vectors import as_numbers, group_names

MAX_GROUPS = 500  # whose pairs still fit in memory
# groups that may be small: beyond, a column with small groups holds numbers, not groups
MAX_SMALL_GROUPS = 20
_MIN_GROUP_SIZE = 10  # mean number of examples in a group that is not small
SUBGROUPS = ("intersectional", "marginal", "both")


def group_numbers(
    groups: Any, names: Sequence[str] = (), *, others_are_none: bool = False
) -> tuple[Tensor, Sequence[str]]:
    """Number the group of every example, whatever the column is.

    Args:
        groups: (n,) the numbers 0, 1, ... of the groups (-1: in none), or their names; a missing
            name is no group where `names` are given, and a group of its own otherwise.
        names: of the groups 0, 1, ...; those that occur, in ascending order, if not given.
        others_are_none: whether a name that is none of `names` is in no group, or an error.

    Returns:
        (n,) the numbers, and the names.

    >>> group_numbers(["b", "a", "b"])
    (tensor([1, 0, 1]), ('a', 'b'))
    >>> group_numbers(["b", None, "b"], ["a", "b"])[0]
    tensor([ 1, -1,  1])
    """
    if isinstance(groups, Tensor) and groups.dtype != torch.bool:
        numbers = as_numbers(groups)
        return numbers, group_names(numbers, names)
    column = groups if isinstance(groups, Column) else Column.of(groups, "groups")
    if column.kind == "number":
        numbers = as_numbers(column.values)
        return numbers, group_names(numbers, names)
    if not names:
        attribute = Coded.of(column.name, column.values)
        return torch.from_numpy(attribute.levels(column.values)), attribute.labels
    if column.kind == "boolean":
        return torch.from_numpy(column.values.astype(np.int64)), names
    codes, values = column.factorized()
    place = {name: number for number, name in enumerate(names)}
    unknown = [value for value in values if value not in place]
    if unknown and not others_are_none:
        raise ValueError(
            f"{column.name}: {unknown[0]!r} is none of {listing(list(names), 6)}; name all groups,"
            " or mark examples of no group as missing"
        )
    number_of = np.array([*(place.get(value, -1) for value in values), -1], dtype=np.int64)
    return torch.from_numpy(number_of[codes]), names


def near_equal(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of names that look alike: equal after NFKC, case folding and stripping, characters
    without width left out.

    >>> near_equal(["Asian", "asian ", "black"])
    [('Asian', 'asian ')]
    """
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
        plain = "".join(c for c in folded if unicodedata.category(c) != "Cf").strip()
        if plain in first:
            pairs.append((first[plain], name))
        first.setdefault(plain, name)
    return pairs


def near_equal_note(names: Sequence[str], what: str) -> str:
    """A sentence about groups whose names look alike; empty where there are none."""
    pairs = [f"{a!a} and {b!a}" for a, b in near_equal(names)]
    if not pairs:
        return ""
    return f"{what} has groups whose names look alike, {listing(pairs)}; are they the same group?"


# Sensitive features of estimators -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GroupColumn:
    """Groups made from one or several columns of the sensitive features."""

    attributes: tuple[Coded, ...]
    levels: NDArray[np.int64]  # (groups, attributes)
    names: tuple[str, ...]

    @staticmethod
    def fit(columns: Mapping[str, Column], names: Sequence[str]) -> GroupColumn:
        """Learn the groups that these columns have together."""
        attributes = tuple(Coded.of(name, columns[name].values) for name in names)
        grouping = Intersection(attributes).group({name: columns[name].values for name in names})
        rows = len(grouping.ids)
        too_small = len(grouping) > MAX_SMALL_GROUPS and rows < _MIN_GROUP_SIZE * len(grouping)
        if len(grouping) > MAX_GROUPS or too_small:
            raise ValueError(
                f"sensitive_features has {len(grouping):,} different entries for {rows:,}"
                " examples; bin it into a few groups"
            )
        if note := near_equal_note(grouping.names, "sensitive_features"):
            warnings.warn(note, UserWarning, stacklevel=2)
        return GroupColumn(attributes, grouping.levels.numpy(), grouping.names)

    def ids(self, columns: Mapping[str, Column]) -> Tensor:
        """(n,) the number of every example's group."""
        levels = [attribute.levels(columns[attribute.name].values) for attribute in self.attributes]
        rows, inverse = np.unique(np.stack(levels, axis=1), axis=0, return_inverse=True)
        place = {tuple(levels): number for number, levels in enumerate(self.levels.tolist())}
        numbers = [place.get(tuple(row), -1) for row in rows.tolist()]
        if -1 in numbers:
            row = rows[numbers.index(-1)].tolist()
            name = ", ".join(a.labels[i] for a, i in zip(self.attributes, row, strict=True))
            raise ValueError(
                f"sensitive_features has the group {name!r}, which fit has not seen; its groups"
                f" are {listing(list(self.names), 20)}"
            )
        return torch.tensor(numbers, dtype=torch.int64)[torch.from_numpy(inverse.reshape(-1))]


@dataclass(frozen=True, eq=False)
class GroupEncoder:
    """The groups of a fit, by the name of their column, and what kind each column was.

    >>> encoder = GroupEncoder.fit([["f", 1], ["m", 2], ["f", 1]], 3, "intersectional")
    >>> {name: column.names for name, column in encoder.columns.items()}
    {'0 x 1': ('f, 1', 'm, 2')}
    >>> encoder.transform([["m", 2]], 1)
    {'0 x 1': tensor([1])}
    """

    columns: dict[str, GroupColumn]
    kinds: dict[str, ColumnKind]  # of the columns of sensitive features, in their order

    @staticmethod
    def fit(sensitive: Any, examples: int, subgroups: str) -> GroupEncoder:
        """Learn the groups from one entry, or one row of entries, for each example.

        Args:
            sensitive: (n,) or (n, columns) entries of any kind.
            examples: the number n.
            subgroups: "intersectional", "marginal" or "both".
        """
        columns = _sensitive_columns(sensitive, examples)
        single = [(name,) for name in columns] if subgroups != "intersectional" else []
        together = [tuple(columns)] if subgroups != "marginal" else []
        parts = dict.fromkeys((*single, *together))  # one column is both
        texts = {name: column.texts() for name, column in columns.items()}
        return GroupEncoder(
            {" x ".join(names): GroupColumn.fit(texts, names) for names in parts},
            {name: column.kind for name, column in columns.items()},
        )

    def transform(self, sensitive: Any, examples: int) -> dict[str, Tensor]:
        """(n,) the number of every example's group, by column; columns are matched by position."""
        columns = _sensitive_columns(sensitive, examples)
        if len(columns) != len(self.kinds):
            raise ValueError(
                f"sensitive_features has {len(columns)} columns, and fit was given"
                f" {len(self.kinds)}"
            )
        texts = {}
        for (name, kind), column in zip(self.kinds.items(), columns.values(), strict=True):
            refuse_other_kind(name, kind, column.kind)
            texts[name] = column.texts()
        return {name: column.ids(texts) for name, column in self.columns.items()}


def refuse_other_kind(name: str, fitted: ColumnKind, kind: ColumnKind) -> None:
    """Refuse text where a fit had numbers, and numbers where it had text."""
    if (fitted == "text") != (kind == "text"):
        raise ValueError(
            f"column {name!r} held {fitted} values in fit and holds {kind} values now; convert it"
            " to what it was"
        )


def _sensitive_columns(sensitive: Any, examples: int) -> dict[str, Column]:
    if hasattr(sensitive, "columns"):
        named = {str(name): sensitive[name] for name in sensitive.columns}
        if len(named) == 1:
            named = {"group": next(iter(named.values()))}
    else:
        table = sensitive if hasattr(sensitive, "ndim") else np.array(sensitive, dtype=object)
        if table.ndim not in (1, 2):
            raise ValueError(
                "sensitive_features must have one entry, or one row of entries, for each row of X,"
                f" got shape {tuple(table.shape)}"
            )
        if table.ndim == 2 and table.shape[1] > 1:
            named = {str(j): table[:, j] for j in range(table.shape[1])}
        else:
            named = {"group": table.reshape(-1) if table.ndim == 2 else table}
    columns = {name: Column.of(values, name) for name, values in named.items()}
    for name, column in columns.items():
        if len(column) != examples:
            raise ValueError(
                "sensitive_features must have one entry, or one row of entries, for each of the"
                f" {examples} rows of X, got {len(column)}"
            )
        if column.missing.any():
            raise ValueError(
                f"sensitive_features has missing entries in column {name!r}; fill them with a"
                " category of their own, or drop those rows"
            )
    return columns
