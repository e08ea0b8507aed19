"""Groups and constraints of a fit: columns of sensitive features as numbered groups, notions as constraints on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.constraints.notions import NOTIONS, make_constraint
from fairbound.constraints.subgroups import is_missing

MAX_GROUPS = 500  # whose pairs still fit in memory
MAX_SMALL_GROUPS = 20  # groups that may be small: beyond, a column with small groups holds numbers, not groups
MIN_GROUP_SIZE = 10  # mean number of examples in a group that is not small
SUBGROUPS = ("intersectional", "marginal", "both")

Notion = str | Constraint | Callable[..., Constraint]
RATES_OF_A_CLASS = ("demographic_parity", "equal_opportunity")  # notions that take outcome=, the class of several


@dataclass(frozen=True, eq=False)
class GroupColumn:
    """Groups made from one or several columns of the sensitive features."""

    columns: tuple[int, ...]
    entries: dict[tuple[str, ...], int]  # entries of these columns -> number of the group
    names: tuple[str, ...]

    @staticmethod
    def fit(table: NDArray[Any], columns: tuple[int, ...]) -> GroupColumn:
        """The groups of a table of text (N, columns)."""
        groups = sorted({tuple(row) for row in table[:, columns].tolist()}, key=lambda group: (", ".join(group), group))
        if len(groups) > MAX_GROUPS or (len(groups) > MAX_SMALL_GROUPS and len(table) < MIN_GROUP_SIZE * len(groups)):
            raise ValueError(
                f"sensitive_features has {len(groups):,} different entries for {len(table):,} examples; bin it into a "
                "few groups"
            )
        return GroupColumn(columns, {group: code for code, group in enumerate(groups)}, _names(groups))

    def codes(self, table: NDArray[Any]) -> Tensor:
        """(N,) the number of every example's group."""
        rows = [tuple(row) for row in table[:, self.columns].tolist()]
        unknown = next((row for row in rows if row not in self.entries), None)
        if unknown is not None:
            raise ValueError(
                f"sensitive_features has the group {', '.join(unknown)!r}, which fit has not seen; its groups are "
                f"{list(self.names)[:20]}"
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
        single: list[tuple[int, ...]] = [(j,) for j in every] if subgroups != "intersectional" else []
        wanted = [*single, every] if subgroups != "marginal" and len(names) > 1 else single or [every]
        return GroupEncoder({" x ".join(names[j] for j in part): GroupColumn.fit(table, part) for part in wanted})

    def transform(self, sensitive: Any, examples: int) -> dict[str, Tensor]:
        """(N,) the number of every example's group, by column."""
        table, _ = _table(sensitive, examples)
        width = 1 + max(j for column in self.columns.values() for j in column.columns)
        if table.shape[1] != width:
            raise ValueError(f"sensitive_features has {table.shape[1]} columns, and fit was given {width}")
        return {name: column.codes(table) for name, column in self.columns.items()}


def _table(sensitive: Any, examples: int) -> tuple[NDArray[Any], list[str]]:
    """(N, columns) of text, and the names of the columns."""
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


# Constraints ----------------------------------------------------------------------------------------------------------


def make_constraints(
    given: Notion | Sequence[Notion] | Mapping[str, float],
    bound: float | Sequence[float],
    columns: Mapping[str, GroupColumn],
    outcomes: Mapping[int, str] | None,
) -> tuple[Constraint, ...]:
    """Every notion over every column of groups, with distinct names.

    outcomes: with several classes, those that rates are about, and their names; else None.
    """
    if isinstance(given, Mapping):
        notions: list[Any] = list(given)
        bounds: list[Any] = list(given.values())
    else:
        notions = list(given) if isinstance(given, list | tuple) else [given]
        bounds = list(bound) if isinstance(bound, list | tuple) else [bound] * len(notions)
    if not notions or len(bounds) != len(notions):
        raise ValueError(f"{len(notions)} constraints need as many bounds, or one for all; got bound={bound!r}")
    found: list[tuple[str, Constraint]] = []
    for notion, own in zip(notions, bounds, strict=True):
        _check_bound(own)
        for by, column in columns.items():
            if len(column.names) == 1 and isinstance(notion, str) and notion in NOTIONS and "bounded" not in notion:
                raise ValueError(
                    f"sensitive_features has one group only, {column.names[0]!r}, and {notion!r} compares groups; give "
                    "the column that divides the examples"
                )
            made = _of_classes(notion, column.names, own, outcomes)
            for label, constraint in made:
                prefix = [str(notion)] if len(notions) > 1 and isinstance(notion, str) else []
                prefix += [label] if label else []
                prefix += [by] if len(columns) > 1 else []
                found.append((": ".join(prefix), replace(constraint, by=by)))
    for _, constraint in found:
        _check(constraint)
    named = [replace(c, names=tuple(f"{p}: {n}" for n in c.names)) if p else c for p, c in found]
    return tuple(named)


def _of_classes(
    notion: Notion, names: Sequence[str], bound: float, outcomes: Mapping[int, str] | None
) -> list[tuple[str, Constraint]]:
    """The constraint, or with several classes one on the rates of each."""
    named = isinstance(notion, str) and notion in NOTIONS
    if outcomes is None or not named or "loss" in str(notion):
        return [("", make_constraint(notion, names, bound))]
    if notion not in RATES_OF_A_CLASS:
        raise ValueError(
            f"{notion!r} is about two classes; with several use {' or '.join(map(repr, RATES_OF_A_CLASS))}, or a "
            "constraint of fairbound.constraints with outcome="
        )
    return [(name, NOTIONS[str(notion)](names, bound=bound, outcome=k)) for k, name in outcomes.items()]


def _check_bound(bound: Any) -> None:
    if isinstance(bound, bool) or not isinstance(bound, int | float | np.number) or not 0 <= float(bound) < np.inf:
        raise ValueError(f"bound must be a finite number >= 0, got {bound!r}")


def _check(constraint: Constraint) -> None:
    if constraint.absolute:
        raise ValueError(
            f"{constraint.names[0]!r} is in its absolute form; use the two-sided one (absolute=False), which has a "
            "multiplier for each side"
        )
    largest = float(constraint.bound.max())
    if constraint.statistic is not None and bool(is_difference(constraint).any()) and largest > 2:
        raise ValueError(f"bound={largest:g} allows every difference of rates, which is at most 1; use e.g. 0.05")
    if constraint.statistic is None and bool(is_difference(constraint).any()) and largest > 2:
        raise ValueError(
            f"bound={largest:g} allows every difference of losses in practice: guessing has a loss of 0.69; use e.g. "
            "0.05"
        )


def is_difference(constraint: Constraint) -> Tensor:
    """(m,) which rows compare cells: their contrast weights sum to 0."""
    ones = torch.ones(len(constraint.cells), dtype=torch.float64)
    return constraint.contrast.apply(ones).abs() < 1e-9


def refuse_empty_cells(constraints: Sequence[Constraint], groups: Mapping[str, Tensor], labels: Tensor) -> None:
    for constraint in constraints:
        cells = constraint.cells.bind(groups[constraint.by or ""], labels)
        empty = [name for name, member in zip(cells.names, cells.examples, strict=True) if len(member) == 0]
        if empty:
            raise ValueError(
                f"there are no examples of {', '.join(map(repr, empty[:4]))}, which the constraint "
                f"{constraint.names[0]!r} is about; merge groups, or choose a notion that does not need them"
            )


# Weights and strata ---------------------------------------------------------------------------------------------------


def strata_of(groups: Mapping[str, Tensor], labels: Tensor) -> NDArray[np.int64]:
    """(n,) the group in every column and the label, as one number."""
    found = labels.long()
    for codes in groups.values():
        found = found * (int(codes.max()) + 1) + codes
    return np.unique(found.numpy(), return_inverse=True)[1]


def normalized_weight(weight: NDArray[np.float64] | None, rows: NDArray[np.int64]) -> Tensor | None:
    """(n,) of these examples, with mean 1."""
    if weight is None or not len(rows):
        return None
    own = weight[rows]
    if not own.any():
        raise ValueError(f"sample_weight is zero for all of {len(rows)} examples that were drawn at random")
    return torch.from_numpy(own / own.mean())


def checked_weight(given: Any, X: Any) -> NDArray[np.float64] | None:
    """Sample weights, none negative, not all zero."""
    if given is None:
        return None
    weight: NDArray[np.float64] = _check_sample_weight(given, X)
    if (weight < 0).any():
        raise ValueError(f"sample_weight must not be negative, found {float(weight.min()):g}")
    if not weight.any():
        raise ValueError("sample_weight is zero for every example")
    return weight
