"""Subgroups: the intersections of protected attributes, defined by their levels without being
listed.

An attribute has levels (the codes of a code book, bands of a number, one code against the rest). An
intersection of attributes defines as many groups as the product of its levels, billions on census
data; only those that occur in the rows at hand are ever built.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import did_you_mean, listed, marked_rows
from fairbound.columns._column import Column, column_named, names_of, text_among_numbers

LARGEST_KEY = 2**63 - 1
OTHER = "(other)"
MISSING = "(missing)"
Levels = NDArray[np.int64]  # (rows,) the level of every row


class Attribute(ABC):
    """A protected attribute: a column's name, and what its levels are."""

    name: str
    labels: tuple[str, ...]  # of the levels, in order

    @abstractmethod
    def levels(self, column: Any) -> Levels:
        """The level, 0 to size - 1, of every row of a column."""

    @property
    def size(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Coded(Attribute):
    """Levels are codes, e.g. those of a code book; None as a code is a missing value.

    >>> Coded("SEX", (1, 2), ("male", "female")).levels(np.array([2, 1, 2]))
    array([1, 0, 1])
    """

    name: str
    codes: tuple[Any, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.codes) != len(self.labels) or not self.codes:
            raise ValueError(
                f"{self.name} has {len(self.codes)} codes and {len(self.labels)} labels"
            )
        if len(set(self.codes)) != len(self.codes):
            raise ValueError(f"{self.name} has a code twice")

    @staticmethod
    def of(name: str, column: Any) -> Coded:
        """The levels that occur in a column, in ascending order; missing values are a separate
        level."""
        column = Column.of(column, name)
        codes = column.factorized()[1]
        labels = names_of(codes)
        if column.missing.any():
            codes, labels = [*codes, None], [*labels, MISSING]
        return Coded(name, tuple(codes), tuple(labels))

    def levels(self, column: Any) -> Levels:
        column = Column.of(column, self.name)
        codes, values = column.factorized()
        place = {code: level for level, code in enumerate(self.codes)}
        if column.kind == "text" and not any(isinstance(code, str) for code in place):
            place = {None if code is None else str(code): place[code] for code in place}
        level_of = np.array([place.get(value, -1) for value in (*values, None)], dtype=np.int64)
        levels: Levels = level_of[codes]
        self._refuse_unknown(column, levels)
        return levels

    def _refuse_unknown(self, column: Column, levels: Levels) -> None:
        unknown = levels < 0
        if not unknown.any():
            return
        first = unknown.argmax()
        if column.missing[first]:
            raise ValueError(
                f"{self.name} is missing in {marked_rows(unknown)}; "
                "drop them or give the attribute a level for missing values"
            )
        value = column.values[first : first + 1].tolist()[0]
        pairs = zip(map(str, self.codes), self.labels, strict=True)
        shown = [label if code == label else f"{code} {label}" for code, label in pairs]
        raise ValueError(
            f"{self.name} holds {value!r} in {marked_rows(unknown)}, which is none of its"
            f" {self.size} levels ({listed(shown, 6)}); {did_you_mean(value, self.codes)}"
        )


@dataclass(frozen=True)
class Banded(Attribute):
    """A number cut into bands: below the first edge, then [edge, next edge), and from the last edge
    on.

    >>> Banded("AGEP", (25, 65)).labels
    ('< 25', '25 to < 65', '>= 65')
    """

    name: str
    edges: tuple[float, ...]
    missing: bool = False  # whether a last level holds the missing values

    def __post_init__(self) -> None:
        if not self.edges or any(not math.isfinite(edge) for edge in self.edges):
            raise ValueError(
                f"{self.name} needs at least one finite edge to be cut at, got {self.edges}"
            )
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"the edges of {self.name} must rise, got {self.edges}")

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        inner = (f"{a:g} to < {b:g}" for a, b in zip(self.edges, self.edges[1:], strict=False))
        known = (f"< {self.edges[0]:g}", *inner, f">= {self.edges[-1]:g}")
        return (*known, MISSING) if self.missing else known

    def levels(self, column: Any) -> Levels:
        column = Column.of(column, self.name)
        if not column.is_numeric:
            raise ValueError(
                f"{self.name} holds text, {text_among_numbers(column.values)}; only numbers can be"
                " cut into bands"
            )
        if column.missing.any() and not self.missing:
            raise ValueError(
                f"{self.name} is missing in {marked_rows(column.missing)}; "
                "drop or fill them before cutting into bands, or give them a level (missing=True)"
            )
        edges = np.asarray(self.edges, dtype=np.float64)
        levels = np.searchsorted(edges, column.numbers(), side="right")
        return np.where(column.missing, len(edges) + 1, levels).astype(np.int64)


