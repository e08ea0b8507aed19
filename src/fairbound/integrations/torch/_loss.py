"""A loss for a trainer: its value is the mean loss, its gradient the method's direction.

A trainer calls `backward` itself, scales and divides the loss, and decides when its optimizer
steps. So a step comes in two parts. The backward pass of the loss counts its mini-batch as pending;
the next step of an optimizer that holds the model's parameters moves the method's state by the sums
and counts of all pending mini-batches, as one draw. What is never passed backward (evaluation) does
not count, and what no optimizer step follows (a GradScaler that met infinities) is dropped at the
first backward pass after `.grad` was emptied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._linear import SumsCounts
from fairbound.integrations.torch._checks import check_dependence
from fairbound.integrations.torch._estimate import BatchStatistics, ShownCells
from fairbound.integrations.torch._gradient_pass import loss_scale
from fairbound.integrations.torch._multiplier_steps import MultiplierSteps
from fairbound.integrations.torch._parameters import check_graphs, clear, non_finite

# windows without an optimizer step that are warned of; a GradScaler may skip its first 16
DROPPED_IN_A_ROW = 30


class _Direction(torch.autograd.Function):
    """A value with any gradient: `weights()`, asked for at the backward pass, is that of every
    tensor; None is none."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, weights: Callable[[], list[Tensor | None]], *tensors: Tensor
    ) -> Tensor:
        ctx.weights = weights
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (
            None,
            None,
            *(None if weight is None else weight * gradient for weight in ctx.weights()),
        )


def _directed(
    value: Tensor, weights: Callable[[], list[Tensor | None]], tensors: Sequence[Tensor]
) -> Tensor:
    """A copy of `value` whose gradient with respect to `tensors` is `weights()`."""
    directed: Tensor = _Direction.apply(value, weights, *tensors)  # type: ignore[no-untyped-call]
    return directed


class Pending(NamedTuple):
    """Mini-batches that were passed backward."""

    totals: SumsCounts
    cells: ShownCells | None  # those that the totals are of, for every part; None: all
    finite: Tensor | None = None  # () bool where nobody looks at it

    def joined(self, other: Pending) -> Pending:
        """Join both."""
        if self.cells is not None:
            raise ValueError(
                "several backward passes for one optimizer step gather all constraints, and with"
                " very many groups a mini-batch shows few of them; let every backward pass have its"
                " step"
            )
        finite = self.finite if other.finite is None else other.finite
        if self.finite is not None and other.finite is not None:
            finite = self.finite & other.finite
        return Pending(self.totals.plus(other.totals), None, finite)


