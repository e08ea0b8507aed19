"""The named constraints. Each function takes the names of the groups (or their number) and a bound.

A notion added to `NOTIONS` works by its name in `FairClassifier`, in experiment files and in Keras'
`fit`.

>>> loss_parity(["white", "other"], bound=0.02).names
('white - mean', 'mean - white', 'other - mean', 'mean - other')
>>> minimum_rate(0.8, groups=["A", "B"], group="B", label=1).names  # recall of B
('rate of B, y=1 >= 0.8',)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from fairbound._utils.sentences import did_you_mean
from fairbound._utils.sequences import sequence
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import Constraint, FunctionConstraint
from fairbound.constraints._contrasts import (
    Compare,
    Each,
    against_mean,
    each,
    pairwise,
    ratios,
    sums_of_pairs,
)
from fairbound.constraints._statistics import Statistic, rate_of

_Groups = int | Sequence[str]  # how many groups there are, or their names
Of = Literal["rate", "loss"]
Bound = float | Sequence[float] | Tensor  # one for all constraints, or one for each
LOOSE_RATIO = 0.2  # of rates: nobody means so small a bound, but rather a difference, or 1 - 0.8


def _group_names(groups: _Groups) -> Sequence[str]:
    """Names of the groups 0, 1, ..."""
    if isinstance(groups, str):
        raise TypeError(
            f'groups must be their number or a list of names, got the string {groups!r}; use ["A",'
            ' "B"]'
        )
    if isinstance(groups, int) and groups > 0:
        return sequence(groups, str)
    names = () if isinstance(groups, int) else tuple(map(str, groups))
    if not names:
        raise ValueError("there are no groups; give their number or their names")
    if len(set(names)) < len(names):
        raise ValueError(f"groups must have distinct names, got {list(names)}")
    return names


def _gaps(
    cells: Cells,
    bound: Bound,
    contrast: Compare,
    statistic: Statistic | None,
    by: str | None,
    proxy: bool = False,
) -> Constraint:
    compared = contrast(cells.names)
    bounds = _bounds(bound, len(compared.names), len(cells))
    if not float(bounds.min()) >= 0:
        raise ValueError(f"bounds must be finite and >= 0, got {float(bounds.min()):g}")
    largest = 2 if contrast is sums_of_pairs else 1
    if statistic is not None and float(bounds.max()) > largest:
        raise ValueError(
            f"bound={float(bounds.max()):g} allows every difference of rates, which is at most"
            f" {largest}; give a share, such as 0.05 for 5 percentage points"
        )
    return Constraint(cells, compared, bounds, statistic, by=by, proxy=proxy)


def _bounds(bound: Bound, rows: int, cells: int) -> Tensor:
    """(rows,) one bound for all rows, for each of them, or for each cell where every cell has two
    rows."""
    if isinstance(bound, str):
        raise TypeError(f"bounds must be numbers, got {bound!r}; 5 % are 0.05")
    bounds = torch.as_tensor(bound, dtype=torch.float64)
    if not bool(torch.isfinite(bounds).all()):
        raise ValueError(f"bounds must be finite and >= 0, got {bound}")
    if bounds.ndim == 1 and len(bounds) == cells and rows == 2 * cells:
        return bounds.repeat_interleave(2)
    if bounds.ndim > 1 or (bounds.ndim == 1 and len(bounds) != rows):
        raise ValueError(
            f"{tuple(bounds.shape)} bounds for {rows} constraints; give one, or one for each of"
            " them"
        )
    return bounds.expand(rows).clone()


def _statistic(of: Of, outcome: int | None = None) -> Statistic | None:
    if of not in ("rate", "loss"):
        raise ValueError(f'of must be "rate" or "loss", got {of!r}')
    return None if of == "loss" else rate_of(outcome)


def loss_parity(
    groups: _Groups, *, bound: Bound, contrast: Compare = against_mean, by: str | None = None
) -> Constraint:
    """Group losses within `bound` of their mean (the paper's eq. 4), or of each other
    (`contrast=pairwise`)."""
    return _gaps(Cells.of_groups(_group_names(groups)), bound, contrast, None, by)


def pairwise_loss_parity(groups: _Groups, *, bound: Bound, by: str | None = None) -> Constraint:
    """|loss of A - loss of B| <= bound for every pair of groups: "accuracy equality" in Table 1 of
    the paper."""
    return loss_parity(groups, bound=bound, contrast=pairwise, by=by)


def demographic_parity(
    groups: _Groups,
    *,
    bound: Bound,
    contrast: Compare = pairwise,
    by: str | None = None,
    outcome: int | None = None,
    proxy: bool = False,
) -> Constraint:
    """Rates of positive predictions (with several classes: of class `outcome`) within `bound`.

    `proxy=True`, here and below: the exact rate moves the multipliers, and its differentiable
    surrogate, the probability, moves the model. Otherwise the surrogate moves both.
    """
    return _gaps(
        Cells.of_groups(_group_names(groups)), bound, contrast, rate_of(outcome), by, proxy
    )


def demographic_parity_ratio(
    groups: _Groups,
    *,
    bound: float,
    by: str | None = None,
    outcome: int | None = None,
    proxy: bool = False,
) -> Constraint:
    """Every rate of positive predictions at least `bound` times every other: 0.8 is the four-fifths
    rule.

    Without `proxy=True` a loop trains the ratio of mean probabilities, and that of the decisions
    may be far lower.

    >>> demographic_parity_ratio(["A", "B"], bound=0.8).names  # each at most 0
    ('0.8 A - B', '0.8 B - A')
    """
    if (
        isinstance(bound, bool)
        or not isinstance(bound, Real)
        or not LOOSE_RATIO < float(bound) <= 1
    ):
        limits = f"above {LOOSE_RATIO}, which allows nearly every ratio, and at most 1"
        raise ValueError(
            f"a ratio of rates is bounded from below, by a number {limits}, such as 0.8; got"
            f" {bound!r}"
        )
    cells = Cells.of_groups(_group_names(groups))
    compared = ratios(cells.names, float(bound))
    zero = torch.zeros(len(compared.names), dtype=torch.float64)
    return Constraint(cells, compared, zero, rate_of(outcome), by=by, proxy=proxy)


def equal_opportunity(
    groups: _Groups,
    *,
    bound: Bound,
    contrast: Compare = pairwise,
    by: str | None = None,
    outcome: int | None = None,
    of: Of = "rate",
    proxy: bool = False,
) -> Constraint:
    """True positive rates (of class `outcome`: its recall) within `bound`.

    `of="loss"` is Table 1 of the paper: the losses of the examples with a positive label.
    """
    cells = Cells.of_groups(_group_names(groups), 1 if outcome is None else outcome)
    return _gaps(cells, bound, contrast, _statistic(of, outcome), by, proxy)


def false_positive_parity(
    groups: _Groups,
    *,
    bound: Bound,
    contrast: Compare = pairwise,
    by: str | None = None,
    proxy: bool = False,
) -> Constraint:
    """False positive rates within `bound`."""
    return _gaps(
        Cells.of_groups(_group_names(groups), 0), bound, contrast, rate_of(None), by, proxy
    )


def equalized_odds(
    groups: _Groups, *, bound: Bound, by: str | None = None, of: Of = "rate", proxy: bool = False
) -> Constraint:
    """The gaps of the true positive and of the false positive rates, added, at most `bound`.

    `of="loss"` is Table 1 of the paper: the loss gaps over labels 1 and over labels 0, added.
    """
    names = _group_names(groups)
    cells = Cells.of_groups(names, 1) + Cells.of_groups(names, 0)
    return _gaps(cells, bound, sums_of_pairs, _statistic(of), by, proxy)


def bounded_group_loss(groups: _Groups, *, bound: Bound, by: str | None = None) -> Constraint:
    """The loss of every group at most `bound`.

    With the number of an example as its group it is about every example:
    `bounded_group_loss(len(data), bound=0.5)`.
    """
    cells = Cells.of_groups(_group_names(groups))
    bounds = _bounds(bound, len(cells), len(cells))
    names = sequence(len(cells), lambda k: f"loss of {cells.names[k]} <= {float(bounds[k]):g}")
    return Constraint(cells, each(names), bounds, by=by)


def minimum_rate(
    rate: float,
    *,
    groups: _Groups | None = None,
    group: str | int | None = None,
    label: float | None = None,
    outcome: int | None = None,
    by: str | None = None,
    equality: bool = False,
    proxy: bool = False,
) -> Constraint:
    """The rate of positive predictions at least `rate`: of one group, of every one (`group=None`),
    or of all examples.

    With `label=1` it is the recall, with `label=0` the false positive rate. Without `groups` it is
    about all examples. With `equality` the rate is `rate` exactly.
    """
    return _one_sided(rate, -1.0, _chosen(groups, group, label), outcome, by, equality, proxy)


def maximum_rate(
    rate: float,
    *,
    groups: _Groups | None = None,
    group: str | int | None = None,
    label: float | None = None,
    outcome: int | None = None,
    by: str | None = None,
    proxy: bool = False,
) -> Constraint:
    """The rate of positive predictions at most `rate`; see `minimum_rate`."""
    return _one_sided(rate, 1.0, _chosen(groups, group, label), outcome, by, False, proxy)


def _one_sided(
    rate: float,
    sign: float,
    cells: Cells,
    outcome: int | None,
    by: str | None,
    equality: bool,
    proxy: bool,
) -> Constraint:
    if not 0 <= rate <= 1:
        raise ValueError(f"a rate lies between 0 and 1, got {rate}")
    statistic = "rate" if outcome is None else f"rate of class {outcome}"
    sense = "=" if equality else "<=" if sign > 0 else ">="
    names = sequence(len(cells), lambda k: f"{statistic} of {cells.names[k]} {sense} {rate:g}")
    bound = torch.full((len(cells),), sign * float(rate), dtype=torch.float64)
    return Constraint(
        cells, Each(names, sign), bound, rate_of(outcome), equality, by=by, proxy=proxy
    )


def _chosen(groups: _Groups | None, group: str | int | None, label: float | None) -> Cells:
    if groups is None:
        if group is not None:
            raise ValueError(
                f"group={group!r} needs groups=, the names of all groups or their number"
            )
        return Cells((Cell("all" if label is None else f"all, y={label:g}", None, label),))
    names = _group_names(groups)
    cells = Cells.of_groups(names, label)
    if group is None:
        return cells
    code = names.index(group) if isinstance(group, str) and group in names else group
    if not isinstance(code, int) or not 0 <= code < len(names):
        raise ValueError(f"there is no group {group!r}; the groups are {list(names)}")
    return replace(cells, items=(cells.items[code],), by_group=False)


def weight_norm(bound: float) -> FunctionConstraint:
    """The Euclidean norm of all trained parameters at most `bound`."""
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound on a norm must be finite and > 0, got {bound}")

    def excess(batch: MiniBatch) -> Tensor:
        norms = torch.stack([torch.linalg.vector_norm(p) for p in batch.parameters])
        norm: Tensor = torch.linalg.vector_norm(norms)
        return (norm - bound).reshape(1)

    return FunctionConstraint(excess, (f"weight norm <= {bound:g}",), Cells((), ()))


def function(
    fun: Callable[[MiniBatch], Tensor], *names: str, equality: bool = False
) -> FunctionConstraint:
    """A function of yours, fun(batch) <= 0 (= 0 with `equality`), with a name for each of its
    values."""
    return FunctionConstraint(fun, names, equality=equality)


def given(*names: str, equality: bool = False) -> FunctionConstraint:
    """Constraints whose values you hand over with a mini-batch, `values={name: tensor}`; feasible
    where <= 0 (or = 0).

    A second task's loss, a safe set's, whatever the loop computes; one that is left out is not
    observed in that step.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"given() needs a name for each value, got {names!r}")

    def handed_over(batch: MiniBatch) -> tuple[Tensor, Tensor]:
        values = batch.values or {}
        observed = torch.tensor([name in values for name in names], device=batch.losses.device)
        rows = [
            _row(name, values[name], batch) if name in values else batch.losses.new_zeros(1)
            for name in names
        ]
        return torch.cat([row.to(batch.losses.device) for row in rows]), observed

    return FunctionConstraint(
        handed_over, names, Cells((), ()), equality=equality, handed_over=True
    )


