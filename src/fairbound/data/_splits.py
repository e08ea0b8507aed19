"""Splits into training, dual, validation and test sets; and scaling fitted to the training set.

Every split is stratified on the group, so that each part has the same proportions of the groups.
The seed of a split is separate from those of initial points and mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.optional import need
from fairbound.data._dataset import Dataset, Split, check_rows

# so that at least two examples are in the held-out fifth: one for validation and one for test
MIN_GROUP_SIZE = 10


def paper_split(groups: Tensor | NDArray[Any], seed: int = 42) -> Split:
    """The paper's 80 / 10 / 10 into `train`, `validation` (its validation set) and `test`, examples
    in file order.

    scikit-learn's `train_test_split` with `test_size=.2`, then the held-out fifth again with
    `test_size=.5`, both stratified on the group and with the same seed. The numbering of the groups
    is part of it: other numbers for the same groups give parts of the same sizes, but other
    examples.

    >>> split = paper_split(torch.arange(100) % 2)
    >>> [len(part) for part in split]
    [80, 0, 10, 0, 10]
    """
    train_test_split = need("sklearn.model_selection", "data", "The paper's split").train_test_split
    strata = _strata(groups)
    names, numbers = np.unique(strata, return_inverse=True)

    def cut(examples: NDArray[np.int64], share: float) -> list[NDArray[np.int64]]:
        """The examples without a share of them, and that share."""
        count = np.bincount(numbers[examples], minlength=len(names))
        if count.min() < 2:
            raise ValueError(
                f"group {names[count.argmin()]} has {count.min()} of {len(examples)} examples that"
                " are to be split, and each part needs one; merge or drop groups of fewer than"
                f" min_size={MIN_GROUP_SIZE} examples"
            )
        cut_in_two: list[NDArray[np.int64]] = train_test_split(
            examples, test_size=share, stratify=strata[examples], random_state=seed
        )
        return cut_in_two

    train, held_out = cut(np.arange(len(strata)), 0.2)
    validation, test = map(torch.from_numpy, cut(held_out, 0.5))
    return Split(torch.from_numpy(train), validation=validation, test=test)


def random_split(
    groups: Tensor | NDArray[Any], shares: Mapping[str, float] | None = None, *, seed: int
) -> Split:
    """Divide the examples at random into parts, each with its share of every group, rounded up or
    down.

    Args:
        groups: (examples,) the group of each.
        shares: of the parts, named as in `Split`, which sum to 1; 60 % train, 20 % dual (for the
            multiplier updates) and 20 % test if not given.
        seed: of the random numbers.

    >>> split = random_split(torch.arange(100) % 2, {"train": 0.5, "test": 0.5}, seed=0)
    >>> len(split.train), len(split.test)
    (50, 50)
    """
    shares = {"train": 0.6, "dual": 0.2, "test": 0.2} if shares is None else shares
    if not {"train"} <= set(shares) <= set(Split._fields):
        raise ValueError(
            f"a split has a share of train, and of others of {', '.join(Split._fields)}; got"
            f" {', '.join(shares) or 'none'}"
        )
    share = np.array(list(shares.values()))
    if not ((share > 0).all() and abs(math.fsum(share) - 1) <= 1e-9):
        raise ValueError(f"shares must be above 0 and add up to 1, got {dict(shares)}")
    strata = _strata(groups)
    names, inverse, counts = np.unique(strata, return_inverse=True, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(strata))
    # with a single sort for all groups
    by_group = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    part_of = np.empty(len(strata), dtype=np.int64)  # the part of each example
    # examples that each part has too few for its share, over the groups so far
    owed = np.zeros(len(share))
    for group, members in zip(names, np.split(by_group, np.cumsum(counts)[:-1]), strict=True):
        sizes = _sizes(len(members), share, owed)
        if not sizes.all():
            raise ValueError(
                f"group {group} has {len(members)} examples, too few for each of"
                f" {', '.join(shares)} to get one; merge or drop groups of fewer than"
                f" min_size={math.ceil(1 / share.min())} examples"
            )
        owed += len(members) * share - sizes
        part_of[members] = np.repeat(np.arange(len(share)), sizes)
    parts = {name: np.flatnonzero(part_of == part) for part, name in enumerate(shares)}
    return Split(**{name: torch.from_numpy(rows) for name, rows in parts.items()})


def scaled(dataset: Dataset, split: Split) -> Dataset:
    """The dataset with every column of X at mean 0 and (population) standard deviation 1 over the
    training set.

    Computed in float64 and returned in X's precision. A column that is constant over the training
    set is only centered, as scikit-learn's StandardScaler does.

    >>> data = Dataset(torch.tensor([[1.0], [3.0], [7.0]]), torch.zeros(3))
    >>> scaled(data, Split(torch.tensor([0, 1]))).X.flatten().tolist()
    [-1.0, 1.0, 5.0]
    """
    if dataset.X.ndim != 2 or not dataset.X.is_floating_point():
        raise ValueError(
            "only a floating-point X of shape (examples, columns) can be scaled, got"
            f" {dataset.X.dtype} of shape {tuple(dataset.X.shape)}"
        )
    check_rows(split.train, "train", dataset.rows)
    X = dataset.X.double()
    train = X[split.train.to(X.device)]
    # a rounded mean would leave a deviation that is not quite 0
    constant = train.amax(0) == train.amin(0)
    mean = torch.where(constant, train[0], train.mean(0))
    deviation = torch.where(constant, 1.0, train.std(0, correction=0))
    return replace(dataset, X=((X - mean) / deviation).to(dataset.X.dtype))


def _sizes(
    examples: int, share: NDArray[np.float64], owed: NDArray[np.float64]
) -> NDArray[np.int64]:
    """How many of a group's examples each part gets: its share rounded down, plus one where the
    deficit is largest."""
    exact = examples * share
    sizes = np.floor(exact + 1e-9).astype(np.int64)  # 0.6 * 5 may be slightly below 3
    fraction = exact - sizes
    # whole shares get none
    order = np.argsort(-np.where(fraction > 1e-9, fraction + owed, -np.inf), kind="stable")
    sizes[order[: examples - int(sizes.sum())]] += 1
    return sizes


def _strata(groups: Tensor | NDArray[Any]) -> NDArray[Any]:
    strata = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if strata.ndim != 1:
        raise ValueError(f"a split needs one group for every example, got shape {strata.shape}")
    if len(strata) == 0:
        raise ValueError("there are no examples to split")
    return strata
