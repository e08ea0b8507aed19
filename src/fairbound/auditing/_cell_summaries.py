"""Statistics of the cells of constraints on held-out examples: means, standard errors, skewness and
correlations.

Columns of any kind (arrays, tensors, pandas, polars) are converted here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound._utils.sentences import counted, listing
from fairbound.columns._column import Column
from fairbound.columns._groups import group_numbers
from fairbound.columns._vectors import as_binary, as_vector, as_weights, same_length
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._statistics import HardClass, positive

MIN_EXAMPLES = 30  # effective examples of a cell: with fewer, spread and skewness are too uncertain


class HeldOut(NamedTuple):
    """The held-out examples; None is a column that was not given."""

    groups: Any  # (n,) numbers or text, or a mapping of such columns
    weight: Tensor  # (n,)
    losses: Tensor | None = None  # (n,)
    predictions: Tensor | None = None  # (n,) decisions
    outputs: Tensor | None = None  # (n, ...) logits
    labels: Tensor | None = None  # (n,)

    @staticmethod
    def of(groups: Any, **columns: Any) -> HeldOut:
        """The examples of these columns: losses, predictions, outputs, labels and weight."""
        read = {"losses": _losses, "outputs": _logits, "weight": as_weights}
        tensors = {
            name: read.get(name, as_vector)(column).cpu()
            for name, column in columns.items()
            if column is not None
        }
        if not tensors.keys() & {"losses", "predictions", "outputs"}:
            raise ValueError(
                "a verdict needs values; give losses=, predictions= (decisions) or outputs="
            )
        if hasattr(groups, "columns"):  # a data frame
            groups = {str(name): groups[name] for name in groups.columns}
        named = groups if isinstance(groups, Mapping) else {"groups": groups}
        known = tensors | {name: column for name, column in named.items() if column is not None}
        same_length(**known)
        n = len(next(iter(known.values())))
        return HeldOut(groups, **{"weight": torch.ones(n, dtype=torch.float64)} | tensors)

    @property
    def size(self) -> int:
        return len(self.weight)

    def values(self, constraint: Constraint) -> Tensor:
        """(n,) what the constraint takes means of: the losses, or decisions."""
        if constraint.statistic is None:
            return _needed(
                self.losses, "losses", "one for every example (reduction='none')", constraint
            )
        statistic = constraint.statistic.reported  # exact, never the surrogate
        if self.predictions is not None and isinstance(statistic, HardClass):
            return (self.predictions == statistic.outcome).double()
        if self.predictions is not None and statistic is positive:
            return as_binary(self.predictions, "predictions").double()
        outputs = _needed(
            self.outputs, "outputs", "logits; or predictions=, the decisions", constraint
        )
        if (
            outputs.numel()
            and bool(((outputs >= 0) & (outputs <= 1)).all())
            and statistic is positive
        ):
            raise ValueError(
                f"outputs lie between {float(outputs.min()):g} and {float(outputs.max()):g} like"
                " probabilities, and as logits all of them would be positive decisions; give"
                " predictions=, e.g. p > 0.5"
            )
        labels = torch.zeros(self.size) if self.labels is None else self.labels
        measured = statistic(outputs, labels)
        if measured.numel() != self.size:
            raise ValueError(
                f"the statistic of {constraint.names[0]!r} must be one number per example, got"
                f" {tuple(measured.shape)}"
            )
        measured = as_vector(measured).double().cpu()
        return _finite(measured, f"values of {constraint.names[0]!r}")

    def codes(self, constraint: Constraint) -> Tensor:
        """(n,) the group 0, 1, ... of every example in the constraint's column, -1 for none."""
        if all(cell.group is None for cell in constraint.cells.items):
            return torch.zeros(self.size, dtype=torch.int64)
        named = {cell.group_name: cell.group for cell in constraint.cells.items}
        numbers = {name: group for name, group in named.items() if group is not None}
        column = Column.of(self._column(constraint), f"groups of {constraint.names[0]!r}")
        if column.kind != "text":
            return group_numbers(column)[0]
        # where the constraint names some groups only (the recall of B), others may have any name
        some = len(numbers) != constraint.cells.groups
        places, _ = group_numbers(column, list(numbers), others_are_none=some)
        if some and bool((places < 0).all()):
            raise ValueError(
                f"no example belongs to {listing(list(numbers))}; there is"
                f" {listing(column.factorized()[1])}"
            )
        return torch.tensor([*numbers.values(), -1])[places]

    def _column(self, constraint: Constraint) -> Any:
        if self.groups is None:
            raise ValueError(
                f"the constraint {constraint.names[0]!r} is about groups; give them, one for every"
                " example"
            )
        if not isinstance(self.groups, Mapping):
            return self.groups
        if constraint.by is None and len(self.groups) == 1:
            return next(iter(self.groups.values()))
        if constraint.by not in self.groups:
            raise ValueError(
                f"groups has the columns {sorted(self.groups)}; a constraint must name one of them"
                f" with by=, got by={constraint.by!r}"
            )
        return self.groups[constraint.by]


def _needed(column: Tensor | None, name: str, what: str, constraint: Constraint) -> Tensor:
    if column is None:
        raise ValueError(f"the constraint {constraint.names[0]!r} needs {name}=, {what}")
    return column


