"""The columns of X as tensors for a network with embeddings.

A numeric column gives its standardized value (columns of 0 and 1 stay as they are: standardized,
the 1 of a rare category would be huge); where training examples lack it, a mark of missing values;
and, with `bins`, the piecewise-linear encoding of Gorishniy et al. (2022), On Embeddings for
Numerical Features, over the quantiles b_0 < ... < b_T of the training examples: component t of v is
clip((v - b_{t-1}) / (b_t - b_{t-1}), 0, 1). Differs from it: the outer components are clipped too.
A missing value is taken as the mean. A categorical column gives a code. Code 0 is for what training
examples cannot teach: missing values, unknown categories, and categories of a single training
example, which also train the embedding of code 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from torch import Tensor

from fairbound._utils.optional import need

pd = need("pandas", "data", "FairClassifier")

MAX_DEVIATIONS = 1e6  # standard deviations from the mean at which inputs are clipped
MAX_DENSE = 5e8  # entries of a sparse X: 2 GB as float32
MIN_COUNT = 2  # training examples of a category that has its own code
# kinds of entries, in the words of infer_dtype
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")


class Features(NamedTuple):
    numeric: Tensor  # (N, p) float32
    codes: Tensor  # (N, q) int64; 0: missing, unknown, or of a single training example


@dataclass(frozen=True, eq=False)
class NumericColumn:
    mean: float
    deviation: float
    marks_missing: bool
    edges: NDArray[np.float64]  # (T + 1,) quantiles of the standardized values; T = 0 without bins

    @staticmethod
    def fit(values: NDArray[np.float64], bins: int) -> NumericColumn:
        """Learn from values (n,), NaN where missing."""
        known = values[~np.isnan(values)]
        column = NumericColumn(0.0, 1.0, len(known) < len(values), np.zeros(1))
        if ((known == 0) | (known == 1)).all():
            return column
        if known.max() == known.min():
            return replace(column, mean=float(known[0]))
        size = np.abs(known).max()  # squares of 1e200 would be infinite
        mean, deviation = (known / size).mean() * size, (known / size).std() * size
        column = replace(column, mean=float(mean), deviation=float(deviation) or 1.0)
        edges = np.quantile(column.standardize(known), np.linspace(0, 1, bins + 1))
        return replace(column, edges=np.unique(edges))

    def standardize(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Clipped at `MAX_DEVIATIONS`, as the network computes in float32; 0 where missing."""
        with np.errstate(over="ignore"):  # 1e308 - (-1e308), which is clipped here
            z = ((values - self.mean) / self.deviation).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        return np.where(np.isnan(z), 0.0, z)

    def transform(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """(N,) -> (N, ...): the standardized value, where there is one the mark of missing ones,
        and T components."""
        z = self.standardize(values)[:, None]
        parts = [z, np.isnan(values)[:, None]] if self.marks_missing else [z]
        with np.errstate(over="ignore"):  # between edges closer than 1e-302
            bins = ((z - self.edges[:-1]) / np.diff(self.edges)).clip(0, 1)  # (N, T)
        return np.hstack([*parts, bins]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class CategoricalColumn:
    # category -> 1, 2, ...; equal numbers are one key, and the text "1" is not the number 1
    codes: dict[Any, int]

    @staticmethod
    def fit(column: Any, name: str | int) -> CategoricalColumn:
        numbers, values = _factorize(column, name)
        counts = np.bincount(numbers[numbers >= 0], minlength=len(values))
        frequent = [
            value for value, count in zip(values, counts, strict=True) if count >= MIN_COUNT
        ]
        # numbers in their order, then the others by their text: codes do not depend on the order of
        # the examples
        frequent.sort(
            key=lambda value: (0, value, "") if isinstance(value, Real) else (1, 0, str(value))
        )
        return CategoricalColumn({value: code for code, value in enumerate(frequent, 1)})

    def transform(self, column: Any, name: str | int) -> NDArray[np.int64]:  # (N, 1)
        numbers, values = _factorize(column, name)
        is_text, was_text = ({isinstance(value, str) for value in v} for v in (values, self.codes))
        if values and self.codes and is_text.isdisjoint(was_text):
            now, before = ("text", "numbers") if is_text == {True} else ("numbers", "text")
            raise ValueError(
                f"column {name!r} held {before} in fit and holds {now} now; convert it to {before}"
            )
        codes = np.array([*(self.codes.get(value, 0) for value in values), 0], dtype=np.int64)
        return codes[numbers][:, None]  # a missing value has number -1, the last


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """How the columns of X become tensors; it keeps categories, means, deviations and quantiles of
    the training data.

    >>> X = pd.DataFrame(
    ...     {
    ...         "age": [20.0, 40, None, 30],
    ...         "work": ["own", "state", "state", "own"],
    ...         "son": [0, 1, 0, 1],
    ...     }
    ... )
    >>> encoder = FeatureEncoder.fit(X)
    >>> encoder.sizes
    (3,)
    >>> numeric, codes = encoder.transform(
    ...     pd.DataFrame({"age": [30.0, None], "work": ["none", "own"], "son": [1, 0]})
    ... )
    >>> numeric.tolist(), codes.tolist()
    ([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [[0], [1]])
    """

    columns: tuple[NumericColumn | CategoricalColumn, ...]
    notes: tuple[str, ...]  # sentences for the report

    @staticmethod
    def fit(
        X: Any, categorical_features: Any = None, train: ArrayLike | None = None, bins: int = 0
    ) -> FeatureEncoder:
        """Learn from the rows `train` (indices; None: all) of X, an array, data frame or sparse
        matrix (N, columns).

        Args:
            categorical_features: names, positions or a mask of the categorical columns; all others
                are numeric. None or "from_dtype": columns of categories, text or booleans, and of
                objects unless some of them are numbers.
            bins: number of quantile bins of the piecewise-linear encoding; 0: none.
        """
        X = as_frame(X)
        mask = _mask(categorical_features, list(X.columns))
        columns: list[NumericColumn | CategoricalColumn] = []
        notes: list[str] = []
        for j, (name, column, kind) in enumerate(
            _columns(X, slice(None) if train is None else np.asarray(train))
        ):
            if mask[j] if mask is not None else not kind.startswith((*_NUMBERS, "mixed")):
                columns.append(categories := CategoricalColumn.fit(column, name))
                if not categories.codes:
                    notes.append(
                        f"column {name!r} has no category with {MIN_COUNT} training examples and is"
                        " not used"
                    )
            else:
                columns.append(NumericColumn.fit(values := _to_float(column, kind, name), bins))
                notes.extend(_notes(values, name))
        return FeatureEncoder(tuple(columns), tuple(notes))

    @property
    # (q,) number of codes of every categorical column, the 0 included
    def sizes(self) -> tuple[int, ...]:
        return tuple(
            1 + len(each.codes) for each in self.columns if isinstance(each, CategoricalColumn)
        )

    def transform(self, X: Any) -> Features:
        """Encode numbers and codes, both in the order of the columns of X; the parts of a numeric
        column are side by side."""
        X = as_frame(X)
        numeric, codes = [np.empty((len(X), 0), np.float32)], [np.empty((len(X), 0), np.int64)]
        for (name, column, kind), each in zip(_columns(X), self.columns, strict=True):
            if isinstance(each, CategoricalColumn):
                codes.append(each.transform(column, name))
            else:
                numeric.append(each.transform(_to_float(column, kind, name)))
        return Features(torch.from_numpy(np.hstack(numeric)), torch.from_numpy(np.hstack(codes)))


def as_frame(X: Any) -> Any:
    """A pandas frame with one row and one column or more."""
    if issparse(X):
        if X.shape[0] * X.shape[1] > MAX_DENSE:
            raise ValueError(
                f"X is sparse, and {X.shape} is too large to make it dense; give categories, not"
                " dummies"
            )
        X = (X.astype(np.uint8) if X.dtype == bool else X).tocsc(copy=True)
        X.sum_duplicates()
        X = pd.DataFrame.sparse.from_spmatrix(X)
    elif hasattr(X, "columns") and not isinstance(X, pd.DataFrame):
        frame = need("narwhals", "data", "Reading a data frame").from_native(X, eager_only=True)
        X = pd.DataFrame({each.name: each.to_numpy() for each in frame.iter_columns()})
    elif not isinstance(X, pd.DataFrame):
        # numpy would turn [1, "a"] into text
        X = np.asarray(X, dtype=None if hasattr(X, "dtype") else object)
        if X.ndim != 2:  # this sentence and the next in the words that check_estimator looks for
            raise ValueError(
                f"Expected 2D array, got {X.ndim}D array instead. Reshape your data to (N,"
                " columns)."
            )
        X = pd.DataFrame(X.astype(np.uint8) if X.dtype == bool else X)
    for count, what in zip(X.shape, ("sample", "feature"), strict=True):
        if count == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={X.shape}) while a minimum of 1 is required."
            )
    named = all(isinstance(name, str) for name in X.columns)  # else by position, as in scikit-learn
    return X if named else X.set_axis(range(X.shape[1]), axis=1)


