"""Replicates of P1 to P5 (algorithms.md, E) with noise, as one stack: how far a method ends from the known answer.

The problems are those of benchmarks/defaults.py. Noise of one example: sd .5 on every entry of grad f and c, .2 on J,
where c sees the noise of J (c + Zx), so that products of one mini-batch are biased as in training. A mini-batch of B
examples has 1/B of the variance.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.core import Algorithm, Draw

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import defaults

PROBLEMS = {problem.name: problem for problem in defaults.known_problems()}
ONE = torch.ones((), dtype=defaults.F64)


class Errors(NamedTuple):
    """Of the means over the last half of the steps, for every replicate."""

    x: Tensor  # (replicates,) |x - x*|
    violation: Tensor  # (replicates,) largest entry of [C(x)]_+, without noise
    y: Tensor  # (replicates,) |y - y*|; NaN for a method without multipliers

    def medians(self) -> tuple[float, float, float]:
        x, violation, y = (float(part.median()) for part in self)
        return x, violation, y


def errors(
    method: Algorithm[Any], name: str, steps: int, batch: float = 4, replicates: int = 32, seed: int = 0
) -> Errors:
    """Errors of `method` on the problem `name`; mini-batches of `batch` examples (infinity: no noise)."""
    problem, generator = PROBLEMS[name], torch.Generator().manual_seed(seed)
    width = defaults.N + problem.m + problem.m * defaults.N

    def noise(draws: int) -> Tensor:
        return batch**-0.5 * torch.randn(replicates, draws, width, dtype=defaults.F64, generator=generator)

    def begin(x: Tensor, own: Tensor) -> Any:
        return method.init(x, problem.m, defaults.sample(problem, ONE, ONE, own[0])(x))

    def step(x: Tensor, state: Any, own: Tensor) -> Any:
        d, new = method.update(x, state, Draw.of(*(defaults.sample(problem, ONE, ONE, one) for one in own)))
        y = method.multipliers(new)
        return x + d, new, torch.full_like(problem.y, torch.nan) if y is None else y

    x = problem.start.expand(replicates, -1)
    state = torch.func.vmap(begin)(x, noise(1))
    mean_x, mean_y = torch.zeros_like(x), torch.zeros(replicates, problem.m, dtype=defaults.F64)
    stepped = torch.func.vmap(step)
    for k in range(steps):
        x, state, y = stepped(x, state, noise(method.draws))
        if 2 * k >= steps:
            mean_x, mean_y = mean_x + x / (steps - steps // 2), mean_y + y / (steps - steps // 2)
    violation = torch.func.vmap(lambda one: problem.at(one).c.max().clamp(min=0.0))(mean_x)
    return Errors((mean_x - problem.x).norm(dim=-1), violation, (mean_y - problem.y).norm(dim=-1))
