"""Constraints of a fit, made from notions and groups; sample weights and strata."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fairbound._utils.optional import need
from fairbound._utils.sentences import listing
from fairbound.columns._groups import GroupColumn
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._notions import NOTIONS, make_constraint
from fairbound.integrations.sklearn._features import as_frame

pd = need("pandas", "data", "FairClassifier")

Notion = str | Constraint | Callable[..., Constraint]
# one, several, or names with their bounds
Constraints = Notion | Sequence[Notion] | Mapping[str, float]
# notions that take outcome=, the class of several
RATES_OF_A_CLASS = ("demographic_parity", "demographic_parity_ratio", "equal_opportunity")


def make_constraints(
    constraint: Constraints,
    bound: float | Sequence[float],
    columns: Mapping[str, GroupColumn],
    outcomes: Mapping[int | None, str] | None = None,
) -> tuple[Constraint, ...]:
    """Every notion over every column of groups, with distinct names.

    outcomes: the classes that rates are about, and their names; {None: name of the positive one}
    where there are two.
    """
    if isinstance(constraint, Mapping):
        notions: list[Any] = list(constraint)
        bounds: list[Any] = list(constraint.values())
    else:
        notions = list(constraint) if isinstance(constraint, list | tuple) else [constraint]
        bounds = list(bound) if isinstance(bound, list | tuple) else [bound] * len(notions)
    if not notions or len(bounds) != len(notions):
        raise ValueError(
            f"{len(notions)} constraints need as many bounds, or one for all; got bound={bound!r}"
        )
    made: list[Constraint] = []
    for notion, notion_bound in zip(notions, bounds, strict=True):
        _check_bound(notion_bound)
        for by, column in columns.items():
            if (
                len(column.names) == 1
                and isinstance(notion, str)
                and notion in NOTIONS
                and "bounded" not in notion
            ):
                raise ValueError(
                    f"sensitive_features has one group only, {column.names[0]!r}, and {notion!r}"
                    " compares groups; give the column that divides the examples"
                )
            for label, on_column in _of_classes(notion, column.names, notion_bound, outcomes):
                prefixes = [str(notion)] if len(notions) > 1 and isinstance(notion, str) else []
                prefixes += [label] if label else []
                prefixes += [by] if len(columns) > 1 else []
                names = tuple(": ".join([*prefixes, name]) for name in on_column.names)
                _check(on_column)
                made.append(replace(on_column, by=by, names=names))
    return tuple(made)


def _of_classes(
    notion: Notion, names: Sequence[str], bound: float, outcomes: Mapping[int | None, str] | None
) -> list[tuple[str, Constraint]]:
    """The constraint, or with several classes one on the rates of each; with the name of the
    class."""
    outcomes = outcomes or {None: ""}
    if not isinstance(notion, str) or notion not in NOTIONS or "loss" in notion or None in outcomes:
        made = make_constraint(notion, names, bound)
        return [("" if made.statistic is None else outcomes.get(None, ""), made)]
    if notion not in RATES_OF_A_CLASS:
        raise ValueError(
            f"{notion!r} is about two classes; with several use one of"
            f" {', '.join(map(repr, RATES_OF_A_CLASS))}, or a constraint of fairbound.constraints"
            " with outcome="
        )
    return [(name, NOTIONS[notion](names, bound=bound, outcome=k)) for k, name in outcomes.items()]


def _check_bound(bound: Any) -> None:
    if (
        isinstance(bound, bool)
        or not isinstance(bound, int | float | np.number)
        or not 0 <= float(bound) < np.inf
    ):
        raise ValueError(f"bound must be a finite number >= 0, got {bound!r}")


def _check(constraint: Constraint) -> None:
    if constraint.absolute:
        raise ValueError(
            f"{constraint.names[0]!r} is in its absolute form; use the two-sided one"
            " (absolute=False), which has a multiplier for each side"
        )
    largest = float(constraint.bound.max())
    if largest > 2 and constraint.statistic is None and bool(is_difference(constraint).any()):
        raise ValueError(
            f"bound={largest:g} allows every difference of losses in practice: guessing has a loss"
            " of 0.69; use e.g. 0.05"
        )


def is_difference(constraint: Constraint) -> Tensor:
    """(m,) which rows compare cells, as differences or ratios: their contrast has weights of both
    signs."""
    M = constraint.contrast.matrix()
    return (M > 0).any(1) & (M < 0).any(1)


def refuse_empty_cells(
    constraints: Sequence[Constraint], groups: Mapping[str, Tensor], labels: Tensor
) -> None:
    for constraint in constraints:
        cells = constraint.cells.bind(groups[constraint.by or ""], labels)
        empty = [
            name
            for name, member in zip(cells.names, cells.examples, strict=True)
            if len(member) == 0
        ]
        if empty:
            raise ValueError(
                f"there are no examples of {listing(map(repr, empty), 4)}, which the constraint"
                f" {constraint.names[0]!r} is about; merge groups, or choose a notion that does not"
                " need them"
            )


def refuse_permuted(X: Any, **columns: Any) -> None:
    """Columns are matched to X by position; one with the labels of X in another order was not meant
    so."""
    index = getattr(X, "index", None)
    for name, column in columns.items():
        other = getattr(column, "index", None)
        if (
            index is None
            or other is None
            or callable(other)
            or callable(index)
            or len(index) != len(other)
        ):
            continue
        if not index.equals(other) and index.sort_values().equals(other.sort_values()):
            raise ValueError(
                f"{name} has the index of X in another order, and examples are matched by position;"
                f" use {name}.loc[X.index], or .to_numpy() if the order is right"
            )


def data_hash(X: Any, *columns: Any) -> str:
    """Hash of the entries, whatever kind of table or column they are in."""
    frames = [
        as_frame(X),
        *(pd.DataFrame(np.asarray(column, object)) for column in columns if column is not None),
    ]
    total = hashlib.sha256()
    for frame in frames:
        total.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return total.hexdigest()[:16]


# Weights and strata -------------------------------------------------------------------------------


def strata_of(groups: Mapping[str, Tensor], labels: Tensor) -> NDArray[np.int64]:
    """(n,) the group in every column and the label, as one number."""
    strata = labels.long()
    for codes in groups.values():
        strata = strata * (int(codes.max()) + 1) + codes
    return np.unique(strata.numpy(), return_inverse=True)[1]


def normalized_weight(weight: NDArray[np.float64] | None, rows: NDArray[np.int64]) -> Tensor | None:
    """(n,) of these examples, with mean 1."""
    if weight is None or not len(rows):
        return None
    drawn = weight[rows]
    if not drawn.any():
        raise ValueError(
            f"sample_weight is zero for all of {len(rows)} examples that were drawn at random"
        )
    return torch.from_numpy(drawn / drawn.mean())


def checked_weight(sample_weight: Any, X: Any) -> NDArray[np.float64] | None:
    """Sample weights, none negative."""
    return (
        None
        if sample_weight is None
        else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
    )
