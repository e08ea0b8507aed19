"""Objective and constraints of a mini-batch in a training loop, whether they can be used, and the sample of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.cells import Layers
from fairbound.constraints.constraint import FunctionValue
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.constraints.contrasts import Others
from fairbound.constraints.layouts import GroupedLayout, Term
from fairbound.constraints.linear import LinearConstraints, SumsCounts
from fairbound.core import CellGradients, Estimate, Sample
from fairbound.integrations.torch.distributed import Processes, full_value

ShownCells = Sequence[Tensor | None]  # for every part the cells that are gathered, (S,), K for none; None: all of them
# (counts (1+q,), cells) -> for every part what is known of the cells that are absent.
RunningMeansOf = Callable[[Tensor, ShownCells | None], Sequence[Others | None]]


class BatchStatistics:
    """One mini-batch: per-example values and functions with their graphs, and where its examples count."""

    def __init__(
        self,
        constraints: ConstraintSet,
        values: list[Tensor],
        functions: list[FunctionValue],
        layout: GroupedLayout,
        cells: ShownCells | None,
    ) -> None:
        self.constraints, self.values, self.functions, self.layout = constraints, values, functions, layout
        self.cells = cells

    @staticmethod
    def of(
        constraints: ConstraintSet, batch: MiniBatch, *, exact: bool = False, processes: Processes | None = None
    ) -> BatchStatistics:
        """Of a mini-batch; `exact` takes the rates in place of their surrogates.

        Where `processes` are given, the cells that their mini-batches show are gathered of constraints with very many.
        """
        if batch.losses.ndim != 1:
            batch.check()  # explains it
        functions: list[FunctionValue] = []
        if constraints.functions:
            values_of = constraints.function_values(lambda _: batch)
            functions = [function._replace(value=full_value(function.value)) for function in values_of]
            if batch.losses.requires_grad and torch.is_grad_enabled():
                _check_function_graphs(constraints, functions)
        values, layers = constraints.example_values(batch, exact=exact), constraints.layers(batch)
        terms: Sequence[Term] = constraints.terms
        cells: ShownCells | None = None
        if processes is not None:
            terms, cells = _present(constraints, layers, processes)
        layout = GroupedLayout(terms, layers, batch.losses, batch.objective, batch.weight)
        return BatchStatistics(constraints, values, functions, layout, cells)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """What is differentiated."""
        return self._differentiated([*self.values, *(value for value, _ in self.functions)])

    def _differentiated(self, tensors: list[Tensor]) -> list[Tensor]:
        """Without exact rates, and without functions of which nothing is observed."""
        chosen = self.constraints.differentiated
        if self.functions:
            chosen = [*chosen, *(observed is None or value.requires_grad for value, observed in self.functions)]
        return tensors if all(chosen) else list(compress(tensors, chosen))

    def totals(self) -> SumsCounts:
        return self.constraints.sums_counts(self.values, self.functions, self.layout)

    def weights(self, mean_weights: Tensor, counts: Tensor) -> list[Tensor]:
        """What every entry of `tensors` counts, from a weight on every mean; `counts` may be those of many batches."""
        weights = self._differentiated(self.constraints.example_weights(mean_weights, counts, self.layout, self.values))
        if not self.functions:
            return weights
        return [weight.to(tensor.dtype) for weight, tensor in zip(weights, self.tensors, strict=True)]

    def halves(self) -> tuple[BatchStatistics, BatchStatistics]:
        """The examples of every cell, assigned alternately to two mini-batches."""
        odd, even = self.layout.halves()
        return (
            BatchStatistics(self.constraints, self.values, self.functions, odd, self.cells),
            BatchStatistics(self.constraints, self.values, self.functions, even, self.cells),
        )


def _present(
    constraints: ConstraintSet, layers: list[Layers], processes: Processes
) -> tuple[Sequence[Term], list[Tensor | None]]:
    """The terms of the cells that mini-batches show, and these cells, where there are very many; `layers` follow."""
    terms = list(constraints.terms)
    cells: list[Tensor | None] = [None] * len(layers)
    for i, many in enumerate(constraints.many):
        if many:
            shown, layer = processes.present_cells(layers[i][0], terms[i].cells)
            cells[i], layers[i], terms[i] = shown, (layer,), terms[i]._replace(cells=len(shown))
    return terms, cells


class BatchEstimate(NamedTuple):
    """[f, c] of a mini-batch, or of several together: of all rows, or of those that a mini-batch shows of very many."""

    constraints: LinearConstraints
    f: Tensor  # ()
    c: Tensor  # (m,); of a constraint that the batch does not show its last value, but at most 0
    last: Tensor  # (m,) the last values; NaN before the first
    shown: SumsCounts  # sums and counts
    totals: SumsCounts  # the same without empty cells
    means: Tensor  # (1+q,) theirs
    absent: Tensor | None  # (m,) the constraints that lack examples of a cell; None: none does
    finite: bool | Tensor  # a tensor where nobody looks at it: on a GPU that would wait for it
    rows: Tensor | None = None  # (m,) which of all rows these are; None: all, in order
    scale: Tensor | None = None  # (m,) what c is divided by before the method sees it

    @staticmethod
    def of(
        constraints: ConstraintSet,
        totals: SumsCounts,
        last: Tensor | None,
        *,
        cells: ShownCells | None = None,
        running: RunningMeansOf | None = None,
        look: bool = True,
    ) -> BatchEstimate:
        """From sums and counts. `last` are the constraints' last values, for those that lack a group here.

        Args:
            cells: those that the sums are of, as `BatchStatistics.cells`.
            running: gives the running means of every part's cells, asked for where groups are absent; without them a
                row that refers to the mean of all groups needs them all.
            look: at the numbers, so that where all are finite the rest is left out.
        """
        rows: Tensor | None = None
        shown: LinearConstraints = constraints
        if cells is not None:
            rows = constraints.rows(cells)
            others = [None] * len(cells) if running is None else running(totals.counts, cells)
            shown = constraints.restricted(cells, others)
        means = totals.means
        values = shown.value(means)
        if look and math.isfinite(float(values.sum())):  # NaN, infinities and absent groups all show in the sum
            c = values[1:]
            return BatchEstimate(shown, values[0], c, c, totals, totals, means, None, True, rows)
        if rows is None and running is not None:
            shown = constraints.restricted([None] * len(constraints.parts), running(totals.counts, None))
        observed = shown.observed(totals.counts)
        filled = totals.filled()
        means = filled.means
        values = shown.value(means)
        if last is None:
            known = torch.full_like(values[1:], torch.nan)
        else:
            known = (last if rows is None else last[rows]).to(values)
        c = torch.where(observed[1:], values[1:], known.nan_to_num(nan=0.0).clamp(max=0.0))
        finite = observed[0] & torch.isfinite(values[0]) & torch.isfinite(c).all()
        known = torch.where(observed[1:], c, known)
        return BatchEstimate(
            shown, values[0], c, known, totals, filled, means, ~observed[1:], bool(finite) if look else finite, rows
        )

    def where(self, made: Tensor, last: Tensor | None) -> BatchEstimate:
        """The same if a step was made, () bool; else one that shows nothing."""
        old = torch.full_like(self.last, torch.nan) if last is None else last.to(self.last)
        absent = torch.zeros_like(self.c, dtype=torch.bool) if self.absent is None else self.absent
        shown = SumsCounts(torch.where(made, self.shown.sums, 0.0), torch.where(made, self.shown.counts, 0.0))
        return self._replace(last=torch.where(made, self.last, old), absent=absent | ~made, shown=shown)

    def mean_weights(self, w: Tensor) -> Tensor:
        """(1+q,) the weight of every mean in w'[f, c], w (1+m,); a constraint that is absent has none."""
        w = w.to(self.totals.sums)
        if self.absent is not None:
            w = torch.cat([w[:1], w[1:].masked_fill(self.absent, 0.0)])
        if self.scale is not None:
            w = torch.cat([w[:1], w[1:] / self.scale])
        return self.constraints.mean_weights(self.means, w)

    def sample(self, x: Tensor, vjp: Callable[[Tensor], Tensor]) -> Sample:
        """The mini-batch as a function of the point, which is known at the model's present parameters only.

        `vjp` gives the gradient (n,) of a weighted sum of the means, (1+q,).
        """

        def gradients() -> Tensor:
            means = self.means
            unit = torch.eye(means.shape[0], dtype=means.dtype, device=means.device)
            return torch.stack([vjp(row) for row in unit[1:]])

        def at(point: Tensor) -> Estimate:
            if point is not x:
                raise ValueError(
                    "this method asks for a mini-batch at a second point, and a loop has it at the model's present "
                    "parameters only; use fairbound.run on a Problem, which evaluates anywhere"
                )
            return Estimate(
                self.f, self.scaled_c, lambda w: vjp(self.mean_weights(w)), self._cells(gradients), self.absent
            )

        return Sample(at)

    def _cells(self, gradients: Callable[[], Tensor]) -> CellGradients:
        def combine(rows: Tensor) -> Tensor:
            J = self.constraints.jacobian(self.means, rows)
            J = J if self.scale is None else J / self.scale[:, None]
            return J if self.absent is None else J.masked_fill(self.absent[:, None], 0.0)

        return CellGradients(self.means.shape[0] - 1, gradients, combine)

    def estimate(self) -> Estimate:
        """The numbers alone."""
        nothing = torch.full((), torch.nan)
        return Estimate(
            self.f, self.scaled_c, lambda w: torch.full_like(w, torch.nan), self._cells(lambda: nothing.expand(0, 0))
        )

    @property
    def scaled_c(self) -> Tensor:
        return self.c if self.scale is None else self.c / self.scale


def _check_function_graphs(constraints: ConstraintSet, functions: list[FunctionValue]) -> None:
    for (_, part), (value, observed) in zip(constraints.functions, functions, strict=True):
        if observed is None and not value.requires_grad:
            raise ValueError(
                f"the function of {part.names[0]!r} gives values without a graph to differentiate; compute them from "
                "the model, outside torch.no_grad() and without .detach(), or return (values, observed) where there "
                "is nothing to observe"
            )


def added(totals: Sequence[SumsCounts]) -> SumsCounts:
    """Of several mini-batches together."""
    total = totals[0]
    for part in totals[1:]:
        total = total.plus(part)
    return total
