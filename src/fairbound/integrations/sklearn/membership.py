"""P(cell | x): how probable it is that an example is of a group, and has a label; from a model, or from its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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

    A model of a column predicts the group, or group and label together where a constraint is about both; without a
    model the group must be given.
    """

    constraints: tuple[Constraint, ...]
    shares: tuple[Tensor, ...]  # (K,) P(cell), of every constraint
    classes: int
    models: Mapping[str, Model]  # by column; empty: the group is used at prediction

    def ratios(
        self, logits: Tensor, of_groups: Mapping[str, Tensor], groups: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, ...]:
        """(N, K) P(cell | x) / P(cell) of every constraint.

        logits: of the label. of_groups: those of the models, by column. groups: (N,) numbers, where they are used.
        """
        label = probabilities(logits)
        found = []
        for constraint, shares in zip(self.constraints, self.shares, strict=True):
            by = constraint.by or ""
            joint = probabilities(of_groups[by]) if groups is None and by in of_groups else None
            known = None if groups is None else groups[by]
            cells = [self._cell(cell.group, cell.label, label, joint, known) for cell in constraint.cells.items]
            found.append(torch.stack(cells, 1) / shares.clamp(min=1e-12))
        return tuple(found)

    def _cell(
        self, group: int | None, label: float | None, of_label: Tensor, joint: Tensor | None, known: Tensor | None
    ) -> Tensor:
        if group is None:
            return torch.ones(len(of_label), dtype=of_label.dtype) if label is None else of_label[:, int(label)]
        if known is not None:
            inside = (known == group).to(of_label.dtype)
            return inside if label is None else inside * of_label[:, int(label)]
        assert joint is not None
        if not self.needs_labels:
            return joint[:, group]
        columns = joint[:, group * self.classes : (group + 1) * self.classes]
        return columns.sum(1) if label is None else columns[:, int(label)]

    @property
    def needs_labels(self) -> bool:
        return any(constraint.cells.needs_labels for constraint in self.constraints)


def fit_membership(
    constraints: Sequence[Constraint],
    groups: Mapping[str, Tensor],
    labels: Tensor,
    classes: int,
    cross_fit: Callable[[NDArray[np.int64], int], CrossFitted] | None,
) -> tuple[Membership, dict[str, Tensor]]:
    """The membership, and the out-of-fold logits of its models, by column.

    cross_fit: (target, number of classes) -> models of it; None: the group is used at prediction.
    """
    shares = []
    for constraint in constraints:
        members = constraint.cells.bind(groups[constraint.by or ""], labels).examples
        shares.append(torch.tensor([len(member) / len(labels) for member in members], dtype=torch.float64))
    own = Membership(tuple(constraints), tuple(shares), classes, {})
    if cross_fit is None:
        return own, {}
    fitted: dict[str, Any] = {}
    for by in dict.fromkeys(constraint.by or "" for constraint in constraints if constraint.cells.needs_groups):
        count = int(groups[by].max()) + 1
        target, size = (
            (groups[by] * classes + labels.long(), count * classes) if own.needs_labels else (groups[by], count)
        )
        fitted[by] = cross_fit(target.numpy(), size)
    models = {by: one.model for by, one in fitted.items()}
    out_of_fold = {by: one.out_of_fold for by, one in fitted.items()}
    return Membership(own.constraints, own.shares, classes, models), out_of_fold
