"""`Column`: values of one kind with their name, whatever they come as, and which are missing.

Numbers are a numpy vector with NaN where one is missing; text is a vector of objects with None
where it is missing, and so are booleans and whole numbers beyond 2^53 where some are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.sentences import did_you_mean, marked_rows

ColumnKind = Literal["number", "boolean", "text", "date"]
EXACT = 2**53  # the largest whole number up to which float64 holds every one
# numbers as people write them; "nan" and "1_000" are text
NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")


class ColumnTypeError(ValueError):
    """A column that is neither numbers nor text: refused once it is used."""


@dataclass(frozen=True, eq=False)
class Column:
    """One value of one kind for every row.

    >>> Column.of(["b", None, "a"], "job").factorized()
    (array([ 1, -1,  0]), ['a', 'b'])
    >>> Column.of([True, 2, None], "x").numbers()
    array([ 1.,  2., nan])
    """

    name: str
    values: NDArray[Any]  # (rows,)

    @staticmethod
    def of(values: Any, name: str) -> Column:
        """A column from a list, an array, a tensor, a Series of pandas or polars, or arrow data."""
        array = _array_of(values, name)
        if array.ndim != 1:
            raise ValueError(
                f"column {name!r} has shape {array.shape}; a column has one value per row"
            )
        if array.dtype.kind in "biufmM":
            return Column(name, array)
        if array.dtype.kind == "U":
            return Column(name, array.astype(object))
        if array.dtype.kind == "O":
            return Column(name, _of_objects(array, name))
        raise ColumnTypeError(
            f"column {name!r} holds {array.dtype}, neither numbers nor text; convert it first"
        )

    @cached_property
    def kind(self) -> ColumnKind:
        """What the values are; whole numbers and others are one kind."""
        if self.values.dtype.kind == "O":
            known = next((value for value in self.values if value is not None), "")
            return "text" if isinstance(known, str) else _kind_of_number(type(known))
        return {"b": "boolean", "m": "date", "M": "date"}.get(self.values.dtype.kind, "number")  # type: ignore[return-value]

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,) which values are missing."""
        missing = np.zeros(len(self.values), dtype=bool)
        match self.values.dtype.kind:
            case "f":
                missing[:] = np.isnan(self.values)
            case "O":
                missing[:] = self.values == None  # noqa: E711, element by element
            case "m" | "M":
                missing[:] = np.isnat(self.values)
        return missing

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Column:
        return Column(self.name, self.values[rows])

    @property
    def is_numeric(self) -> bool:
        return self.kind in ("number", "boolean")

    def factorized(self) -> tuple[NDArray[np.int64], list[Any]]:
        """(rows,) the place of each value among the different ones in ascending order, -1 where it
        is missing; and these values."""
        codes, known = np.full(len(self), -1, dtype=np.int64), self.values[~self.missing]
        if self.values.dtype.kind == "O":  # hashed, not sorted
            listed = known.tolist()
            levels = sorted(set(listed))
            place = dict(zip(levels, range(len(levels)), strict=True))
            codes[~self.missing] = np.fromiter(map(place.__getitem__, listed), np.int64, len(known))
            return codes, levels
        unique, codes[~self.missing] = np.unique(known, return_inverse=True)
        return codes, unique.tolist()

    def numbers(self) -> NDArray[np.float64]:
        """(rows,) the values as numbers, NaN where missing; text that is all numbers as well."""
        if self.kind == "date" or (self.kind == "text" and not_numbers(self.values).any()):
            raise ValueError(
                f"{self.name} must hold numbers, found {text_among_numbers(self.values)}"
            )
        with_nan = (
            np.where(self.missing, np.nan, self.values) if self.missing.any() else self.values
        )
        return with_nan.astype(np.float64)

    def texts(self) -> Column:
        """The values as text: numbers in the shortest form that tells them apart."""
        if self.kind == "text":
            return self
        codes, levels = self.factorized()
        names = np.array([*names_of(levels), None], dtype=object)
        return Column(self.name, names[codes])


def names_of(values: list[Any]) -> list[str]:
    """Different values as different texts.

    >>> names_of([1.0, 2.5]), names_of([1234567.0, 1234568.0])
    (['1', '2.5'], ['1234567', '1234568'])
    """
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(set(texts)) == len(texts):
        return texts
    return [f"{value:.17g}" if isinstance(value, float) else str(value) for value in values]


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """(rows,) which values of a column, in the form that `Column.of` makes, are missing."""
    return Column("", values).missing


def column_named(name: str, columns: Mapping[str, Any]) -> Any:
    """The column of that name; where there is none, an error names the closest ones of the file's
    header or of the columns."""
    if name not in columns:
        listed = getattr(columns, "header", ()) or columns
        raise ValueError(f"there is no column {name!r}; {did_you_mean(name, listed)}")
    return columns[name]


