"""What is recorded of runs at intervals, and their final state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Record(NamedTuple):
    """The runs of one group after `step` steps. `run` has an example."""

    step: int
    runs: tuple[int, ...]  # which runs of the stack these are
    x: Tensor  # (R, n)
    output: Tensor  # (R, n) what the method would return now
    multipliers: Tensor | None  # (R, m), for the methods that have them
    monitors: dict[str, Tensor]  # the method's own scalars, (R,) each
    skipped: Tensor  # (R,) steps skipped so far because something was not finite


class FinalState(NamedTuple):
    """The final state of a group of runs."""

    runs: tuple[int, ...]
    x: Tensor
    output: Tensor
    multipliers: Tensor
    mean_x: Tensor | None
    mean_multipliers: Tensor | None
    monitors: list[dict[str, float]]
    infeasible: list[str | None]
    diverging: list[str | None]
    skipped: Tensor


class Mean:
    """Running means of x and the multipliers over the steps from `start` on."""

    def __init__(self, start: int) -> None:
        self.start, self.count = start, 0
        self.x = self.y = torch.zeros(())

    def add(self, step: int, x: Tensor, y: Tensor) -> None:
        if step < self.start:
            return
        self.count += 1
        self.x = x.clone() if self.count == 1 else self.x.lerp_(x, 1 / self.count)
        self.y = y.clone() if self.count == 1 else self.y.lerp_(y, 1 / self.count)
