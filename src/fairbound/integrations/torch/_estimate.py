"""A mini-batch in a training loop: its per-example values, [f, c], and the weights of examples that
follow from w."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Layers
from fairbound.constraints._constraint import FunctionValue
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._contrasts import Others
from fairbound.constraints._dense import TINY, Affine, DenseConstraints
from fairbound.constraints._layouts import GroupedLayout, Term
from fairbound.constraints._linear import LinearConstraints, SumsCounts
from fairbound.constraints._running_means import RunningMeans
from fairbound.core import CellGradients, Estimate, Sample
from fairbound.integrations.torch._distributed import Processes, full_value

SEEN_EVERY = 100  # steps between two looks at whether every cell was seen
# for every part the cells that are gathered, (S,), K for none; None: all of them
ShownCells = Sequence[Tensor | None]


class BatchStatistics:
    """One mini-batch: per-example values and functions with their graphs, and where its examples
    count."""

    def __init__(
        self,
        constraints: ConstraintSet,
        values: list[Tensor],
        functions: list[FunctionValue],
        layout: GroupedLayout,
        cells: ShownCells | None,
    ) -> None:
        self.constraints, self.values, self.functions, self.layout = (
            constraints,
            values,
            functions,
            layout,
        )
        self.cells = cells
        # what is differentiated
        self.tensors = self._differentiated([*values, *(value for value, _ in functions)])

    @staticmethod
    def of(
        constraints: ConstraintSet,
        batch: MiniBatch,
        *,
        exact: bool = False,
        processes: Processes | None = None,
    ) -> BatchStatistics:
        """Statistics of a mini-batch; `exact` takes the rates in place of their surrogates.

        Where `processes` are given, the cells that their mini-batches show are gathered of
        constraints with very many.
        """
        if batch.losses.ndim != 1:
            batch.check()  # explains it
        functions: list[FunctionValue] = []
        if constraints.functions:
            values_of = constraints.function_values(lambda _: batch)
            functions = [
                function._replace(value=full_value(function.value)) for function in values_of
            ]
            if batch.losses.requires_grad and torch.is_grad_enabled():
                _check_function_graphs(constraints, functions)
        values, layers = constraints.example_values(batch, exact=exact), constraints.layers(batch)
        terms: Sequence[Term] = constraints.terms
        cells: ShownCells | None = None
        if processes is not None:
            terms, cells = _present(constraints, layers, processes)
        layout = GroupedLayout(terms, layers, batch.losses, batch.objective, batch.weight)
        return BatchStatistics(constraints, values, functions, layout, cells)

    def _differentiated(self, tensors: list[Tensor]) -> list[Tensor]:
        """Choose the tensors to differentiate: without exact rates, and without functions of which
        nothing is observed."""
        chosen = self.constraints.differentiated
        if len(tensors) == 1:
            return tensors
        if self.functions:
            chosen = [
                *chosen,
                *(observed is None or value.requires_grad for value, observed in self.functions),
            ]
        return tensors if all(chosen) else list(compress(tensors, chosen))

    def totals(self) -> SumsCounts:
        """(1+q+2,) the table of sums and counts."""
        return self.constraints.table(self.values, self.functions, self.layout)

    def weights(self, by_sum: Tensor) -> list[Tensor]:
        """What every entry of `tensors` counts, from a weight on every sum, (1+q+2,)."""
        weights = self._differentiated(self.constraints.spread(by_sum, self.layout, self.values))
        if not self.functions:
            return weights
        return [
            weight.to(tensor.dtype) for weight, tensor in zip(weights, self.tensors, strict=True)
        ]

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
    """The terms of the cells that mini-batches show, and these cells, where there are very many;
    `layers` follow."""
    terms = list(constraints.terms)
    cells: list[Tensor | None] = [None] * len(layers)
    for i, many in enumerate(constraints.many):
        if many:
            shown, layer = processes.present_cells(layers[i][0], terms[i].cells)
            cells[i], layers[i], terms[i] = shown, (layer,), terms[i]._replace(cells=len(shown))
    return terms, cells


def _check_function_graphs(constraints: ConstraintSet, functions: list[FunctionValue]) -> None:
    for (_, part), (value, observed) in zip(constraints.functions, functions, strict=True):
        if observed is None and not value.requires_grad:
            raise ValueError(
                f"the function of {part.names[0]!r} gives values without a graph to differentiate;"
                " compute them from the model, outside torch.no_grad() and without .detach(), or"
                " return (values, observed) where there is nothing to observe"
            )


class BatchEstimate(NamedTuple):
    """[f, c] of a mini-batch, or of several together: of all rows, or of those that a mini-batch
    shows of very many."""

    # (1+m,) [f, c]; c of a constraint that the batch does not show: its last value, but at most 0
    values: Tensor
    missing: Tensor | None  # (1+m,) bool: those that lack examples of a cell; None: none does
    shown: SumsCounts  # (1+q+2,) sums and counts
    filled: Tensor  # (1+q+2,) counts, not 0 where there are none
    linear: Affine | ManyAffine
    rows: Tensor | None = None  # (m,) which of all rows these are; None: all, in order

    @property
    def f(self) -> Tensor:
        """(); not finite where the objective has no examples, or a group is unknown."""
        return self.values[0]

    @property
    def c(self) -> Tensor:
        return self.values[1:]

    @property
    def absent(self) -> Tensor | None:
        """(m,) bool: the constraints that lack examples of a cell; None: none does."""
        return None if self.missing is None else self.missing[1:]

    @property
    def finite(self) -> Tensor:
        """() bool."""
        return torch.isfinite(self.values).all()

    def by_sum(self, w: Tensor) -> Tensor:
        """(1+q+2,) the weight of every sum in w'[f, c], w (1+m,); a constraint that is absent has
        none."""
        w = w.double()
        return (
            self.linear.mean_weights(
                w if self.missing is None else w.masked_fill(self.missing, 0.0)
            )
            / self.filled
        )

    def sample(self, x: Tensor, vjp: Callable[[Tensor], Tensor]) -> Sample:
        """The mini-batch as a function of the point, which is known at the model's present
        parameters only.

        `vjp` gives the gradient (n,) of a weighted sum of the sums, (1+q+2,).
        """

        def gradients() -> Tensor:
            by_sum = (self.shown.counts > 0) / self.filled  # nothing of a mean that is not shown
            return torch.stack([vjp(row) for row in by_sum.diag()[1:-2]])

        def at(point: Tensor) -> Estimate:
            if point is not x:
                raise ValueError(
                    "this method asks for a mini-batch at a second point, and a loop has it at the"
                    " model's present parameters only; use fairbound.run on a Problem, which"
                    " evaluates anywhere"
                )
            cells = CellGradients(len(self.filled) - 3, gradients, self._jacobian)
            return Estimate(
                self.f.to(x.dtype),
                self.c.to(x.dtype),
                lambda w: vjp(self.by_sum(w)),
                cells,
                self.absent,
            )

        return Sample(at)

    def _jacobian(self, rows: Tensor) -> Tensor:
        jacobian = self.linear.jacobian(rows)
        return (
            jacobian if self.missing is None else jacobian.masked_fill(self.missing[1:, None], 0.0)
        )

    def estimate(self) -> Estimate:
        """The numbers alone."""
        nothing = torch.full((), torch.nan)
        cells = CellGradients(len(self.filled) - 3, lambda: nothing.expand(0, 0), self._jacobian)
        return Estimate(self.f, self.c, lambda w: torch.full_like(w, torch.nan), cells)


@lru_cache(maxsize=256)
def _most(rows: int, device: torch.device) -> Tensor:
    """(1+rows,) what may at most stand for a missing value: 0 for a constraint, nothing finite for
    the objective."""
    most = torch.zeros(1 + rows, dtype=torch.float64, device=device)
    most[:1] = -torch.inf
    return most


class DenseEvaluation:
    """Evaluation from sums and counts to [f, c] where there are few cells."""

    def __init__(self, constraints: ConstraintSet, device: torch.device) -> None:
        self.dense, self.most = DenseConstraints(constraints, device), _most(constraints.m, device)
        self.names = constraints.mean_names
        self.running = self.dense.unseen()
        self.all_seen = not self.dense.refers  # every cell has a running mean, or none is needed
        self.added = 0

    def estimate(
        self, totals: SumsCounts, last: Tensor, cells: ShownCells | None, look: bool
    ) -> BatchEstimate:
        """`last` (1+rows,) are the values of the last step, for constraints that lack a cell here.

        With a `look` at the counts less is computed where none does.
        """
        values, missing, filled, linear = self.dense.values(
            totals, self.running, self.all_seen, look
        )
        if missing is not None:
            values = torch.where(missing, torch.fmin(last, self.most), values)
        return BatchEstimate(values, missing, totals, filled, linear)

    def add(self, estimate: BatchEstimate, cells: ShownCells | None, made: Tensor | None) -> None:
        """Remember a mini-batch of a step; `made` () bool says whether it was, where nobody
        looks."""
        if not self.dense.refers:
            return
        self.running = self.dense.updated(self.running, estimate.shown, made)
        self.added += 1
        if not self.all_seen and self.added % SEEN_EVERY == 0:
            self.all_seen = bool((self.running.counts[1:-2] > TINY).all())

    def state_dict(self) -> Any:
        """Running sums and counts, by the names of cells."""
        if not self.dense.refers:
            return None
        return dict(zip(self.names, self.running.table[:, 1:-2].clone().unbind(1), strict=True))

    def load_state_dict(self, saved: Any) -> None:
        """Cells that were not saved begin anew."""
        self.running, self.all_seen = self.dense.unseen(), not self.dense.refers
        for i, name in enumerate(self.names, start=1):
            if self.dense.refers and name in (saved or {}):
                self.running.table[:, i] = saved[name]


class ManyEvaluation:
    """The same for many cells, of which a mini-batch's own are gathered where rows allow it."""

    def __init__(self, constraints: ConstraintSet, device: torch.device) -> None:
        self.constraints = constraints.to(device, torch.float64)
        self.running: list[RunningMeans | None] = self.constraints.running_means()

    def estimate(
        self, totals: SumsCounts, last: Tensor, cells: ShownCells | None, look: bool
    ) -> BatchEstimate:
        batch = SumsCounts(totals.table[:, :-2])
        known: list[Others | None] = [None] * len(self.running)
        if any(self.running):
            known = [
                None if running is None else running.others(part_cells, n)
                for running, (part_cells, n) in zip(
                    self.running, self._by_part(batch.counts, cells), strict=True
                )
            ]
        shown = self.constraints.restricted(cells or [None] * len(known), known)
        rows = None if cells is None else self.constraints.rows(cells)
        filled = batch.filled()
        means = filled.means
        missing = ~shown.observed(batch.counts)
        missing[:1] |= totals.counts[-1:] > 0
        counts = torch.cat([filled.counts, means.new_ones(2)])
        last = last if rows is None else torch.cat([last[:1], last[1 + rows]])
        last = torch.fmin(last, _most(len(missing) - 1, means.device))
        values = torch.where(missing, last, shown.value(means))
        return BatchEstimate(values, missing, totals, counts, ManyAffine(shown, means), rows)

    def add(self, estimate: BatchEstimate, cells: ShownCells | None, made: Tensor | None) -> None:
        if not any(self.running):
            return
        sums, counts = (self._by_part(part[:-2], cells) for part in estimate.shown.table)
        for running, (part_cells, total), (_, count) in zip(
            self.running, sums, counts, strict=True
        ):
            if running is not None:
                running.add(part_cells, total, count)

    def _by_part(self, values: Tensor, cells: ShownCells | None) -> list[tuple[Tensor, Tensor]]:
        """Cells of every part, and the entries of (1+q,) values that are theirs."""
        shown_cells = cells or [None] * len(self.constraints.parts)
        pairs = zip(self.constraints.parts, shown_cells, strict=True)
        sizes = [part.size if part_cells is None else len(part_cells) for part, part_cells in pairs]
        _, *split = values.split_with_sizes([1, *sizes])
        return [
            (
                torch.arange(len(part), device=part.device) if part_cells is None else part_cells,
                part,
            )
            for part_cells, part in zip(shown_cells, split, strict=True)
        ]

    def state_dict(self) -> Any:
        return [running and running.state_dict() for running in self.running]

    def load_state_dict(self, saved: Any) -> None:
        self.running = self.constraints.running_means()
        for running, state in zip(self.running, saved or [], strict=bool(saved)):
            if running is not None:
                running.load_state_dict(state)


class ManyAffine(NamedTuple):
    """`Affine` for many cells."""

    constraints: LinearConstraints
    means: Tensor  # (1+q,)

    def mean_weights(self, w: Tensor) -> Tensor:
        return torch.cat([self.constraints.mean_weights(self.means, w), w.new_zeros(2)])

    def jacobian(self, rows: Tensor) -> Tensor:
        return self.constraints.jacobian(self.means.to(rows.dtype), rows)


def added(totals: Sequence[SumsCounts]) -> SumsCounts:
    """Sums and counts of several mini-batches together."""
    total = totals[0]
    for part in totals[1:]:
        total = total.plus(part)
    return total
