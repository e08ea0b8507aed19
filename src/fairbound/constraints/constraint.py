r"""Constraints as cells x contrast x bound: c = contrast @ cell_means - bound <= 0.

Cells say who (a group, or a group within a label), the contrast how (pairwise, against the mean; both sides as two
rows), the value what (the loss, the soft positive rate). The paper's Table 1 and eq. (4) are all of this form, since
|a| + |b| <= d is the four rows +-a +-b <= d. Whatever else is wanted, a user writes as a function
(`FunctionConstraint`). The named ones are in `notions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fairbound.constraints.cells import Cells
from fairbound.constraints.statistics import Value


class Constraint(ABC):
    """What `Problem` asks of a constraint: statistics of a mini-batch, and c as a function of them."""

    cells: Cells
    names: tuple[str, ...]

    @property
    def m(self) -> int:
        return len(self.names)

    @property
    def size(self) -> int:
        """How many statistics there are, q."""
        return self.m

    @property
    @abstractmethod
    def averages(self) -> bool:
        """Whether the statistics are plain means over rows: those of two equal halves then average to the whole's."""

    @property
    def by_cell(self) -> bool:
        """Whether there is one statistic for each cell, which reads nothing but the model's outputs on that cell."""
        return False

    def made_ready(self, like: Tensor) -> None:  # noqa: B027  (nothing to do for most)
        """Told before a run where it computes and in which precision; what is copied now is not in every step."""

    @abstractmethod
    def statistics(
        self, x: Tensor, outputs: Sequence[Tensor], labels: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> Tensor:
        """(q,) from the model's outputs, the labels and the losses by cell: entry k of each belongs to cell k."""

    @abstractmethod
    def linearized(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """c, (m,), and its Jacobian with respect to the statistics, (m, q)."""


@dataclass(frozen=True, eq=False)
class CellConstraint(Constraint):
    """c = contrast @ cell_means - bound, or |contrast @ cell_means| - bound with `absolute`."""

    cells: Cells
    contrast: Tensor  # (m, K)
    bound: Tensor  # (m,)
    names: tuple[str, ...]
    value: Value | None = None  # None: the problem's own loss
    absolute: bool = False  # one nonsmooth row instead of two: the form of the authors' Experiment 2
    _ready: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )  # contrast and bound, by precision and device

    @property
    def size(self) -> int:
        return len(self.cells)

    def __post_init__(self) -> None:
        if self.contrast.shape != (len(self.names), len(self.cells)) or self.bound.shape != (len(self.names),):
            raise ValueError(
                f"{len(self.names)} constraints on {len(self.cells)} cells need a contrast of shape "
                f"({len(self.names)}, {len(self.cells)}) and as many bounds, got {tuple(self.contrast.shape)} and "
                f"{tuple(self.bound.shape)}"
            )
        if not torch.isfinite(self.bound).all():
            raise ValueError(f"bounds must be finite, got {self.bound.tolist()}")

    @property
    def averages(self) -> bool:
        return True

    @property
    def by_cell(self) -> bool:
        return True

    def statistics(
        self, x: Tensor, outputs: Sequence[Tensor], labels: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> Tensor:
        if (
            isinstance(outputs, Tensor) and isinstance(labels, Tensor) and isinstance(losses, Tensor)
        ):  # balanced: (K, b, ...)
            values = losses if self.value is None else self.value(outputs.flatten(0, 1), labels.flatten(0, 1))
            if values.numel() != labels.shape[0] * labels.shape[1]:
                raise ValueError(f"the constraint's value must be one number per row, got shape {tuple(values.shape)}")
            return values.reshape(len(outputs), -1).mean(-1)
        if self.value is not None:
            losses = [self.value(output, label) for output, label in zip(outputs, labels, strict=True)]
        return torch.stack([cell.mean() for cell in losses])

    def made_ready(self, like: Tensor) -> None:
        self._ready[like.dtype, like.device] = self.contrast.to(like), self.bound.to(like)

    def linearized(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        ready = self._ready.get((statistics.dtype, statistics.device))
        contrast, bound = ready or (self.contrast.to(statistics), self.bound.to(statistics))
        gaps = contrast @ statistics
        if not self.absolute:
            return gaps - bound, contrast
        return gaps.abs() - bound, gaps.sign()[:, None] * contrast

    def with_bound(self, bound: float) -> CellConstraint:
        """The same constraint with another bound; 0 for the penalised problem, eq. (13)."""
        return replace(self, bound=torch.full_like(self.bound, bound))


@dataclass(frozen=True, eq=False)
class FunctionConstraint(Constraint):
    """c = fun(x, outputs, labels), a function of the user's: (m,), feasible where <= 0.

    `x` are the flat parameters; `outputs[k]` and `labels[k]` hold the rows of cell k. The function is written with
    torch operations and sees a mini-batch in training, all rows of each cell in `Problem.measure`.
    """

    cells: Cells
    fun: Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]
    names: tuple[str, ...]
    plain_mean: bool = False  # whether fun is a plain mean over rows, which Ghost's stacked runs evaluate faster

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise TypeError(f"names must be a tuple with one name for each constraint, got the string {self.names!r}")

    @property
    def averages(self) -> bool:
        return self.plain_mean

    def statistics(
        self, x: Tensor, outputs: Sequence[Tensor], labels: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> Tensor:
        c = self.fun(x, outputs, labels)
        if c.shape != (self.m,):
            raise ValueError(
                f"the constraint function must give {self.m} values ({self.names}), got shape {tuple(c.shape)}"
            )
        return c

    def linearized(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        return statistics, torch.eye(self.m, dtype=statistics.dtype, device=statistics.device)


@dataclass(frozen=True, eq=False)
class Together(Constraint):
    """Several constraints at once, each on cells of its own."""

    parts: tuple[Constraint, ...]

    @property
    def cells(self) -> Cells:  # type: ignore[override]
        return sum((part.cells for part in self.parts[1:]), self.parts[0].cells)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for part in self.parts for name in part.names)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def averages(self) -> bool:
        return all(part.averages for part in self.parts)

    @property
    def by_cell(self) -> bool:
        return all(part.by_cell for part in self.parts)

    def made_ready(self, like: Tensor) -> None:
        for part in self.parts:
            part.made_ready(like)

    def statistics(
        self, x: Tensor, outputs: Sequence[Tensor], labels: Sequence[Tensor], losses: Sequence[Tensor]
    ) -> Tensor:
        found, start = [], 0
        for part in self.parts:
            own = slice(start, start + len(part.cells))
            found.append(part.statistics(x, outputs[own], labels[own], losses[own]))
            start = own.stop
        return torch.cat(found)

    def linearized(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        values, jacobians, start = [], [], 0
        for part in self.parts:
            c, jacobian = part.linearized(statistics[start : start + part.size])
            values.append(c)
            jacobians.append(jacobian)
            start += part.size
        return torch.cat(values), torch.block_diag(*jacobians)


def combine(*constraints: Constraint) -> Constraint:
    """All of the constraints: several protected attributes, or several notions."""
    if not constraints:
        raise ValueError("together() needs at least one constraint")
    return constraints[0] if len(constraints) == 1 else Together(tuple(constraints))