def _columns(X: Any, rows: Any = slice(None)) -> Iterator[tuple[str | int, Any, str]]:
    """Name, entries and their kind, in a word of pandas and missing ones aside, of every column."""
    for name, column in X.items():
        column = (
            column.sparse.to_dense() if isinstance(column.dtype, pd.SparseDtype) else column
        ).iloc[rows]
        kind = str(pd.api.types.infer_dtype(column.dropna()))
        if kind == "complex":
            raise ValueError(
                f"Complex data not supported: column {name!r}; give real and imaginary parts as"
                " columns"
            )
        if kind.startswith(("date", "time", "period")):
            raise ValueError(
                f"column {name!r} holds dates or times; make them numbers, e.g. years, or drop the"
                " column"
            )
        yield name, column, kind


def _to_float(column: Any, kind: str, name: str | int) -> NDArray[np.float64]:
    """(N,) numbers, NaN where missing."""
    if kind not in _NUMBERS:
        column = column.astype(object)
        for wrong in (
            entry for entry in column.dropna() if not isinstance(entry, (Real, Decimal, np.bool_))
        ):
            raise ValueError(
                f"column {name!r} is numeric but has {wrong!r}; correct it, or use"
                " categorical_features"
            )
    values: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise ValueError(
            f"column {name!r} has infinite values; correct them, or mark them as missing (NaN)"
        )
    return values


