"""A loop's own random numbers: those that a `Sampler` with the same seed gives, step after step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fairbound._utils.rng import COIN, LEVEL, checked_seed, keys, uniforms

AHEAD = 512  # steps whose numbers are made at once


class Coins:
    """Uniform numbers by step."""

    def __init__(self, seed: int) -> None:
        self.key = keys(torch.tensor(checked_seed(seed)))
        self._made: dict[int, tuple[int, tuple[Tensor, ...]]] = {}  # slot -> the block's first step, its numbers

    def coin(self, step: int, slot: int = COIN) -> Tensor:
        """The step's own coin, () in [0, 1)."""
        first, numbers = self._made.get(slot, (-1, ()))
        if first != step - step % AHEAD:
            first = step - step % AHEAD
            numbers = uniforms(self.key, torch.arange(first, first + AHEAD), torch.tensor(slot)).unbind()
            self._made[slot] = first, numbers
        return numbers[step - first]

    def level(self, step: int, law: Sequence[float]) -> tuple[int, float]:
        """A level of a random batch size, and 1 / its probability."""
        u = float(self.coin(step, LEVEL))
        level = next((i for i, edge in enumerate(accumulate(law[:-1])) if u < edge), len(law) - 1)
        return level, 1 / law[level]
