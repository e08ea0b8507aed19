"""Disjoint sets of examples: to train, to update the multipliers, to select the model, and for its verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.data.dataset import Split
from fairbound.data.splits import random_split

DEFAULT_SHARES = {"train": 0.55, "dual": 0.17, "validation": 0.14, "calibration": 0.14}
MIN_EXAMPLES = 30  # of a held-out set, and of a cell in the dual set: with fewer, means are too noisy


def split_examples(strata: NDArray[np.int64], shares: Mapping[str, float] | None, seed: int) -> Split:
    """A random partition in which every set has its share of every stratum.

    A stratum of too few examples for that is in the training set as a whole, and the verdict says that it has no
    examples of it. Where the held-out sets would be too small altogether, all examples train.

    >>> split = split_examples(np.repeat([0, 1], [1000, 5]), None, seed=0)
    >>> len(split.train), len(split.dual), len(split.validation), len(split.calibration)
    (555, 170, 140, 140)
    """
    given = dict(DEFAULT_SHARES if shares is None else shares)
    if sorted(given) != sorted(DEFAULT_SHARES):
        raise ValueError(f"parts needs a share for each of {', '.join(DEFAULT_SHARES)}, got {given}")
    if not all(share > 0 for share in given.values()) or not math.isclose(sum(given.values()), 1.0, abs_tol=1e-6):
        raise ValueError(f"the shares of parts must be positive and sum to 1, got {given}")
    large_enough = np.bincount(strata)[strata] >= math.ceil(1 / min(given.values()))
    divided = np.flatnonzero(large_enough)
    if len(divided) * min(given["validation"], given["calibration"]) < MIN_EXAMPLES:
        return Split.all_train(len(strata))
    examples = torch.from_numpy(divided)
    found = Split(*(examples[part] for part in random_split(strata[divided], given, seed=seed)))
    return found._replace(train=torch.cat([found.train, torch.from_numpy(np.flatnonzero(~large_enough))]))


def has_held_out(split: Split) -> bool:
    """Whether there are held-out sets at all."""
    return split.validation.numel() > 0


def train_and_dual(split: Split) -> Tensor:
    """The examples that train where the multipliers need no held-out ones."""
    return torch.cat([split.train, split.dual])
