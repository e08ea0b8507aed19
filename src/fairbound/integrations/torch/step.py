"""The steps of a loop: a mini-batch that was shown becomes a step of the method, with its direction in `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound._utils.pytree import leaves
from fairbound.constraints.limits import AnyLimit
from fairbound.core import Algorithm
from fairbound.integrations.torch.accumulation import Accumulating
from fairbound.integrations.torch.batch import Rows
from fairbound.integrations.torch.distributed import Processes
from fairbound.integrations.torch.estimate import Asked, Evaluated, evaluated, evaluated_alone
from fairbound.integrations.torch.flat_params import Parameters
from fairbound.integrations.torch.gradients import Closed, Direct, Puller, Whole
from fairbound.integrations.torch.short import Short, ShortEstimate
from fairbound.integrations.torch.state import Progress
from fairbound.integrations.torch.statistics import Plan, Reading, Totals
from fairbound.integrations.torch.undivided import undivided


class Seen(NamedTuple):
    """What one mini-batch showed."""

    of: Evaluated | ShortEstimate
    skipped: bool  # whether the step was left out because something was not finite

    @property
    def loss(self) -> Tensor:
        """The objective, ()."""
        return self.of.f

    @property
    def c(self) -> Tensor:
        """(m,) the constraints, feasible where <= 0; one that the batch cannot tell has its last value, or NaN."""
        return (self.of.last if isinstance(self.of, Evaluated) else self.of.c).clone()  # the loop keeps its own


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
        self.algorithm, self.method = algorithm, undivided(algorithm)  # steps are made with the second
        self.plan = Plan(limits)
        self.parameters = Parameters(model)
        self.processes = Processes.of(model)
        self.progress = Progress(algorithm, names, self.parameters, seed)
        self.short = Short(self.method, self.plan, self.progress, self._puller(None, 1.0))
        self.gathered: list[Totals] = []
        self._main = next(i for i, reads in enumerate(algorithm.reads) if "f" in reads)  # the draw with the objective
        self._checked = False  # a first mini-batch
        self._accumulating: Accumulating | None = None
        self._begins = False  # whether that step is the first

    # Mini-batches as they are shown -----------------------------------------------------------------------------------

    def rows(self, losses: Tensor | Rows, *given: Any) -> Rows:
        """The mini-batch with all that was given of it, in the order of the fields of `Rows`."""
        if isinstance(losses, Tensor):
            rows = Rows(losses, *given, self.parameters.tensors)  # type: ignore[call-arg]
        else:
            rows = self._complete(losses if isinstance(losses, Rows) else Rows(losses))
            if not isinstance(rows.losses, Tensor):
                rows.check()  # says it in words
            beside = [name for name, value in zip(Rows._fields[1:-1], given, strict=True) if value is not None]
            if beside:
                raise ValueError(f"{beside[0]}= was given beside Rows, which has a field for it; put it there")
        if rows.losses.device != self.parameters.device:
            raise ValueError(
                f"the losses are on {rows.losses.device}, but the model was on {self.parameters.device} when "
                "Constrained was built; move the model first"
            )
        return rows

    def _complete(self, rows: Rows) -> Rows:
        if not isinstance(rows, Rows):
            raise TypeError(f"a mini-batch must be fairbound.Rows(losses, groups, ...), got {type(rows).__name__}")
        return rows._replace(parameters=self.parameters.tensors)

    def _in_order(self, rows: Rows, further: Sequence[Rows]) -> list[Rows]:
        """One mini-batch for each draw of the method: the main one where the objective is read."""
        name, draws = type(self.algorithm).__name__, self.algorithm.draws
        if self.algorithm.levels is not None:
            raise ValueError(
                f"{name} draws mini-batches of random size and wants every constraint's gradient; use "
                "fair.backward_from(evaluate), where evaluate(size) passes fresh rows through the model"
            )
        if draws == 1 and not further:
            return [rows]
        if len(further) != draws - 1:
            raise ValueError(
                f"{name} needs {draws} independent mini-batches a step, got {1 + len(further)}; pass the others as "
                f"further=[Rows(losses, groups), ...], evaluated on fresh rows under torch.no_grad(). "
                f"{self.algorithm.with_one_draw}".rstrip()
            )
        rest = iter(further)
        return [rows if i == self._main else self._complete(next(rest)) for i in range(draws)]

    def _drawn(self, evaluate: Callable[[int], Rows], reads: str, size: int = 1) -> Reading:
        with torch.set_grad_enabled("f" in reads):
            return self._read(self._complete(evaluate(size)))

    def _read(self, rows: Rows) -> Reading:
        if not self._checked:
            self._check(rows)
        return self.plan.read(rows)

    def _check(self, rows: Rows) -> None:
        self.plan.check(rows)
        self._checked = True

    def looked_at(self, rows: Rows) -> Totals:
        """The totals of a mini-batch that is not differentiated."""
        with torch.no_grad(), torch.autocast(rows.losses.device.type, enabled=False):
            return self._read(rows).totals()

    # One step --------------------------------------------------------------------------------------------------------

    def backward(self, rows: Rows, further: Sequence[Rows], scaler: torch.amp.GradScaler | None, share: float) -> Seen:
        """One step, or a part of an accumulated one; the arguments are those of `Constrained.backward`."""
        usual = scaler is None and not further and share == 1.0 and not self.gathered
        if usual and self.short.possible:
            if not self._checked:
                self._check(rows)
            made = self.short.step(rows)
            if made is not None:
                return Seen(made[0], False) if made[1] else self._left_out(made[0])
        if self.gathered:
            if further or share != 1.0:
                raise ValueError("in a step that gather() began, backward() takes neither further= nor share=")
            return self._accumulate(rows, scaler)
        if self.processes.out_of_step and not self.algorithm.follows_one_gradient:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs the gradient of all processes at every backward(), which "
                "no_sync() holds back; use gather() first, or leave no_sync() out"
            )
        batches = self._in_order(rows, further)
        seen = self._step(self._puller(scaler, share), [self._read(batch) for batch in batches], scaler=scaler)
        if seen.skipped:
            for batch in batches:
                self.plan.check(batch)  # a group that no limit knows reads as NaN: say so
        return seen

    def backward_from(self, evaluate: Callable[[int], Rows], share: float) -> Seen:
        """One step from a function that draws fresh rows."""
        if self.processes.size > 1:
            raise ValueError("backward_from() takes gradients one by one, which DistributedDataParallel cannot reduce")
        puller = Closed(self.parameters, self.processes, share=share)
        if self.algorithm.levels is None:
            return self._step(puller, [self._drawn(evaluate, reads) for reads in self.algorithm.reads])
        level, weight = self.progress.coins.level(self.progress.steps, self.algorithm.levels)
        single, large = self._drawn(evaluate, "fc"), self._drawn(evaluate, "fc", 2 << level)
        return self._step(puller, [single, large, *large.halves()], weight)

    def _puller(self, scaler: torch.amp.GradScaler | None, share: float) -> Direct | Whole:
        kind = Direct if self.algorithm.follows_one_gradient else Whole
        return kind(self.parameters, self.processes, scaler, share)

    def _step(
        self,
        puller: Puller,
        readings: Sequence[Reading],
        weight: float = 1.0,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Seen:
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
            d, new = self.method.update(x, self.progress.state, self.progress.draw(samples, weight, x))
            done = puller.finish(d, self.algorithm.primal_step(self.progress.state), leaves(new))
        except BaseException:
            puller.undo()
            self.progress.take_back(begins)
            raise
        if not done:
            self.progress.take_back(begins)
            return self._left_out(main, scaler)
        self.progress.move_on(new, [batch.absent for batch in batches if batch.absent is not None], batches[-1].last)
        return Seen(main, False)

    def _evaluated(self, reading: Reading) -> Evaluated:
        if self.processes.size == 1:
            return evaluated_alone(self.plan, reading, self.progress.last)
        return self._evaluated_together(reading.totals())

    def _evaluated_together(self, totals: Totals) -> Evaluated:
        return evaluated(self.plan, self.processes.summed(totals), self.progress.last)

    def _pulled(self, puller: Puller, batch: Evaluated, reading: Reading, asked: Asked) -> Tensor:
        return puller.pull(reading.tensors, batch.weighted(self.plan, reading, asked))

    def start(self, rows: Rows) -> None:
        """The method's state from a mini-batch of its own."""
        if self.progress.state is not None:
            raise ValueError("the method has begun, and start() would throw its state away; build a new Constrained")
        first = self._evaluated_together(self.looked_at(rows))
        if not first.finite:
            raise ValueError("the loss or a constraint is NaN or infinite on the mini-batch to start from")
        self.progress.begin(first.estimate())

    def _left_out(self, of: Evaluated | ShortEstimate, scaler: torch.amp.GradScaler | None = None) -> Seen:
        if scaler is not None and scaler.is_enabled():
            self.parameters.spoil()
        self.progress.leave_out()
        return Seen(of, True)

    # Several mini-batches for one step --------------------------------------------------------------------------------

    def gather(self, rows: Rows) -> None:
        """Count a mini-batch of an accumulated step."""
        if self.algorithm.draws > 1 or self.algorithm.levels is not None:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs {self.algorithm.draws} mini-batches a step, and gather() "
                f"accumulates one; use backward(..., share=1/k). {self.algorithm.with_one_draw}".rstrip()
            )
        if self._accumulating is not None:
            raise ValueError("gather() was called between the backward passes of an accumulated step; finish it first")
        self.gathered.append(self.looked_at(rows))

    def _accumulate(self, rows: Rows, scaler: torch.amp.GradScaler | None) -> Seen:
        step = self._accumulating or self._begin_accumulating(scaler)
        try:
            step.add(self._read(rows))
            if step.left:
                return Seen(step.whole, not step.whole.finite)
            new = step.finish()
        except BaseException:
            step.puller.undo()
            self.gathered, self._accumulating = [], None
            self.progress.take_back(self._begins)
            raise
        self.gathered, self._accumulating = [], None
        if new is None:
            self.progress.take_back(self._begins)
            return self._left_out(step.whole, scaler)
        absent = step.whole.absent
        self.progress.move_on(new, [] if absent is None else [absent], step.whole.last)
        return Seen(step.whole, False)

    def _begin_accumulating(self, scaler: torch.amp.GradScaler | None) -> Accumulating:
        total = self.gathered[0]
        for part in self.gathered[1:]:
            total = total.plus(part)
        whole = self._evaluated_together(total)
        self._begins = whole.finite and self.progress.state is None
        if self._begins:
            self.progress.begin(whole.estimate())
        self._accumulating = Accumulating(
            self.method,
            self.plan,
            self._puller(scaler, 1.0),
            whole,
            self.progress.state,
            lambda sample, x: self.progress.draw([sample], 1.0, x),
            self.gathered,
        )
        return self._accumulating
