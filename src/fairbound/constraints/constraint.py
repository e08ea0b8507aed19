r"""A constraint: contrast of cell means <= bound, or = bound.

Cells say which examples (a group, a label, a group within a label), the statistic which per-example value (the loss, a
rate), the contrast how cells are compared (each, pairwise, against the mean). The paper's Table 1 and eq. (4) have this
form, since |a| + |b| <= d is the four rows +-a +-b <= d. Anything else is a function of a mini-batch
(`FunctionConstraint`). The named ones are in `notions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.cells import Cell, Cells
from fairbound.constraints.contrasts import Contrast
from fairbound.constraints.statistics import Statistic

Column: TypeAlias = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Constraint:
    """contrast of cell means <= bound; = bound where `equality`.

    >>> from fairbound import constraints
    >>> parity = constraints.loss_parity(["A", "B"], bound=0.1)
    >>> parity.evaluate(MiniBatch(torch.tensor([0.2, 0.4, 0.9]), torch.tensor([0, 0, 1])))
    tensor([-0.4000,  0.2000,  0.2000, -0.4000])
    """

    cells: Cells
    contrast: Contrast
    bound: Tensor  # (m,)
    statistic: Statistic | None = None  # None: the per-example loss
    equality: bool = False
    absolute: bool = False  # |contrast| <= bound: one nonsmooth row for two, the form of the authors' Experiment 2
    by: str | None = None  # the column of groups that is meant, where there are several
    names: tuple[str, ...] = ()  # of the rows; by default the contrast's

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names) or self.contrast.names)
        m, K = len(self.names), len(self.cells)
        if (len(self.contrast.names), self.contrast.cells) != (m, K) or self.bound.shape != (m,):
            raise ValueError(
                f"{m} constraints on {K} cells need a contrast of as many rows and cells and as many bounds, "
                f"got {len(self.contrast.names)} x {self.contrast.cells} and {tuple(self.bound.shape)}"
            )
        if not torch.isfinite(self.bound).all():
            raise ValueError(f"bounds must be finite, got {self.bound.tolist()[:6]}")

    @property
    def m(self) -> int:
        return len(self.names)

    def bind(self, groups: Column, labels: Tensor | None = None) -> Constraint:
        """The same constraint over the examples of a dataset."""
        return replace(self, cells=self.cells.bind(_column(self, groups), labels))

    def with_bound(self, bound: float) -> Constraint:
        """The same constraint with another bound; 0 for the penalized problem, eq. (13)."""
        return replace(self, bound=torch.full_like(self.bound, bound))

    def evaluate(self, batch: MiniBatch, *, exact: bool = False) -> Tensor:
        """(m,) its value on a mini-batch, feasible where <= 0; `exact` reports rates instead of their surrogates."""
        from fairbound.constraints.constraint_set import ConstraintSet  # which is made of constraints

        return ConstraintSet((self,)).evaluate(batch, exact=exact)[1:]

    def to(self, device: torch.device, dtype: torch.dtype) -> Constraint:
        return replace(self, contrast=self.contrast.to(device, dtype), bound=self.bound.to(device, dtype))

    # On means (q,) ----------------------------------------------------------------------------------------------------

    def value(self, means: Tensor) -> Tensor:
        """(m,) c from the cell means (K,)."""
        gaps = self.contrast.apply(means)
        return (gaps.abs() if self.absolute else gaps) - self.bound

    def mean_weights(self, means: Tensor, w: Tensor) -> Tensor:
        """(K,) the gradient of w'c in the means."""
        return self.contrast.transpose(self._signs(means) * w if self.absolute else w)

    def jacobian(self, means: Tensor, rows: Tensor) -> Tensor:
        """(m, n) from the gradients of the means, (K, n)."""
        found = self.contrast.apply(rows.mT).mT
        return self._signs(means)[:, None] * found if self.absolute else found

    def _signs(self, means: Tensor) -> Tensor:
        return self.contrast.apply(means).sign()

    @property
    def size(self) -> int:
        """How many means it needs, q."""
        return len(self.cells)

    @property
    def averages(self) -> bool:
        """Whether the means of two equal halves of a mini-batch average to the whole's."""
        return True

    def observed(self, present: Tensor) -> Tensor:
        """(m,) whether a mini-batch with these cells (K,) determines the value of each row."""
        return self.contrast.observed(present)


@dataclass(frozen=True, eq=False)
class FunctionConstraint:
    """fun(batch) <= 0, or = 0: a function of the user's on a mini-batch, (m,), written with torch operations.

    `batch` is a `MiniBatch`: losses, outputs, labels, groups and the model's parameters. Its value on a mini-batch
    should be an unbiased estimate of what is meant, as a mean over examples is.
    """

    fun: Callable[[MiniBatch], Tensor]
    names: tuple[str, ...]
    # Which examples `run` draws for it, equally many of each cell.
    cells: Cells = field(default_factory=lambda: Cells((Cell("all"),)))
    equality: bool = False
    mean: bool = False  # whether fun is a plain mean over examples, which Ghost's stacked runs evaluate faster
    by: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise TypeError(f"names must be a tuple with one name for each constraint, got {self.names!r}")

    @property
    def m(self) -> int:
        return len(self.names)

    def bind(self, groups: Column, labels: Tensor | None = None) -> FunctionConstraint:
        """The same constraint over the examples of a dataset."""
        return replace(self, cells=self.cells.bind(_column(self, groups), labels))

    def evaluate(self, batch: MiniBatch, *, exact: bool = False) -> Tensor:
        """(m,) its value on a mini-batch, feasible where <= 0."""
        found = self.fun(batch)
        if not isinstance(found, Tensor) or found.shape != (self.m,):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"the function of {self.names} must give {self.m} values, got shape {got}")
        return found

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
        return torch.ones_like(present)


AnyConstraint: TypeAlias = Constraint | FunctionConstraint


def _column(of: AnyConstraint, groups: Column) -> Tensor:
    """The column of groups that a constraint is about; any one for a constraint on all examples."""
    if isinstance(groups, Tensor):
        return groups
    if of.by is None and (len(groups) == 1 or not of.cells.needs_groups):
        return next(iter(groups.values()))
    if of.by is None or of.by not in groups:
        raise ValueError(f"groups has the columns {sorted(groups)}; the constraint {of.names[0]!r} has by={of.by!r}")
    return groups[of.by]
