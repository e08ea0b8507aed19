"""The commonest step in as few operations as it takes.

One mini-batch, one process, limits on the loss alone: [f, c] is one product with the losses, the weights of rows are
another. A small model's whole step is some sixty operations, so every one counts. The ordinary way gives the same
numbers and serves everything else; a step that is not finite, or lacks a group, goes there too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.core import Algorithm, Sample
from fairbound.loop.evaluated import FEW, refuse_another
from fairbound.loop.layout import Map
from fairbound.loop.progress import Progress
from fairbound.loop.pulling import Direct, Whole
from fairbound.loop.reading import Plan, combined
from fairbound.loop.rows import Rows


class ShortEstimate:
    """What a method asks of an `Estimate`, from the map of a mini-batch."""

    __slots__ = ("c", "losses", "map", "puller", "x")

    def __init__(self, c: Tensor, losses: Tensor, rows: Map, puller: Direct | Whole, x: Tensor) -> None:
        self.c, self.losses, self.map, self.puller, self.x = c, losses, rows, puller, x

    @property
    def f(self) -> Tensor:
        return torch.dot(self.map.objective, self.losses.detach())

    def at(self, point: Tensor) -> ShortEstimate:
        refuse_another(point, self.x)
        return self

    def grad(self, f: float | Tensor = 0.0, c: Tensor | None = None) -> Tensor:
        """Gradient of `f * F + c'C` in one backward pass: (n,)."""
        weights = combined(self.map.objective, self.map.constraints, f, c)
        return self.puller.pull([self.losses], [weights])

    def jac(self) -> Tensor:
        """Jacobian of the constraints: (m, n)."""
        unit = torch.eye(self.c.shape[0], dtype=self.c.dtype, device=self.c.device)
        return torch.stack([self.grad(c=one) for one in unit])


class Stepped(NamedTuple):
    """A step that was made, or left out because its gradient is not finite."""

    estimate: ShortEstimate
    new: Any
    done: bool


class Short:
    """The short way of a method, where there is one."""

    def __init__(self, algorithm: Algorithm[Any], plan: Plan) -> None:
        self.algorithm, self.plan = algorithm, plan
        self.possible = algorithm.draws == 1 and algorithm.levels is None and plan.loss_alone

    def step(self, rows: Rows, progress: Progress, puller: Direct | Whole) -> Stepped | None:
        """One step; None, and nothing done, where it must go the ordinary way."""
        losses = rows.losses
        found = self.plan.layout(rows).map
        if found is None or losses.dtype != found.objective.dtype:
            return None
        c = torch.addmv(found.minus_bound, found.rows_of_c, losses.detach())
        if not math.isfinite(sum(c.tolist()) if c.shape[0] <= FEW else float(c.sum())):
            return None
        x = puller.point()
        estimate = ShortEstimate(c, losses, found, puller, x)
        try:
            draw = progress.draw((Sample(estimate.at),), 1.0, x)  # type: ignore[arg-type]
            d, new = self.algorithm.update(x, progress.state, draw)
            done = puller.finish(d, self.algorithm, progress.state, new)
            estimate.losses = losses.detach()  # what is kept of the step shall not keep its graph
            return Stepped(estimate, new, done)
        except BaseException:
            puller.undo()
            raise