def not_numbers(values: NDArray[Any]) -> NDArray[np.bool_]:
    """(rows,) which entries of a column of text, missing ones aside, are not written numbers."""
    different = {value: not NUMBER.fullmatch(value) for value in set(values.tolist()) - {None}}
    return np.fromiter(map({None: False, **different}.__getitem__, values), bool, len(values))


def text_among_numbers(values: NDArray[Any], rows: NDArray[np.int64] | None = None) -> str:
    """The first entry of a column that is no number, and how many there are. `rows` holds the
    number of each entry in its table, where there are some entries only.

    >>> text_among_numbers(np.array(["0.5", "n.a.", "1"], dtype=object))
    "'n.a.' in 1 of 3 rows (first: row 3, with the header as row 1)"
    """
    if values.dtype.kind != "O" or not (text := not_numbers(values)).any():
        return f"{str(values[0])!r} ({values.dtype})"
    return f"{values[text.argmax()]!r} in {marked_rows(text, rows)}"


# Any form -----------------------------------------------------------------------------------------


def _array_of(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        array: NDArray[Any] = values.data.astype(object)
        array[np.ma.getmaskarray(values)] = None
        return array
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):  # a tensor; numpy has no bfloat16
        tensor = values.detach().cpu()
        return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    if type(values).__module__.partition(".")[0] in ("pyarrow", "polars"):
        return _of_arrow(values.to_arrow() if hasattr(values, "to_arrow") else values)
    if hasattr(values, "to_numpy"):  # a Series; nullable whole numbers would become floats
        nullable = str(values.dtype).startswith(("Int", "UInt")) and values.isna().any()
        return np.asarray(values.to_numpy(dtype=object) if nullable else values.to_numpy())
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise ValueError(f"column {name!r} is {values!r}; give one value for every row")
    return np.fromiter(values, dtype=object, count=len(values))


def _of_arrow(values: Any) -> NDArray[Any]:
    # numpy would take a missing entry of a dictionary for the last level
    plain = values.cast(values.type.value_type) if hasattr(values.type, "index_type") else values
    whole = str(plain.type).startswith(("int", "uint")) and plain.null_count > 0
    # equal text is one object; whole numbers with missing ones would become floats
    return np.asarray(plain.to_pandas(date_as_object=False, integer_object_nulls=whole))


def _of_objects(array: NDArray[Any], name: str) -> NDArray[Any]:
    kind_of = {kind: _kind_of(kind) for kind in set(map(type, array))}
    if set(kind_of) in ({str}, {str, type(None)}):  # the common case
        return array
    kinds = np.fromiter(map(kind_of.__getitem__, map(type, array)), object, len(array))
    kinds[(kinds == "number") & _differs_from_itself(array, kinds == "number")] = "missing"
    missing, found = kinds == "missing", set(kinds.tolist()) - {"missing"}
    if "other" in found:
        value = array[(kinds == "other").argmax()]
        raise ColumnTypeError(
            f"column {name!r} holds {value} ({type(value).__name__}) in"
            f" {marked_rows(kinds == 'other')}, which is neither a number nor text"
        )
    if found == {"text"} or (found == {"boolean"} and missing.any()):
        convert = str if found == {"text"} else bool
        plain = np.full(len(array), None, dtype=object)
        plain[~missing] = np.fromiter(map(convert, array[~missing]), object, int((~missing).sum()))
        return plain
    if "text" in found:
        text = kinds == "text"
        raise ColumnTypeError(
            f"column {name!r} mixes numbers and text: {array[text.argmax()]!r} in"
            f" {marked_rows(text)}; make it one or the other"
        )
    if found == {"boolean"}:
        return array.astype(bool)
    if found <= {"whole", "boolean"} and found:
        return _of_whole_numbers(array, missing)
    return np.where(missing, np.nan, array).astype(np.float64)


def _of_whole_numbers(array: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    known = [int(value) for value in array[~missing]]
    if not missing.any():
        integers = np.array(known)
        return integers if integers.dtype.kind == "i" else integers.astype(np.float64)
    if max(map(abs, known)) <= EXACT:
        return np.where(missing, np.nan, array).astype(np.float64)
    exact = np.full(len(array), None, dtype=object)  # as floats, two of them could become one
    exact[~missing] = known
    return exact


def _differs_from_itself(array: NDArray[Any], marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(rows,) which of the marked entries are NaN."""
    differs = np.zeros(len(array), dtype=bool)
    differs[marked] = array[marked] != array[marked]
    return differs


def _kind_of(kind: type) -> str:
    if kind.__name__ in ("NoneType", "NAType", "NaTType"):
        return "missing"
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, bool | np.bool_):
        return "boolean"
    if issubclass(kind, Integral):
        return "whole"
    return "number" if issubclass(kind, Real | Decimal) else "other"


def _kind_of_number(kind: type) -> ColumnKind:
    return "boolean" if issubclass(kind, bool) else "number"