def _row(name: str, value: object, batch: MiniBatch) -> Tensor:
    """(1,) a value; one without a graph would have a multiplier and no gradient."""
    trains = batch.losses.requires_grad and torch.is_grad_enabled()
    if not isinstance(value, Tensor) or (trains and not value.requires_grad):
        what = (
            "carries no graph"
            if isinstance(value, Tensor)
            else f"is a {type(value).__name__}, without a graph"
        )
        raise ValueError(
            f"values[{name!r}] {what} to differentiate; compute it from the model with torch"
            " operations, outside torch.no_grad(), without .detach(), .item() or float()"
        )
    if value.numel() != 1:
        raise ValueError(
            f"values[{name!r}] must be one number, got shape {tuple(value.shape)}; take its mean"
        )
    return value.reshape(1)


# by name: (names of the groups, bound=...) -> Constraint
NOTIONS: dict[str, Callable[..., Constraint]] = {
    notion.__name__: notion
    for notion in (
        bounded_group_loss,
        demographic_parity,
        demographic_parity_ratio,
        equal_opportunity,
        equalized_odds,
        false_positive_parity,
        loss_parity,
        pairwise_loss_parity,
    )
}


def make_constraint(
    constraint: str | Constraint | Callable[..., Constraint], names: Sequence[str], bound: float
) -> Constraint:
    """A constraint by the name of its notion, from a function of the groups' names, or as it is."""
    if isinstance(constraint, Constraint):
        return _renumbered(constraint, names)
    if callable(constraint):
        built = constraint(names, bound=bound)
        if not isinstance(built, Constraint):
            raise TypeError(
                "the function given as constraint must return a Constraint, got"
                f" {type(built).__name__}"
            )
        return _renumbered(built, names)
    if not isinstance(constraint, str) or constraint not in NOTIONS:
        raise ValueError(
            f"there is no constraint {constraint!r}; {did_you_mean(constraint, NOTIONS)} (or pass a"
            " constraint on losses or rates, or a function of (names, bound=...) that gives one)"
        )
    return NOTIONS[constraint](names, bound=bound)


