"""Limits: constraints without data, for rows that come in mini-batches.

A limit says who (a group, or a group within a label), how they are compared, what is averaged and how much is allowed:
contrast @ cell_means <= bound. `Constrained` reads the cells from every mini-batch's groups and labels;
`limit.on(groups, labels)` is the same constraint over the rows of a dataset, for a `Problem`.

>>> loss_parity(["white", "other"], bound=0.02).names
('white - mean', 'mean - white', 'other - mean', 'mean - other')
>>> minimum_rate(0.8, groups=["A", "B"], group="B", label=1).names          # recall of B
('rate of B, y=1 >= 0.8',)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.cells import Cells
from fairbound.constraints.constraint import CellConstraint
from fairbound.constraints.contrasts import Compare, against_mean, pairwise, sums_of_pairs
from fairbound.constraints.statistics import Value, rate_of, soft_positive

Groups = int | Sequence[str]  # how many groups there are, or their names


class Cell(NamedTuple):
    """A cell: the rows of a group, of a label, or of a group within a label."""

    name: str
    group: int | None = None  # None: everybody
    label: float | None = None  # None: whatever the label

    @property
    def group_name(self) -> str:
        """The group's own name, without the label."""
        return self.name if self.label is None else self.name.rsplit(", y=", 1)[0]


@dataclass(frozen=True, eq=False)
class Limit:
    """contrast @ cell_means <= bound."""

    who: tuple[Cell, ...]
    contrast: Tensor  # (m, K)
    bound: Tensor  # (m,)
    names: tuple[str, ...]
    value: Value | None = None  # None: the loss
    true: Value | None = None  # what `value` stands for where it is a stand-in: reported, never trained
    by: str | None = None  # the column of groups that is meant, where there are several
    groups: int | None = None  # how many groups there are: numbers beyond are refused

    def __post_init__(self) -> None:
        m, K = len(self.names), len(self.who)
        if self.contrast.shape != (m, K) or self.bound.shape != (m,):
            raise ValueError(
                f"{m} limits on {K} cells need a contrast of shape ({m}, {K}) and as many bounds, "
                f"got {tuple(self.contrast.shape)} and {tuple(self.bound.shape)}"
            )
        if not torch.isfinite(self.bound).all():
            raise ValueError(f"bounds must be finite, got {self.bound.tolist()}")

    @property
    def needs_labels(self) -> bool:
        return any(cell.label is not None for cell in self.who)

    @property
    def needs_groups(self) -> bool:
        return any(cell.group is not None for cell in self.who)

    @property
    def by_table(self) -> bool:
        """Whether a row's cells follow from its group alone, so that a table of groups gives them."""
        return self.groups is not None and not self.needs_labels and all(cell.group is not None for cell in self.who)

    def on(self, groups: Tensor, labels: Tensor | None = None) -> CellConstraint:
        """The same constraint over the rows of a dataset."""
        if self.needs_labels and labels is None:
            raise ValueError(f"{self.names[0]!r} is about rows with a certain label; give labels=")
        if labels is not None and labels.shape != groups.shape:
            raise ValueError(f"groups have shape {tuple(groups.shape)} but labels {tuple(labels.shape)}")
        members = []
        for cell in self.who:
            inside = torch.ones_like(groups, dtype=torch.bool) if cell.group is None else groups == cell.group
            members.append(
                (inside if cell.label is None else inside & (labels == cell.label)).nonzero().flatten().cpu()
            )
        cells = Cells(tuple(cell.name for cell in self.who), tuple(members))
        return CellConstraint(cells, self.contrast, self.bound, self.names, self.value)


@dataclass(frozen=True, eq=False)
class FunctionLimit:
    """fun(rows) <= 0, a function of the user's on a mini-batch: (m,), written with torch operations.

    `rows` has losses, outputs, labels, groups and the model's parameters (`fairbound.MiniBatch`). Its value on a
    mini-batch should be an unbiased estimate of what is meant, as a mean over rows is.
    """

    fun: Callable[[Any], Tensor]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise TypeError(f"names must be a tuple with one name for each limit, got {self.names!r}")


AnyLimit = Limit | FunctionLimit


