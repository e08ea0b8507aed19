"""Batched products, with B the flattened batch, m constraints and n parameters."""

import torch
from torch import Tensor


def times(J: Tensor, d: Tensor) -> Tensor:
    """J d: (B, m, n), (B, n) -> (B, m)."""
    return torch.bmm(J, d.unsqueeze(-1)).squeeze(-1)


def adjoint(J: Tensor, y: Tensor) -> Tensor:
    """J'y: (B, m, n), (B, m) -> (B, n)."""
    return torch.bmm(y.unsqueeze(-2), J).squeeze(-2)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """a'b: (B, n), (B, n) -> (B,)."""
    return torch.bmm(a.unsqueeze(-2), b.unsqueeze(-1)).flatten()


def pick(index: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """MiniBatch `index` of each tensor; without a copy when that is all of them."""
    if index.shape[0] == tensors[0].shape[0]:
        return tensors
    return tuple(x[index] for x in tensors)
