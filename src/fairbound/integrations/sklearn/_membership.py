"""P(cell | x): how probable it is that an example is of a group, and has a label; from a model, or
from its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairbound.constraints._cells import Cell
from fairbound.constraints._constraint import Constraint
from fairbound.integrations.sklearn._corrections import CellMeans
from fairbound.integrations.sklearn._cross_fitting import CrossFitted, LogitModel


def probabilities(logits: Tensor) -> Tensor:
    """(N, classes) from (N,) logits of two classes, or (N, classes)."""
    if logits.ndim == 2:
        return logits.softmax(1)
    positive = torch.sigmoid(logits)
    return torch.stack([1 - positive, positive], 1)


@dataclass(frozen=True, eq=False)
class Membership:
    """What is known of the cells of an example at prediction.

    A model of a column predicts the group, or group and label together where a constraint is about
    both; without models the group must be given.
    """

    constraints: tuple[Constraint, ...]
    shares: tuple[Tensor, ...]  # (K,) P(cell), of every constraint
    # (K,) how far cells are known by themselves (`CellMeans`), of every constraint
    trust: tuple[Tensor, ...]
    classes: int
    with_labels: bool  # whether models predict group and label together
    models: Mapping[str, LogitModel] | None  # by column; None: the group is used at prediction

    def group_logits(self, inputs: Any) -> dict[str, Tensor]:
        """Logits of the models, by column."""
        return {by: model.logits(inputs) for by, model in (self.models or {}).items()}

    def ratios(
        self, logits: Tensor, group_logits: Mapping[str, Tensor], groups: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """(N, K) P(cell | x) / P(cell) of every constraint.

        logits: of the label. group_logits: of the models, by column. groups: (N,) numbers, where
        there are no models.
        """
        of_label, ratios = probabilities(logits), []
        for constraint, shares, trust in zip(
            self.constraints, self.shares, self.trust, strict=True
        ):
            by, cells = constraint.by or "", constraint.cells.items
            if self.models is None:
                parts = self._known(cells, shares, trust, groups[by])
            else:
                joint = probabilities(group_logits[by]) if by in group_logits else None
                parts = [self._predicted(cell, joint, len(of_label)) for cell in cells]
            for k, cell in enumerate(cells):  # a model of group and label has the label in it
                if cell.label is not None and (self.models is None or cell.group is None):
                    parts[k] = parts[k] * of_label[:, int(cell.label)]
            ratios.append(torch.stack(parts, 1) / shares.clamp(min=1e-12))
        return tuple(ratios)

    def _known(
        self, cells: Sequence[Cell], shares: Tensor, trust: Tensor, known: Tensor
    ) -> list[Tensor]:
        """P(group) of every cell: 1 for that of the example, and for a small one in part that of
        everybody."""
        parts = []
        for cell in cells:
            alike = [
                k
                for k, other in enumerate(cells)
                if other.label == cell.label and other.group is not None
            ]
            if cell.group is None or not alike:
                parts.append(torch.ones(len(known), dtype=torch.float64))
                continue
            by_group = torch.ones(
                max(int(known.max()), *(cells[k].group or 0 for k in alike)) + 1,
                dtype=torch.float64,
            )
            by_group[[cells[k].group for k in alike]] = trust[alike]
            own, everybody = (
                by_group[known],
                shares[cells.index(cell)] / shares[alike].sum().clamp(min=1e-12),
            )
            parts.append(
                torch.lerp(everybody.expand(len(known)), (known == cell.group).double(), own)
            )
        return parts

    def _predicted(self, cell: Cell, joint: Tensor | None, size: int) -> Tensor:
        if cell.group is None:
            return torch.ones(size, dtype=torch.float64)
        assert joint is not None
        if not self.with_labels:
            return joint[:, cell.group]
        columns = joint[:, cell.group * self.classes : (cell.group + 1) * self.classes]
        return columns.sum(1) if cell.label is None else columns[:, int(cell.label)]


def fit_membership(
    means: CellMeans,
    classes: int,
    cross_fit: Callable[[Tensor, int], CrossFitted] | None,
) -> tuple[Membership, dict[str, Tensor]]:
    """The membership, and the out-of-fold logits of its models, by column.

    cross_fit: (target, number of classes) -> models of it; None: the group is used at prediction.
    """
    constraints, groups, labels = means.constraints, means.scores.groups, means.scores.labels
    with_labels = any(constraint.cells.needs_labels for constraint in constraints)
    membership = Membership(
        constraints, tuple(means.shares), tuple(means.trust), classes, with_labels, None
    )
    if cross_fit is None:
        return membership, {}
    fitted: dict[str, CrossFitted] = {}
    for by in dict.fromkeys(
        constraint.by or "" for constraint in constraints if constraint.cells.needs_groups
    ):
        target, size = groups[by], int(groups[by].max()) + 1
        if with_labels:
            target, size = target * classes + labels.long(), size * classes
        fitted[by] = cross_fit(target, size)
    models = {by: models.model for by, models in fitted.items()}
    return replace(membership, models=models), {
        by: models.out_of_fold for by, models in fitted.items()
    }
