"""P(cell | x): how probable it is that an example is of a group, and has a label; from a model, or from its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.integrations.sklearn.cross_fitting import CrossFitted, Model


def probabilities(logits: Tensor) -> Tensor:
    """(N, classes) from (N,) logits of two classes, or (N, classes)."""
    if logits.ndim == 2:
        return logits.softmax(1)
    positive = torch.sigmoid(logits)
    return torch.stack([1 - positive, positive], 1)


@dataclass(frozen=True, eq=False)
class Membership:
    """What is known of the cells of an example at prediction.

    A model of a column predicts the group, or group and label together where a constraint is about both; without models
    the group must be given.
    """

    constraints: tuple[Constraint, ...]
    shares: tuple[Tensor, ...]  # (K,) P(cell), of every constraint
    classes: int
    with_labels: bool  # whether models predict group and label together
    models: Mapping[str, Model] | None  # by column; None: the group is used at prediction

    def group_logits(self, inputs: Any) -> dict[str, Tensor]:
        """Of the models, by column."""
        return {by: model.logits(inputs) for by, model in (self.models or {}).items()}

    def ratios(
        self, logits: Tensor, group_logits: Mapping[str, Tensor], groups: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """(N, K) P(cell | x) / P(cell) of every constraint.

        logits: of the label. group_logits: of the models, by column. groups: (N,) numbers, where there are no models.
        """
        label, ratios = probabilities(logits), []
        for constraint, shares in zip(self.constraints, self.shares, strict=True):
            by = constraint.by or ""
            joint = probabilities(group_logits[by]) if by in group_logits else None
            known = groups[by] if self.models is None else None
            cells = [self._cell(cell.group, cell.label, label, joint, known) for cell in constraint.cells.items]
            ratios.append(torch.stack(cells, 1) / shares.clamp(min=1e-12))
        return tuple(ratios)

    def _cell(
        self, group: int | None, label: float | None, of_label: Tensor, joint: Tensor | None, known: Tensor | None
    ) -> Tensor:
        if group is None:
            return torch.ones(len(of_label), dtype=of_label.dtype) if label is None else of_label[:, int(label)]
        if known is not None:
            inside = (known == group).to(of_label.dtype)
            return inside if label is None else inside * of_label[:, int(label)]
        assert joint is not None
        if not self.with_labels:
            return joint[:, group]
        columns = joint[:, group * self.classes : (group + 1) * self.classes]
        return columns.sum(1) if label is None else columns[:, int(label)]


def fit_membership(
    constraints: Sequence[Constraint],
    groups: Mapping[str, Tensor],
    labels: Tensor,
    classes: int,
    cross_fit: Callable[[Tensor, int], CrossFitted] | None,
) -> tuple[Membership, dict[str, Tensor]]:
    """The membership, and the out-of-fold logits of its models, by column.

    cross_fit: (target, number of classes) -> models of it; None: the group is used at prediction.
    """
    shares = []
    for constraint in constraints:
        cells = constraint.cells.bind(groups[constraint.by or ""], labels).examples
        shares.append(torch.tensor([len(cell) / len(labels) for cell in cells], dtype=torch.float64))
    with_labels = any(constraint.cells.needs_labels for constraint in constraints)
    membership = Membership(tuple(constraints), tuple(shares), classes, with_labels, None)
    if cross_fit is None:
        return membership, {}
    fitted: dict[str, CrossFitted] = {}
    for by in dict.fromkeys(constraint.by or "" for constraint in constraints if constraint.cells.needs_groups):
        target, size = groups[by], int(groups[by].max()) + 1
        if with_labels:
            target, size = target * classes + labels.long(), size * classes
        fitted[by] = cross_fit(target, size)
    models = {by: models.model for by, models in fitted.items()}
    return replace(membership, models=models), {by: models.out_of_fold for by, models in fitted.items()}
