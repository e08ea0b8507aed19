"""One step over several mini-batches: their sums and counts are known first, then each is passed backward.

What the constraints are decides the weights of examples, and so must be known before the first backward pass. The
method is asked once for its weights, and every mini-batch is passed backward with them. One that is not linear in the
gradient is asked again at the end, with the gradient of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves
from fairbound.constraints.comparisons import SumsCounts
from fairbound.core import Algorithm, Draw, Sample
from fairbound.integrations.torch.estimate import BatchStatistics, Observed
from fairbound.integrations.torch.gradients import Flat, InPlace
from fairbound.integrations.torch.vectors import Coefficient, Combination, Gradient
from fairbound.training.contract import checked_update


class AccumulatedStep:
    """A step in progress; `left` mini-batches are still to come."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        writer: InPlace | Flat,
        whole: Observed,
        state: Any,
        draw: Callable[[Sample, Any], Draw],
        totals: Sequence[SumsCounts],
    ) -> None:
        self.algorithm, self.writer, self.whole, self.state = algorithm, writer, whole, state
        self.draw, self.left = draw, len(totals)
        self.missing = sum((part.counts for part in totals[1:]), totals[0].counts)  # examples yet to be passed
        self.asked: list[tuple[Tensor, Coefficient]] = []  # (1+q,) weights of means, and what their gradient counts
        if whole.finite:
            self.x: Any = writer.point()
            d, self.new = self._update(self._noted)
            if isinstance(writer, InPlace):
                writer.open(d, algorithm.primal_step(state))
                self.asked = [(gradient.asked[0], c) for gradient, c in writer.direction.gradients()]

    def _noted(self, mean_weights: Tensor) -> Any:
        if isinstance(self.writer, InPlace):
            return Combination({Gradient(mean_weights): 1.0}, self.x.like)
        self.asked.append((mean_weights, self.writer.loss_scale))
        return torch.ones_like(self.x)

    def _update(self, vjp: Callable[[Tensor], Any]) -> tuple[Any, Any]:
        sample = self.whole.sample(self.x, vjp)
        return checked_update(self.algorithm, self.x, self.state, self.draw(sample, self.x))

    def add(self, statistics: BatchStatistics) -> None:
        """Pass one mini-batch backward."""
        if self.whole.finite:
            for mean_weights, coefficient in self.asked:
                weights = statistics.weights(mean_weights, self.whole.totals.counts)
                self.writer.backward(statistics.tensors, weights, coefficient)
        self.missing = self.missing - statistics.totals().counts
        self.left -= 1
        if not self.left and self.missing.abs().max() > 1e-3:
            raise ValueError("backward() got other examples than accumulate(); give both the same mini-batches")

    def finish(self) -> Any | None:
        """The new state, with the direction in `.grad`; None if something was not finite."""
        if not self.whole.finite:
            return None
        old = tree_leaves(self.state)
        if isinstance(self.writer, InPlace):
            return self.new if self.writer.close(old, tree_leaves(self.new)) else None
        gradient = self.writer.gradient()
        d, new = self._update(lambda _: gradient)
        done = self.writer.finish(d, self.algorithm.primal_step(self.state), old, tree_leaves(new))
        return new if done else None
