"""Rows that come in pairs a, -a, as constraints do that bound something on both sides: every second row says it all."""

import torch
from torch import Tensor


def halved(J: Tensor, at_once: int) -> Tensor | None:
    """Every second row of J (B, m, n), if each is followed by its negative; looks at `at_once` instances at a time.

    >>> halved(torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]]), 1)
    tensor([[[1., 2.]]])
    """
    if J.shape[1] % 2:
        return None
    paired = all(torch.equal(part[:, ::2], part[:, 1::2].neg()) for part in J.split(at_once))
    return J[:, ::2] if paired else None


def both(x: Tensor) -> Tensor:
    """(B, k, ...) -> (B, 2k, ...): each entry, followed by its negative."""
    return torch.stack([x, -x], 2).flatten(1, 2)


def net(y: Tensor) -> Tensor:
    """(B, 2k) -> (B, k): the transpose of `both`."""
    return y[:, ::2] - y[:, 1::2]
