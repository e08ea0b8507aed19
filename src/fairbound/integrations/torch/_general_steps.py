"""The steps of any other method in a loop: its own `update` on flat vectors, in one process.

Gradients are taken beside `.grad`, as many as the method asks for, and the direction d /
-primal_step is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fairbound._utils.rng import LEVEL, UNIFORM, checked_seed, keys, uniforms
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.core import Algorithm, CellGradients, Draw, Estimate
from fairbound.integrations.torch._checks import check_dependence
from fairbound.integrations.torch._estimate import BatchEstimate, BatchStatistics
from fairbound.integrations.torch._gradient_pass import loss_scale
from fairbound.integrations.torch._parameters import check_graphs, non_finite
from fairbound.integrations.torch._state_dict import (
    CELL,
    CONSTRAINT,
    OTHER_LEAF,
    PARAMETER,
    kept_where,
)
from fairbound.integrations.torch._steps import StepInfo, Steps

REMEDY = "use one that takes one gradient a step, such as DescentAscent or SSLALM"


class GeneralSteps(Steps):
    """`Algorithm` on a model's parameters as one flat vector."""

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet,
        method: Algorithm[Any],
        seed: int,
        several_gradients: bool,
    ) -> None:
        super().__init__(model, constraints, method, gathered=False)
        self.parameters.check_whole(f"{type(method).__name__} needs whole vectors", REMEDY)
        self._check_alone()
        self.several_gradients = several_gradients  # of one mini-batch, as a trial step shows it
        self.kinds = _kinds(method)
        # the numbers that a `Sampler` with the same seed gives
        self._key = keys(torch.tensor(checked_seed(seed)))

    def _check_alone(self) -> None:
        if self.processes.size > 1:
            name = type(self.method).__name__
            raise ValueError(
                f"{name} takes its gradients one by one, which processes cannot reduce; {REMEDY}"
            )

    def prepare(self, model: nn.Module) -> None:
        super().prepare(model)
        self._check_alone()

    def initial_state(self, first: BatchEstimate | None) -> Any:
        estimate = self._form() if first is None else first.estimate()
        dtype = self.parameters.dtype  # of the state, whatever that of the losses is
        estimate = estimate._replace(f=estimate.f.to(dtype), c=estimate.c.to(dtype))
        return self.method.init(self.parameters.flat(), self.rows, estimate, self.equality)

    def _form(self) -> Estimate:
        """An estimate without its numbers, for the form of a state."""
        nothing = torch.zeros(self.rows, device=self.parameters.device)
        return Estimate(
            nothing.sum(),
            nothing,
            lambda w: w,
            CellGradients(len(self._cells), lambda: nothing, lambda rows: rows),
        )

    def backward(
        self,
        batch: MiniBatch,
        extra_batches: Sequence[MiniBatch],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        if self.method.batch_size_probs is not None:
            raise ValueError(
                f"{type(self.method).__name__} draws mini-batches of random size and wants every"
                " constraint's gradient; use fair.backward_closure(evaluate), where evaluate(size)"
                " passes newly drawn examples through the model"
            )
        batches = self.in_order(batch, extra_batches)
        retain = self.several_gradients  # else torch frees the graph with the gradient
        info = self._step(
            [self.statistics(mini_batch) for mini_batch in batches],
            scaler=scaler,
            scale=scale,
            retain=retain,
        )
        if info.skipped:
            for mini_batch in batches:
                self.constraints.check(mini_batch)  # an unknown group makes NaN: explain it
        return info

    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        probs = self.method.batch_size_probs
        if probs is None:
            return self._step(
                [self.drawn(evaluate, evaluates) for evaluates in self.method.evaluates],
                scale=scale,
            )
        u = float(self._uniform(LEVEL))
        level = next(
            (i for i, edge in enumerate(accumulate(probs[:-1])) if u < edge), len(probs) - 1
        )
        single, large = self.drawn(evaluate, "fc"), self.drawn(evaluate, "fc", 2 << level)
        return self._step([single, large, *large.halves()], 1 / probs[level], scale=scale)

    def _step(
        self,
        statistics: Sequence[BatchStatistics],
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
        scale: float = 1.0,
        retain: bool = True,
    ) -> StepInfo:
        estimates = [self.estimate(examples.totals(), examples.cells) for examples in statistics]
        main = estimates[self.main]
        if not all(bool(estimate.finite) for estimate in estimates):
            return self.skip(main, scaler)
        before, x = self.begun(main), self.parameters.flat()
        scaled, reached = (
            float(loss_scale(scaler, x.device)),
            [False] * len(self.parameters.tensors),
        )

        def gradient_of(examples: BatchStatistics) -> Callable[[Tensor], Tensor]:
            def gradient(by_sum: Tensor) -> Tensor:
                weights = examples.weights(by_sum * scaled)
                check_graphs(examples.tensors)
                g, used = self.parameters.gradient_of(examples.tensors, weights, retain=retain)
                reached[:] = [a or b for a, b in zip(reached, used, strict=True)]
                return g if scaled == 1.0 else g / scaled

            return gradient

        pairs = zip(estimates, statistics, strict=True)
        samples = [estimate.sample(x, gradient_of(examples)) for estimate, examples in pairs]
        uniform = self._uniform(UNIFORM).to(x.device)
        d, new = self.method.update(
            x, before, Draw(tuple(samples), x.new_full((), weight), uniform)
        )
        # Losses in another precision than the model's would change that of the state.
        new = tree_map(lambda after, old: after.to(old.dtype), new, before)
        if non_finite([leaf.contiguous() for leaf in (d, *tree_leaves(new))]).item():
            return self.skip(main, scaler)
        check_dependence(any(reached))
        step = float(self.method.primal_step(before))
        direction = d / -step if step else torch.zeros_like(d)  # d of a step of 0 is 0
        self.parameters.add_direction(direction * (scaled * scale), reached)
        for estimate in estimates:
            if estimate.absent is not None:
                new = kept_where(
                    estimate.absent, estimate.shown.counts[1:-2] <= 0, before, new, self.kinds
                )
        self.advance(new, estimates, [None] * len(estimates))
        return StepInfo(main, None)

    def _uniform(self, slot: int) -> Tensor:
        return uniforms(self._key, torch.tensor(self.progress.attempts), torch.tensor(slot))


def _kinds(method: Algorithm[Any]) -> list[str]:
    """What every leaf of a method's state belongs to: seen from how its shape goes with m and n."""

    def shapes(n: int, m: int) -> list[torch.Size]:
        x, c = torch.zeros(n), torch.zeros(m)
        return [
            leaf.shape
            for leaf in tree_leaves(
                method.init(x, m, Estimate(torch.zeros(()), c, lambda w: x), None)
            )
        ]

    kinds = []
    for here, wider, longer in zip(shapes(3, 5), shapes(3, 6), shapes(4, 5), strict=True):
        with_m, with_n = here != wider, here != longer  # a gradient for every cell goes with both
        kinds.append(
            CELL
            if with_m and with_n
            else CONSTRAINT
            if with_m
            else PARAMETER
            if with_n
            else OTHER_LEAF
        )
    return kinds
