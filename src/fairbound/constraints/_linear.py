"""Maps from means of cells to [f, c], and from weights on [f, c] back to weights on the means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fairbound.constraints._contrasts import Contrast
from fairbound.core import CellGradients, Estimate


class SumsCounts(NamedTuple):
    """Sums and counts, (1+q,): of the objective, then of every cell; those of a function are its
    values and 1."""

    table: Tensor  # (2, 1+q)

    @property
    def sums(self) -> Tensor:
        return self.table[0]

    @property
    def counts(self) -> Tensor:
        return self.table[1]

    def plus(self, other: SumsCounts) -> SumsCounts:
        return SumsCounts(self.table + other.table)

    @property
    def means(self) -> Tensor:
        """NaN for a cell without examples."""
        return self.sums / self.counts

    def filled(self) -> SumsCounts:
        """The same with a mean of 0 for cells without examples, so that the others can be read."""
        nothing = self.table.new_tensor([[0.0], [1.0]])
        return SumsCounts(torch.where(self.counts > 0, self.table, nothing))


class LinearConstraint:
    """contrast of means - bound, with its derivatives: the arithmetic of a constraint."""

    contrast: Contrast
    bound: Tensor  # (m,)
    absolute: bool

    def value(self, means: Tensor) -> Tensor:
        """(m,) c from the cell means (K,)."""
        gaps = self._gaps(means)
        return (gaps.abs() if self.absolute else gaps) - self.bound

    def mean_weights(self, means: Tensor, w: Tensor) -> Tensor:
        """(K,) the gradient of w'c in the means."""
        return self.contrast.transpose(self._gaps(means).sign() * w if self.absolute else w)

    def jacobian(self, means: Tensor, rows: Tensor) -> Tensor:
        """(m, n) from the gradients of the means, (K, n)."""
        jacobian = self.contrast.apply(rows.mT).mT
        return self._gaps(means).sign()[:, None] * jacobian if self.absolute else jacobian

    def observed(self, present: Tensor) -> Tensor:
        """(m,) whether a mini-batch with these cells (K,) determines the value of each row."""
        return self.contrast.observed(present)

    def _gaps(self, means: Tensor) -> Tensor:
        gaps, offset = self.contrast.apply(means), self.contrast.offset
        return gaps if offset is None else gaps + offset


@dataclass(frozen=True, eq=False)
class RestrictedConstraint(LinearConstraint):
    """The rows of a constraint that are about the cells of one mini-batch."""

    contrast: Contrast
    bound: Tensor  # (m,)
    absolute: bool
    size: int  # cells

    @property
    def m(self) -> int:
        return self.bound.shape[0]


class ConstraintPart(Protocol):
    """What one constraint makes of its means."""

    @property
    def m(self) -> int: ...  # rows
    @property
    def size(self) -> int: ...  # means
    def value(self, means: Tensor) -> Tensor: ...
    def mean_weights(self, means: Tensor, w: Tensor) -> Tensor: ...
    def jacobian(self, means: Tensor, rows: Tensor) -> Tensor: ...
    def observed(self, present: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class LinearConstraints:
    """Objective and constraints as functions of their means (1+q,): the objective's first, then
    those of every part."""

    parts: Sequence[ConstraintPart]

    @cached_property
    def m(self) -> int:
        return sum(part.m for part in self.parts)

    @cached_property
    def _sizes(self) -> list[int]:
        return [1, *(part.size for part in self.parts)]

    @cached_property
    def _rows(self) -> list[int]:
        return [1, *(part.m for part in self.parts)]

    def split(self, means: Tensor) -> tuple[Tensor, ...]:
        """(1+q,) by parts: the objective's, then those of every constraint."""
        return means.split_with_sizes(self._sizes)

    def value(self, means: Tensor) -> Tensor:
        """(1+m,) [f, c] from the means (1+q,)."""
        f, *part_means = means.split_with_sizes(self._sizes)
        return torch.cat(
            [f, *(part.value(mean) for part, mean in zip(self.parts, part_means, strict=True))]
        )

    def mean_weights(self, means: Tensor, w: Tensor) -> Tensor:
        """(1+q,) the weight of every mean in w'[f, c], w (1+m,)."""
        _, *part_means = means.split_with_sizes(self._sizes)
        f, *weights = w.split_with_sizes(self._rows)
        rows = zip(self.parts, part_means, weights, strict=True)
        return torch.cat([f, *(part.mean_weights(mean, weight) for part, mean, weight in rows)])

    def jacobian(self, means: Tensor, rows: Tensor) -> Tensor:
        """(m, n) of the constraints, from the means (1+q,) and the gradients of their own, (q,
        n)."""
        _, *part_means = means.split_with_sizes(self._sizes)
        gradients = rows.split_with_sizes(self._sizes[1:])
        parts = zip(self.parts, part_means, gradients, strict=True)
        return torch.cat([part.jacobian(mean, gradient) for part, mean, gradient in parts])

    def observed(self, counts: Tensor) -> Tensor:
        """(1+m,) whether every cell that f or a row of c needs has examples."""
        f, *part_present = (counts > 0).split_with_sizes(self._sizes)
        return torch.cat(
            [
                f,
                *(
                    part.observed(present)
                    for part, present in zip(self.parts, part_present, strict=True)
                ),
            ]
        )

    def estimate(
        self, means: Tensor, vjp: Callable[[Tensor], Tensor], jacobian: Tensor | None = None
    ) -> Estimate:
        """An `Estimate` from the means (1+q,) and the gradient of a weighted sum of them, (1+q,) ->
        (n,).

        The Jacobian needs a backward pass for each mean, not for each constraint; none where that
        of the means is at hand, `jacobian` (1+q, n).
        """
        values = self.value(means)

        def gradients() -> Tensor:
            if jacobian is not None:
                return jacobian[1:]
            unit = torch.eye(means.shape[0], dtype=means.dtype, device=means.device)
            return torch.stack([vjp(row) for row in unit[1:]])

        cells = CellGradients(
            means.shape[0] - 1, gradients, lambda rows: self.jacobian(means, rows)
        )
        return Estimate(values[0], values[1:], lambda w: vjp(self.mean_weights(means, w)), cells)
