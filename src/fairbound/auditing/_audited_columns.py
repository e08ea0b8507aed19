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
from fairbound.columns._attributes import Attribute, Intersection
from fairbound.columns._column import Column, column_named, is_missing, text_among_numbers
from fairbound.columns._labels import binary, binary_like, different_values, one_against_rest
from fairbound.columns._rows import rows_where
from fairbound.columns._specs import is_census_export, parse_attributes

Rows = NDArray[np.int64]  # numbers of rows
MAX_CLASSES = 50  # different numbers in a label, above which it is no set of classes


def audit_columns(
    columns: Mapping[str, NDArray[Any]],
    *,
    label: str | None = None,
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
        columns: name -> (n,) numbers, booleans or text, one for each example.
        label: the column of labels. None: there are none, and the audit has what needs none; an
            example that lacks a value of an attribute is then in no group.
        groups: the protected attributes, "race,sex" or a list; "age:25:65" are bands, "race=A" is
            one level against the rest.
        prediction: the column of predictions; None: they are made from `score`.
        score: the column of scores; None: `prediction` is given.
        weight: the column of survey weights; None: every example counts 1.
        positive: the label's value (without labels, the prediction's) that counts as 1; of several
            classes, it is the one against the rest. None: it must be evident, as in 0/1, yes/no.
        where: a condition that chooses examples, such as "age >= 18 and race in ('A', 'B')"; empty:
            all of them.
        drop_missing: whether to skip examples that lack a value in one of the columns, and count
            them in a note; without labels, unknown attributes are no reason to skip an example.
        reference: the group that the others are compared with; None: as in `audit`.
        settings: the other settings of `audit`: threshold, min_size, level, draws, seed, intervals
            and source.

    Returns:
        The audit of the groups that the attributes define together; its `parts` are the audits of
        each attribute alone.

    >>> table = {
    ...     "y": np.array([1, 0, 1, 0]),
    ...     "p": np.array([1, 0, 0, 0]),
    ...     "sex": np.array(["F", "F", "M", "M"]),
    ... }
    >>> audited = audit_columns(table, label="y", prediction="p", groups="sex")
    >>> audited.metrics["demographic_parity_difference"].value
    0.5
    """
    notes, census = list(getattr(columns, "notes", ())), is_census_export(groups, columns)
    by = [attribute.name for attribute in parse_attributes(groups, columns, census)]
    needed = [name for name in (label, prediction, score, weight) if name is not None]
    used = {name: Column.of(column_named(name, columns), name).values for name in (*needed, *by)}
    rows = len(next(iter(used.values())))
    number = np.arange(rows)  # of the row, from 0
    if where:
        number = number[rows_where(where, columns)]
    asked = len(number)
    complete = used if drop_missing and label is not None else {name: used[name] for name in needed}
    number, dropped = _complete(complete, number, drop_missing)
    columns = {name: column[number] for name, column in used.items()}
    attributes = parse_attributes(groups, columns, census)
    notes += dropped
    if census:
        notes.append("groups are named by the labels of the American Community Survey's code book")
    for name, what in ((label, "label"), (prediction, "prediction")):
        if name in by:
            notes.append(own_group(name, what))
    y = None
    made: dict[str, Any] = {}
    if label is not None:
        y, classes = _labels(columns[label], label, positive)
        notes += classes
    if prediction is not None:
        made["predictions"] = _predictions(columns, prediction, label, positive)
    if score is not None:
        made["scores"] = _numbers(columns[score], score, number)
    if weight is not None:
        made["weights"] = _numbers(columns[weight], weight, number)

    def audited(attributes: Sequence[Attribute], reference: str | None) -> Audit:
        names = [attribute.name for attribute in attributes]
        known = np.ones(len(number), dtype=bool)
        if label is None:
            known = ~np.logical_or.reduce([is_missing(columns[name]) for name in names])
        grouping = Intersection(tuple(attributes)).group(
            {name: columns[name][known] for name in names}
        )
        ids = np.full(len(number), -1)
        ids[known] = grouping.ids
        named = settings | made | {"names": grouping.names, "attributes": names}
        return audit(y, ids, reference=reference, **named)

    crossed = audited(attributes, reference)
    return replace(
        crossed,
        label=label or "",
        made=prediction or score or "",
        where=where,
        rows=rows,
        missing=asked - len(number),
        notes=(*notes, *crossed.notes),
        parts=tuple(audited([alone], None) for alone in attributes) if len(attributes) > 1 else (),
    )


def _labels(column: NDArray[Any], name: str, positive: Any) -> tuple[NDArray[np.int64], list[str]]:
    """(n,) labels as 0 and 1, and a note where they had several classes."""
    classes = different_values(column, name)
    if len(classes) <= 2:
        return binary(column, name, positive), []
    if positive is not None:
        note = f"{len(classes)} classes: {positive} counts as 1, all others as 0"
        return one_against_rest(column, name, positive), [f"the label {name!r} has {note}"]
    if len(classes) > MAX_CLASSES and not isinstance(classes[-1], str):
        return binary(column, name), []  # refused: a number is to be compared with a threshold
    raise ValueError(
        f"the column {name!r} is not binary: {len(classes)} different values in {len(column)}"
        f" rows; name the one that counts as 1, against the rest: `positive={classes[-1]!r}`"
    )


def _predictions(
    columns: Mapping[str, NDArray[Any]], name: str, label: str | None, positive: Any
) -> NDArray[np.int64]:
    """(n,) predictions as 0 and 1, even where all are equal."""
    column = columns[name]
    if label is not None:
        return binary_like(column, name, columns[label], label, positive)
    if positive is not None:
        return one_against_rest(column, name, positive)
    if len(different_values(column, name)) > 1:
        return binary(column, name)
    return binary_like(column, name, np.array([0, 1]), name)


def _complete(
    columns: Mapping[str, NDArray[Any]], number: Rows, drop: bool
) -> tuple[Rows, list[str]]:
    """Those of the rows that lack nothing in these columns, and a note on the others, which are
    dropped or refused."""
    missing = {name: is_missing(column[number]) for name, column in columns.items()}
    lacking = np.logical_or.reduce(list(missing.values()))
    if not lacking.any():
        return number, []
    missing = {name: gone for name, gone in missing.items() if gone.any()}
    if not drop:
        name, gone = next(iter(missing.items()))
        raise ValueError(
            f"the column {name!r} is missing in {marked_rows(gone, number)}; drop those rows"
            " (`drop_missing=True`)"
        )
    if lacking.all():
        raise ValueError(
            f"every example lacks a value in {', '.join(missing)}: there is nothing to audit"
        )
    each = ", ".join(f"{name} {int(gone.sum()):,}" for name, gone in missing.items())
    dropped = f"{int(lacking.sum()):,} of {len(lacking):,} examples were dropped"
    note = f"{dropped}, with missing values ({each})"
    return number[~lacking], [note]


def _numbers(values: NDArray[Any], name: str, number: Rows) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values
    try:
        return Column(name, values).numbers()
    except ValueError as error:
        text = text_among_numbers(values, number)
        raise ValueError(
            f"{name} must hold numbers, found {text}; correct it, or,"
            " where such text marks a missing value, name it (`missing`) and drop those rows"
            " (`drop_missing`)"
        ) from error
