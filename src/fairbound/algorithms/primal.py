r"""Primal steps: how `run` moves x along the gradient g = grad f + J'w of a multiplier method.

    SGD        v+ = momentum v + g,  d = -lr v+
    Adam       a+ = b1 a + (1 - b1) g,  v+ = b2 v + (1 - b2) g^2,
               d  = -lr (a+ / (1 - b1^(k+1))) / (sqrt(v+ / (1 - b2^(k+1))) + eps)

They are to `run` what a `torch.optim` optimizer is to a loop, with the same formulas (Kingma and
Ba, 2015) and names; their numbers stack as tensors. Without one, `run` moves x by the method's own
step, d = -tau g. Never put the multipliers into Adam: it would move each by the same length a step,
whatever the violation.

>>> from fairbound import DescentAscent, primal
>>> (
...     primal.Adam(lr=0.01),
...     DescentAscent(eta=0.1).eta,
... )  # "Adam descent-ascent": run(..., primal=primal.Adam())
(Adam(lr=0.01, b1=0.9, b2=0.999, eps=1e-08), 0.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import BELOW_ONE, NONNEGATIVE, POSITIVE, require
from fairbound.core import Schedule, value


class SGDState(NamedTuple):
    v: Tensor  # (n,) sum of the gradients, earlier ones counting less
    k: Tensor  # () step


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with a learning rate, and momentum."""

    lr: float | Schedule = 0.05
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "lr", also=(Schedule,))
        require(self, BELOW_ONE, "momentum")

    def init(self, x: Tensor) -> SGDState:
        return SGDState(torch.zeros_like(x), x.new_zeros(()))

    def step(self, g: Tensor, state: SGDState) -> tuple[Tensor, SGDState]:
        v = self.momentum * state.v + g
        return -value(self.lr, state.k) * v, SGDState(v, state.k + 1)


class AdamState(NamedTuple):
    a: Tensor  # (n,) mean of the gradients
    v: Tensor  # (n,) mean of their squares
    k: Tensor  # () step


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam, as `torch.optim.Adam` without weight decay."""

    lr: float | Schedule = 0.01
    b1: float = 0.9  # what the mean of the gradients keeps
    b2: float = 0.999  # what the mean of their squares keeps
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "lr", also=(Schedule,))
        require(self, BELOW_ONE, "b1", "b2")
        require(self, POSITIVE, "eps")

    def init(self, x: Tensor) -> AdamState:
        return AdamState(torch.zeros_like(x), torch.zeros_like(x), x.new_zeros(()))

    def step(self, g: Tensor, state: AdamState) -> tuple[Tensor, AdamState]:
        k, one = state.k + 1, torch.ones_like(state.k)
        a = self.b1 * state.a + (1 - self.b1) * g
        v = self.b2 * state.v + (1 - self.b2) * g.square()
        size = (v / (1 - (one * self.b2) ** k)).sqrt() + self.eps
        return -value(self.lr, state.k) * (a / (1 - (one * self.b1) ** k)) / size, AdamState(
            a, v, k
        )