def named(limits: AnyLimit | Sequence[AnyLimit] | Mapping[str, AnyLimit]) -> tuple[list[AnyLimit], tuple[str, ...]]:
    """One or several limits as a list, and the names of all their rows, each once."""
    if isinstance(limits, Limit | FunctionLimit):
        listed, names = [limits], list(limits.names)
    elif isinstance(limits, Mapping):
        listed = list(limits.values())
        names = [f"{key}: {name}" for key, limit in limits.items() for name in getattr(limit, "names", ())]
    else:
        if isinstance(limits, str) or not isinstance(limits, Iterable):
            raise TypeError(f"{type(limits).__name__} is no limit; use those of fairbound.limits, which need no data")
        listed = list(limits)
        names = [name for limit in listed for name in getattr(limit, "names", ())]
    if not listed:
        raise ValueError("there are no limits; give at least one of fairbound.limits")
    for limit in listed:
        if not isinstance(limit, Limit | FunctionLimit):
            raise TypeError(f"{type(limit).__name__} is no limit; use those of fairbound.limits, which need no data")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(
            f"two limits are called {doubled[0]!r}, and a saved state tells them by name; "
            'give a mapping: {"race": ..., "sex": ...}'
        )
    if len({id(limit) for limit in listed}) < len(listed):
        raise ValueError("one limit is given twice under two names; leave one out, or build it twice")
    return listed, tuple(names)


# The named limits -----------------------------------------------------------------------------------------------------


def group_names(groups: Groups) -> tuple[str, ...]:
    """Names of the groups 0, 1, ..."""
    if isinstance(groups, str):
        raise TypeError(f'groups must be their number or a list of names, got the string {groups!r}; use ["A", "B"]')
    names = tuple(str(g) for g in range(groups)) if isinstance(groups, int) else tuple(map(str, groups))
    if not names:
        raise ValueError("there are no groups; give their number or their names")
    if len(set(names)) < len(names):
        raise ValueError(f"groups must have names of their own, got {list(names)}")
    return names


def _of_groups(names: Sequence[str], label: float | None = None) -> tuple[Cell, ...]:
    suffix = "" if label is None else f", y={label:g}"
    return tuple(Cell(f"{name}{suffix}", code, label) for code, name in enumerate(names))


def _gaps(
    who: tuple[Cell, ...],
    bound: float,
    contrast: Compare,
    value: Value | None,
    by: str | None,
    true: Value | None = None,
) -> Limit:
    if not 0 <= bound < math.inf:
        raise ValueError(f"bounds must be finite and >= 0, got {bound}")
    matrix, names = contrast([cell.name for cell in who])
    bounds = torch.full((len(names),), float(bound), dtype=torch.float64)
    return Limit(who, matrix, bounds, names, value, true, by, 1 + max(cell.group or 0 for cell in who))


def loss_parity(groups: Groups, *, bound: float, contrast: Compare = against_mean, by: str | None = None) -> Limit:
    """Group losses within `bound` of their mean (the paper's eq. 4), or of each other (`contrast=pairwise`)."""
    return _gaps(_of_groups(group_names(groups)), bound, contrast, None, by)


def pairwise_loss_parity(groups: Groups, *, bound: float, by: str | None = None) -> Limit:
    """Table 1: |loss of A - loss of B| <= bound, for every pair of groups."""
    return loss_parity(groups, bound=bound, contrast=pairwise, by=by)


def equal_opportunity(groups: Groups, *, bound: float, by: str | None = None) -> Limit:
    """Table 1: |loss of A - loss of B| over the rows with label 1 <= bound; of the rates: `true_positive_parity`."""
    return _gaps(_of_groups(group_names(groups), 1), bound, pairwise, None, by)


def equalized_odds(groups: Groups, *, bound: float, value: Value | None = None, by: str | None = None) -> Limit:
    """Table 1: the loss gaps over labels 1 and over labels 0, added, at most `bound`.

    With `value=soft_positive` the gaps are those of the TPR and FPR.
    """
    names = group_names(groups)
    true = rate_of(None).true if value is soft_positive else None
    return _gaps(_of_groups(names, 1) + _of_groups(names, 0), bound, sums_of_pairs, value, by, true)


def _rate_gaps(
    groups: Groups, label: float | None, bound: float, contrast: Compare, by: str | None, outcome: int | None
) -> Limit:
    rate = rate_of(outcome)
    return _gaps(_of_groups(group_names(groups), label), bound, contrast, rate.soft, by, rate.true)


