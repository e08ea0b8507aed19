"""Optimistic dual ascent, w = y+ = [y + eta (2 c - c_last)]_+: a user's own multiplier method, for
every driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound import MultiplierMethod


class State(NamedTuple):
    y: Tensor  # (m,) multipliers
    last: Tensor  # (m,) c of the last step
    free: Tensor  # (m,) 1 where c = 0
    k: Tensor  # () step
    largest: Tensor  # () the largest multiplier so far


@dataclass(frozen=True, kw_only=True)
class Optimistic(MultiplierMethod[State]):
    solves = "kkt"
    row_wise = True

    tau: float = 0.05
    eta: float = 0.1

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        y, k = like.new_zeros(m), like.new_zeros(())
        free = y if equality is None else equality.to(y)
        return State(y, y if first is None else first, free, k, k)

    def step(self, state: State, c: Tensor) -> tuple[Tensor, State]:
        y = state.y + self.eta * (2 * c - state.last)
        y = torch.where(state.free > 0, y, torch.relu(y))
        return y, State(y, c, state.free, state.k + 1, torch.maximum(state.largest, y.max()))
