"""Subgroups: the intersections of protected attributes, defined by their levels without being
listed.

An attribute has levels (the codes of a code book, bands of a number, one code against the rest). An
intersection of attributes defines as many groups as the product of its levels, billions on census
data; only those that occur in the rows at hand are ever built.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import did_you_mean, marked_rows

LARGEST_KEY = 2**63 - 1
OTHER = "(other)"
MISSING = "(missing)"
Column = NDArray[Any]  # (rows,) numbers, booleans or text


class Attribute(ABC):
    """A protected attribute: a column's name, and what its levels are."""

    name: str
    labels: tuple[str, ...]  # of the levels, in order

    @abstractmethod
    def levels(self, column: Column) -> NDArray[np.int64]:
        """The level, 0 to size - 1, of every row."""

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
    def of(name: str, column: Column) -> Coded:
        """The levels that occur in a column, in ascending order; missing values are a separate
        level."""
        missing = is_missing(column)
        known = column[~missing]
        codes = (
            sorted(set(known.tolist())) if known.dtype.kind == "O" else np.unique(known).tolist()
        )
        labels = [f"{code:g}" if isinstance(code, float) else str(code) for code in codes]
        if missing.any():
            codes, labels = [*codes, None], [*labels, MISSING]
        return Coded(name, tuple(codes), tuple(labels))

    def levels(self, column: Column) -> NDArray[np.int64]:
        missing = is_missing(column)
        levels = np.full(
            len(column), self.codes.index(None) if None in self.codes else -1, dtype=np.int64
        )
        levels[~missing] = self._translated(column[~missing])
        self._refuse_unknown(column, levels)
        return levels

    def _translated(self, column: Column) -> NDArray[np.int64]:
        """(rows,) the level of each value, -1 for those that are no code."""
        known = np.array([code for code in self.codes if code is not None])
        place = np.array(
            [i for i, code in enumerate(self.codes) if code is not None], dtype=np.int64
        )
        if len(column) == 0 or len(known) == 0:
            return np.full(len(column), -1, dtype=np.int64)
        if column.dtype.kind == "O" and all(isinstance(code, str) for code in known.tolist()):
            number = dict(zip(known.tolist(), place.tolist(), strict=True))  # hashed, not sorted
            return np.fromiter(map(number.get, column.tolist(), repeat(-1)), np.int64, len(column))
        # text, or numbers against text
        if known.dtype.kind not in "iufb" or column.dtype.kind not in "iufb":
            known, column = known.astype(str), column.astype(str)
        order = np.argsort(known)
        at = np.minimum(np.searchsorted(known[order], column), len(known) - 1)
        return np.where(known[order][at] == column, place[order][at], -1)

    def _refuse_unknown(self, column: Column, levels: NDArray[np.int64]) -> None:
        unknown = levels < 0
        if not unknown.any():
            return
        value = column[unknown.argmax()]
        value = value.item() if isinstance(value, np.generic) else value
        if bool(is_missing(np.asarray([value])).any()):
            raise ValueError(
                f"{self.name} is missing in {marked_rows(unknown)}; "
                "drop them or give the attribute a level for missing values"
            )
        shown = ", ".join(
            f"{code} {label}" for code, label in list(zip(self.codes, self.labels, strict=True))[:6]
        )
        raise ValueError(
            f"{self.name} holds {value!r} in {marked_rows(unknown)}, "
            f"which is none of its {self.size} levels ({shown}{', ...' if self.size > 6 else ''}); "
            + did_you_mean(value, self.codes)
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

    def levels(self, column: Column) -> NDArray[np.int64]:
        if column.dtype.kind not in "iufb":
            raise ValueError(
                f"{self.name} holds text, {text_among_numbers(column)}; only numbers can be cut"
                " into bands"
            )
        missing = is_missing(column)
        if missing.any() and not self.missing:
            raise ValueError(
                f"{self.name} is missing in {marked_rows(missing)}; "
                "drop or fill them before cutting into bands, or give them a level (missing=True)"
            )
        levels = np.searchsorted(np.asarray(self.edges, dtype=np.float64), column, side="right")
        return np.where(missing, len(self.edges) + 1, levels).astype(np.int64)


@dataclass(frozen=True)
class Against(Attribute):
    """One code against all others, missing values among them: the paper's white / non-white.

    >>> Against("RAC1P", 1, ("white", "non-white")).levels(np.array([1, 2, 9]))
    array([0, 1, 1])
    """

    name: str
    code: Any
    labels: tuple[str, str]

    def levels(self, column: Column) -> NDArray[np.int64]:
        known = ~is_missing(column)
        same = known.copy()
        same[known] = column[known] == self.code
        if not same.any():
            shown = ", ".join(str(value) for value in np.unique(column[known])[:8])
            raise ValueError(f"no row has {self.name} = {self.code}; it holds {shown}")
        return np.where(same, 0, 1).astype(np.int64)


# written out; "nan" and "1_000" are text
NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")


def text_among_numbers(column: Column, number: NDArray[np.int64] | None = None) -> str:
    """Which entries of a column of text, missing ones aside, are no numbers: the first of them, and
    how many. `number` is that of each row in the table, where the column has some rows only.

    >>> text_among_numbers(np.array(["0.5", "n.a.", "1"], dtype=object))
    "'n.a.' in 1 of 3 rows (first: row 3, with the header as row 1)"
    """
    known = zip(column, is_missing(column), strict=True)
    text = np.array([not absent and not NUMBER.fullmatch(str(value)) for value, absent in known])
    if not text.any():
        return f"{str(column[0])!r} ({column.dtype})"
    return f"{str(column[text.argmax()])!r} in {marked_rows(text, number)}"


def is_missing(column: Column) -> NDArray[np.bool_]:
    """Which entries are NaN, None or a table library's own mark for missing."""
    if column.dtype.kind in "iubUS":
        return np.zeros(len(column), dtype=bool)
    if column.dtype.kind == "f":
        return np.isnan(column)
    kinds = set(map(type, column.tolist()))
    if kinds <= {str, bool}:
        return np.zeros(len(column), dtype=bool)
    if kinds <= {str, bool, type(None)}:
        return np.fromiter(
            (value is None for value in column.tolist()), dtype=bool, count=len(column)
        )
    return np.fromiter(map(_absent, column), dtype=bool, count=len(column))


def _absent(value: Any) -> bool:
    """None, NaN, NaT, and pandas' NA, which answers every comparison with itself."""
    if value is None:
        return True
    # False != False is False itself: not what NA's answer means
    if isinstance(value, str | bool | np.bool_):
        return False
    differs = value != value
    return differs is value or (np.ndim(differs) == 0 and bool(differs))


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
        """Of all groups, each its own: where levels contain commas, attributes are named too."""
        names = tuple(self.name(i) for i in range(len(self)))
        return (
            names
            if len(set(names)) == len(names)
            else tuple(self.name(i, full=True) for i in range(len(self)))
        )

    def name(self, i: int, full: bool = False) -> str:
        """Of one group: its levels, or attribute=level."""
        levels: list[int] = self.levels[i].tolist()
        if levels[0] < 0:
            return OTHER
        labels = [
            attribute.labels[level]
            for attribute, level in zip(self.attributes, levels, strict=True)
        ]
        if full or labels == [OTHER]:  # a level that is called like the merged rest
            labels = [
                f"{a.name}={label!r}" for a, label in zip(self.attributes, labels, strict=True)
            ]
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
        columns: Mapping[str, Column],
        min_size: int = 0,
        small: Literal["merge", "drop"] = "merge",
    ) -> Grouping:
        """The groups that occur, in the order of their levels. Those with fewer than `min_size`
        rows are merged into one, "(other)", or dropped; a merged group that is itself too small is
        dropped."""
        if small not in ("merge", "drop"):
            raise ValueError(f'small groups are either "merge"d or "drop"ped, got {small!r}')
        ids, levels = self._populated(columns)
        sizes = np.bincount(ids, minlength=len(levels))
        populated, keep = len(levels), sizes >= min_size
        if keep.all():
            merged, dropped = 0, 0
        else:
            rest = int(sizes[~keep].sum()) if small == "merge" else 0
            as_rest = rest > 0 and rest >= min_size
            number = np.where(keep, np.cumsum(keep) - 1, int(keep.sum()) if as_rest else -1)
            ids, levels = number[ids], levels[keep]
            if as_rest:
                levels = np.vstack([levels, np.full((1, levels.shape[1]), -1)])
            merged = int((~keep).sum()) if as_rest else 0
            dropped = int((ids < 0).sum())
            sizes = np.bincount(ids[ids >= 0], minlength=len(levels))
        return Grouping(
            self.attributes,
            torch.from_numpy(ids),
            torch.from_numpy(levels),
            torch.from_numpy(sizes),
            populated,
            self.definable,
            dropped,
            merged,
        )

    def _levels(self, columns: Mapping[str, Column]) -> list[tuple[Attribute, NDArray[np.int64]]]:
        lengths = {len(column_named(attribute.name, columns)) for attribute in self.attributes}
        if len(lengths) > 1:
            raise ValueError(f"the columns differ in length: {sorted(lengths)}")
        return [
            (attribute, attribute.levels(np.asarray(columns[attribute.name])))
            for attribute in self.attributes
        ]

    def _populated(
        self, columns: Mapping[str, Column]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows,) number of each row's group, and (groups, attributes) levels, in their order."""
        pairs = self._levels(columns)
        keys, span = pairs[0][1], pairs[0][0].size
        for attribute, levels in pairs[1:]:
            if span * attribute.size > LARGEST_KEY:  # renumber what occurs; the order stays
                keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
                span = int(keys.max()) + 1 if len(keys) else 1
            keys, span = keys * attribute.size + levels, span * attribute.size
        _, first, ids = np.unique(keys, return_index=True, return_inverse=True)
        return ids.astype(np.int64), np.stack([levels[first] for _, levels in pairs], axis=1)


def column_named(name: str, columns: Mapping[str, Any]) -> Any:
    """The column; where it is not there, a sentence has the closest names of a file's header or of
    the columns."""
    if name not in columns:
        listed = getattr(columns, "header", ()) or columns
        raise ValueError(f"there is no column {name!r}; {did_you_mean(name, listed)}")
    return columns[name]