def demographic_parity(
    groups: Groups, *, bound: float, contrast: Compare = pairwise, by: str | None = None, outcome: int | None = None
) -> Limit:
    """Rates of positive predictions (with several classes: of class `outcome`) within `bound`."""
    return _rate_gaps(groups, None, bound, contrast, by, outcome)


def true_positive_parity(
    groups: Groups, *, bound: float, contrast: Compare = pairwise, by: str | None = None, outcome: int | None = None
) -> Limit:
    """True positive rates (of class `outcome`: its recall) within `bound`."""
    return _rate_gaps(groups, 1 if outcome is None else outcome, bound, contrast, by, outcome)


def false_positive_parity(
    groups: Groups, *, bound: float, contrast: Compare = pairwise, by: str | None = None
) -> Limit:
    """False positive rates within `bound`."""
    return _rate_gaps(groups, 0, bound, contrast, by, None)


def bounded_group_loss(groups: Groups, *, bound: float, by: str | None = None) -> Limit:
    """The loss of every group at most `bound`."""
    who = _of_groups(group_names(groups))
    names = tuple(f"loss of {cell.name} <= {bound:g}" for cell in who)
    eye = torch.eye(len(who), dtype=torch.float64)
    bounds = torch.full((len(who),), float(bound), dtype=torch.float64)
    return Limit(who, eye, bounds, names, by=by, groups=len(who))


def minimum_rate(
    rate: float,
    *,
    groups: Groups | None = None,
    group: str | int | None = None,
    label: float | None = None,
    outcome: int | None = None,
    by: str | None = None,
) -> Limit:
    """The rate of positive predictions at least `rate`: of one group, of every one (`group=None`), or of all rows.

    With `label=1` it is the recall, with `label=0` the false positive rate. Without `groups` it is about all rows.
    """
    return _one_sided(rate, -1.0, ">=", groups, group, label, outcome, by)


def maximum_rate(
    rate: float,
    *,
    groups: Groups | None = None,
    group: str | int | None = None,
    label: float | None = None,
    outcome: int | None = None,
    by: str | None = None,
) -> Limit:
    """The rate of positive predictions at most `rate`; see `minimum_rate`."""
    return _one_sided(rate, 1.0, "<=", groups, group, label, outcome, by)


def _one_sided(
    rate: float,
    sign: float,
    symbol: str,
    groups: Groups | None,
    group: str | int | None,
    label: float | None,
    outcome: int | None,
    by: str | None,
) -> Limit:
    if not 0 <= rate <= 1:
        raise ValueError(f"a rate lies between 0 and 1, got {rate}")
    who = _chosen(groups, group, label)
    value = rate_of(outcome)
    matrix = sign * torch.eye(len(who), dtype=torch.float64)
    bound = torch.full((len(who),), sign * float(rate), dtype=torch.float64)
    what = "rate" if outcome is None else f"rate of class {outcome}"
    names = tuple(f"{what} of {cell.name} {symbol} {rate:g}" for cell in who)
    return Limit(
        who, matrix, bound, names, value.soft, value.true, by, None if groups is None else len(group_names(groups))
    )


def _chosen(groups: Groups | None, group: str | int | None, label: float | None) -> tuple[Cell, ...]:
    if groups is None:
        if group is not None:
            raise ValueError(f"group={group!r} needs groups=, the names of all groups or their number")
        return (Cell("all" if label is None else f"all, y={label:g}", None, label),)
    names = group_names(groups)
    who = _of_groups(names, label)
    if group is None:
        return who
    code = names.index(group) if isinstance(group, str) and group in names else group
    if not isinstance(code, int) or not 0 <= code < len(names):
        raise ValueError(f"there is no group {group!r}; the groups are {list(names)}")
    return (who[code],)


def weight_norm(bound: float) -> FunctionLimit:
    """The Euclidean norm of all trained parameters at most `bound`."""
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound on a norm must be finite and > 0, got {bound}")

    def excess(rows: Any) -> Tensor:
        norms = torch.stack([torch.linalg.vector_norm(p) for p in rows.parameters])
        norm: Tensor = torch.linalg.vector_norm(norms)
        return (norm - bound).reshape(1)

    return FunctionLimit(excess, (f"weight norm <= {bound:g}",))


def function(fun: Callable[[Any], Tensor], *names: str) -> FunctionLimit:
    """A function of yours, fun(rows) <= 0, with a name for each of its values."""
    return FunctionLimit(fun, names)
