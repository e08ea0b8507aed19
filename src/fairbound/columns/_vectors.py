"""Vectors of numbers, 0 and 1, group numbers and weights as tensors, from anything that holds
numbers; a tensor stays on its device."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_vector(values: Any) -> Tensor:
    tensor = values if isinstance(values, Tensor) else _from_array(np.asarray(values))
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.ndim != 1:
        raise ValueError(
            f"expected one number per example, got an array of shape {tuple(tensor.shape)}"
        )
    return tensor.detach()


def _from_array(array: NDArray[Any]) -> Tensor:
    """A tensor of a numpy array of any layout; lists of numbers arrive here in float64."""
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"expected numbers, got {array.dtype} such as {array.ravel()[:1].tolist()}"
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_binary(values: Any, what: str) -> Tensor:
    """(examples,) whole numbers 0 and 1."""
    tensor = as_vector(values)
    if tensor.dtype == torch.bool or tensor.numel() == 0:
        return tensor.long()
    whole = tensor.long()
    low, high = whole.aminmax()
    if (
        int(low) < 0
        or int(high) > 1
        or (tensor.is_floating_point() and bool((whole != tensor).any()))
    ):
        wrong = tensor[(whole < 0) | (whole > 1) | (whole != tensor)]
        raise ValueError(
            f"{what} must be 0 or 1, found {wrong[0].item():g} ({wrong.numel()} of {tensor.numel()}"
            " examples); threshold scores first, and encode classes as 0 and 1"
        )
    return whole


def as_numbers(groups: Any) -> Tensor:
    """(examples,) the number of each one's group, -1 for none."""
    if not isinstance(groups, Tensor) and (kind := np.asarray(groups).dtype).kind in "OUS":
        raise ValueError(
            f"groups must be numbered 0, 1, ... (-1: in no group), got text ({kind}); number names"
            " by np.unique(names, return_inverse=True)[1]"
        )
    tensor = as_vector(groups)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(f"groups must be numbered 0, 1, ... (-1: in no group), got {tensor.dtype}")
    if tensor.numel() and int(tensor.min()) < -1:
        raise ValueError(
            f"groups must be numbered 0, 1, ... (-1: in no group), found {int(tensor.min())}"
        )
    return tensor.long()


def group_names(groups: Tensor, names: Sequence[str]) -> Sequence[str]:
    highest = int(groups.max()) if groups.numel() else -1
    if not names:
        if highest > 1_000 + 10 * groups.numel():
            raise ValueError(
                f"groups go up to {highest} in {groups.numel()} examples; number them 0, 1, ... (as"
                " Intersection.group() does)"
            )
        return [str(i) for i in range(highest + 1)]
    if highest >= len(names):
        raise ValueError(f"groups go up to {highest} but only {len(names)} names are given")
    if len(set(names)) != len(names):
        raise ValueError("two groups have the same name")
    return names


def as_weights(weights: Any) -> Tensor:
    tensor = as_vector(weights).double()
    if tensor.numel() and not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
        raise ValueError("weights must be finite and not negative")
    return tensor


def same_length(**columns: Sized) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items())
        )
