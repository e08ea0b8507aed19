"""Features become the columns of X, by scikit-learn's encoders.

Numbers stay as they are, integer codes too; text becomes one 0/1 column for each of its levels.
What is learned from data, the levels and the means that fill missing numbers, is fitted to the rows
that `Encoder.fit` is given: training rows, so that no held-out row influences the model.

What scikit-learn would accept silently is refused here, with the culprit: infinite numbers, numbers
that were read as text, dates, a column without a single training value, and text with so many
levels that it must be a name or a key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.optional import need
from fairbound._utils.sentences import marked_rows
from fairbound.columns._attributes import MISSING, is_missing
from fairbound.columns._column import DATES, NUMBERS

# 0/1 columns that one text column may become: more is nearly always a name, an address or a key
MOST_LEVELS = 200
WRITTEN_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|[.,]\d+)([eE][+-]?\d+)?")

Column = NDArray[Any]  # (rows,) numbers, booleans or text


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

    # feature -> its fitted SimpleImputer (numbers) or OneHotEncoder (levels), in order
    fitted: Mapping[str, Any]

    @staticmethod
    def fit(
        columns: Mapping[str, Column],
        features: Sequence[str],
        rows: Sequence[int] | NDArray[np.int64] | None = None,
        *,
        categorical: Sequence[str] = (),
    ) -> Encoder:
        """Learn levels and means from `rows` (all, where None). `categorical` names columns whose
        values, also numbers, are levels."""
        impute = need("sklearn.impute", "data", "Encoding features").SimpleImputer
        one_hot = need("sklearn.preprocessing", "data", "Encoding features").OneHotEncoder
        fitted = {}
        for name in features:
            column = columns[name]
            chosen = column if rows is None else column[np.asarray(rows)]
            if name in categorical or not holds_numbers(column):
                _refuse_bad_levels(name, column, chosen, name in categorical)
                # A missing value is a level too; one that the fitted rows lack is all 0.
                encoder = one_hot(
                    handle_unknown="ignore", sparse_output=False, feature_name_combiner=_level_name
                )
            else:
                _refuse_bad_numbers(name, column, chosen)
                # marks missing entries where the fitted rows had any
                encoder = impute(add_indicator=True)
            fitted[name] = encoder.fit(_matrix(encoder, chosen))
        return Encoder(fitted)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of X."""
        marked = {f"missingindicator_{name}": f"{name} is missing" for name in self.fitted}
        made = (
            output
            for name, each in self.fitted.items()
            for output in each.get_feature_names_out([name])
        )
        return tuple(marked.get(output, str(output)) for output in made)

    def transform(
        self, columns: Mapping[str, Column], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """(rows, names): the inputs of a model."""
        parts = (each.transform(_matrix(each, columns[name])) for name, each in self.fitted.items())
        return torch.cat([torch.from_numpy(part).to(dtype) for part in parts], 1)


def _matrix(encoder: Any, column: Column) -> Column:
    """(rows, 1) as the encoder takes it: float64 with NaN, or objects with None where a value is
    missing."""
    if hasattr(encoder, "strategy"):  # an imputer
        return column.astype(np.float64)[:, None]
    values = column.astype(object)
    values[is_missing(column)] = None
    return values[:, None]


def _level_name(name: str, level: Any) -> str:
    return f"{name}={MISSING if level is None else level}"


def holds_numbers(column: Column) -> bool:
    """Whether a column is numbers or booleans, missing ones aside."""
    if column.dtype.kind != "O":
        return column.dtype.kind in NUMBERS
    # booleans with missing ones; other numbers are not objects
    return set(map(type, column)) <= {bool, type(None)}


# What is refused ----------------------------------------------------------------------------------


def _refuse_bad_numbers(name: str, column: Column, chosen: Column) -> None:
    infinite = np.isinf(column.astype(np.float64))
    if infinite.any():
        raise ValueError(
            f"column {name!r} is infinite in {marked_rows(infinite)}; correct or remove them"
        )
    if is_missing(chosen).all():
        raise ValueError(
            f"column {name!r} is missing in all {len(chosen)} training rows; drop it from the"
            " features"
        )


def _refuse_bad_levels(name: str, column: Column, chosen: Column, categorical: bool) -> None:
    if column.dtype.kind in DATES:
        raise ValueError(
            f"column {name!r} holds dates or times (such as {column[0]}); turn them into numbers,"
            " e.g. years, or drop the column from the features"
        )
    if not categorical:
        _refuse_written_numbers(name, column)
    levels = sorted(set(chosen[~is_missing(chosen)].tolist()))
    if len(levels) > MOST_LEVELS:
        shown = ", ".join(repr(level) for level in levels[:3])
        raise ValueError(
            f"column {name!r} holds {len(levels)} different values ({shown}, ...), and each would"
            f" be an input of its own; at most {MOST_LEVELS} are taken: merge some, or drop the"
            " column from the features"
        )


def _refuse_written_numbers(name: str, column: Column) -> None:
    """A column that is mostly numbers but was read as text is an accident; one-hot inputs would
    hide it."""
    counts = Counter(column[~is_missing(column)].tolist())
    texts = [value for value in counts if not WRITTEN_NUMBER.fullmatch(value.strip())]
    if len(counts) - len(texts) <= len(texts):
        return
    remedy = f"; to take every value as a level all the same, say categorical=({name!r},)"
    if not texts:
        raise ValueError(
            f"column {name!r} holds numbers written as text (such as {min(counts)!r}); convert"
            f" it{remedy}"
        )
    marked = np.isin(column.astype(str), texts) & ~is_missing(column)
    raise ValueError(
        f"column {name!r} holds numbers, but text such as {texts[0]!r} in {marked_rows(marked)};"
        f" correct them, or read the file with missing=({texts[0]!r},) if it marks a missing"
        f" value{remedy}"
    )
