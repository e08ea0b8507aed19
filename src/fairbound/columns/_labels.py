"""Outcomes, labels and predictions: columns of two values become 0 and 1, by one rule everywhere.

Which value is 1 is given by the user (`positive`) or evident: booleans, 0/1, -1/1, yes/no and the
like. Values are compared by what they mean, since a command line and many files have only text: "1"
is 1 and 1.0, "false" is False, and "Yes" is "yes".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.sentences import listed, marked_rows
from fairbound.columns._column import NUMBER, Column

WORDS = (("no", "yes"), ("n", "y"), ("f", "t"), ("negative", "positive"), ("neg", "pos"))
# (zero, one); False is 0 and True is 1
EVIDENT: tuple[tuple[Any, Any], ...] = ((0, 1), (-1, 1), *WORDS)
MEANINGS: dict[str, Any] = {"false": False, "true": True} | {
    word: word for pair in WORDS for word in pair
}


def binary(values: Any, name: str, positive: Any = None) -> NDArray[np.int64]:
    """(rows,) a column of two values as 0 and 1.

    Args:
        values: (rows,) the column, of any kind.
        name: of the column, for errors.
        positive: the value that is 1; the evident one if not given.

    >>> binary([">50K", "<=50K"], "income", positive=">50K")
    array([1, 0])
    """
    column = Column.of(values, name)
    return _marked(column, [two_values(column.values, name, positive)[1]])


def two_values(values: Any, name: str, positive: Any = None) -> tuple[Any, Any]:
    """The column's values that are 0 and 1, in this order.

    Args:
        values: (rows,) the column, of any kind.
        name: of the column, for errors.
        positive: the value that is 1; the evident one if not given.

    >>> two_values(["Yes", "no", "no"], "employed")
    ('no', 'Yes')
    """
    different = different_values(values, name)
    if len(different) != 2:
        raise ValueError(
            f"the column {name!r} is not binary: {len(different)} different values"
            f" ({_shown(different)}) in {len(values)} rows; give one of two values, e.g. whether a"
            " number is above a threshold"
        )
    one = evident_positive(different) if positive is None else _named(different, name, positive)
    if one is None:
        raise ValueError(
            f"the column {name!r} holds {_shown(different)}; name the value that counts as 1"
            " (`positive`): only 0/1, -1/1, true/false, yes/no and positive/negative go without"
            " saying"
        )
    return next(value for value in different if value is not one), one


def binary_like(
    values: Any, name: str, labels: Any, label_name: str, positive: Any = None
) -> NDArray[np.int64]:
    """(rows,) predictions as 0 and 1, in the terms of the label that they predict.

    They may have the label's values, even if all are equal. Unless the label contradicts it, they
    may also be 0/1, -1/1, booleans or evident words: for a label of yes and no a prediction of 1 is
    a yes, but for a label of 1 and 2 it could be the label's 1. Of a label with several classes,
    `positive` counts as 1 and the others as 0.

    Args:
        values: (rows,) the predictions.
        name: of their column, for errors.
        labels: (rows,) the labels.
        label_name: of their column, for errors.
        positive: the label's value that is 1; the evident one if not given.

    >>> binary_like([2, 2], "guess", [1, 2], "truth", positive=2)
    array([1, 1])
    >>> binary_like([0, 1], "guess", ["yes", "no"], "truth")
    array([0, 1])
    >>> binary_like(["low", "high"], "guess", ["low", "mid", "high"], "risk", "high")
    array([0, 1])
    """
    column = Column.of(values, name)
    classes, different = different_values(labels, label_name), different_values(values, name)
    evident: Sequence[tuple[Any, Any]] = EVIDENT
    if positive is not None and len(classes) > 2:
        chosen = meaning(_named(classes, label_name, positive))
        held, remedy = _shown(classes), "give predictions in the label's classes, or 0 and 1"
    else:
        zero, one = two_values(labels, label_name, positive)
        chosen = meaning(one)
        # numbers, booleans or evident words, which predictions of 0/1 could contradict
        if positive is not None and not all(
            isinstance(value, str) and value not in MEANINGS for value in (meaning(zero), chosen)
        ):
            evident = ()
        held = f"{zero!r} (0) and {one!r} (1), and it is not evident which is which"
        remedy = "give predictions in the label's values"
    if not set(map(meaning, different)) <= set(map(meaning, classes)):
        pair = _pair_with(different, evident)
        if pair is None:
            is_score = column.kind == "number" and len(different) > 2
            hint = "; scores are not predictions: name them `score`" if is_score else ""
            raise ValueError(
                f"the column {name!r} holds {_shown(different)}, but the label {label_name!r} holds"
                f" {held}; {remedy}{hint}"
            )
        chosen = pair[1]
    return _marked(column, [value for value in different if meaning(value) == chosen])


def one_against_rest(values: Any, name: str, positive: Any) -> NDArray[np.int64]:
    """(rows,) 1 where a column of several classes has the class `positive`.

    Args:
        values: (rows,) the column.
        name: of the column, for errors.
        positive: the class that is 1.

    >>> one_against_rest(["low", "high", "middle"], "risk", "high")
    array([0, 1, 0])
    """
    column = Column.of(values, name)
    return _marked(column, [_named(different_values(column.values, name), name, positive)])


def evident_positive(values: Sequence[Any]) -> Any:
    """The one of two values that is evidently 1; None where neither is.

    >>> evident_positive(["Yes", "no"]), evident_positive([1, 2])
    ('Yes', None)
    """
    pair = _pair_with(values, EVIDENT)
    if pair is None or len(set(map(meaning, values))) < 2:
        return None
    return next(value for value in values if meaning(value) == pair[1])


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


def different_values(values: Any, name: str) -> list[Any]:
    """The values that occur, as Python's own, in ascending order; a missing one is refused."""
    column = Column.of(values, name)
    if column.missing.any():
        raise ValueError(
            f"the column {name!r} is missing in {marked_rows(column.missing)}; drop those rows"
            " first (`drop_missing`)"
        )
    return column.factorized()[1]


def _named(values: Sequence[Any], name: str, positive: Any) -> Any:
    exact = [value for value in values if value == positive]
    same = exact or [value for value in values if meaning(value) == meaning(positive)]
    if len(same) != 1:
        raise ValueError(
            f"no row of the column {name!r} is {positive!r}; it holds {_shown(values)}"
        )
    return same[0]


def _pair_with(values: Sequence[Any], pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """The first of the pairs (zero, one) that has all the values."""
    meant = set(map(meaning, values))
    return next((pair for pair in pairs if meant <= set(pair)), None)


def _marked(column: Column, ones: Collection[Any]) -> NDArray[np.int64]:
    """(rows,) 1 where the value is among `ones`."""
    codes, values = column.factorized()
    return np.array([value in ones for value in values], dtype=np.int64)[codes]


def _shown(values: Sequence[Any]) -> str:
    shown = [repr(value) for value in values]
    return " and ".join(shown) if len(shown) == 2 else listed(shown, 5)
