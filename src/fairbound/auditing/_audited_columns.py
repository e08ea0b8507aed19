"""An audit of named columns, as a file has them: which rows count, what is label, score and weight,
who is in which group; of several attributes, the intersections and each attribute alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.sentences import marked_rows
from fairbound.auditing._audits import Audit, audit
from fairbound.auditing._findings import own_group
from fairbound.columns._attributes import (
    Attribute,
    Intersection,
    column_named,
    is_missing,
    text_among_numbers,
)
from fairbound.columns._labels import binary, binary_like, different_values, one_against_rest
from fairbound.columns._rows import rows_where
from fairbound.data._attributes import is_census_export, parse_attributes

Rows = NDArray[np.int64]  # numbers of rows
MAX_CLASSES = 50  # different numbers in a label, above which it is no set of classes


def audit_columns(
    columns: Mapping[str, NDArray[Any]],
    *,
    label: str,
    groups: str | Sequence[str],
    prediction: str | None = None,
    score: str | None = None,
    weight: str | None = None,
    positive: Any = None,
    where: str = "",
    drop_missing: bool = False,
    reference: str | None = None,
    **settings: Any,
) -> Audit:
    """Audit named columns: of the groups that attributes ("race,age:25:65") define together, and of
    each alone.

    Args:
        positive: the label's value that counts as 1; of several classes, it is the one against the
            rest.
        where: a condition that chooses examples, such as "age >= 18 and race in ('A', 'B')".
        drop_missing: skip examples that lack a value in one of the columns; a note says how many.
        settings: those of `audit`.

    >>> table = {
    ...     "y": np.array([1, 0, 1, 0]),
    ...     "p": np.array([1, 0, 0, 0]),
    ...     "sex": np.array(["F", "F", "M", "M"]),
    ... }
    >>> found = audit_columns(table, label="y", prediction="p", groups="sex")
    >>> found.metrics["demographic_parity_difference"].value
    0.5
    """
    notes, census = list(getattr(columns, "notes", ())), is_census_export(groups, columns)
    by = [attribute.name for attribute in parse_attributes(groups, columns, census)]
    used = {
        name: column_named(name, columns)
        for name in (label, prediction, score, weight, *by)
        if name is not None
    }
    number, missing = np.arange(len(used[label])), 0  # of the row in the table, from 0
    if where:
        number = number[rows_where(where, columns)]
    if drop_missing:
        number, missing, lacking = _complete(used, number)
        notes += lacking
    columns = {name: column[number] for name, column in used.items()}
    for name in filter(None, (label, prediction, score, weight)):
        _refuse_missing(columns[name], name, number)
    attributes = parse_attributes(groups, columns, census)
    if census:
        notes.append("groups are named by the labels of the American Community Survey's code book")
    notes += [
        own_group(name, what)
        for name, what in ((label, "label"), (prediction, "prediction"))
        if name in by
    ]
    truth = columns[label]
    classes = len(different_values(truth, label))
    if positive is not None and classes > 2:
        y = one_against_rest(truth, label, positive)
        notes.append(
            f"the label {label!r} has {classes} classes: {positive} counts as 1, all others as 0"
        )
    elif classes > 2 and (classes <= MAX_CLASSES or truth.dtype.kind == "O"):
        raise ValueError(
            f"the column {label!r} is not binary: {classes} different values in {len(truth)} rows;"
            f" name the one that counts as 1, against the rest: `positive={np.unique(truth)[-1]}`"
        )
    else:
        y = binary(truth, label, positive)
    made: dict[str, Any] = {}
    if prediction is not None:
        made["predictions"] = binary_like(columns[prediction], prediction, truth, label, positive)
    if score is not None:
        made["scores"] = _numbers(columns[score], score, number)
    if weight is not None:
        made["weights"] = _numbers(columns[weight], weight, number)

    def audited(attributes: Sequence[Attribute], reference: str | None) -> Audit:
        grouping = Intersection(tuple(attributes)).group(columns)
        names = [attribute.name for attribute in attributes]
        return audit(
            y,
            grouping.ids,
            names=grouping.names,
            attributes=names,
            reference=reference,
            **made,
            **settings,
        )

    whole = audited(attributes, reference)
    return replace(
        whole,
        label=label,
        made=prediction or score or "",
        where=where,
        rows=len(used[label]),
        missing=missing,
        notes=(*notes, *whole.notes),
        parts=tuple(audited([alone], None) for alone in attributes) if len(attributes) > 1 else (),
    )


def _complete(columns: Mapping[str, NDArray[Any]], number: Rows) -> tuple[Rows, int, list[str]]:
    """Those of the rows that lack nothing in these columns, how many others there are, and a
    sentence about them."""
    absent = {name: is_missing(column[number]) for name, column in columns.items()}
    lacking = np.logical_or.reduce(list(absent.values()))
    if not lacking.any():
        return number, 0, []
    if lacking.all():
        raise ValueError(
            f"every example lacks a value in {', '.join(absent)}: there is nothing to audit"
        )
    each = ", ".join(f"{name} {int(gone.sum()):,}" for name, gone in absent.items() if gone.any())
    note = (
        f"{int(lacking.sum()):,} of {len(lacking):,} examples were dropped, with missing values"
        f" ({each})"
    )
    return number[~lacking], int(lacking.sum()), [note]


def _refuse_missing(column: NDArray[Any], name: str, number: Rows) -> None:
    missing = is_missing(column)
    if missing.any():
        raise ValueError(
            f"the column {name!r} is missing in {marked_rows(missing, number)}; drop those rows"
            " (`drop_missing=True`)"
        )


def _numbers(column: NDArray[Any], name: str, number: Rows) -> NDArray[Any]:
    if column.dtype.kind not in "iufb":
        raise ValueError(
            f"{name} must hold numbers, found {text_among_numbers(column, number)}; correct it, or,"
            " where such text marks a missing value, name it in `missing` and drop those rows"
            " (`drop_missing=True`)"
        )
    return column if column.dtype.kind == "f" else column.astype(np.float64)
