"""The steps of a multiplier method in a loop: c -> (w, state) -> example weights -> one backward pass.

Nothing of the model's size is kept, but for the smoothed parameters of a method that declares `smoothing`. Several
mini-batches for one step (`accumulate`) are counted first, forward only: what the constraints are decides the weights
of examples, and so must be known before the first backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.constraints.linear import SumsCounts
from fairbound.core import MultiplierMethod
from fairbound.integrations.torch.checks import check_dependence
from fairbound.integrations.torch.estimate import BatchEstimate, BatchStatistics, ShownCells, added
from fairbound.integrations.torch.gradient_pass import GradientPass
from fairbound.integrations.torch.parameters import SmoothedParameters
from fairbound.integrations.torch.state_dict import CONSTRAINT, OTHER
from fairbound.integrations.torch.steps import ONE_BATCH, StepInfo, Steps
from fairbound.training.state_rows import gathered, scattered, with_own_tables

MOST_TOGETHER = 10_000  # constraints that a method may treat together
# Parameters from which a step on a GPU does not look at its numbers: for smaller models the operations that this takes
# cost more than the wait. Chosen between the sizes of benchmarks/speed/large.py (11, 41 and 184 million), so that its
# figures there are no independent ones.
UNSEEN_FROM = 100_000_000


class Answer(NamedTuple):
    """What the method says to the values of a step's mini-batches."""

    table: Any  # its state with all rows
    before: Any  # with the rows that the mini-batches show
    new: Any  # these after the step
    mean_weights: Tensor  # (1+q,) the weight of every mean in f + w'c