class TrainerSteps:
    """The steps of a multiplier method in a trainer, which makes the backward passes and the
    optimizer steps."""

    def __init__(self, steps: MultiplierSteps) -> None:
        self.steps = steps
        self.scaler: torch.amp.GradScaler | None = None
        # of the mini-batches passed backward since the last optimizer step
        self.pending: Pending | None = None
        self.dropped = 0  # windows in a row that no optimizer step followed

    def evaluation(self, batch: MiniBatch) -> Tensor:
        """The mean loss of this process's examples, which nothing may differentiate."""
        mean = self.steps.totals(batch).means[0].to(batch.losses.dtype)
        return _directed(mean, _in_evaluation, [batch.losses])

    def loss(self, batch: MiniBatch) -> Tensor:
        """The mean loss, with the method's direction as its gradient."""
        self._check()
        statistics = self.steps.statistics(batch)
        check_graphs(statistics.tensors)
        passed = Pending(statistics.totals(), statistics.cells)
        estimate = self.steps.estimate(*passed[:2])
        if not self.steps.look and self.steps.state is not None:
            passed = passed._replace(finite=estimate.finite)
        elif not estimate.finite:
            self.steps.constraints.check(batch)  # an unknown group makes NaN: explain it

            def no_weights() -> list[Tensor | None]:
                return self._not_finite(statistics)

            return _directed(estimate.f.to(batch.losses.dtype), no_weights, statistics.tensors)
        by_sum = estimate.by_sum(self.steps.ask([estimate]).w)
        self.steps.probe(
            statistics, estimate, loss_scale(self.scaler, self.steps.parameters.device)
        )

        def weights() -> list[Tensor | None]:
            self._count(passed)
            size = self.steps.processes.size  # DistributedDataParallel takes the mean over them
            by_example = statistics.weights(by_sum)
            return [*by_example] if size == 1 else [weight * size for weight in by_example]

        return _directed(estimate.f.to(batch.losses.dtype), weights, statistics.tensors)

    def _check(self) -> None:
        method = self.steps.method
        name = type(method).__name__
        if method.smoothing is not None:
            raise ValueError(
                f"{name} adds a vector to the gradient, so its direction is not the gradient of a"
                " loss; use fair.backward(losses, groups), which writes it into .grad (in a"
                " trainer: with manual optimization), DescentAscent(), or SSLALM(mu=0.0)"
            )
        if method.draws > 1:
            raise ValueError(
                f"{name} needs {method.draws} independent mini-batches a step, and a loss is of"
                " one; use fair.backward(losses, groups, extra_batches=[...]), or a variant with"
                " one draw"
            )
        if self.steps.accumulated:
            raise ValueError(
                "a step begun by accumulate() is in progress; finish it with backward()"
            )

    # Backward passes and optimizer steps ----------------------------------------------------------

    def _not_finite(self, statistics: BatchStatistics) -> list[Tensor | None]:
        """No gradient, so that `.grad` stays as it was; NaN for a GradScaler, which then skips its
        step."""
        self.steps.progress.skip()
        if self.scaler is None or not self.scaler.is_enabled():
            return [None] * len(statistics.tensors)
        return [torch.full_like(tensor, torch.nan) for tensor in statistics.tensors]

    def _count(self, passed: Pending) -> None:
        """A mini-batch that is passed backward; where `.grad` was emptied since the last one, it is
        a first one."""
        grads = self.steps.parameters.grads()
        emptied = not any(_nonzero(grad) for grad in grads) if self.steps.look else not grads
        if self.pending is not None and emptied:
            self.pending = None
            self.dropped += 1
            if self.dropped == DROPPED_IN_A_ROW:
                _warn_of_no_step()
        self.pending = passed if self.pending is None else self.pending.joined(passed)
        _listen()
        _WAITING.add(self)

    def _trains(self, optimizer: Optimizer) -> bool:
        trained = {id(p) for p in self.steps.parameters.tensors}
        return not trained.isdisjoint(
            id(p) for group in optimizer.param_groups for p in group["params"]
        )

    def before_step(self, optimizer: Optimizer) -> None:
        """Check before an optimizer's step: some loss reached the model; gradients that nobody
        looked at are finite, or 0."""
        if self.pending is None or not self._trains(optimizer):
            return
        grads = self.steps.parameters.grads()
        check_dependence(bool(grads))
        if self.pending.finite is not None:
            clear(grads, self.pending.finite)

    def stepped(self, optimizer: Optimizer) -> None:
        """Follow an optimizer's step: if it is one of the model's, the method's state moves by all
        that is pending."""
        if self.pending is None or not self._trains(optimizer):
            return
        # where a fused optimizer skips the step itself
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        pending, self.pending, self.dropped = self.pending, None, 0
        estimate = self.steps.estimate(*pending[:2])
        answer = self.steps.ask([estimate])
        made = non_finite(answer.numbers)[0] == 0
        if pending.finite is not None:
            self.steps.move(answer, [estimate], [pending.cells], pending.finite & made)
        elif made:
            self.steps.move(answer, [estimate], [pending.cells])
        else:
            self.steps.progress.skip()


# those with something pending: an optimizer does not know its losses
_WAITING: WeakSet[TrainerSteps] = WeakSet()


@cache
def _listen() -> None:
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_stepped)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for steps in list(_WAITING):
            steps.before_step(optimizer)


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for steps in list(_WAITING):
            steps.stepped(optimizer)
            if steps.pending is None:
                _WAITING.discard(steps)


def _in_evaluation() -> list[Tensor | None]:
    raise ValueError(
        "fair.loss() was called with the model in evaluation mode, where it is the mean loss alone"
        " and trains nothing; call model.train() before the forward pass, or differentiate"
        " losses.mean()"
    )


def _nonzero(grad: Tensor) -> bool:
    return bool(grad._nnz()) if grad.is_sparse else bool(grad.any())


def _warn_of_no_step() -> None:
    warnings.warn(
        f"{DROPPED_IN_A_ROW} times in a row .grad was emptied after the backward pass of"
        " fair.loss() before any optimizer of these parameters made a step, so the multipliers do"
        " not move; build Constrained with the parameters that the optimizer holds, which must be"
        " a torch.optim.Optimizer",
        UserWarning,
        stacklevel=2,
    )
