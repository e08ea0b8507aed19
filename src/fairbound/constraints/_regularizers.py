r"""Regularizers that see a whole mini-batch: outputs, labels, groups.

Fairret, norm form, on the statistic accuracy (Buyl, Defrance, De Bie 2024):

    a_g = mean over group g of P(prediction = label),   a = the same over all examples
    R = weight * sum_g |a_g / a - 1|
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, require, require_whole


@dataclass(frozen=True, kw_only=True)
class FairretNorm:
    """Fairret's NormLoss (p = 1) on the accuracy of a binary classifier's logits.

    Equal to the fairret library where every group is present. A group that the batch lacks adds
    nothing (the library adds a constant 1), and an accuracy of 0 is no error: the ratio is taken
    against the smallest positive number instead.
    """

    column: str  # group column of the dataset
    levels: int  # number of groups
    weight: float = 3.0  # the paper's choice in Experiment 1

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "weight")
        require_whole(self, 2, None, "levels")

    def __call__(self, outputs: Tensor, labels: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
        if self.column not in groups:
            raise ValueError(
                f"no group column is called {self.column!r}; the dataset has"
                f" {', '.join(groups) or 'none'}"
            )
        p = torch.sigmoid(outputs).reshape(outputs.shape[0])
        y = labels.reshape(outputs.shape[0]).to(p.dtype)
        right = 1 - y + (2 * y - 1) * p  # (B,) probability that the prediction equals the label
        # (B, levels)
        member = (groups[self.column][:, None] == torch.arange(self.levels, device=p.device)).to(
            p.dtype
        )
        size = member.sum(0)
        accuracy = (right @ member) / size.clamp(min=1)
        overall = right.mean().clamp(min=torch.finfo(p.dtype).tiny)
        return self.weight * ((accuracy / overall - 1).abs() * (size > 0)).sum()