class MultiplierSteps(Steps):
    """`MultiplierMethod` on a model's parameters."""

    method: MultiplierMethod[Any]

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet,
        method: MultiplierMethod[Any],
        normalize: bool,
    ) -> None:
        rows_alone = any(constraints.many) and method.row_wise and method.draws == 1
        if constraints.m > MOST_TOGETHER and not rows_alone:
            raise ValueError(
                f"{type(method).__name__} treats all constraints of a mini-batch together, and there are "
                f"{constraints.m}; use a method that treats each alone on one mini-batch: DescentAscent(), Penalty(), "
                "SSLALM(samples=1), with a constraint that compares each group with a bound or with the mean"
            )
        super().__init__(model, constraints, method, gathered=rows_alone, normalize=normalize)
        self.smoothed: SmoothedParameters | None = None
        self.kinds = [CONSTRAINT if leaf.ndim else OTHER for leaf in self.initial_state(None)]
        self.accumulated: list[SumsCounts] = []
        self._accumulated_step: AccumulatedStep | None = None

    @property
    def looks(self) -> bool:
        """On a CPU that costs nothing; with very many groups `unique` waits anyway; small models gain by it."""
        small = self.parameters.device.type == "cpu" or self.parameters.n < UNSEEN_FROM
        return small or self.gathered or self.record.normalize

    def initial_state(self, first: BatchEstimate | None) -> Any:
        # A mini-batch shows few of very many constraints, so none starts from it.
        c = None if first is None or self.gathered else first.scaled_c.to(self.parameters.dtype)
        state = self.method.start(self.parameters.like, self.record.rows, self.equality, c)
        return with_own_tables(state) if self.gathered else state

    def begun(self, first: BatchEstimate) -> Any:
        if self.state is not None:
            return self.state
        if self.method.smoothing is not None:
            self.smoothed = SmoothedParameters(self.parameters)
        return super().begun(first)

    def multipliers(self) -> Tensor | None:
        y = None if self.state is None else self.method.multipliers(self.state)
        return None if y is None else self.record.in_units(y[: len(self.constraints.names)])

    # One step --------------------------------------------------------------------------------------------------------

    def backward(
        self,
        batch: MiniBatch,
        extra_batches: Sequence[MiniBatch],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        if self.accumulated:
            if extra_batches or scale != 1.0:
                raise ValueError("after accumulate(), backward() takes neither extra_batches= nor scale=")
            return self._accumulated_backward(batch, scaler)
        batches = self.in_order(batch, extra_batches)
        info = self._step([self.statistics(mini_batch) for mini_batch in batches], scaler, scale)
        if info.made is False:
            for mini_batch in batches:
                self.constraints.check(mini_batch)  # an unknown group makes NaN: explain it
        return info

    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        return self._step([self.drawn(evaluate, evaluates) for evaluates in self.method.evaluates], None, scale)

    def _step(
        self, statistics: Sequence[BatchStatistics], scaler: torch.amp.GradScaler | None, scale: float
    ) -> StepInfo:
        estimates = [self.estimate(examples.totals(), examples.cells) for examples in statistics]
        main, examples = estimates[self.main], statistics[self.main]
        looks = self.looks
        if looks and not all(estimate.finite for estimate in estimates):
            return self.skip(main, scaler)
        answer = self.ask(estimates)
        gradients = GradientPass(self.parameters, self.processes, scaler, scale)
        made: bool | Tensor
        try:
            gradients.add(examples.tensors, examples.weights(answer.mean_weights, main.totals.counts))
            made = self._keep(gradients, answer) if looks else self._keep_unseen(gradients, answer, estimates, scaler)
        except BaseException:
            gradients.undo()
            raise
        if made is False:
            return self.skip(main, scaler)
        self.move(answer, estimates, [examples.cells for examples in statistics], made)
        return StepInfo.of(main, made)

    def ask(self, estimates: Sequence[BatchEstimate]) -> Answer:
        """The method's weights and next state; nothing is changed."""
        main = estimates[self.main]
        table = self.begun(main)
        before = table if main.rows is None else gathered(table, main.rows)
        dtype = self.parameters.dtype  # of the state, which losses in another precision must not change
        w, new = self.method.step(before, *[estimate.scaled_c.to(dtype) for estimate in estimates])
        w = torch.zeros_like(main.c) if w is None else w
        return Answer(table, before, new, main.mean_weights(torch.cat([w.new_ones(1), w])))

    def _keep(self, gradients: GradientPass, answer: Answer) -> bool:
        """Whether the gradient and the next state are finite; then `.grad` has the whole direction."""
        if not self.processes.out_of_step:
            check_dependence(bool(self.parameters.grads()))  # before those that were there are added
        return gradients.keep(answer.new, self.smoothed, self.method.smoothing)

    def _keep_unseen(
        self,
        gradients: GradientPass,
        answer: Answer,
        estimates: Sequence[BatchEstimate],
        scaler: torch.amp.GradScaler | None,
    ) -> Tensor:
        """The same on the device, () bool; a GradScaler sees a NaN where something was not finite."""
        if not self.processes.out_of_step:
            check_dependence(bool(self.parameters.grads()))
        finite = torch.stack([estimate.finite for estimate in estimates]).all()  # type: ignore[misc]
        made = gradients.keep_unseen(finite, answer.new, self.smoothed, self.method.smoothing)
        if scaler is not None and scaler.is_enabled():
            self.parameters.poison_grads(unless=made)
        return made

    def move(
        self,
        answer: Answer,
        estimates: Sequence[BatchEstimate],
        cells: Sequence[ShownCells | None],
        made: bool | Tensor = True,
    ) -> None:
        """The method's state moves on, by the mini-batches of a step; as a tensor, `made` says whether it was made."""
        new, rows, objective = answer.new, estimates[-1].rows, estimates[self.main].f
        if isinstance(made, Tensor):
            new = type(new)(*(torch.where(made, after, b) for after, b in zip(new, answer.before, strict=True)))
            estimates = [estimate.where(made, self.record.last) for estimate in estimates]
            self.progress.unseen = self.progress.unseen + ~made
        new = self.commit(answer.before, new, estimates, cells)
        self.advance(new if rows is None else scattered(answer.table, new, rows), objective)

    # Several mini-batches for one step --------------------------------------------------------------------------------

    def accumulate(self, batch: MiniBatch) -> None:
        """Count a mini-batch of an accumulated step."""
        if self.method.draws > 1:
            raise ValueError(
                f"{type(self.method).__name__} needs {self.method.draws} mini-batches a step, and accumulate() "
                f"gathers one; use backward(..., scale=1/k). {ONE_BATCH}"
            )
        if self.gathered:
            raise ValueError(
                f"accumulate() gathers all {self.constraints.m} constraints, and a mini-batch shows few of them; use "
                "backward(..., scale=1/k)"
            )
        if self._accumulated_step is not None:
            raise ValueError("accumulate() was called between the backward passes of a step; finish it first")
        self.accumulated.append(self.totals(batch))

    def _accumulated_backward(self, batch: MiniBatch, scaler: torch.amp.GradScaler | None) -> StepInfo:
        step = self._accumulated_step or self._begin_accumulated(scaler)
        try:
            step.add(self.statistics(batch))
            if step.left:
                return StepInfo.of(step.estimate, step.estimate.finite)
            is_finite = step.answer is not None and self._keep(step.gradients, step.answer)
        except BaseException:
            step.gradients.undo()
            self.accumulated, self._accumulated_step = [], None
            raise
        self.accumulated, self._accumulated_step = [], None
        if not is_finite or step.answer is None:
            step.gradients.undo()
            return self.skip(step.estimate, scaler)
        self.move(step.answer, [step.estimate], [None])
        return StepInfo.of(step.estimate, True)

    def _begin_accumulated(self, scaler: torch.amp.GradScaler | None) -> AccumulatedStep:
        estimate = self.estimate(added(self.accumulated))
        answer = self.ask([estimate]) if estimate.finite else None
        gradients = GradientPass(self.parameters, self.processes, scaler, 1.0)
        counts = sum((part.counts for part in self.accumulated[1:]), self.accumulated[0].counts)
        self._accumulated_step = AccumulatedStep(estimate, answer, gradients, len(self.accumulated), counts)
        return self._accumulated_step

    # Saving -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self.accumulated:
            raise ValueError("an accumulated step is in progress; save after its last backward()")
        smoothed = None
        if self.smoothed is not None and self.state is not None:  # a first step that failed leaves z, to be replaced
            smoothed = self.parameters.by_name(self.smoothed.z)
        return super().state_dict() | {"smoothed": smoothed}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        smoothed = None
        if self.method.smoothing is not None and saved.get("smoothed") is None and saved.get("state") is not None:
            raise ValueError(
                f"this {type(self.method).__name__} smooths the parameters, and the saved state is of one that does "
                "not; use its mu, or build a new Constrained"
            )
        if self.method.smoothing is not None and saved.get("smoothed") is not None:
            smoothed = SmoothedParameters(self.parameters)
            smoothed.load(saved["smoothed"])
        super().load_state_dict(saved)
        self.smoothed = smoothed


class AccumulatedStep:
    """A step in progress; `left` mini-batches are still to come."""

    def __init__(
        self, estimate: BatchEstimate, answer: Answer | None, gradients: GradientPass, left: int, counts: Tensor
    ) -> None:
        self.estimate, self.answer, self.gradients, self.left = estimate, answer, gradients, left
        self.missing = counts  # examples yet to be passed backward

    def add(self, statistics: BatchStatistics) -> None:
        """Pass one mini-batch backward."""
        if self.answer is not None:
            weights = statistics.weights(self.answer.mean_weights, self.estimate.totals.counts)
            self.gradients.add(statistics.tensors, weights)
        self.missing = self.missing - statistics.totals().counts
        self.left -= 1
        if not self.left and self.missing.abs().max() > 1e-3:
            raise ValueError("backward() got other examples than accumulate(); give both the same mini-batches")
