r"""A constraint: contrast of cell means <= bound, or = bound.

Cells say which examples (a group, a label, a group within a label), the statistic which per-example
value (the loss, a rate), the contrast how cells are compared (each, pairwise, against the mean).
The paper's Table 1 and eq. (4) have this form, since |a| + |b| <= d is the four rows +-a +-b <= d.
Anything else is a function of a mini-batch (`FunctionConstraint`). The named ones are in `notions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._contrasts import Contrast, Others
from fairbound.constraints._linear import LinearConstraint, RestrictedConstraint
from fairbound.constraints._statistics import Statistic

TensorColumns: TypeAlias = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Constraint(LinearConstraint):
    """contrast of cell means <= bound; = bound where `equality`.

    >>> from fairbound import constraints
    >>> parity = constraints.loss_parity(["A", "B"], bound=0.1)
    >>> parity.evaluate(MiniBatch(torch.tensor([0.2, 0.4, 0.9]), torch.tensor([0, 0, 1])))
    tensor([-0.4000,  0.2000,  0.2000, -0.4000])
    """

    cells: Cells = field(repr=False)
    contrast: Contrast = field(repr=False)
    bound: Tensor  # (m,)
    statistic: Statistic | None = field(default=None, repr=False)  # None: the per-example loss
    equality: bool = False
    # |contrast| <= bound: one nonsmooth row for two, the form of the authors' Experiment 2
    absolute: bool = False
    by: str | None = None  # the column of groups that is meant, where there are several
    names: Sequence[str] = ()  # of the rows; by default the contrast's
    # rates: their exact value is what c is, their surrogate is what is differentiated
    proxy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.names or self.contrast.names)
        m, K = len(self.names), len(self.cells)
        if (len(self.contrast.names), self.contrast.cells) != (m, K) or self.bound.shape != (m,):
            raise ValueError(
                f"{m} constraints on {K} cells need a contrast of as many rows and cells and as"
                f" many bounds, got {len(self.contrast.names)} x {self.contrast.cells} and"
                f" {tuple(self.bound.shape)}"
            )
        if self.proxy and (self.statistic is None or self.statistic.exact is None):
            raise ValueError(
                "proxy=True is for rates, whose exact value differs from what is differentiated;"
                f" {self.names[0]!r} is about a loss or a statistic without an exact form"
            )
        if not torch.isfinite(self.bound).all():
            raise ValueError(f"bounds must be finite, got {self.bound.tolist()[:6]}")

    @property
    def m(self) -> int:
        return len(self.names)

    def bind(self, groups: TensorColumns, labels: Tensor | None = None) -> Constraint:
        """The same constraint over the examples of a dataset."""
        return replace(self, cells=self.cells.bind(_column(self, groups), labels))

    def evaluate(self, batch: MiniBatch, *, exact: bool = False) -> Tensor:
        """(m,) its value on a mini-batch, feasible where <= 0; `exact` reports rates instead of
        their surrogates."""
        # which is made of constraints
        from fairbound.constraints._constraint_set import ConstraintSet

        return ConstraintSet((self,)).evaluate(batch, exact=exact)[1:]

    def to(self, device: torch.device, dtype: torch.dtype) -> Constraint:
        return replace(
            self, contrast=self.contrast.to(device, dtype), bound=self.bound.to(device, dtype)
        )

    @property
    def size(self) -> int:
        """How many means it needs, q."""
        return len(self.cells)

    @property
    def averages(self) -> bool:
        """Whether the means of two equal halves of a mini-batch average to the whole's."""
        return True

    def restricted(self, cells: Tensor | None, others: Others | None) -> RestrictedConstraint:
        """The same for the cells that a mini-batch shows, (S,), K for no cell; None: all K, some of
        them absent."""
        contrast = self.contrast.restricted(cells, others)
        if cells is None:
            return RestrictedConstraint(contrast, self.bound, self.absolute, self.size)
        bound = self.bound[self.contrast.rows(cells).clamp(max=self.m - 1)]
        return RestrictedConstraint(contrast, bound, self.absolute, cells.shape[0])


class FunctionValue(NamedTuple):
    """What a function gives on a mini-batch."""

    value: Tensor  # (m,)
    observed: Tensor | None = None  # (m,) bool: the rows that this mini-batch shows; None: all


