r"""Objective and constraints evaluated together: the one evaluation that every driver uses.

A mini-batch is reduced to sums and counts per cell, which add up over chunks, accumulated batches
and processes. Their quotients are the means; [f, c] is a function of the means; a weight on every
entry of [f, c] becomes a weight on every mean, and then on every example: one backward pass gives
the gradient of f * F + w'C.

    per-example values --layout.table--> sums, counts --> means --value--> [f, c]
    example weights <--layout.spread-- / counts <--mean_weights-- (f, w)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from fairbound._utils.sequences import LazySequence, sequence
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cells, Layers
from fairbound.constraints._constraint import (
    AnyConstraint,
    Constraint,
    FunctionConstraint,
    FunctionValue,
    TensorColumns,
)
from fairbound.constraints._contrasts import Others
from fairbound.constraints._layouts import GroupedLayout, Term
from fairbound.constraints._linear import LinearConstraints, SumsCounts
from fairbound.constraints._running_means import RunningMeans
from fairbound.constraints._statistics import Statistic

Given = AnyConstraint | Iterable[AnyConstraint] | Mapping[str, AnyConstraint]


@dataclass(frozen=True, eq=False)
class ConstraintSet(LinearConstraints):
    """Objective and constraints, evaluated together; what every driver holds."""

    parts: tuple[AnyConstraint, ...]
    names: Sequence[str] = ()  # of all rows; by default those of the parts

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "names", self.names or _joined([part.names for part in self.parts])
        )

    @staticmethod
    def of(constraints: ConstraintSet | Given) -> ConstraintSet:
        """Set of one or several constraints, each row with a distinct name."""
        if isinstance(constraints, ConstraintSet):
            return constraints
        if isinstance(constraints, Constraint | FunctionConstraint):
            parts, names = [constraints], constraints.names
        elif isinstance(constraints, Mapping):
            parts = list(constraints.values())
            names = _joined(
                [
                    _prefixed(str(key), getattr(part, "names", ()))
                    for key, part in constraints.items()
                ]
            )
        else:
            if isinstance(constraints, str) or not isinstance(constraints, Iterable):
                notion = constraints if isinstance(constraints, str) else "loss_parity"
                example = f"constraints.{notion}(...)"
                what = (
                    repr(constraints)
                    if isinstance(constraints, str)
                    else type(constraints).__name__
                )
                raise TypeError(
                    f"{what} is not a constraint; fairbound.constraints makes them, as {example}"
                    " does"
                )
            parts = list(constraints)
            names = _joined([getattr(part, "names", ()) for part in parts])
        if not parts:
            raise ValueError("there are no constraints; give at least one of fairbound.constraints")
        for part in parts:
            if not isinstance(part, Constraint | FunctionConstraint):
                raise TypeError(
                    f"{type(part).__name__} is not a constraint; use those of fairbound.constraints"
                )
        doubled = (
            []
            if isinstance(names, LazySequence)
            else [n for n, count in Counter(names).items() if count > 1]
        )
        if doubled:
            raise ValueError(
                f"two constraints are called {min(doubled)!r}, and a saved state identifies them by"
                ' name; give a mapping: {"race": ..., "sex": ...}'
            )
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError(
                "one constraint is given twice under two names; drop one, or build it twice"
            )
        return ConstraintSet(tuple(parts), names)

    @property
    def cells(self) -> Cells:
        """Cells of all parts, one after the other."""
        return sum((part.cells for part in self.parts), Cells((), ()))

    @cached_property
    def mean_names(self) -> list[str]:
        """(q,) a name for every mean that the constraints compare: its part's first row, and its
        cell."""
        firsts = [self.names[i] for i in accumulate([0, *(part.m for part in self.parts[:-1])])]
        names_of_means = [
            part.cells.names if isinstance(part, Constraint) else part.names for part in self.parts
        ]
        return [
            f"{first}, {name}"
            for first, names in zip(firsts, names_of_means, strict=True)
            for name in names
        ]

    @cached_property
    def equality(self) -> Tensor | None:
        """(m,) the rows that are equalities; None where there are none."""
        if not any(part.equality for part in self.parts):
            return None
        return torch.cat([torch.full((part.m,), part.equality) for part in self.parts])

    @property
    def averages(self) -> bool:
        return all(part.averages for part in self.parts)

    @property
    def by_cell(self) -> bool:
        """Whether every mean reads the model's outputs on its own cell only."""
        return not self.functions

    @cached_property
    def functions(self) -> tuple[tuple[int, FunctionConstraint], ...]:
        """The parts that are functions of a mini-batch, with their places."""
        return tuple(
            (i, part) for i, part in enumerate(self.parts) if isinstance(part, FunctionConstraint)
        )

    @cached_property
    def differentiated(self) -> list[bool]:
        """Flags of the entries of `statistics` that are differentiated; the exact ones are not."""
        return [not exact for _, exact in self.statistics]

    def bind(self, groups: TensorColumns, labels: Tensor | None = None) -> ConstraintSet:
        """The same constraints over the examples of a dataset."""
        return replace(self, parts=tuple(part.bind(groups, labels) for part in self.parts))

    def to(self, device: torch.device, dtype: torch.dtype) -> ConstraintSet:
        """The same with its numbers on a device, in a precision."""
        return replace(self, parts=tuple(part.to(device, dtype) for part in self.parts))

    # From examples to sums and counts -------------------------------------------------------------

    @cached_property
    def statistics(self) -> list[tuple[Statistic | None, bool]]:
        """The per-example values, each once, and whether it is the exact one; the loss of the
        objective first."""
        statistics: list[tuple[Statistic | None, bool]] = [(None, False)]
        for part in self.parts:
            if isinstance(part, Constraint):
                entries = [(part.statistic, False), (part.statistic, True)][: 1 + part.proxy]
                statistics += [entry for entry in entries if entry not in statistics]
        return statistics

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Term of every part: the statistic that it averages (none for a function) and its number
        of cells."""
        place = self.statistics.index
        return tuple(
            Term(
                place((part.statistic, False)) if isinstance(part, Constraint) else None,
                part.size if isinstance(part, Constraint) else len(part.cells),
                (
                    place((part.statistic, True))
                    if isinstance(part, Constraint) and part.proxy
                    else None
                ),
                part.m,
            )
            for part in self.parts
        )

    def example_values(self, batch: MiniBatch, *, exact: bool = False) -> list[Tensor]:
        """(B,) each: what is averaged, the loss first."""
        return [
            batch.losses,
            *(self._values(s, batch, exact or e) for s, e in self.statistics[1:] if s is not None),
        ]

    def _values(self, statistic: Statistic, batch: MiniBatch, exact: bool) -> Tensor:
        name = next(
            p.names[0] for p in self.parts if isinstance(p, Constraint) and p.statistic == statistic
        )
        outputs = batch.needed("outputs", f"the constraint {name!r}")
        labels = batch.losses if batch.labels is None else batch.labels  # a rate does not read them
        values = (
            statistic.reported(outputs.detach(), labels)
            if exact
            else statistic.surrogate(outputs, labels)
        )
        if values.numel() != batch.losses.shape[0]:
            raise ValueError(
                f"the statistic of {name!r} must be one value per example, got"
                f" {tuple(values.shape)}"
            )
        return values.reshape(-1)

    def function_values(self, batch_of: Callable[[int], MiniBatch]) -> list[FunctionValue]:
        """The values of every function, with their graph; `batch_of(i)` is the mini-batch of part
        i."""
        return [part.on(batch_of(i)) for i, part in self.functions]

    def layers(self, batch: MiniBatch) -> list[Layers]:
        """Cells of every example, for every part; none for a function."""
        layers: list[Layers] = []
        for part in self.parts:
            groups = labels = None
            if isinstance(part, FunctionConstraint):
                layers.append(())
                continue
            if part.cells.needs_groups:
                groups = batch.column(part.by)
            if part.cells.needs_labels:
                labels = batch.needed("labels", f"the constraint {part.names[0]!r}")
            layers.append(
                part.cells.assign(batch.losses.shape[0], groups, labels, batch.losses.device)
            )
        return layers

    def layout(self, batch: MiniBatch) -> GroupedLayout:
        """Layout that says where the examples of a mini-batch count."""
        return GroupedLayout(
            self.terms, self.layers(batch), batch.losses, batch.objective, batch.weight
        )

    def table(
        self, values: Sequence[Tensor], functions: Sequence[FunctionValue], layout: GroupedLayout
    ) -> SumsCounts:
        """(1+q+2,) in double precision: the last two are of examples in no cell and of unknown
        groups (a NaN).

        A function adds its values, and counts once where it is observed.
        """
        totals = SumsCounts(layout.table(values))
        for (place, part), (value, observed) in zip(self.functions, functions, strict=True):
            start = 1 + sum(term.means for term in layout.terms[:place])
            own = slice(start, start + part.m)
            totals.sums[own] = (
                value.detach() if observed is None else torch.where(observed, value.detach(), 0.0)
            )
            totals.counts[own] = 1.0 if observed is None else observed.to(torch.float64)
        return totals

    def sums_counts(
        self, values: Sequence[Tensor], functions: Sequence[FunctionValue], layout: GroupedLayout
    ) -> SumsCounts:
        """The same without the last two, in the precision of the losses; an unknown group makes the
        objective NaN."""
        table = self.table(values, functions, layout).table
        wide = torch.float64 if layout.like.dtype == torch.float64 else torch.float32
        table[1, 0].masked_fill_(table[1, -1] > 0, torch.nan)
        return SumsCounts(table[:, :-2].to(wide))

    def example_weights(
        self, mean_weights: Tensor, counts: Tensor, layout: GroupedLayout, values: Sequence[Tensor]
    ) -> list[Tensor]:
        """What every example counts, for each of the per-example values, and then what every
        function does."""
        by_sum = mean_weights / counts
        return self.spread(torch.cat([by_sum, by_sum.new_zeros(2)]), layout, values)

    def spread(
        self, by_sum: Tensor, layout: GroupedLayout, values: Sequence[Tensor]
    ) -> list[Tensor]:
        """The same from a weight on every entry of `table`."""
        weights = layout.spread(by_sum, values)
        for place, part in self.functions:
            start = 1 + sum(term.means for term in layout.terms[:place])
            weights.append(by_sum[start : start + part.m])
        return weights

    def evaluate(self, batch: MiniBatch, *, exact: bool = False) -> Tensor:
        """(1+m,) [f, c] of a mini-batch; NaN where a cell that it needs has no examples."""
        with torch.no_grad():
            values, functions = (
                self.example_values(batch, exact=exact),
                self.function_values(lambda _: batch),
            )
            totals = self.sums_counts(values, functions, self.layout(batch))
            f_and_c = self.to(totals.sums.device, totals.sums.dtype).value(totals.filled().means)
            return torch.where(self.observed(totals.counts), f_and_c, torch.nan)

    # The cells that a mini-batch shows ------------------------------------------------------------

    @cached_property
    def many(self) -> tuple[bool, ...]:
        """Flags of the parts that have very many cells, of which a mini-batch's own are
        gathered."""
        return tuple(isinstance(part, Constraint) and part.cells.are_many for part in self.parts)

    def running_means(self) -> list[RunningMeans | None]:
        """Running means of every part whose rows refer to the mean of all its cells."""
        shares = [
            part.contrast.shares_of_mean if isinstance(part, Constraint) else None
            for part in self.parts
        ]
        return [None if share is None else RunningMeans(share) for share in shares]

    def restricted(
        self, cells: Sequence[Tensor | None], others: Sequence[Others | None]
    ) -> LinearConstraints:
        """The same for what a mini-batch shows: for every part its cells where there are many, else
        None."""
        parts = tuple(
            (
                part.restricted(shown, rest)
                if isinstance(part, Constraint) and (shown is not None or rest)
                else part
            )
            for part, shown, rest in zip(self.parts, cells, others, strict=True)
        )
        return LinearConstraints(parts)

    def rows(self, cells: Sequence[Tensor | None]) -> Tensor:
        """The rows of c that a restricted set has, in its order; m for those of no cell."""
        rows_of_parts, start = [], 0
        for part, part_cells in zip(self.parts, cells, strict=True):
            if part_cells is None or not isinstance(part, Constraint):
                rows_of_parts.append(
                    torch.arange(start, start + part.m, device=self._device(cells))
                )
            else:
                rows = part.contrast.rows(part_cells)
                rows_of_parts.append(torch.where(rows < part.m, start + rows, self.m))
            start += part.m
        return torch.cat(rows_of_parts)

    @staticmethod
    def _device(cells: Sequence[Tensor | None]) -> torch.device:
        return next(shown.device for shown in cells if shown is not None)

    # Checks ---------------------------------------------------------------------------------------

    def check(self, batch: MiniBatch) -> None:
        """Shapes, columns, and groups beyond those of a constraint, which would not be counted."""
        about = [
            part for part in self.parts if isinstance(part, Constraint) and part.cells.needs_groups
        ]
        batch.check([part.by for part in about])
        for part in about:
            column, known = batch.column(part.by), part.cells.groups
            if (
                known is not None
                and column.numel()
                and (int(column.max()) >= known or int(column.min()) < -1)
            ):
                raise ValueError(
                    f"groups must be 0 to {known - 1}, or -1 for none, found {int(column.min())} to"
                    f" {int(column.max())} for the constraint {part.names[0]!r}"
                )


def _joined(names: Sequence[Sequence[str]]) -> Sequence[str]:
    if len(names) == 1:
        return names[0]
    ends = list(accumulate(len(part_names) for part_names in names))

    def name(i: int) -> str:
        part = bisect_right(ends, i)
        return names[part][i - ends[part]]  # counted from the end of the part

    return sequence(ends[-1] if ends else 0, name)


def _prefixed(key: str, names: Sequence[str]) -> Sequence[str]:
    return sequence(len(names), lambda i: f"{key}: {names[i]}")


def combine(*constraints: AnyConstraint) -> ConstraintSet:
    """All of the constraints: several protected attributes, or several notions."""
    if not constraints:
        raise ValueError("combine() needs at least one constraint")
    return ConstraintSet(tuple(constraints))
