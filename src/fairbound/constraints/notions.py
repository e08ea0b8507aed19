"""The named notions over the rows of a dataset: `limits` with their cells filled in.

>>> import torch
>>> race = torch.tensor([0, 0, 1, 1])
>>> pairwise_loss_parity(race, bound=0.005, names=["white", "non-white"]).names
('white - non-white', 'non-white - white')
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

import fairbound.constraints.limits as limits
from fairbound.constraints.cells import level_names
from fairbound.constraints.constraint import CellConstraint
from fairbound.constraints.contrasts import Compare, against_mean, pairwise
from fairbound.constraints.statistics import Value


def loss_parity(
    groups: Tensor, *, bound: float, names: Sequence[str] | None = None, contrast: Compare = against_mean
) -> CellConstraint:
    """Group losses within `bound` of their mean (the paper's eq. 4), or of each other (`contrast=pairwise`)."""
    return limits.loss_parity(level_names(groups, names), bound=bound, contrast=contrast).on(groups)


def pairwise_loss_parity(groups: Tensor, *, bound: float, names: Sequence[str] | None = None) -> CellConstraint:
    """Table 1: |loss of A - loss of B| <= bound, for every pair of groups."""
    return limits.pairwise_loss_parity(level_names(groups, names), bound=bound).on(groups)


def equal_opportunity(
    groups: Tensor, labels: Tensor, *, bound: float, names: Sequence[str] | None = None
) -> CellConstraint:
    """Table 1: the same over the rows with a positive label."""
    return limits.equal_opportunity(level_names(groups, names), bound=bound).on(groups, labels)


def equalized_odds(
    groups: Tensor,
    labels: Tensor,
    *,
    bound: float,
    names: Sequence[str] | None = None,
    value: Value | None = None,
) -> CellConstraint:
    """Table 1: the loss gaps over positive and over negative labels, added, at most `bound`.

    With `value=soft_positive` the gaps are those of the soft TPR and FPR.
    """
    return limits.equalized_odds(level_names(groups, names), bound=bound, value=value).on(groups, labels)


def demographic_parity(
    groups: Tensor, *, bound: float, names: Sequence[str] | None = None, contrast: Compare = pairwise
) -> CellConstraint:
    """Soft positive rates within `bound`."""
    return limits.demographic_parity(level_names(groups, names), bound=bound, contrast=contrast).on(groups)


def true_positive_parity(
    groups: Tensor, labels: Tensor, *, bound: float, names: Sequence[str] | None = None, contrast: Compare = pairwise
) -> CellConstraint:
    """Soft true positive rates within `bound`."""
    found = limits.true_positive_parity(level_names(groups, names), bound=bound, contrast=contrast)
    return found.on(groups, labels)


def false_positive_parity(
    groups: Tensor, labels: Tensor, *, bound: float, names: Sequence[str] | None = None, contrast: Compare = pairwise
) -> CellConstraint:
    """Soft false positive rates within `bound`."""
    found = limits.false_positive_parity(level_names(groups, names), bound=bound, contrast=contrast)
    return found.on(groups, labels)
