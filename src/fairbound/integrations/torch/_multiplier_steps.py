"""The steps of a multiplier method in a loop: c -> (w, state) -> example weights -> one backward
pass.

Nothing of the model's size is kept, but for the smoothed parameters of a method that declares
`smoothing`. Several mini-batches for one step (`accumulate`) are counted first, forward only: what
the constraints are decides the weights of examples, and so must be known before the first backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._linear import SumsCounts
from fairbound.core import MultiplierMethod
from fairbound.integrations.torch._estimate import BatchEstimate, BatchStatistics, ShownCells, added
from fairbound.integrations.torch._gradient_pass import GradientPass
from fairbound.integrations.torch._parameters import SmoothedParameters
from fairbound.integrations.torch._probes import Probes
from fairbound.integrations.torch._state_dict import CONSTRAINT, OTHER_LEAF
from fairbound.integrations.torch._steps import ONE_BATCH, StepInfo, Steps


class StepAnswer(NamedTuple):
    """What the method says to the values of a step's mini-batches."""

    table: Any  # its state with all rows
    before: Any  # with the rows that the mini-batches show
    new: Any  # these after the step
    w: Tensor  # (1+m,) the weights of [f, c]
    numbers: list[Tensor]  # that must be finite: [f, c] and the next state


class MultiplierSteps(Steps):
    """`MultiplierMethod` on a model's parameters."""

    method: MultiplierMethod[Any]

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet,
        method: MultiplierMethod[Any],
    ) -> None:
        rows_alone = any(constraints.many) and method.row_wise and method.draws == 1
        super().__init__(model, constraints, method, gathered=rows_alone)
        self.smoothed: SmoothedParameters | None = None
        self.probes = self._new_probes()
        # the weight of f
        self._one = torch.ones(1, dtype=torch.float64, device=self.parameters.device)
        self.kinds = [CONSTRAINT if leaf.ndim else OTHER_LEAF for leaf in self.initial_state(None)]
        self.accumulated: list[SumsCounts] = []
        self._accumulated_step: AccumulatedStep | None = None

    def _new_probes(self) -> Probes | None:
        """Make probes for a method that measures; where a mini-batch shows few of very many rows,
        these share their sizes."""
        return (
            Probes(self.parameters, self.processes, 1 if self.gathered else self.rows)
            if self.method.measures
            else None
        )

    def prepare(self, model: nn.Module) -> None:
        super().prepare(model)
        before, self.probes = self.probes, self._new_probes()
        if before is not None and self.probes is not None:
            self.probes.load_state_dict(before.state_dict())

    def initial_state(self, first: BatchEstimate | None) -> Any:
        # A mini-batch shows few of very many constraints, so none starts from it.
        c = None if first is None or self.gathered else first.c.to(self.parameters.dtype)
        state = self.method.start(self.parameters.like, self.rows, self.equality, c)
        # Tables that are written in place share no memory.
        return type(state)(*(leaf.clone() for leaf in state)) if self.gathered else state

    def begun(self, first: BatchEstimate) -> Any:
        if self.state is not None:
            return self.state
        if self.method.smoothing is not None:
            self.smoothed = SmoothedParameters(self.parameters)
        return super().begun(first)

    # One step -------------------------------------------------------------------------------------

    def backward(
        self,
        batch: MiniBatch,
        extra_batches: Sequence[MiniBatch],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        if self.accumulated:
            if extra_batches or scale != 1.0:
                raise ValueError(
                    "after accumulate(), backward() takes neither extra_batches= nor scale="
                )
            return self._accumulated_backward(batch, scaler)
        batches = self.in_order(batch, extra_batches)
        info = self._step([self.statistics(mini_batch) for mini_batch in batches], scaler, scale)
        if self.look and info.skipped:
            for mini_batch in batches:
                self.constraints.check(mini_batch)  # an unknown group makes NaN: explain it
        return info

    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        return self._step(
            [self.drawn(evaluate, evaluates) for evaluates in self.method.evaluates], None, scale
        )

    def _step(
        self,
        statistics: Sequence[BatchStatistics],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        estimates = [self.estimate(examples.totals(), examples.cells) for examples in statistics]
        # A method does not start from a mini-batch that is not finite; DistributedDataParallel must
        # not reduce one.
        careful = self.state is None or (self.look and self.processes.model is not None)
        if careful and not all(bool(estimate.finite) for estimate in estimates):
            return self.skip(estimates[self.main], scaler)
        answer = self.ask(estimates)
        gradients = GradientPass(self.parameters, self.processes, scaler, scale)
        try:
            self.pass_backward(gradients, answer, estimates[self.main], statistics[self.main])
            made = gradients.keep(
                answer.numbers, self.smoothed, self.method.smoothing, look=self.look
            )
        except BaseException:
            gradients.undo()
            raise
        if self.look and made is not None:
            return self.skip(estimates[self.main], scaler)
        self.move(answer, estimates, [examples.cells for examples in statistics], made)
        return StepInfo(estimates[self.main], made)

    def skip(self, estimate: BatchEstimate, scaler: torch.amp.GradScaler | None = None) -> StepInfo:
        if self.probes is not None:
            self.probes.pending = False  # what was measured is not finite, and no step follows
        return super().skip(estimate, scaler)

    def ask(self, estimates: Sequence[BatchEstimate]) -> StepAnswer:
        """The method's weights and next state; nothing is changed."""
        main = estimates[self.main]
        table = self.begun(main)
        rows = main.rows
        before = (
            table
            if rows is None
            else type(table)(*(leaf[rows] if leaf.ndim else leaf for leaf in table))
        )
        # of the state, which losses in another precision must not change
        dtype = self.parameters.dtype
        values = [estimate.values.to(dtype) for estimate in estimates]
        sizes = {} if self.probes is None else {"sizes": self.probes.sizes(len(main.c))}
        self.unit = sizes["sizes"].unit if sizes else None
        w, new = self.method.step(before, *[value[1:] for value in values], **sizes)
        w = torch.zeros_like(values[0][1:]) if w is None else w
        changed = [
            leaf.contiguous() for leaf, old in zip(new, before, strict=True) if leaf is not old
        ]
        return StepAnswer(table, before, new, torch.cat([self._one, w]), [*values, *changed])

    def pass_backward(
        self,
        gradients: GradientPass,
        answer: StepAnswer,
        estimate: BatchEstimate,
        examples: BatchStatistics,
    ) -> None:
        """grad f + J'w into `.grad`."""
        self.probe(examples, estimate, gradients.factor)  # before the graph is freed
        gradients.add(examples.tensors, examples.weights(estimate.by_sum(answer.w)))

    def probe(
        self, examples: BatchStatistics, estimate: BatchEstimate, factor: float | Tensor
    ) -> None:
        """Measure what the method asks for, where that is due; every mini-batch of an accumulated
        step adds to it."""
        m = len(estimate.c)
        goes_on = self._accumulated_step is not None and self._accumulated_step.probes
        if self.probes is not None and self.probes.held_back and self._accumulated_step is not None:
            raise ValueError(
                f"{type(self.method).__name__} measures whole gradients, and"
                " set_requires_gradient_sync(False) holds them back; omit it, or use"
                " DescentAscent()"
            )
        if self.probes is None or not (goes_on or self.probes.is_due(self.progress.tried, m)):
            return
        row = self.probes.next_row(m, estimate.absent)
        weights = (
            torch.cat([self._one, torch.zeros_like(row)]),
            torch.cat([torch.zeros_like(self._one), row]),
        )
        self.probes.probe(
            row,
            *(
                self.probes.gradient(examples.tensors, examples.weights(estimate.by_sum(w)), factor)
                for w in weights
            ),
        )
        if self._accumulated_step is not None:
            self._accumulated_step.probes = True

    def move(
        self,
        answer: StepAnswer,
        estimates: Sequence[BatchEstimate],
        cells: Sequence[ShownCells | None],
        made: Tensor | None = None,
    ) -> None:
        """The method's state moves on, by the mini-batches of a step; where nobody looks, `made`
        says whether it does.

        Constraints that a mini-batch did not show keep what the state had.
        """
        keep = None if made is None else ~made
        for estimate in estimates:
            if estimate.absent is not None:
                keep = estimate.absent if keep is None else keep | estimate.absent
        new, rows = answer.new, estimates[-1].rows
        if keep is not None:
            leaves = []
            for old, leaf in zip(answer.before, answer.new, strict=True):
                if leaf is not old and leaf.ndim:
                    leaf = torch.where(keep, old, leaf)
                elif leaf is not old and made is not None:
                    leaf = torch.where(made, leaf, old)
                leaves.append(leaf)
            new = type(answer.new)(*leaves)
        if rows is not None:
            pairs = zip(answer.table, new, strict=True)
            new = type(new)(
                *(table.scatter_(0, rows, leaf) if leaf.ndim else leaf for table, leaf in pairs)
            )
        self.advance(new, estimates, cells, made)

    # Several mini-batches for one step ------------------------------------------------------------

    def accumulate(self, batch: MiniBatch) -> None:
        """Count a mini-batch of an accumulated step."""
        if self.method.draws > 1:
            raise ValueError(
                f"{type(self.method).__name__} needs {self.method.draws} mini-batches a step, and"
                f" accumulate() gathers one; use backward(..., scale=1/k). {ONE_BATCH}"
            )
        if self.gathered:
            raise ValueError(
                f"accumulate() gathers all {self.constraints.m} constraints, and a mini-batch shows"
                " few of them; use backward(..., scale=1/k)"
            )
        if self._accumulated_step is not None:
            raise ValueError(
                "accumulate() was called between the backward passes of a step; finish it first"
            )
        self.accumulated.append(self.totals(batch))

    def _accumulated_backward(
        self, batch: MiniBatch, scaler: torch.amp.GradScaler | None
    ) -> StepInfo:
        step = self._accumulated_step or self._begin_accumulated(scaler)
        try:
            statistics = self.statistics(batch)
            self.pass_backward(step.gradients, step.answer, step.estimate, statistics)
            if not step.is_last(statistics):
                return StepInfo(step.estimate, None)
            made = step.gradients.keep(
                step.answer.numbers, self.smoothed, self.method.smoothing, look=self.look
            )
        except BaseException:
            step.gradients.undo()
            self.accumulated, self._accumulated_step = [], None
            raise
        self.accumulated, self._accumulated_step = [], None
        if self.look and made is not None:
            return self.skip(step.estimate, scaler)
        self.move(step.answer, [step.estimate], [None], made)
        return StepInfo(step.estimate, made)

    def _begin_accumulated(self, scaler: torch.amp.GradScaler | None) -> AccumulatedStep:
        estimate = self.estimate(added(self.accumulated))
        gradients = GradientPass(self.parameters, self.processes, scaler, 1.0)
        counts = sum((part.counts for part in self.accumulated[1:]), self.accumulated[0].counts)
        self._accumulated_step = AccumulatedStep(
            estimate, self.ask([estimate]), gradients, len(self.accumulated), counts
        )
        return self._accumulated_step

    # Saving ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self.accumulated:
            raise ValueError("an accumulated step is in progress; save after its last backward()")
        smoothed = None
        # a first step that failed leaves z, to be replaced
        if self.smoothed is not None and self.state is not None:
            smoothed = self.parameters.by_name(self.smoothed.z)
        measured = None if self.probes is None else self.probes.state_dict()
        return super().state_dict() | {"smoothed": smoothed, "measured": measured}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        smoothed = None
        if (
            self.method.smoothing is not None
            and saved.get("smoothed") is None
            and saved.get("state") is not None
        ):
            raise ValueError(
                f"this {type(self.method).__name__} smooths the parameters, and the saved state is"
                " of a method that does not; use the method and the mu of the saved run, or start"
                " without the saved state"
            )
        if self.method.smoothing is not None and saved.get("smoothed") is not None:
            smoothed = SmoothedParameters(self.parameters)
            smoothed.load(saved["smoothed"])
        super().load_state_dict(saved)
        self.smoothed = smoothed
        if self.probes is not None and saved.get("measured") is not None:
            self.probes.load_state_dict(saved["measured"])


class AccumulatedStep:
    """A step in progress; `left` mini-batches are still to come."""

    def __init__(
        self,
        estimate: BatchEstimate,
        answer: StepAnswer,
        gradients: GradientPass,
        left: int,
        counts: Tensor,
    ) -> None:
        self.estimate, self.answer, self.gradients, self.left = estimate, answer, gradients, left
        self.missing = counts  # examples yet to be passed backward
        self.probes = False  # whether its mini-batches are probed

    def is_last(self, statistics: BatchStatistics) -> bool:
        """Whether this mini-batch is the last one; the examples must be those that were counted."""
        self.missing = self.missing - statistics.totals().counts
        self.left -= 1
        if not self.left and self.missing.abs().max() > 1e-3:
            raise ValueError(
                "backward() got other examples than accumulate(); give both the same mini-batches"
            )
        return not self.left
