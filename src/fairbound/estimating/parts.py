"""Rows that are never mixed: those that train, that move the multipliers, that choose the model, that judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.data.splits import random_split

SHARES = {"train": 0.55, "multipliers": 0.17, "selection": 0.14, "test": 0.14}
FEWEST = 30  # rows of a group in a part that is to tell something of it


@dataclass(frozen=True, eq=False)
class Parts:
    """Row numbers of each part; all in `train` where there are too few rows to keep any aside."""

    train: Tensor
    multipliers: Tensor
    selection: Tensor
    verdict: Tensor

    @property
    def kept_aside(self) -> bool:
        return self.selection.numel() > 0

    @property
    def primal(self) -> Tensor:
        """The rows that train where the multipliers need none of their own."""
        return torch.cat([self.train, self.multipliers])


def parts_of(groups: NDArray[np.int64], shares: Mapping[str, float] | None, seed: int) -> Parts:
    """A random partition, stratified by group; nothing is kept aside where a group would have too few rows."""
    given = dict(SHARES if shares is None else shares)
    unknown = sorted(set(given) - {"train", "multipliers", "selection", "verdict", "test"})
    if unknown:
        raise ValueError(f"parts has {unknown}; the parts are train, multipliers, selection and verdict")
    if "verdict" in given:
        given["test"] = given.pop("verdict")
    smallest = int(np.bincount(groups).min())
    if smallest * min(given.values()) < FEWEST:
        everything, nothing = torch.arange(len(groups)), torch.zeros(0, dtype=torch.long)
        return Parts(everything, nothing, nothing, nothing)
    split = random_split(groups, given, seed=seed)
    return Parts(split.train, split.multipliers, split.selection, split.test)
