"""A column, whatever it comes as, becomes a numpy vector in one of few forms.

Numbers or booleans, with NaN where one is missing; text or booleans as objects, with None where
missing; dates.
"""

from __future__ import annotations

from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.sentences import marked_rows
from fairbound.columns._attributes import is_missing

NUMBERS = "biuf"  # numpy's kinds of booleans and numbers
DATES = "mM"


class ColumnTypeError(ValueError):
    """A column that is neither numbers nor text: refused once it is used."""


def column_of(values: Any, name: str) -> NDArray[Any]:
    """A column in one of the forms that a Table holds.

    >>> column_of(["a", None], "x"), column_of([1, None], "x"), column_of(torch.tensor([True]), "x")
    (array(['a', None], dtype=object), array([ 1., nan]), array([ True]))
    """
    array = _array_of(values, name)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} has shape {array.shape}; a column has one value per row")
    if array.dtype.kind in NUMBERS + DATES:
        return array
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "O":
        return _from_objects(array, name)
    raise ColumnTypeError(
        f"column {name!r} holds {array.dtype}, neither numbers nor text; convert it first"
    )


def _array_of(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        # numpy has no bfloat16
        return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)
    if isinstance(values, np.ma.MaskedArray):
        array: NDArray[Any] = values.data.astype(object)
        array[np.ma.getmaskarray(values)] = None
        return array
    if isinstance(values, np.ndarray):
        return values
    if type(values).__module__.partition(".")[0] == "pyarrow":
        # numpy would take a missing entry of a dictionary for the last level
        plain = (
            values.cast(values.type.value_type) if hasattr(values.type, "index_type") else values
        )
        return np.asarray(plain.to_pandas(date_as_object=False))  # equal text is one object
    if hasattr(values, "to_numpy"):  # a Series
        return np.asarray(values.to_numpy())
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise ValueError(f"column {name!r} is {values!r}; give one value for every row")
    return np.fromiter(values, dtype=object, count=len(values))


def _from_objects(array: NDArray[Any], name: str) -> NDArray[Any]:
    # the common case, without checking each value
    if set(map(type, array)) in ({str}, {str, type(None)}):
        return array
    missing = is_missing(array)
    kind = np.array(
        ["" if gone else _kind(value) for value, gone in zip(array, missing, strict=True)]
    )
    kinds = set(kind[~missing].tolist())
    if kinds == {"boolean"} and not missing.any():
        return array.astype(bool)
    if kinds in ({"text"}, {"boolean"}):
        convert, pairs = str if kinds == {"text"} else bool, zip(array, missing, strict=True)
        return np.fromiter(
            (None if gone else convert(value) for value, gone in pairs),
            dtype=object,
            count=len(array),
        )
    if kinds <= {"whole number", "boolean"} and not missing.any():
        integers = np.array([int(value) for value in array])
        # beyond 64 bits
        return integers if integers.dtype.kind == "i" else integers.astype(np.float64)
    if kinds <= {"number", "whole number", "boolean"}:
        return np.where(missing, np.nan, array).astype(np.float64)
    other, text = kind == "other", kind == "text"
    if other.any():
        value = array[other.argmax()]
        shown = f"{value} ({type(value).__name__}) in {marked_rows(other)}"
        raise ColumnTypeError(f"column {name!r} holds {shown}, which is neither a number nor text")
    raise ColumnTypeError(
        f"column {name!r} mixes numbers and text: {array[text.argmax()]!r} in {marked_rows(text)};"
        " make it one or the other"
    )


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, Integral):
        return "whole number"
    if isinstance(value, Real | Decimal):
        return "number"
    return "text" if isinstance(value, str) else "other"
