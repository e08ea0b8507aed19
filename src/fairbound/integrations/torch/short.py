"""The commonest step in as few operations as it takes.

One mini-batch, one process, limits on the loss alone: [f, c] is one product with the losses, the weights of rows are
another. A small model's whole step is some sixty operations, so every one counts, and so does every Python call. The
ordinary way gives the same numbers and serves everything else; a step that is not finite, or lacks a group, goes there
too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves
from fairbound.core import Algorithm, Draw
from fairbound.integrations.torch.batch import MiniBatch
from fairbound.integrations.torch.estimate import FEW, refuse_another
from fairbound.integrations.torch.gradients import Flat, InPlace
from fairbound.integrations.torch.layout import Map
from fairbound.integrations.torch.state import TrainingState
from fairbound.integrations.torch.statistics import ConstraintMatrix, combined
from fairbound.integrations.torch.unrolled import unrolled

NOWHERE = torch.zeros(0, device="cpu")


class ShortEstimate:
    """What a method asks of an `Estimate`, and of the `Sample` that gives it, from the map of a mini-batch."""

    __slots__ = ("c", "losses", "map", "puller", "values", "x")

    def __init__(self, c: Tensor, values: Tensor, losses: Tensor, rows: Map, puller: InPlace | Flat, x: Tensor) -> None:
        self.c, self.values, self.losses, self.map, self.x = c, values, [losses], rows, x
        self.puller: InPlace | Flat | None = puller  # until the step is made

    def __call__(self, point: Tensor) -> ShortEstimate:
        if point is not self.x:
            refuse_another(point, self.x)
        return self

    @property
    def f(self) -> Tensor:
        return torch.dot(self.map.objective, self.values)

    def grad(self, f: float | Tensor = 0.0, c: Tensor | None = None) -> Tensor:
        """Gradient of `f * F + c'C` in one backward pass: (n,)."""
        assert self.puller is not None
        return self.puller.pull(self.losses, [combined(self.map.objective, self.map.constraints, f, c)])

    def jac(self) -> Tensor:
        """Jacobian of the constraints: (m, n)."""
        unit = torch.eye(self.c.shape[0], dtype=self.c.dtype, device=self.c.device)
        return torch.stack([self.grad(c=one) for one in unit])


class Short:
    """The short way of a method, where there is one."""

    def __init__(
        self, algorithm: Algorithm[Any], plan: ConstraintMatrix, progress: TrainingState, puller: InPlace | Flat
    ) -> None:
        self.algorithm, self.plan, self.progress, self.puller = algorithm, plan, progress, puller
        one_draw = algorithm.draws == 1 and algorithm.batch_size_probs is None
        self.possible = one_draw and plan.loss_alone and puller.processes.alone
        parameters = progress.parameters
        if self.possible and parameters.kind == "cpu":
            progress.unrolled = unrolled(algorithm, plan.m, parameters.dtype)

    def step(self, rows: MiniBatch) -> tuple[ShortEstimate, bool] | None:
        """One step, and whether it was made or left out; None, and nothing done, where it must go the ordinary way."""
        losses, progress, puller = rows.losses, self.progress, self.puller
        if progress.plain is None and progress.state is None:
            return None
        found = self.plan.layout(rows).map
        if found is None or losses.dtype is not found.objective.dtype:
            return None
        values = losses.detach()
        c = torch.addmv(found.minus_bound, found.rows_of_c, values)
        numbers = c.tolist() if c.shape[0] <= FEW else [float(c.sum())]
        if not math.isfinite(sum(numbers)):
            return None
        x = puller.point()
        estimate = ShortEstimate(c, values, losses, found, puller, x)
        try:
            done = self._by_tensors(estimate) if progress.unrolled is None else self._by_numbers(estimate, numbers)
        except BaseException:
            puller.undo()
            raise
        estimate.losses, estimate.x, estimate.puller = [], NOWHERE, None  # it may be kept: without a graph or a model
        return estimate, done

    def _by_tensors(self, estimate: ShortEstimate) -> bool:
        progress, x = self.progress, estimate.x
        draw = Draw((estimate,), progress.parameters.one, progress.coin(x))  # type: ignore[arg-type]
        d, new = self.algorithm.update(x, progress.state, draw)
        done = self.puller.finish(d, self.algorithm.primal_step(progress.state), tree_leaves(new))
        if done:
            progress.commit(new, (), estimate.c)
        return done

    def _by_numbers(self, estimate: ShortEstimate, c: list[float]) -> bool:
        progress, own = self.progress, self.progress.unrolled
        assert own is not None
        d, new = own.step(progress.plain or own.plain(progress.state), c, estimate.x, estimate.grad)
        done = math.isfinite(sum(new.numbers)) and self.puller.finish(d, own.primal_step, new.vectors)
        if done:
            progress.move_on_plainly(new, estimate.c)
        else:
            self.puller.undo()
        return done