def _losses(losses: Any) -> Tensor:
    return _finite(as_vector(losses).double(), "losses")


def _logits(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        outputs = torch.from_numpy(np.array(outputs, dtype=float))
    tensor = outputs.detach()
    if tensor.ndim == 0:
        raise ValueError("outputs must be one or several numbers per example, got a single number")
    return _finite(tensor, "outputs")


def _finite(values: Tensor, what: str) -> Tensor:
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise ValueError(
            f"{bad} of {values.numel()} {what} are NaN or infinite; drop those examples"
        )
    return values


# Cells --------------------------------------------------------------------------------------------


class CellSummary(NamedTuple):
    """One cell of one constraint."""

    name: str
    is_rate: bool  # whether the mean is a share of examples
    problem: str  # why there is no decision on it; else empty
    examples: int = 0
    effective: float = 0.0  # equivalent number of unweighted examples: (sum w)^2 / sum w^2
    mean: float = 0.0
    error: float = 0.0  # standard error of the mean
    skewness: float = 0.0  # of the mean


class CellSummaries(NamedTuple):
    """The cells of all constraints, one after the other."""

    cells: list[CellSummary]
    correlation: Tensor  # (K, K) of the means: one example may be in cells of several constraints

    def column(self, name: str) -> Tensor:
        """(K,) one of the numbers of every cell, by the name of its field."""
        return torch.tensor([getattr(cell, name) for cell in self.cells], dtype=torch.float64)


def summarize(constraints: Sequence[Constraint], held_out: HeldOut) -> CellSummaries:
    """Every cell of every constraint."""
    cells: list[CellSummary] = []
    places: list[Tensor] = []  # the examples of every cell, and
    influences: list[Tensor] = []  # the influence of each on its mean
    for constraint in constraints:
        values = held_out.values(constraint)
        is_rate = bool(((values == 0) | (values == 1)).all())
        members = constraint.cells.bind(held_out.codes(constraint), held_out.labels).examples
        for cell, inside in zip(constraint.cells.items, members, strict=True):
            place = inside[held_out.weight[inside] > 0]
            weight = held_out.weight[place]
            share = weight / weight.sum()
            mean = float(share @ values[place])
            mean = min(max(mean, 0.0), 1.0) if is_rate else mean  # rounding
            influence = share * (values[place] - mean)
            cells.append(_summary(cell.name, values[place], share, mean, influence, is_rate))
            places.append(place)
            influences.append(influence)
    return CellSummaries(cells, _correlation(places, influences, held_out.size))


def _summary(
    name: str, values: Tensor, share: Tensor, mean: float, influence: Tensor, is_rate: bool
) -> CellSummary:
    """A cell, from its values, their shares of the weight, and their influence on the mean."""
    if len(values) == 0:
        return CellSummary(name, is_rate, f"{name!r} has no examples")
    effective, square = 1 / float(share.square().sum()), float(influence.square().sum())
    error, skewness = 0.0, 0.0
    if effective > 2 and square > 0:
        error = (square * effective / (effective - 1)) ** 0.5
        # the usual correction of a sample's skewness
        small = (effective * (effective - 1)) ** 0.5 / (effective - 2)
        skewness = float(influence.pow(3).sum()) / square**1.5 * small
    low, high = (float(end) for end in values.aminmax())
    constant = high - low <= 1e-12 * max(abs(low), abs(high))
    if is_rate and not constant:
        # fewer where the heavy examples are the rare ones
        effective = min(effective, mean * (1 - mean) / square)
    if is_rate:
        # a share of 0 or 1 is not known without error
        shrunk = (mean * effective + 1) / (effective + 2)
        error = (shrunk * (1 - shrunk) / (effective + 2)) ** 0.5
    problem = _problem(name, len(values), effective, constant and not is_rate)
    return CellSummary(name, is_rate, problem, len(values), effective, mean, error, skewness)


def _problem(name: str, examples: int, effective: float, constant: bool) -> str:
    if examples < MIN_EXAMPLES:
        return (
            f"{name!r} has {counted(examples, 'example')}, and a verdict needs at least"
            f" {MIN_EXAMPLES}"
        )
    if effective < MIN_EXAMPLES * (1 - 1e-9):
        return (
            f"{name!r} has {examples} examples, but their weights differ so much that their"
            f" effective number is {effective:.0f}, and a verdict needs at least {MIN_EXAMPLES}"
        )
    return (
        f"all {examples} values of {name!r} are the same, so that their spread is not known"
        if constant
        else ""
    )


def _correlation(places: Sequence[Tensor], influences: Sequence[Tensor], size: int) -> Tensor:
    """(K, K) correlations of cell means, from the examples that two cells share."""
    K = len(places)
    correlation = torch.eye(K, dtype=torch.float64)
    length = [float(influence.square().sum()) ** 0.5 for influence in influences]
    for k in range(K):
        influence = torch.zeros(size, dtype=torch.float64)
        influence[places[k]] = influences[k]
        for j in range(k + 1, K):
            both = length[k] * length[j]
            if both > 0:
                correlation[k, j] = correlation[j, k] = influence[places[j]] @ influences[j] / both
    return correlation
