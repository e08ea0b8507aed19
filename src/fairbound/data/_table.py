"""A table as it was read: named columns, which of them is the label, which are features, and where
it comes from.

Loaders return a `Table`; a `Dataset` (tensors) is made from it once the protected attribute is
known, because the protected column is not an input of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.columns._attributes import (
    Attribute,
    Grouping,
    Intersection,
)
from fairbound.columns._column import Column, column_named
from fairbound.columns._labels import binary
from fairbound.columns._specs import one_by_one, parse_attribute
from fairbound.data._dataset import Dataset, check_rows
from fairbound.data._encoders import Encoder, NumberFeature

# One attribute or several, whose combinations are the groups; text as in
# `fairbound.columns._specs`: "SEX,AGEP:25:65"
Groups = str | Attribute | Sequence[str | Attribute] | Intersection
CENSUS_KINDS = ("acs", "synthetic")  # of sources whose columns are those of the census code book
Small = Literal["merge", "drop"]


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length.

    >>> Table(
    ...     {"AGEP": np.array([30, 40]), "rich": np.array([0, 1])}, "rich", ("AGEP",), "example"
    ... ).rows
    2
    """

    # name -> (rows,); numbers, booleans or text; missing: NaN or None
    columns: Mapping[str, NDArray[Any]]
    label: str  # the column to predict
    features: tuple[str, ...]  # the columns that a model may see
    source: str  # "acs:OK", "synthetic:OK", the name of a file
    positive: Any = None  # the label's value that counts as 1, where that is not evident
    # census: the number that was written into empty fields; None: they are NaN
    missing: int | None = None

    def __post_init__(self) -> None:
        for name in (self.label, *self.features):
            column_named(name, self.columns)
        if self.label in self.features:
            raise ValueError(
                f"the label {self.label!r} is also a feature; a model must not see what it predicts"
            )
        for name, column in self.columns.items():
            if not isinstance(column, np.ndarray):
                raise ValueError(f"column {name!r} is no array; make the table with read_table")
            if len(Column.of(column, name)) != self.rows:  # numbers or text
                raise ValueError(
                    f"column {name!r} has {len(column)} rows but the label {self.label!r} has"
                    f" {self.rows}"
                )
        if self.rows == 0:
            raise ValueError(f"{self.source} has no rows")

    @property
    def rows(self) -> int:
        return len(self.columns[self.label])

    @property
    def synthetic(self) -> bool:
        """Whether the rows are generated: everything made from them must say so."""
        return self.source.startswith("synthetic:")  # a file may be called "synthetic.csv"

    @property
    def census(self) -> bool:
        """Whether the columns are those of the census code book."""
        return is_census(self.source)

    def complete(self, *names: str) -> Table:
        """The rows in which nothing is missing, in these columns or, where none is named, in
        features and label.

        >>> Table(
        ...     {"AGEP": np.array([30, np.nan]), "rich": np.array([0, 1])}, "rich", ("AGEP",), "x"
        ... ).complete().source
        'x; 1 of 2 rows dropped, with missing values'
        """
        complete = np.ones(self.rows, dtype=bool)
        for name in names or (*self.features, self.label):
            complete &= ~Column.of(column_named(name, self.columns), name).missing
        if complete.all():
            return self
        if not complete.any():
            raise ValueError(
                f"every row of {self.source} has a missing value; name the columns that are needed"
            )
        return replace(
            self,
            columns={name: column[complete] for name, column in self.columns.items()},
            source=(
                f"{self.source}; {int((~complete).sum())} of {self.rows} rows dropped, with missing"
                " values"
            ),
        )

    def groups(self, group: Groups, *, min_size: int = 0, small: Small = "merge") -> Tensor:
        """(rows of the Dataset,) the group of each row that `dataset` keeps: what a split is
        stratified on.

        Args:
            group: an attribute, or several, whose combinations are the groups: "SEX,AGEP:25:65".
            min_size: rows that a group needs.
            small: whether smaller groups are merged into one ("merge") or left out ("drop").
        """
        ids = self._grouping(group, min_size, small).ids
        return ids[ids >= 0]

    def dataset(
        self,
        group: Groups,
        *,
        train: Tensor | None = None,
        min_size: int = 0,
        small: Small = "merge",
        keep_group: bool = False,
        categorical: Sequence[str] = (),
        dtype: torch.dtype = torch.float32,
    ) -> Dataset:
        """Make tensors of the rows, with one group column: an attribute, or the intersection of
        several.

        Numbers, integer codes too, stay as they are; text becomes one 0/1 column per level.
        Missing text is a level, and a level that only other rows have is all zero. Missing numbers
        are filled with the training mean, and a column marks them. Rows in no group are removed,
        and `source` says how many.

        Args:
            group: an attribute, or several, whose combinations are the groups: "SEX,AGEP:25:65".
            train: (examples,) the rows that levels and means are fitted to, numbered as in the
                Dataset; all if not given.
            min_size: rows that a group needs.
            small: whether smaller groups are merged into one ("merge") or left out ("drop").
            keep_group: whether protected columns are inputs, too.
            categorical: columns whose values, also numbers, are levels.
            dtype: of X and y.

            split = random_split(table.groups(sex), seed=0)
            data = table.dataset(sex, train=split.train)

        >>> from fairbound.columns._attributes import Coded
        >>> columns = {
        ...     "SEX": np.array([1, 2, 2]),
        ...     "AGEP": np.array([30, 40, 50]),
        ...     "rich": np.array([0, 1, 1]),
        ... }
        >>> data = Table(columns, "rich", ("SEX", "AGEP"), "example").dataset(
        ...     Coded("SEX", (1, 2), ("man", "woman"))
        ... )
        >>> data.names, data.groups["SEX"], data.levels["SEX"]
        (('AGEP',), tensor([0, 1, 1]), ('man', 'woman'))
        """
        grouping = self._grouping(group, min_size, small)
        rows = (grouping.ids >= 0).nonzero().flatten()
        protected = [attribute.name for attribute in grouping.attributes]
        for name in categorical:
            column_named(name, self.columns)
        features = [name for name in self.features if keep_group or name not in protected]
        if not features:
            raise ValueError(
                f"no feature is left besides the protected {', '.join(protected)}; keep_group=True"
                " keeps it"
            )
        fitted = rows
        if train is not None:
            chosen = torch.as_tensor(train).cpu()
            check_rows(chosen, "train", len(rows))
            fitted = rows[chosen]
        encoder = Encoder.fit(self.columns, features, fitted.numpy(), categorical=categorical)
        for feature in encoder.features:
            # a mean over all rows would leak the held-out rows into training
            if train is None and isinstance(feature, NumberFeature) and feature.marks_missing:
                raise ValueError(
                    f"{feature.name} is missing in some rows, and the mean that fills them must"
                    " come from training rows: split first,"
                    " random_split(table.groups(group), seed=0), and pass train=split.train; or"
                    " drop those rows with table.complete()"
                )
        outcome = binary(self.columns[self.label], self.label, self.positive)
        source = self.source
        if grouping.dropped:
            source += f"; {grouping.dropped} of {self.rows} rows dropped, in groups of fewer than"
            source += f" {min_size}"
        name = " x ".join(protected)
        return Dataset(
            X=encoder.transform(self.columns, dtype)[rows],
            y=torch.from_numpy(outcome).to(dtype)[rows],
            groups={name: grouping.ids[rows]},
            names=encoder.names,
            source=source,
            levels={name: grouping.names},
        )

    def intersection(self, group: Groups) -> Intersection:
        """All groups that an attribute, or several together, define in this table.

        >>> table = Table({"sex": np.array(["f", "m"]), "y": np.array([0, 1])}, "y", (), "example")
        >>> table.intersection("sex").definable
        2
        """
        if isinstance(group, Intersection):
            return group
        listed = [group] if isinstance(group, Attribute) else one_by_one(group)
        attributes = []
        for attribute in listed:
            if isinstance(attribute, str):
                attribute = parse_attribute(attribute, self.columns, self.census, self.missing)
            if not isinstance(attribute, Attribute):
                raise ValueError(
                    "a protected attribute is named, or a Coded, Banded or Against"
                    f" (fairbound.columns._attributes); got {attribute!r}"
                )
            attributes.append(attribute)
        return Intersection(tuple(attributes))

    def _grouping(self, group: Groups, min_size: int, small: Small) -> Grouping:
        intersection = self.intersection(group)
        for attribute in intersection.attributes:
            column_named(attribute.name, self.columns)
            if attribute.name == self.label:
                raise ValueError(
                    f"{self.label!r} is the label; it cannot be the protected attribute too"
                )
        grouping = intersection.group(self.columns, min_size, small)
        if len(grouping) == 0:
            raise ValueError(
                f"none of the {grouping.populated} groups has {min_size} rows; lower min_size"
            )
        return grouping


def is_census(source: str) -> bool:
    """Whether a source, by its name, is census data, real or synthetic.

    >>> is_census("ACS:OK"), is_census("acs.csv")
    (True, False)
    """
    kind, colon, _ = source.partition(":")
    return bool(colon) and kind.lower() in CENSUS_KINDS
