"""Step sizes and tolerances that change with the step k = 0, 1, 2, ...

A hyper-parameter is a float (constant) or one of these. `core.value(setting, k)` reads either.

>>> InverseSqrt(0.01).at(torch.tensor(3))
tensor(0.0050)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, POSITIVE, UNIT, require
from fairbound.core import Schedule, value


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """start / sqrt(k + 1): the diminishing rule of the paper (appendix, switching subgradient)."""

    start: float

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "start")

    def at(self, k: Tensor) -> Tensor:
        return self.start * torch.rsqrt(k + 1.0)


@dataclass(frozen=True)
class Power(Schedule):
    """start / (k + 1)^power; 1/2 < power <= 1 makes the steps square-summable but not summable."""

    start: float
    power: float

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "start", "power")

    def at(self, k: Tensor) -> Tensor:
        return self.start * (k + 1.0) ** -self.power


@dataclass(frozen=True)
class Linear(Schedule):
    """Straight line from start at step 0 down to end * start at step `steps`, constant
    afterwards."""

    start: float
    steps: float
    end: float = 0.05

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "start")
        require(self, POSITIVE, "steps")
        require(self, UNIT, "end")

    def at(self, k: Tensor) -> Tensor:
        share = (k / self.steps).clamp(max=1.0)
        return self.start * (1 - (1 - self.end) * share)


@dataclass(frozen=True)
class Exponential(Schedule):
    """start * ratio^k: for functions with a kink at the solution, such as |c|, which then converge
    as fast."""

    start: float
    ratio: float

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "start")
        require(self, UNIT, "ratio")

    def at(self, k: Tensor) -> Tensor:
        return self.start * (k.new_zeros(()) + self.ratio) ** k


@dataclass(frozen=True)
class Factorial(Schedule):
    """start / sqrt(k!): what the paper's Experiment 2 prints, eta_k = eta_{k-1} / sqrt(k).

    It is zero after some fifteen steps. It is here because it is printed; `InverseSqrt` is what is
    meant.
    """

    start: float

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "start")

    def at(self, k: Tensor) -> Tensor:
        return self.start * torch.exp(-0.5 * torch.lgamma(k + 1.0))


# one for all constraints, or one for each
ForEach = float | Schedule | tuple[float | Schedule, ...]


def per_constraint(setting: ForEach, k: Tensor, m: int) -> float | Tensor:
    """The setting of every constraint at step k: one for all, or (m,) from a tuple."""
    if not isinstance(setting, tuple):
        return value(setting, k)
    if len(setting) != m:
        raise ValueError(
            f"{len(setting)} step sizes were given for {m} constraints; give one, or a tuple of {m}"
        )
    return torch.stack([k.new_zeros(()) + value(entry, k) for entry in setting])