def _renumbered(constraint: Constraint, names: Sequence[str]) -> Constraint:
    """The constraint with its groups numbered as the data's are: by their names."""
    if constraint.by is not None:
        raise ValueError(
            f"the constraint names a column, by={constraint.by!r}, and sensitive_features is one;"
            " omit by="
        )
    cells = constraint.cells
    names_by_code = {cell.group: cell.group_name for cell in cells.items if cell.group is not None}
    if all(name == str(code) for code, name in names_by_code.items()) and not set(
        names_by_code.values()
    ) <= set(names):
        if cells.groups is not None and cells.groups != len(names):
            raise ValueError(
                f"the constraint is about {cells.groups} groups, and the data has {len(names)}:"
                f" {list(names)}"
            )
        return constraint  # it was given the number of groups, not their names
    unknown = [name for name in names_by_code.values() if name not in names]
    if unknown:
        raise ValueError(
            f"the constraint is about {unknown[0]!r}, and the groups of the data are {list(names)}"
        )
    place = {name: code for code, name in enumerate(names)}
    items = tuple(
        cell if cell.group is None else cell._replace(group=place[cell.group_name])
        for cell in cells.items
    )
    return (
        constraint
        if items == cells.items
        else replace(constraint, cells=Cells(items, groups=len(names)))
    )