def _factorize(column: Any, name: str | int) -> tuple[NDArray[np.int64], list[Any]]:
    """The number of every entry's value (N,), -1 where missing, and the different values."""
    try:
        numbers, values = pd.factorize(column.values)
    except TypeError as error:
        raise TypeError(
            f"column {name!r} holds no categories ({error}); make it text or numbers"
        ) from error
    return numbers, values.tolist()


def _mask(categorical: Any, names: list[Any]) -> NDArray[np.bool_] | None:
    """(columns,) which are categorical, or None where the columns themselves decide."""
    if categorical is None or (isinstance(categorical, str) and categorical == "from_dtype"):
        return None
    listed, p = np.asarray(categorical), len(names)
    kind = listed.dtype.kind if listed.size else "i"
    if listed.ndim != 1 or kind not in "biuUOT":
        raise ValueError(
            "categorical_features must be 'from_dtype', names, positions or a mask, got"
            f" {categorical!r}"
        )
    if kind == "b":
        if len(listed) != p:
            raise ValueError(
                f"categorical_features is a mask of {len(listed)} for {p} columns; give one entry"
                " each"
            )
        return listed
    columns = list(range(p)) if kind in "iu" else names
    for name in listed.tolist():
        if name not in columns:
            raise ValueError(
                f"categorical_features has {name!r}, which is not a column of X:"
                f" {str(columns)[:200]}"
            )
    return np.array([name in listed.tolist() for name in columns])


def _notes(values: NDArray[np.float64], name: str | int) -> list[str]:
    """Numbers that look like codes: whole, 20 or more, each in 10 examples on average, half their
    range of 100+ empty.

    It misses codes without holes (1, ..., 17) and those of small data, and it notes amounts of few
    values (fees).
    """
    numbers, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    size = len(numbers)
    like_codes = 20 <= size <= counts.sum() / 10 and numbers[-1] / 2 - numbers[0] / 2 >= max(
        50, size
    )
    if not like_codes or (numbers % 1).any():
        return []
    return [
        f"column {name!r} holds {size} different whole numbers up to {numbers[-1]:.0f} and is taken"
        " as numbers; if these are codes, name it in categorical_features"
    ]
