"""Outcomes, labels and predictions: columns of two values become 0 and 1.

Which value is 1 is given by the user (`positive`) or evident: booleans, 0/1, -1/1, yes/no and the
like. Values are compared by what they mean, since a command line and many files have only text: "1"
is 1 and 1.0, "false" is False, and "Yes" is "yes".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.sentences import marked_rows
from fairbound.columns._attributes import NUMBER, is_missing

Column = NDArray[Any]  # (rows,) numbers, booleans or text
WORDS = (("no", "yes"), ("n", "y"), ("f", "t"), ("negative", "positive"), ("neg", "pos"))
# (zero, one); False is 0 and True is 1
EVIDENT: tuple[tuple[Any, Any], ...] = ((0, 1), (-1, 1), *WORDS)
MEANINGS: dict[str, Any] = {"false": False, "true": True} | {
    word: word for pair in WORDS for word in pair
}
SHOWN = 5  # values that a sentence names


def binary(column: Column, name: str, positive: Any = None) -> NDArray[np.int64]:
    """(rows,) a column of two values as 0 and 1; `positive` says which one is 1, where that is not
    evident.

    >>> binary(np.array([">50K", "<=50K"]), "income", positive=">50K")
    array([1, 0])
    """
    _, positive_value = two_values(column, name, positive)
    return _marked(column, [positive_value])


def two_values(column: Column, name: str, positive: Any = None) -> tuple[Any, Any]:
    """The column's values that are 0 and 1, in this order.

    >>> two_values(np.array(["Yes", "no", "no"]), "employed")
    ('no', 'Yes')
    """
    values = different_values(column, name)
    if len(values) != 2:
        raise ValueError(
            f"the column {name!r} is not binary: {len(values)} different values ({_shown(values)})"
            f" in {len(column)} rows; give one of two values, e.g. whether a number is above a"
            " threshold"
        )
    known = (
        _evident_positive(values, name)
        if positive is None
        else _named_positive(values, name, positive)
    )
    return next(value for value in values if value is not known), known


def binary_like(
    column: Column, name: str, label_column: Column, label_name: str, positive: Any = None
) -> NDArray[np.int64]:
    """(rows,) predictions as 0 and 1, in the terms of the label that they predict.

    They may have the label's values, even if all are equal. Unless the label contradicts it, they
    may also be 0/1, -1/1, booleans or evident words: for a label of yes and no a prediction of 1 is
    a yes, but for a label of 1 and 2 it could be the label's 1. Of a label with several classes,
    `positive` counts as 1 and the others as 0.

    >>> binary_like(np.array([2, 2]), "guess", np.array([1, 2]), "truth", positive=2)
    array([1, 1])
    >>> binary_like(np.array([0, 1]), "guess", np.array(["yes", "no"]), "truth")
    array([0, 1])
    >>> binary_like(
    ...     np.array(["low", "high"]), "guess", np.array(["low", "mid", "high"]), "risk", "high"
    ... )
    array([0, 1])
    """
    classes, values = different_values(label_column, label_name), different_values(column, name)
    evident: Sequence[tuple[Any, Any]] = EVIDENT
    if positive is not None and len(classes) > 2:
        chosen = meaning(_named_positive(classes, label_name, positive))
        held, remedy = _shown(classes), "give predictions in the label's classes, or 0 and 1"
    else:
        zero, one = two_values(label_column, label_name, positive)
        chosen = meaning(one)
        meanings = meaning(zero), chosen
        if positive is not None and any(
            not isinstance(value, str) or value in MEANINGS for value in meanings
        ):
            # numbers, booleans or evident words, which predictions of 0/1 could contradict
            evident = ()
        held = f"{zero!r} (0) and {one!r} (1), and it is not evident which is which"
        remedy = "give predictions in the label's values"
    if not set(map(meaning, values)) <= set(map(meaning, classes)):
        pair = _pair_with(values, evident)
        if pair is None:
            is_score = column.dtype.kind == "f" and len(values) > 2
            hint = "; scores are not predictions (score, --score)" if is_score else ""
            raise ValueError(
                f"the column {name!r} holds {_shown(values)}, but the label {label_name!r} holds"
                f" {held}; {remedy}{hint}"
            )
        chosen = pair[1]
    return _marked(column, [value for value in values if meaning(value) == chosen])


def one_against_rest(column: Column, name: str, positive: Any) -> NDArray[np.int64]:
    """(rows,) 1 where a column of several classes has this one.

    >>> one_against_rest(np.array(["low", "high", "middle"]), "risk", "high")
    array([0, 1, 0])
    """
    return _marked(column, [_named_positive(different_values(column, name), name, positive)])


def meaning(value: Any) -> Any:
    """What a value is compared by.

    >>> meaning("1.0") == meaning(1) == meaning(True), meaning(" Yes"), meaning("Male")
    (True, 'yes', 'Male')
    """
    if not isinstance(value, str):
        return value  # Python's numbers and booleans are equal, and hashed, by their value
    text = value.strip()
    if NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return MEANINGS.get(text.lower(), text)


def different_values(column: Column, name: str) -> list[Any]:
    """The values that occur, as Python's own, in ascending order."""
    values: set[Any] = set(
        column.tolist() if column.dtype.kind == "O" else np.unique(column).tolist()
    )
    if any(value is None or value != value for value in values):
        missing = is_missing(column)
        raise ValueError(
            f"the column {name!r} is missing in {marked_rows(missing)}; drop those rows first"
            " (--drop-missing)"
        )
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _evident_positive(values: Sequence[Any], name: str) -> Any:
    pair = _pair_with(values, EVIDENT)
    if pair is None or len({meaning(value) for value in values}) < 2:
        raise ValueError(
            f"the column {name!r} holds {_shown(values)}; say which value counts as 1 (positive,"
            " --positive): only 0/1, -1/1, true/false, yes/no and positive/negative go without"
            " saying"
        )
    return next(value for value in values if meaning(value) == pair[1])


def _named_positive(values: Sequence[Any], name: str, positive: Any) -> Any:
    exact = [value for value in values if value == positive]
    same = exact or [value for value in values if meaning(value) == meaning(positive)]
    if len(same) != 1:
        raise ValueError(
            f"no row of the column {name!r} is {positive!r}; it holds {_shown(values)}"
        )
    return same[0]


def _pair_with(values: Sequence[Any], pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """The first of the pairs (zero, one) that has all the values."""
    meant = {meaning(value) for value in values}
    return next((pair for pair in pairs if meant <= set(pair)), None)


def _marked(column: Column, ones: Sequence[Any]) -> NDArray[np.int64]:
    """(rows,) 1 where the value is among `ones`."""
    marked = np.zeros(len(column), dtype=bool)
    for value in ones:
        marked |= np.asarray(column == value, dtype=bool)
    return marked.astype(np.int64)


def _shown(values: Sequence[Any]) -> str:
    shown = [repr(value) for value in values[:SHOWN]]
    if len(values) > SHOWN:
        return ", ".join(shown) + ", ..."
    return " and ".join(shown) if len(shown) == 2 else ", ".join(shown)
