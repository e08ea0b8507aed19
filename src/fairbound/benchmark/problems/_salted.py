"""An equivalent form of a problem whose variables are permuted, some with the other sign, and
shifted, by a salt.

A method that sees estimates only takes the same steps in the other coordinates: its losses and
violations recompute, up to rounding that grows along the way. One that knows a problem by its size,
or returns a stored answer, does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairbound.benchmark.problems._catalog import Instance, Solution

SHIFT = 0.1  # standard deviation of the shift of each variable


@dataclass(frozen=True, eq=False)
class CoordinateChange:
    """x = sign * z[order] + shift."""

    order: Tensor  # (n,)
    sign: Tensor  # (n,) of -1 and 1
    shift: Tensor  # (n,)

    def stated(self, z: Tensor) -> Tensor:
        """(..., n) in the coordinates of the problem as stated."""
        return self.sign * z[..., self.order] + self.shift

    def changed(self, x: Tensor) -> Tensor:
        """The inverse."""
        return (self.sign * (x - self.shift))[..., self.order.argsort()]


class ChangedForward:
    """A model in other coordinates; whatever else it has is the model's own."""

    def __init__(self, forward: Any, change: CoordinateChange) -> None:
        self.forward, self.change = forward, change

    def __call__(self, z: Tensor, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.forward(self.change.stated(z), inputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)


def can_be_salted(instance: Instance) -> bool:
    """Whether its constraints see outputs alone, and not the variables themselves."""
    return all(len(part.cells) > 0 for part in instance.problem.constraints.parts)


def salted(instance: Instance, salt: str) -> Instance:
    """The instance in the coordinates that the salt gives; the same for everyone who knows it."""
    start = instance.starts([0])[0]
    seed = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:7], "little")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(start), generator=generator)
    sign = 2.0 * torch.randint(2, (len(start),), generator=generator) - 1
    shift = SHIFT * torch.randn(len(start), generator=generator, dtype=torch.float64)
    change = CoordinateChange(order, sign.to(start), shift.to(start))
    solution = instance.solution

    def starts(seeds: Sequence[int]) -> Tensor:
        return change.changed(instance.starts(seeds))

    return replace(
        instance,
        problem=replace(instance.problem, forward=ChangedForward(instance.problem.forward, change)),
        starts=starts,
        solution=None if solution is None else Solution(change.changed(solution.x), solution.y),
    )
