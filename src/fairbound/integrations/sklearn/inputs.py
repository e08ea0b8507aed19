"""Constraints of a fit, made from notions and groups; sample weights and strata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.constraints.notions import NOTIONS, make_constraint
from fairbound.integrations.groups import GroupColumn

Notion = str | Constraint | Callable[..., Constraint]
Constraints = Notion | Sequence[Notion] | Mapping[str, float]  # one, several, or names with their bounds
RATES_OF_A_CLASS = ("demographic_parity", "equal_opportunity")  # notions that take outcome=, the class of several


def make_constraints(
    constraint: Constraints,
    bound: float | Sequence[float],
    columns: Mapping[str, GroupColumn],
    outcomes: Mapping[int, str] | None,
) -> tuple[Constraint, ...]:
    """Every notion over every column of groups, with distinct names.

    outcomes: with several classes, those that rates are about, and their names; else None.
    """
    if isinstance(constraint, Mapping):
        notions: list[Any] = list(constraint)
        bounds: list[Any] = list(constraint.values())
    else:
        notions = list(constraint) if isinstance(constraint, list | tuple) else [constraint]
        bounds = list(bound) if isinstance(bound, list | tuple) else [bound] * len(notions)
    if not notions or len(bounds) != len(notions):
        raise ValueError(f"{len(notions)} constraints need as many bounds, or one for all; got bound={bound!r}")
    made: list[Constraint] = []
    for notion, notion_bound in zip(notions, bounds, strict=True):
        _check_bound(notion_bound)
        for by, column in columns.items():
            if len(column.names) == 1 and isinstance(notion, str) and notion in NOTIONS and "bounded" not in notion:
                raise ValueError(
                    f"sensitive_features has one group only, {column.names[0]!r}, and {notion!r} compares groups; give "
                    "the column that divides the examples"
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
    notion: Notion, names: Sequence[str], bound: float, outcomes: Mapping[int, str] | None
) -> list[tuple[str, Constraint]]:
    """The constraint, or with several classes one on the rates of each."""
    named = isinstance(notion, str) and notion in NOTIONS
    if outcomes is None or not named or "loss" in str(notion):
        return [("", make_constraint(notion, names, bound))]
    if notion not in RATES_OF_A_CLASS:
        raise ValueError(
            f"{notion!r} is about two classes; with several use {' or '.join(map(repr, RATES_OF_A_CLASS))}, or a "
            "constraint of fairbound.constraints with outcome="
        )
    return [(name, NOTIONS[str(notion)](names, bound=bound, outcome=k)) for k, name in outcomes.items()]


def _check_bound(bound: Any) -> None:
    if isinstance(bound, bool) or not isinstance(bound, int | float | np.number) or not 0 <= float(bound) < np.inf:
        raise ValueError(f"bound must be a finite number >= 0, got {bound!r}")


def _check(constraint: Constraint) -> None:
    if constraint.absolute:
        raise ValueError(
            f"{constraint.names[0]!r} is in its absolute form; use the two-sided one (absolute=False), which has a "
            "multiplier for each side"
        )
    largest = float(constraint.bound.max())
    if largest > 2 and constraint.statistic is None and bool(is_difference(constraint).any()):
        raise ValueError(
            f"bound={largest:g} allows every difference of losses in practice: guessing has a loss of 0.69; use e.g. "
            "0.05"
        )


def is_difference(constraint: Constraint) -> Tensor:
    """(m,) which rows compare cells: their contrast weights sum to 0."""
    ones = torch.ones(len(constraint.cells), dtype=torch.float64)
    return constraint.contrast.apply(ones).abs() < 1e-9


def refuse_empty_cells(constraints: Sequence[Constraint], groups: Mapping[str, Tensor], labels: Tensor) -> None:
    for constraint in constraints:
        cells = constraint.cells.bind(groups[constraint.by or ""], labels)
        empty = [name for name, member in zip(cells.names, cells.examples, strict=True) if len(member) == 0]
        if empty:
            raise ValueError(
                f"there are no examples of {', '.join(map(repr, empty[:4]))}, which the constraint "
                f"{constraint.names[0]!r} is about; merge groups, or choose a notion that does not need them"
            )


# Weights and strata ---------------------------------------------------------------------------------------------------


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
        raise ValueError(f"sample_weight is zero for all of {len(rows)} examples that were drawn at random")
    return torch.from_numpy(drawn / drawn.mean())


def checked_weight(sample_weight: Any, X: Any) -> NDArray[np.float64] | None:
    """Sample weights, none negative, not all zero."""
    if sample_weight is None:
        return None
    weight: NDArray[np.float64] = _check_sample_weight(sample_weight, X)
    if (weight < 0).any():
        raise ValueError(f"sample_weight must not be negative, found {float(weight.min()):g}")
    if not weight.any():
        raise ValueError("sample_weight is zero for every example")
    return weight
