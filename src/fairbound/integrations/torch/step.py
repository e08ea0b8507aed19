"""The steps of a loop: a mini-batch becomes a step of the method's own `update`, with its direction in `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound._utils.pytree import tree_leaves
from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.comparisons import SumsCounts
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.core import Algorithm
from fairbound.integrations.torch.accumulation import AccumulatedStep
from fairbound.integrations.torch.checks import check_dependence, check_first, check_same_parameters
from fairbound.integrations.torch.constraint_record import ConstraintRecord
from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.estimate import BatchStatistics, Observed, ShownCells, added
from fairbound.integrations.torch.flat_params import FlatParams
from fairbound.integrations.torch.gradients import Closed, Flat, GradientWriter, InPlace
from fairbound.integrations.torch.state import TrainingState
from fairbound.training.contract import checked_update

MOST_TOGETHER = 10_000  # constraints that a method may treat together
ONE_BATCH = "SSLALM(samples=1) uses one for everything (its multipliers are biased), DescentAscent(second=False) too."


class StepInfo(NamedTuple):
    """What one mini-batch showed."""

    loss: Tensor  # () the objective
    c: Tensor  # (m,) the constraints, feasible where <= 0; one that the batch does not show: its last value, or NaN
    skipped: bool  # whether the step was skipped because something was not finite
    rows: Tensor | None = None  # with very many constraints: which of them `c` has, m for none; else None: all

    @staticmethod
    def of(seen: Observed, skipped: bool) -> StepInfo:
        return StepInfo(seen.f, seen.last.clone(), skipped, seen.rows)  # the loop keeps its own


class Steps:
    """A method on a model's parameters, advanced by mini-batches."""

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet,
        algorithm: Algorithm[Any],
        seed: int,
        normalize: bool,
    ) -> None:
        if algorithm.points > 1:
            raise ValueError(
                f"{type(algorithm).__name__} evaluates a mini-batch at {algorithm.points} points a step, and a loop has"
                " it at the model's present parameters only; use fairbound.run on a Problem, which evaluates anywhere"
            )
        self.algorithm, self.constraints, self.model = algorithm, constraints, model
        self.parameters = FlatParams(model)
        self.processes = Processes.of(model, self.parameters.tensors)
        self.gathered = any(constraints.many) and algorithm.row_wise and algorithm.draws == 1
        if constraints.m > MOST_TOGETHER and not self.gathered:
            raise ValueError(
                f"{type(algorithm).__name__} treats all constraints of a mini-batch together, and there are "
                f"{constraints.m}; use a method that treats each alone on one mini-batch: DescentAscent(), Penalty(), "
                "SSLALM(samples=1), with a constraint that compares each group with a bound or with the mean"
            )
        record = ConstraintRecord(constraints, gathered=self.gathered, normalize=normalize)
        self.state = TrainingState(algorithm, record, self.parameters, seed)
        self.accumulated: list[SumsCounts] = []
        self._main = next(i for i, what in enumerate(algorithm.evaluates) if "f" in what)  # the draw with the objective
        self._checked = False  # a first mini-batch
        self._in_precision: dict[tuple[torch.device, torch.dtype], ConstraintSet] = {}
        self._step_in_progress: AccumulatedStep | None = None
        self._begins = False  # whether that step is the first

    def prepare(self, model: nn.Module) -> None:
        """The model as a trainer moved and wrapped it after this was built."""
        held, own = {id(p) for p in model.parameters()}, self.parameters
        lost = [name for name, p in zip(own.names, own.tensors, strict=True) if id(p) not in held]
        if lost:
            raise ValueError(
                f"the trained model does not have the parameter {lost[0]!r} of Constrained: it is another model, or "
                "the trainer replaced its parameters; build Constrained with the model that is trained"
            )
        kept = self.state.state_dict()
        own.moved()
        if self.state.equality is not None:
            self.state.equality = self.state.equality.to(own.device)
        self.state.load_state_dict(kept)
        self.processes = Processes.of(model, own.tensors)

    # Mini-batches -----------------------------------------------------------------------------------------------------

    def batch(self, losses: Tensor | MiniBatch, *given: Any) -> MiniBatch:
        """The mini-batch with all that was given of it, in the order of the fields of `MiniBatch`."""
        if isinstance(losses, Tensor):
            batch = MiniBatch(losses, *given, self.parameters.tensors)  # type: ignore[call-arg]
        else:
            batch = self._complete(losses if isinstance(losses, MiniBatch) else MiniBatch(losses))
            if not isinstance(batch.losses, Tensor):
                batch.check()  # explains it
            beside = [name for name, value in zip(MiniBatch._fields[1:-1], given, strict=True) if value is not None]
            if beside:
                raise ValueError(f"{beside[0]}= was given beside MiniBatch, which has a field for it; put it there")
        if batch.losses.shape[:1] == (0,) and self.processes.alone:
            raise ValueError("the mini-batch is empty: it has no losses, and so no mean; leave it out")
        if batch.losses.device != self.parameters.device:
            raise ValueError(
                f"the losses are on {batch.losses.device}, but the model was on {self.parameters.device} when "
                "Constrained was built; move the model first"
            )
        return batch

    def _complete(self, batch: MiniBatch) -> MiniBatch:
        if not isinstance(batch, MiniBatch):
            raise TypeError(
                f"a mini-batch must be fairbound.MiniBatch(losses, groups, ...), got {type(batch).__name__}"
            )
        return batch._replace(parameters=self.parameters.tensors)

    def _in_order(self, batch: MiniBatch, extra_batches: Sequence[MiniBatch]) -> list[MiniBatch]:
        """One mini-batch for each draw of the method: the main one where the objective is evaluated."""
        name, draws = type(self.algorithm).__name__, self.algorithm.draws
        if self.algorithm.batch_size_probs is not None:
            raise ValueError(
                f"{name} draws mini-batches of random size and wants every constraint's gradient; use "
                "fair.backward_closure(evaluate), where evaluate(size) passes newly drawn examples through the model"
            )
        if len(extra_batches) != draws - 1:
            raise ValueError(
                f"{name} needs {draws} independent mini-batches a step, got {1 + len(extra_batches)}; pass the others "
                "as extra_batches=[MiniBatch(losses, groups), ...], on newly drawn examples, under torch.no_grad(). "
                f"{ONE_BATCH}"
            )
        rest = iter(extra_batches)
        return [batch if i == self._main else self._complete(next(rest)) for i in range(draws)]

    def _drawn(self, evaluate: Callable[[int], MiniBatch], evaluates: str, size: int = 1) -> BatchStatistics:
        with torch.set_grad_enabled("f" in evaluates):
            return self._statistics(self._complete(evaluate(size)))

    def _statistics(self, batch: MiniBatch) -> BatchStatistics:
        if not self._checked:
            check_same_parameters(self.model, self.parameters)
            check_first(self.constraints, batch)
            self._checked = True
        return BatchStatistics.of(self.constraints, batch, processes=self.processes if self.gathered else None)

    def _totals(self, batch: MiniBatch) -> SumsCounts:
        """Of a mini-batch that is not differentiated."""
        with torch.no_grad(), torch.autocast(batch.losses.device.type, enabled=False):
            return self._statistics(batch).totals()

    def _observed(self, totals: SumsCounts, cells: ShownCells | None = None) -> Observed:
        """[f, c] of the sums and counts of all processes."""
        key = (totals.sums.device, totals.sums.dtype)
        if key not in self._in_precision:
            self._in_precision[key] = self.constraints.to(*key)
        record = self.state.record
        own, summed = self._in_precision[key], self.processes.summed(totals)
        return record.scaled(Observed.of(own, summed, record.last, cells=cells, running=record.others))

    # One step --------------------------------------------------------------------------------------------------------

    def backward(
        self,
        batch: MiniBatch,
        extra_batches: Sequence[MiniBatch],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        """One step, or a part of an accumulated one; the arguments are those of `Constrained.backward`."""
        if self.accumulated:
            if extra_batches or scale != 1.0:
                raise ValueError("after accumulate(), backward() takes neither extra_batches= nor scale=")
            return self._accumulated_backward(batch, scaler)
        if self.processes.out_of_step and not self.state.linear:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs the gradient of all processes at every backward(), which "
                "no_sync() prevents; use accumulate() first, or omit no_sync()"
            )
        if self.algorithm.uses_jacobian and self.processes.size > 1:
            raise ValueError(
                f"{type(self.algorithm).__name__} differentiates a mini-batch once for every group, and processes "
                "reduce one gradient a step; train in one process, or use one that takes one gradient, such as SSLALM"
            )
        batches = self._in_order(batch, extra_batches)
        info = self._step(self._writer(scaler, scale), [self._statistics(one) for one in batches], scaler=scaler)
        if info.skipped:
            for one in batches:
                self.constraints.check(one)  # an unknown group makes NaN: explain it
        return info

    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        """One step from a function that draws new examples."""
        kind = InPlace if self.state.linear else Closed
        if self.processes.size > 1 and kind is Closed:
            raise ValueError(
                "backward_closure() takes gradients one by one, which DistributedDataParallel cannot reduce"
            )
        writer = kind(self.parameters, self.processes, scale=scale)
        if self.algorithm.batch_size_probs is None:
            return self._step(writer, [self._drawn(evaluate, what) for what in self.algorithm.evaluates])
        level, weight = self.state.level(self.algorithm.batch_size_probs)
        single, large = self._drawn(evaluate, "fc"), self._drawn(evaluate, "fc", 2 << level)
        return self._step(writer, [single, large, *large.halves()], weight)

    def _writer(self, scaler: torch.amp.GradScaler | None, scale: float) -> InPlace | Flat:
        if self.state.linear:
            return InPlace(self.parameters, self.processes, scaler, scale)
        found = Flat(self.parameters, self.processes, scaler, scale)
        found.several = self.algorithm.uses_jacobian
        return found

    def _step(
        self,
        writer: GradientWriter,
        statistics: Sequence[BatchStatistics],
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
    ) -> StepInfo:
        """One step of the method on mini-batches."""
        seen = [self._observed(one.totals(), one.cells) for one in statistics]
        main = seen[self._main]
        if not all(one.finite for one in seen):
            return self._skipped(main, scaler)
        begins = self.state.state is None
        if begins:
            self.state.begin(main.estimate())
        before = self.state.at_rows(main.rows)
        x = writer.point()
        pairs = zip(seen, statistics, strict=True)
        samples = [one.sample(x, partial(_gradient, writer, one, own)) for one, own in pairs]
        try:
            d, new = checked_update(self.algorithm, x, before, self.state.draw(samples, weight, x))
            step = self.algorithm.primal_step(before)
            done = writer.finish(d, step, tree_leaves(before), tree_leaves(new))
            if begins and done and not self.processes.out_of_step:
                check_dependence(self.parameters)
        except BaseException:
            writer.undo()
            self.state.rollback(begins)
            raise
        if not done:
            self.state.rollback(begins)
            return self._skipped(main, scaler)
        self.state.commit(before, new, seen, [one.cells for one in statistics], main.f)
        return StepInfo.of(main, False)

    def start(self, batch: MiniBatch) -> None:
        """The method's initial state from a separate mini-batch."""
        if self.state.state is not None:
            raise ValueError("the method has begun, and start() would discard its state; build a new Constrained")
        first = self._observed(self._totals(batch))
        if not first.finite:
            raise ValueError("the loss or a constraint is NaN or infinite on the mini-batch to start from")
        self.state.begin(first.estimate())

    def _skipped(self, seen: Observed, scaler: torch.amp.GradScaler | None = None) -> StepInfo:
        if scaler is not None and scaler.is_enabled():
            self.parameters.poison_grads()
        self.state.skip()
        return StepInfo.of(seen, True)

    # Several mini-batches for one step --------------------------------------------------------------------------------

    def accumulate(self, batch: MiniBatch) -> None:
        """Count a mini-batch of an accumulated step."""
        if self.algorithm.draws > 1 or self.algorithm.batch_size_probs is not None:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs {self.algorithm.draws} mini-batches a step, and accumulate() "
                f"gathers one; use backward(..., scale=1/k). {ONE_BATCH}"
            )
        if self.algorithm.uses_jacobian:
            raise ValueError(
                f"{type(self.algorithm).__name__} wants every constraint's gradient of a whole mini-batch, which "
                "accumulate() takes apart; use backward(..., scale=1/k)"
            )
        if self.gathered:
            raise ValueError(
                f"accumulate() adds up all groups, and there are {self.constraints.m} constraints; use "
                "backward(..., scale=1/k)"
            )
        if self._step_in_progress is not None:
            raise ValueError("accumulate() was called between the backward passes of a step; finish it first")
        self.accumulated.append(self._totals(batch))

    def _accumulated_backward(self, batch: MiniBatch, scaler: torch.amp.GradScaler | None) -> StepInfo:
        step = self._step_in_progress or self._begin_accumulated(scaler)
        try:
            step.add(self._statistics(batch))
            if step.left:
                return StepInfo.of(step.whole, not step.whole.finite)
            new = step.finish()
        except BaseException:
            step.writer.undo()
            self._end_accumulated(failed=True)
            raise
        self._end_accumulated(failed=new is None)
        if new is None:
            return self._skipped(step.whole, scaler)
        self.state.commit(self.state.state, new, [step.whole], [None], step.whole.f)
        return StepInfo.of(step.whole, False)

    def _end_accumulated(self, failed: bool) -> None:
        self.accumulated, self._step_in_progress = [], None
        if failed:
            self.state.rollback(self._begins)

    def _begin_accumulated(self, scaler: torch.amp.GradScaler | None) -> AccumulatedStep:
        whole = self._observed(added(self.accumulated))
        self._begins = whole.finite and self.state.state is None
        if self._begins:
            self.state.begin(whole.estimate())
        self._step_in_progress = AccumulatedStep(
            self.algorithm,
            self._writer(scaler, 1.0),
            whole,
            self.state.state,
            lambda sample, x: self.state.draw([sample], 1.0, x),
            self.accumulated,
        )
        return self._step_in_progress


def _gradient(writer: GradientWriter, seen: Observed, statistics: BatchStatistics, mean_weights: Tensor) -> Any:
    return writer.gradient_of(statistics.tensors, statistics.weights(mean_weights, seen.totals.counts))