@dataclass(frozen=True)
class Against(Attribute):
    """One code against all others, missing values among them: the paper's white / non-white.

    >>> Against("RAC1P", 1, ("white", "non-white")).levels(np.array([1, 2, 9]))
    array([0, 1, 1])
    """

    name: str
    code: Any
    labels: tuple[str, str]

    def levels(self, column: Any) -> Levels:
        codes, values = Column.of(column, self.name).factorized()
        if self.code not in values:
            shown = ", ".join(map(str, values[:8]))
            raise ValueError(f"no row has {self.name} = {self.code}; it holds {shown}")
        return np.where(codes == values.index(self.code), 0, 1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Grouping:
    """The populated groups of some rows."""

    attributes: tuple[Attribute, ...]
    ids: Tensor  # (rows,) number of the row's group among the populated ones; -1: in none
    levels: Tensor  # (groups, attributes) of each group; -1 throughout for the merged rest
    sizes: Tensor  # (groups,) rows
    populated: int  # before small groups were merged or dropped
    definable: int  # product of the levels
    dropped: int = 0  # rows in no group
    merged: int = 0  # groups that went into the rest

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The groups' names, all different: where levels contain commas, attributes are named
        too."""
        names = tuple(self.name(i) for i in range(len(self)))
        if len(set(names)) == len(names):
            return names
        return tuple(self.name(i, full=True) for i in range(len(self)))

    def name(self, i: int, full: bool = False) -> str:
        """The levels of one group, or attribute=level."""
        levels: list[int] = self.levels[i].tolist()
        if levels[0] < 0:
            return OTHER
        pairs = list(zip(self.attributes, levels, strict=True))
        labels = [attribute.labels[level] for attribute, level in pairs]
        if full or labels == [OTHER]:  # a level that is called like the merged rest
            labels = [f"{each.name}={each.labels[level]!r}" for each, level in pairs]
        return ", ".join(labels)


@dataclass(frozen=True)
class Intersection:
    """All groups that a set of attributes defines.

    >>> both = Intersection((Coded("SEX", (1, 2), ("male", "female")), Banded("AGEP", (25, 65))))
    >>> both.definable
    6
    >>> grouping = both.group({"SEX": np.array([2, 2, 1]), "AGEP": np.array([30, 40, 70])})
    >>> grouping.names, grouping.sizes.tolist()
    (('male, >= 65', 'female, 25 to < 65'), [1, 2])
    """

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise ValueError("an intersection needs at least one attribute")
        names = [attribute.name for attribute in self.attributes]
        if len(set(names)) != len(names):
            raise ValueError(f"an attribute is named twice: {', '.join(names)}")

    @property
    def definable(self) -> int:
        """How many groups can be defined: the product of the levels, a Python integer of any
        size."""
        return math.prod(attribute.size for attribute in self.attributes)

    def group(
        self,
        columns: Mapping[str, Any],
        min_size: int = 0,
        small: Literal["merge", "drop"] = "merge",
    ) -> Grouping:
        """Find the groups that occur, in the order of their levels.

        Args:
            columns: (rows,) by name.
            min_size: rows that a group needs.
            small: whether smaller groups are merged into one, "(other)", or left out ("drop"); a
                merged group that is itself too small is left out.
        """
        if small not in ("merge", "drop"):
            raise ValueError(f'small groups are either "merge"d or "drop"ped, got {small!r}')
        numbers, levels = self._populated(columns)
        sizes = np.bincount(numbers, minlength=len(levels))
        large = sizes >= min_size
        rest = int(sizes[~large].sum()) if small == "merge" else 0
        has_rest = 0 < rest >= min_size
        renumbered = np.where(large, np.cumsum(large) - 1, int(large.sum()) if has_rest else -1)
        ids, of_rest = renumbered[numbers], np.full((int(has_rest), levels.shape[1]), -1)
        levels = np.vstack([levels[large], of_rest])
        return Grouping(
            self.attributes,
            torch.from_numpy(ids),
            torch.from_numpy(levels),
            torch.from_numpy(np.bincount(ids[ids >= 0], minlength=len(levels))),
            populated=len(large),
            definable=self.definable,
            dropped=int((ids < 0).sum()),
            merged=int((~large).sum()) if has_rest else 0,
        )

    def _populated(self, columns: Mapping[str, Any]) -> tuple[Levels, NDArray[np.int64]]:
        """(rows,) number of each row's group, and (groups, attributes) levels, in their order."""
        named = [column_named(attribute.name, columns) for attribute in self.attributes]
        lengths = set(map(len, named))
        if len(lengths) > 1:
            raise ValueError(f"the columns differ in length: {sorted(lengths)}")
        levels = [
            attribute.levels(column)
            for attribute, column in zip(self.attributes, named, strict=True)
        ]
        keys, span = levels[0], self.attributes[0].size
        for attribute, level in zip(self.attributes[1:], levels[1:], strict=True):
            if span * attribute.size > LARGEST_KEY:  # renumber what occurs; the order stays
                keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
                span = int(keys.max()) + 1 if len(keys) else 1
            keys, span = keys * attribute.size + level, span * attribute.size
        _, first, ids = np.unique(keys, return_index=True, return_inverse=True)
        return ids.astype(np.int64), np.stack([level[first] for level in levels], axis=1)
