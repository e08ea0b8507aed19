"""What a problem of the stories is: one training run, and how its users keep the bound today.

A run draws a mini-batch; a practice turns it into the loss that is passed backward. The constrained
methods get the same mini-batches through `Constrained.backward`. Learning rates and numbers of
steps are those of plain training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Draw(NamedTuple):
    """One mini-batch after the forward pass."""

    f: Tensor  # () the objective
    terms: Tensor  # (m,) what is bounded, NaN where the mini-batch does not show it
    fair: dict[str, Any]  # the same for `Constrained.backward`


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    draw: Callable[[], Draw]
    constraint: Any  # for `Constrained`
    # objective, and (m,) violations as shares of the bounds
    evaluate: Callable[[], tuple[float, Tensor]]
    other: Callable[[], list[float]] = list  # what else is reported


Loss = Callable[[Draw], Tensor]  # what is passed backward


@dataclass(frozen=True)
class Practice:
    name: str
    setting: str  # what is tuned; "" if the name says it
    default: float
    values: tuple[float, ...]  # eight of them
    loss: Callable[[Run, float], Loss]


@dataclass(frozen=True)
class Problem:
    name: str
    objective: str
    bound: str
    steps: int
    build: Callable[[int], Run]
    practices: tuple[Practice, ...]
    other: tuple[str, ...] = ()  # heads of the columns of `Run.other`


@contextmanager
def seeded(seed: int):
    """Modules built inside have the weights of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fixed_weight(run: Run, weight: float) -> Loss:
    return lambda draw: draw.f + weight * draw.terms.sum()
