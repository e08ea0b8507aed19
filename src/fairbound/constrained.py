"""`Constrained`: a training loop of your own that keeps a bound, with two changed lines.

The loop stays what it is: model, optimiser, schedule, clipping. `fair.backward(losses, groups)` takes the place of
`losses.mean().backward()` and leaves in `.grad` the direction of the constrained method: its step d divided by minus
its own primal step, so that the optimiser's learning rate plays that step and `SGD(lr=tau)` is exactly the method.

>>> from fairbound import ALGORITHMS, limits
>>> model = torch.nn.Linear(3, 1)
>>> optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
>>> fair = Constrained(model, limits.loss_parity(["A", "B"], bound=0.02), ALGORITHMS["DescentAscent"]())
>>> X, y, group = torch.randn(8, 3), torch.ones(8), torch.arange(8) % 2
>>> losses = torch.nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], y, reduction="none")
>>> seen = fair.backward(losses, group)
>>> optimiser.step()
>>> list(fair.multipliers)
['A - mean', 'mean - A', 'B - mean', 'mean - B']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound.core import Algorithm
from fairbound.fairness.limits import AnyLimit, named
from fairbound.loop.accumulating import Accumulating
from fairbound.loop.evaluated import Asked, Evaluated, evaluated, evaluated_alone
from fairbound.loop.kkt import KKT, kkt
from fairbound.loop.parameters import Parameters
from fairbound.loop.processes import Processes
from fairbound.loop.progress import Progress
from fairbound.loop.pulling import Closed, Direct, Puller, Whole
from fairbound.loop.reading import Plan, Reading, Totals
from fairbound.loop.rows import Rows
from fairbound.loop.short import Short, ShortEstimate
from fairbound.loop.undivided import undivided

Groups = Tensor | Mapping[str, Tensor]


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
        return self.of.last if isinstance(self.of, Evaluated) else self.of.c


class Constrained:
    """A constrained method in a loop of your own.

    Args:
        model: a module, or the parameters to train; frozen ones are left alone. A `DistributedDataParallel` model is
            recognised: sums and counts are added up over its processes.
        limits: one of `fairbound.limits`, a list of them, or a mapping of names to them.
        algorithm: the method.
        seed: of the method's own coins (the output of switching, the batch sizes of Ghost).
    """

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        limits: AnyLimit | Sequence[AnyLimit] | Mapping[str, AnyLimit],
        algorithm: Algorithm[Any],
        *,
        seed: int = 0,
    ) -> None:
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"algorithm must be one of fairbound.ALGORITHMS, built, got {algorithm!r}")
        listed, self.names = named(limits)
        self.algorithm, self.model, self._limits = algorithm, model, limits
        self._method = undivided(algorithm)  # what steps are made with
        self._plan = Plan(listed)
        self._parameters = Parameters(model)
        self._processes = Processes.of(model)
        self._main = next(i for i, reads in enumerate(algorithm.reads) if "f" in reads)  # the draw with the objective
        self._progress = Progress(algorithm, self.names, self._parameters, seed)
        self._short = Short(self._method, self._plan, self._progress, self._puller(None, 1.0))
        self._checked = False  # a first mini-batch
        self._gathered: list[Totals] = []
        self._accumulating: Accumulating | None = None

    # Steps ------------------------------------------------------------------------------------------------------------

    def backward(
        self,
        losses: Tensor | Rows,
        groups: Groups | None = None,
        *,
        labels: Tensor | None = None,
        outputs: Tensor | None = None,
        weight: Tensor | None = None,
        objective: Tensor | None = None,
        further: Sequence[Rows] = (),
        scaler: torch.amp.GradScaler | None = None,
        share: float = 1.0,
    ) -> Seen:
        """In place of `losses.mean().backward()`: the method's direction is added to `.grad`, its state moves on.

        Args:
            losses: (B,), one per row (`reduction="none"`), with the graph of the forward pass; or all that is known
                of the rows as `Rows`.
            groups: (B,) the group 0, 1, ... of every row, -1 for none; or several columns by name.
            labels, outputs: of the rows, where a limit is about them.
            weight: (B,) what a row counts; 1 each if not given.
            objective: (B,) bool, the rows that the objective is the mean of; all if not given.
            further: the further mini-batches of a method that needs more than one, for the constraints alone.
            scaler: the GradScaler of mixed precision; `.grad` is scaled by it, as `scaler.scale(loss).backward()` does.
            share: what the direction counts, 1/k for the mean over k mini-batches before one optimiser step.
        """
        rows = self._rows(losses, groups, labels, outputs, weight, objective)
        if torch.is_autocast_enabled(self._parameters.kind):  # sums and constraints in full precision
            with torch.autocast(self._parameters.kind, enabled=False):
                return self._backward(rows, further, scaler, share)
        return self._backward(rows, further, scaler, share)

    def _rows(self, losses: Tensor | Rows, *given: Any) -> Rows:
        """The mini-batch with all that was given of it, in the order of the fields of `Rows`."""
        if isinstance(losses, Tensor):
            rows = Rows(losses, *given, self._parameters.tensors)  # type: ignore[call-arg]
        else:
            rows = self._complete(losses if isinstance(losses, Rows) else Rows(losses))
            if not isinstance(rows.losses, Tensor):
                rows.check()  # says it in words
            beside = [name for name, value in zip(Rows._fields[1:-1], given, strict=True) if value is not None]
            if beside:
                raise ValueError(f"{beside[0]}= was given beside Rows, which has a field for it; put it there")
        if rows.losses.device != self._parameters.device:
            raise ValueError(
                f"the losses are on {rows.losses.device}, but the model was on {self._parameters.device} when "
                "Constrained was built; move the model first"
            )
        return rows

    def _backward(self, rows: Rows, further: Sequence[Rows], scaler: torch.amp.GradScaler | None, share: float) -> Seen:
        if self._short.possible and scaler is None and not further and share == 1.0 and not self._gathered:
            made = self._short.step(rows)
            if made is not None:
                return Seen(made[0], False) if made[1] else self._left_out(made[0])
        if self._gathered:
            if further or share != 1.0:
                raise ValueError("in a step that gather() began, backward() takes neither further= nor share=")
            return self._accumulate(rows, scaler)
        if self._processes.out_of_step and not self.algorithm.follows_one_gradient:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs the gradient of all processes at every backward(), which "
                "no_sync() holds back; use gather() first, or leave no_sync() out"
            )
        batches = self._in_order(rows, further)
        seen = self._step(self._puller(scaler, share), [self._read(batch) for batch in batches], scaler=scaler)
        if seen.skipped:
            for batch in batches:
                self._plan.check(batch)  # a group that no limit knows reads as NaN: say so
        return seen

    def _puller(self, scaler: torch.amp.GradScaler | None, share: float) -> Direct | Whole:
        kind = Direct if self.algorithm.follows_one_gradient else Whole
        return kind(self._parameters, self._processes, scaler, share)

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

    def _complete(self, rows: Rows) -> Rows:
        if not isinstance(rows, Rows):
            raise TypeError(f"a mini-batch must be fairbound.Rows(losses, groups, ...), got {type(rows).__name__}")
        return rows._replace(parameters=self._parameters.tensors)

    def backward_from(self, evaluate: Callable[[int], Rows], *, share: float = 1.0) -> Seen:
        """The same from a function that draws fresh rows, passes them through the model and gives their `Rows`.

        `evaluate(size)` gives `size` mini-batches' worth of rows. It serves every method, and is the way for those
        that draw mini-batches of random size (Ghost) or take several gradients of one.
        """
        if self._processes.size > 1:
            raise ValueError("backward_from() takes gradients one by one, which DistributedDataParallel cannot reduce")
        puller = Closed(self._parameters, self._processes, share=share)
        if self.algorithm.levels is None:
            return self._step(puller, [self._drawn(evaluate, reads) for reads in self.algorithm.reads])
        level, weight = self._progress.coins.level(self._progress.steps, self.algorithm.levels)
        single, large = self._drawn(evaluate, "fc"), self._drawn(evaluate, "fc", 2 << level)
        return self._step(puller, [single, large, *large.halves()], weight)

    def _drawn(self, evaluate: Callable[[int], Rows], reads: str, size: int = 1) -> Reading:
        with torch.set_grad_enabled("f" in reads):
            return self._read(self._complete(evaluate(size)))

    def _read(self, rows: Rows) -> Reading:
        if not self._checked:
            self._plan.check(rows)
            self._checked = True
        return self._plan.read(rows)

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
        if self._progress.state is None:
            self._progress.begin(main.estimate())
        x = puller.point()
        pairs = zip(batches, readings, strict=True)
        samples = [batch.sample(x, partial(self._pulled, puller, batch, reading)) for batch, reading in pairs]
        try:
            d, new = self._method.update(x, self._progress.state, self._progress.draw(samples, weight, x))
            done = puller.finish(d, self.algorithm, self._progress.state, new)
        except BaseException:
            puller.undo()
            raise
        if not done:
            return self._left_out(main, scaler)
        self._progress.move_on(new, [batch.absent for batch in batches if batch.absent is not None], batches[-1].last)
        return Seen(main, False)

    def _evaluated(self, reading: Reading) -> Evaluated:
        if self._processes.size == 1:
            return evaluated_alone(self._plan, reading, self._progress.last)
        return self._evaluated_together(reading.totals())

    def _evaluated_together(self, totals: Totals) -> Evaluated:
        return evaluated(self._plan, self._processes.summed(totals), self._progress.last)

    def _pulled(self, puller: Puller, batch: Evaluated, reading: Reading, asked: Asked) -> Tensor:
        return puller.pull(reading.tensors, batch.weighted(self._plan, reading, asked))

    def start(self, losses: Tensor | Rows, groups: Groups | None = None, **of_rows: Any) -> None:
        """Begin from a mini-batch of its own, before the first step; without it, the first step's serves."""
        if self._progress.state is not None:
            raise ValueError("the method has begun, and start() would throw its state away; build a new Constrained")
        first = self._evaluated_together(self._looked_at(losses, groups, of_rows))
        if not first.finite:
            raise ValueError("the loss or a constraint is NaN or infinite on the mini-batch to start from")
        self._progress.begin(first.estimate())

    def _left_out(self, of: Evaluated | ShortEstimate, scaler: torch.amp.GradScaler | None = None) -> Seen:
        if scaler is not None and scaler.is_enabled():
            self._parameters.spoil()
        self._progress.leave_out()
        return Seen(of, True)

    # Several mini-batches for one step --------------------------------------------------------------------------------

    def gather(self, losses: Tensor | Rows, groups: Groups | None = None, **of_rows: Any) -> None:
        """Count a mini-batch of an accumulated step, forward pass only; then call `backward` on each of them.

        A step over k mini-batches is one over all their rows, groups of any size: what the constraints are must be
        known before the first backward pass. (`backward(..., share=1/k)` without `gather` saves the forward passes;
        every mini-batch then is a step of the multipliers.)
        """
        if self.algorithm.draws > 1 or self.algorithm.levels is not None:
            raise ValueError(
                f"{type(self.algorithm).__name__} needs {self.algorithm.draws} mini-batches a step, and gather() "
                f"accumulates one; use backward(..., share=1/k). {self.algorithm.with_one_draw}".rstrip()
            )
        if self._accumulating is not None:
            raise ValueError("gather() was called between the backward passes of an accumulated step; finish it first")
        self._gathered.append(self._looked_at(losses, groups, of_rows))

    def _looked_at(self, losses: Tensor | Rows, groups: Groups | None, of_rows: dict[str, Any]) -> Totals:
        """The totals of a mini-batch that is not differentiated."""
        rows = self._rows(losses, *Rows(losses, groups, **of_rows)[1:-1])  # type: ignore[arg-type]
        with torch.no_grad(), torch.autocast(rows.losses.device.type, enabled=False):
            return self._read(rows).totals()

    def _accumulate(self, rows: Rows, scaler: torch.amp.GradScaler | None) -> Seen:
        step = self._accumulating or self._begin_accumulating(scaler)
        try:
            step.add(self._read(rows))
            if step.left:
                return Seen(step.whole, not step.whole.finite)
            new = step.finish()
        except BaseException:
            step.puller.undo()
            self._gathered, self._accumulating = [], None
            raise
        self._gathered, self._accumulating = [], None
        if new is None:
            return self._left_out(step.whole, scaler)
        absent = step.whole.absent
        self._progress.move_on(new, [] if absent is None else [absent], step.whole.last)
        return Seen(step.whole, False)

    def _begin_accumulating(self, scaler: torch.amp.GradScaler | None) -> Accumulating:
        total = self._gathered[0]
        for part in self._gathered[1:]:
            total = total.plus(part)
        whole = self._evaluated_together(total)
        if whole.finite and self._progress.state is None:
            self._progress.begin(whole.estimate())
        self._accumulating = Accumulating(
            self._method,
            self._plan,
            self._puller(scaler, 1.0),
            whole,
            self._progress.state,
            lambda sample, x: self._progress.draw([sample], 1.0, x),
            self._gathered,
        )
        return self._accumulating

    # What the method knows --------------------------------------------------------------------------------------------

    @property
    def multipliers(self) -> dict[str, float]:
        """The multiplier of every constraint, by name; none for a method that has none."""
        y = self._progress.multipliers
        return {} if y is None else dict(zip(self.names, y.tolist(), strict=True))

    @property
    def steps(self) -> int:
        """Steps of the method so far."""
        return self._progress.steps

    @property
    def skipped(self) -> int:
        """Mini-batches left out because something was not finite."""
        return self._progress.skipped

    @property
    def constraints(self) -> dict[str, float]:
        """The last mini-batch's value of every constraint, by name; feasible where <= 0. It is noisy: see `report`."""
        values = [float("nan")] * len(self.names) if self._progress.last is None else self._progress.last.tolist()
        return dict(zip(self.names, values, strict=True))

    @property
    def primal_step(self) -> float:
        """The method's own step now: with `SGD(lr=...)` at this value the loop is exactly the method."""
        if self._progress.state is None:
            raise ValueError("the method has not begun; call backward() or start() first")
        return float(self.algorithm.primal_step(self._progress.state))

    @property
    def infeasible(self) -> str | None:
        """A sign that no model meets the limits, as a sentence, or None: see `diagnostics`."""
        return self._progress.trend.sign()

    def load_output(self) -> None:
        """Write what the method returns into the model: for switching a saved iterate, for others the last one."""
        if self._progress.state is None or self.algorithm.follows_one_gradient:
            return
        output = self.algorithm.output(self._parameters.flat(), self._progress.state)
        with torch.no_grad():
            for p, part in zip(self._parameters.tensors, output.split(self._parameters.sizes), strict=True):
                p.copy_(part.view(p.shape))

    def report(self, batches: Iterable[Any], evaluate: Callable[[Any], Rows]) -> KKT:
        """How near the model is to a solution, over all rows of some data: see `kkt`."""
        if not isinstance(self.model, nn.Module):
            raise TypeError("a report needs the model itself; build Constrained with it instead of its parameters")
        sign = self.infeasible
        return kkt(self.model, self._limits, batches, evaluate, multipliers=self._progress.multipliers, warning=sign)

    # Saving -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed loop needs beside model and optimiser, by the names of constraints."""
        if self._gathered:
            raise ValueError("an accumulated step is in progress; save after its last backward()")
        return self._progress.state_dict()

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Go on from a saved state; constraints are told by their names."""
        self._progress.load_state_dict(kept)