@dataclass(frozen=True, eq=False)
class FunctionConstraint:
    """fun(batch) <= 0, or = 0: a user's function of a mini-batch, (m,), written with torch
    operations.

    `batch` is a `MiniBatch`: losses, outputs, labels, groups, the values handed over and the
    model's parameters. Its value on a mini-batch should be an unbiased estimate of what is meant,
    as a mean over examples is. Where some rows are observed at some steps only, it gives (values,
    observed), both (m,), `observed` bool.
    """

    fun: Callable[[MiniBatch], Tensor | tuple[Tensor, Tensor]]
    names: tuple[str, ...]
    # Which examples `run` draws for it, equally many of each cell.
    cells: Cells = field(default_factory=lambda: Cells((Cell("all"),)))
    equality: bool = False
    # whether fun is a plain mean over examples, which Ghost's stacked runs evaluate faster
    mean: bool = False
    # whether its values come with the mini-batch, by name (`constraints.given`)
    handed_over: bool = False
    by: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise TypeError(
                f"names must be a tuple with one name for each constraint, got {self.names!r}"
            )

    @property
    def m(self) -> int:
        return len(self.names)

    def bind(self, groups: TensorColumns, labels: Tensor | None = None) -> FunctionConstraint:
        """The same constraint over the examples of a dataset."""
        return replace(self, cells=self.cells.bind(_column(self, groups), labels))

    def evaluate(self, batch: MiniBatch, *, exact: bool = False) -> Tensor:
        """(m,) its value on a mini-batch, feasible where <= 0; NaN where it is not observed."""
        value, observed = self.on(batch)
        return value if observed is None else torch.where(observed, value, torch.nan)

    def on(self, batch: MiniBatch) -> FunctionValue:
        """Evaluate it on a mini-batch: its value, and the rows that are observed."""
        try:
            returned = self.fun(batch)
        except (AttributeError, TypeError) as error:
            absent = [
                name for name in ("outputs", "labels", "groups") if getattr(batch, name) is None
            ]
            if absent:
                error.add_note(
                    f"This mini-batch has no {', '.join(absent)}: pass what {self.names[0]!r}"
                    " reads."
                )
            raise
        value, observed = returned if isinstance(returned, tuple) else (returned, None)
        if self.m == 1 and isinstance(value, Tensor):
            value = value.reshape(1) if value.ndim == 0 else value
        for what, tensor in (("values", value), ("`observed`", observed)):
            if isinstance(tensor, float | int):
                raise TypeError(
                    f"the function of {self.names[0]!r} gives the number {tensor!r}, which has no"
                    " graph to differentiate; compute it with torch operations, without .item()"
                    " and float()"
                )
            if tensor is not None and (not isinstance(tensor, Tensor) or tensor.shape != (self.m,)):
                got = (
                    f"shape {tuple(tensor.shape)}"
                    if isinstance(tensor, Tensor)
                    else type(tensor).__name__
                )
                who = f"the function of {', '.join(self.names[:4])}"
                raise ValueError(f"{who} must give {what} of shape ({self.m},), got {got}")
        return FunctionValue(value, observed)

    def to(self, device: torch.device, dtype: torch.dtype) -> FunctionConstraint:
        return self

    def value(self, means: Tensor) -> Tensor:
        return means

    def mean_weights(self, means: Tensor, w: Tensor) -> Tensor:
        return w

    def jacobian(self, means: Tensor, rows: Tensor) -> Tensor:
        return rows

    @property
    def size(self) -> int:
        return self.m

    @property
    def averages(self) -> bool:
        return self.mean

    def observed(self, present: Tensor) -> Tensor:
        return present


AnyConstraint: TypeAlias = Constraint | FunctionConstraint


def _column(constraint: AnyConstraint, groups: TensorColumns) -> Tensor:
    """The column of groups that a constraint is about; any one for a constraint on all examples."""
    if isinstance(groups, Tensor):
        return groups
    if constraint.by is None and (len(groups) == 1 or not constraint.cells.needs_groups):
        return next(iter(groups.values()))
    if constraint.by is None or constraint.by not in groups:
        raise ValueError(
            f"groups has the columns {sorted(groups)}; the constraint {constraint.names[0]!r} has"
            f" by={constraint.by!r}"
        )
    return groups[constraint.by]
