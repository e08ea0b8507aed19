"""Rows that are never mixed: those that train, that move the multipliers, that choose the model, that judge it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.data.splits import random_split

SHARES = {"train": 0.55, "dual": 0.17, "validation": 0.14, "calibration": 0.14}
FEWEST = 30  # rows of a part that is to tell something, and of a cell that is to move its multiplier


@dataclass(frozen=True, eq=False)
class Parts:
    """Row numbers of each part; all in `train` where there are too few rows to keep any aside."""

    train: Tensor
    dual: Tensor
    validation: Tensor
    calibration: Tensor

    @property
    def kept_aside(self) -> bool:
        return self.validation.numel() > 0

    @property
    def primal(self) -> Tensor:
        """The rows that train where the multipliers need none of their own."""
        return torch.cat([self.train, self.dual])


def parts_of(strata: NDArray[np.int64], shares: Mapping[str, float] | None, seed: int) -> Parts:
    """A random partition in which every part has its share of every stratum.

    A stratum of too few rows for that trains as a whole, and the verdict says that it has no rows of it. Where the
    parts would be too small altogether, nothing is kept aside.

    >>> parts = parts_of(np.repeat([0, 1], [1000, 5]), None, seed=0)
    >>> len(parts.train), len(parts.dual), len(parts.validation), len(parts.calibration)
    (555, 170, 140, 140)
    """
    given = dict(SHARES if shares is None else shares)
    if sorted(given) != sorted(SHARES):
        raise ValueError(f"parts needs a share for each of {', '.join(SHARES)}, got {given}")
    if not all(share > 0 for share in given.values()) or not math.isclose(sum(given.values()), 1.0, abs_tol=1e-6):
        raise ValueError(f"the shares of parts must be positive and sum to 1, got {given}")
    enough = np.bincount(strata)[strata] >= math.ceil(1 / min(given.values()))
    divided = np.flatnonzero(enough)
    if len(divided) * min(given["validation"], given["calibration"]) < FEWEST:
        everything, nothing = torch.arange(len(strata)), torch.zeros(0, dtype=torch.long)
        return Parts(everything, nothing, nothing, nothing)
    shares_by_name = {"test" if name == "calibration" else name: share for name, share in given.items()}
    split = random_split(strata[divided], shares_by_name, seed=seed)
    rows = torch.from_numpy(divided)
    small = torch.from_numpy(np.flatnonzero(~enough))
    train = torch.cat([rows[split.train], small])
    return Parts(train, rows[split.dual], rows[split.validation], rows[split.test])
