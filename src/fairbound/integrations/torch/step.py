"""The steps of a loop: a mini-batch that was shown becomes a step of the method, with its direction in `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound._utils.pytree import tree_leaves
from fairbound.constraints.limits import AnyLimit
from fairbound.core import Algorithm
from fairbound.integrations.torch.accumulation import Accumulating
from fairbound.integrations.torch.batch import MiniBatch
from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.estimate import Asked, Evaluated, evaluated, evaluated_alone
from fairbound.integrations.torch.flat_params import Parameters
from fairbound.integrations.torch.gradients import Closed, Flat, GradientWriter, InPlace
from fairbound.integrations.torch.state import TrainingState
from fairbound.integrations.torch.statistics import BatchStatistics, ConstraintMatrix, SumsCounts

ONE_BATCH = "SSLALM(samples=1) uses one for everything (its multipliers are biased), DescentAscent(second=False) too."


class StepInfo(NamedTuple):
    """What one mini-batch showed."""

    of: Evaluated
    skipped: bool  # whether the step was left out because something was not finite

    @property
    def loss(self) -> Tensor:
        """The objective, ()."""
        return self.of.f

    @property
    def c(self) -> Tensor:
        """(m,) the constraints, feasible where <= 0; one that the batch cannot tell has its last value, or NaN."""
        return self.of.last.clone()  # the loop keeps its own


class Steps:
    """A method on a model's parameters, moved on by mini-batches."""

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        limits: Sequence[AnyLimit],
        names: tuple[str, ...],
        algorithm: Algorithm[Any],
        seed: int,
    ) -> None:
        self.algorithm = algorithm
        self.plan = ConstraintMatrix(limits)
        self.parameters = Parameters(model)
        self.processes = Processes.of(model)
        self.progress = TrainingState(algorithm, names, self.parameters, seed)
        self.gathered: list[SumsCounts] = []
        self._main = next(
            i for i, evaluates in enumerate(algorithm.evaluates) if "f" in evaluates
        )  # the draw with the objective
        self._checked = False  # a first mini-batch
        self._accumulating: Accumulating | None = None
        self._begins = False  # whether that step is the first

    # Mini-batches as they are shown -----------------------------------------------------------------------------------

    def rows(self, losses: Tensor | MiniBatch, *given: Any) -> MiniBatch:
        """The mini-batch with all that was given of it, in the order of the fields of `MiniBatch`."""
        if isinstance(losses, Tensor):
            rows = MiniBatch(losses, *given, self.parameters.tensors)  # type: ignore[call-arg]
        else:
            rows = self._complete(losses if isinstance(losses, MiniBatch) else MiniBatch(losses))
            if not isinstance(rows.losses, Tensor):
                rows.check()  # says it in words
            beside = [name for name, value in zip(MiniBatch._fields[1:-1], given, strict=True) if value is not None]
            if beside:
                raise ValueError(f"{beside[0]}= was given beside MiniBatch, which has a field for it; put it there")
        if rows.losses.device != self.parameters.device:
            raise ValueError(
                f"the losses are on {rows.losses.device}, but the model was on {self.parameters.device} when "
                "Constrained was built; move the model first"
            )
        return rows

    def _complete(self, rows: MiniBatch) -> MiniBatch:
        if not isinstance(rows, MiniBatch):
            raise TypeError(f"a mini-batch must be fairbound.MiniBatch(losses, groups, ...), got {type(rows).__name__}")
        return rows._replace(parameters=self.parameters.tensors)

    def _in_order(self, rows: MiniBatch, extra_batches: Sequence[MiniBatch]) -> list[MiniBatch]:
        """One mini-batch for each draw of the method: the main one where the objective is read."""
        name, draws = type(self.algorithm).__name__, self.algorithm.draws
        if self.algorithm.batch_size_probs is not None:
            raise ValueError(
                f"{name} draws mini-batches of random size and wants every constraint's gradient; use "
                "fair.backward_closure(evaluate), where evaluate(size) passes fresh rows through the model"
            )
        if draws == 1 and not extra_batches:
            return [rows]
        if len(extra_batches) != draws - 1:
            raise ValueError(
                f"{name} needs {draws} independent mini-batches a step, got {1 + len(extra_batches)}; pass the "
                f"others as extra_batches=[MiniBatch(losses, groups), ...], on fresh examples, under torch.no_grad(). "
                f"{ONE_BATCH}"
            )
        rest = iter(extra_batches)
        return [rows if i == self._main else self._complete(next(rest)) for i in range(draws)]

    def _drawn(self, evaluate: Callable[[int], MiniBatch], evaluates: str, size: int = 1) -> BatchStatistics:
        with torch.set_grad_enabled("f" in evaluates):
            return self._read(self._complete(evaluate(size)))

    def _read(self, rows: MiniBatch) -> BatchStatistics:
        if not self._checked:
            self._check(rows)
        return self.plan.read(rows)

    def _check(self, rows: MiniBatch) -> None:
        self.plan.check(rows)
        self._checked = True

    def looked_at(self, rows: MiniBatch) -> SumsCounts:
        """The totals of a mini-batch that is not differentiated."""
        with torch.no_grad(), torch.autocast(rows.losses.device.type, enabled=False):
            return self._read(rows).totals()

    # One step --------------------------------------------------------------------------------------------------------

    def backward(
        self, rows: MiniBatch, extra_batches: Sequence[MiniBatch], scaler: torch.amp.GradScaler | None, scale: float
    ) -> StepInfo:
        """One step, or a part of an accumulated one; the arguments are those of `Constrained.backward`."""
        if self.gathered:
            if extra_batches or scale != 1.0:
                raise ValueError(
                    "in a step that accumulate() began, backward() takes neither extra_batches= nor scale="
                )
            return self._accumulate(rows, scaler)
        if self.processes.out_of_step and not self.algorithm.is_gradient_step:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs the gradient of all processes at every backward(), which "
                "no_sync() holds back; use accumulate() first, or leave no_sync() out"
            )
        batches = self._in_order(rows, extra_batches)
        seen = self._step(self._puller(scaler, scale), [self._read(batch) for batch in batches], scaler=scaler)
        if seen.skipped:
            for batch in batches:
                self.plan.check(batch)  # a group that no limit knows reads as NaN: say so
        return seen

    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        """One step from a function that draws fresh rows."""
        if self.processes.size > 1:
            raise ValueError(
                "backward_closure() takes gradients one by one, which DistributedDataParallel cannot reduce"
            )
        puller = Closed(self.parameters, self.processes, share=scale)
        if self.algorithm.batch_size_probs is None:
            return self._step(puller, [self._drawn(evaluate, evaluates) for evaluates in self.algorithm.evaluates])
        level, weight = self.progress.coins.level(self.progress.steps, self.algorithm.batch_size_probs)
        single, large = self._drawn(evaluate, "fc"), self._drawn(evaluate, "fc", 2 << level)
        return self._step(puller, [single, large, *large.halves()], weight)

    def _puller(self, scaler: torch.amp.GradScaler | None, scale: float) -> InPlace | Flat:
        kind = InPlace if self.algorithm.is_gradient_step else Flat
        return kind(self.parameters, self.processes, scaler, scale)

    def _step(
        self,
        puller: GradientWriter,
        readings: Sequence[BatchStatistics],
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
    ) -> StepInfo:
        """One step of the method on mini-batches that were read."""
        batches = [self._evaluated(reading) for reading in readings]
        main = batches[self._main]
        if not all(batch.finite for batch in batches):
            return self._left_out(main, scaler)
        begins = self.progress.state is None
        if begins:
            self.progress.begin(main.estimate())
        x = puller.point()
        pairs = zip(batches, readings, strict=True)
        samples = [batch.sample(x, partial(self._pulled, puller, batch, reading)) for batch, reading in pairs]
        try:
            d, new = self.algorithm.update(x, self.progress.state, self.progress.draw(samples, weight, x))
            done = puller.finish(d, self.algorithm.primal_step(self.progress.state), tree_leaves(new))
        except BaseException:
            puller.undo()
            self.progress.rollback(begins)
            raise
        if not done:
            self.progress.rollback(begins)
            return self._left_out(main, scaler)
        self.progress.commit(new, [batch.absent for batch in batches if batch.absent is not None], batches[-1].last)
        return StepInfo(main, False)

    def _evaluated(self, reading: BatchStatistics) -> Evaluated:
        if self.processes.size == 1:
            return evaluated_alone(self.plan, reading, self.progress.last)
        return self._evaluated_together(reading.totals())

    def _evaluated_together(self, totals: SumsCounts) -> Evaluated:
        return evaluated(self.plan, self.processes.summed(totals), self.progress.last)

    def _pulled(self, puller: GradientWriter, batch: Evaluated, reading: BatchStatistics, asked: Asked) -> Tensor:
        return puller.pull(reading.tensors, batch.weighted(self.plan, reading, asked))

    def start(self, rows: MiniBatch) -> None:
        """The method's state from a mini-batch of its own."""
        if self.progress.state is not None:
            raise ValueError("the method has begun, and start() would throw its state away; build a new Constrained")
        first = self._evaluated_together(self.looked_at(rows))
        if not first.finite:
            raise ValueError("the loss or a constraint is NaN or infinite on the mini-batch to start from")
        self.progress.begin(first.estimate())

    def _left_out(self, of: Evaluated, scaler: torch.amp.GradScaler | None = None) -> StepInfo:
        if scaler is not None and scaler.is_enabled():
            self.parameters.poison_grads()
        self.progress.skip()
        return StepInfo(of, True)

    # Several mini-batches for one step --------------------------------------------------------------------------------

    def accumulate(self, rows: MiniBatch) -> None:
        """Count a mini-batch of an accumulated step."""
        if self.algorithm.draws > 1 or self.algorithm.batch_size_probs is not None:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs {self.algorithm.draws} mini-batches a step, and accumulate() "
                f"accumulates one; use backward(..., scale=1/k). {ONE_BATCH}"
            )
        if self._accumulating is not None:
            raise ValueError(
                "accumulate() was called between the backward passes of an accumulated step; finish it first"
            )
        self.gathered.append(self.looked_at(rows))

    def _accumulate(self, rows: MiniBatch, scaler: torch.amp.GradScaler | None) -> StepInfo:
        step = self._accumulating or self._begin_accumulating(scaler)
        try:
            step.add(self._read(rows))
            if step.left:
                return StepInfo(step.whole, not step.whole.finite)
            new = step.finish()
        except BaseException:
            step.puller.undo()
            self.gathered, self._accumulating = [], None
            self.progress.rollback(self._begins)
            raise
        self.gathered, self._accumulating = [], None
        if new is None:
            self.progress.rollback(self._begins)
            return self._left_out(step.whole, scaler)
        absent = step.whole.absent
        self.progress.commit(new, [] if absent is None else [absent], step.whole.last)
        return StepInfo(step.whole, False)

    def _begin_accumulating(self, scaler: torch.amp.GradScaler | None) -> Accumulating:
        total = self.gathered[0]
        for part in self.gathered[1:]:
            total = total.plus(part)
        whole = self._evaluated_together(total)
        self._begins = whole.finite and self.progress.state is None
        if self._begins:
            self.progress.begin(whole.estimate())
        self._accumulating = Accumulating(
            self.algorithm,
            self.plan,
            self._puller(scaler, 1.0),
            whole,
            self.progress.state,
            lambda sample, x: self.progress.draw([sample], 1.0, x),
            self.gathered,
        )
        return self._accumulating
