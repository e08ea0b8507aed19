"""One step over several mini-batches: their sums and counts are known first, then each is passed backward.

What the constraints are decides the weights of rows, and so must be known before the first backward pass. The method is
asked once for its weights, every mini-batch is passed backward with them, and at the end the method is asked again with
the gradient of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves
from fairbound.core import Algorithm, Draw, Sample
from fairbound.integrations.torch.estimate import Asked, Evaluated, Pull
from fairbound.integrations.torch.gradients import LAZY, Flat, InPlace
from fairbound.integrations.torch.statistics import BatchStatistics, ConstraintMatrix, SumsCounts


class Accumulating:
    """A step in progress; `left` mini-batches are still to come."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        plan: ConstraintMatrix,
        puller: InPlace | Flat,
        whole: Evaluated,
        state: Any,
        draw: Callable[[Sample, Tensor], Draw],
        gathered: Sequence[SumsCounts],
    ) -> None:
        self.algorithm, self.plan, self.puller, self.whole, self.state = algorithm, plan, puller, whole, state
        self.draw, self.left = draw, len(gathered)
        self.owed = sum((totals.counts for totals in gathered[1:]), gathered[0].counts)  # rows yet to be passed
        self.asked: list[Asked] = []
        if whole.finite:
            self.x = puller.point()
            if isinstance(puller, InPlace):
                puller.open()
            self.new = self._update(self._noted)[1]

    def _noted(self, asked: Asked) -> Tensor:
        self.asked.append(asked)
        return LAZY if isinstance(self.puller, InPlace) else torch.ones_like(self.x)  # type: ignore[return-value]

    def _update(self, pull: Pull) -> tuple[Tensor, Any]:
        sample = self.whole.sample(self.x, pull)
        return self.algorithm.update(self.x, self.state, self.draw(sample, self.x))

    def add(self, reading: BatchStatistics) -> None:
        """Pass one mini-batch backward."""
        if self.whole.finite:
            for asked in self.asked:
                weights = self.whole.weighted(self.plan, reading, asked)
                self.puller.passed(reading.tensors, weights, self.puller.scale)
        self.owed = self.owed - reading.totals().counts
        self.left -= 1
        if not self.left and self.owed.abs().max() > 1e-3:
            raise ValueError("backward() got other rows than accumulate() counted; give both the same mini-batches")

    def finish(self) -> Any | None:
        """The new state, with the direction in `.grad`; None if something was not finite."""
        if not self.whole.finite:
            return None
        if isinstance(self.puller, InPlace):
            return self.new if self.puller.close(tree_leaves(self.new)) else None
        gradient = self.puller.gradient()
        d, new = self._update(lambda _: gradient)
        done = self.puller.finish(d, self.algorithm.primal_step(self.state), tree_leaves(new))
        return new if done else None
