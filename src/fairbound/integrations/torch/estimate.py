"""Objective and constraints of one mini-batch, whether they can be used, and the sample that a method asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.core import Estimate, Sample
from fairbound.integrations.torch.statistics import BatchStatistics, ConstraintMatrix, SumsCounts, combined, plain

FEW = 64  # numbers that Python adds up faster than torch
Asked = tuple[float | Tensor, Tensor | None]  # f * F + w'C, by its weights f and w
Pull = Callable[[Asked], Tensor]  # -> its gradient (n,)


class LoopEstimate(NamedTuple):
    """An `Estimate` of a loop's mini-batch: the weights of f and c go to `pull` as they are."""

    values: Tensor  # (1+m,)
    c: Tensor  # (m,)
    pull: Pull
    rows: Callable[[], Tensor]

    @property
    def f(self) -> Tensor:
        return self.values[0]

    def grad(self, f: float | Tensor = 0.0, c: Tensor | None = None) -> Tensor:
        """Gradient of `f * F + c'C` in one backward pass: (n,)."""
        return self.pull((f, c))

    def jac(self) -> Tensor:
        """Jacobian of the constraints: (m, n)."""
        return self.rows()


class Evaluated(NamedTuple):
    """[f, c] of a mini-batch, or of several together."""

    values: Tensor  # (1+m,) f first
    c: Tensor  # (m,); of a constraint that the batch cannot tell its last value, but at most 0: it holds nobody up
    last: Tensor  # (m,) the last values; NaN before the first
    counts: Tensor | None  # (1+q,); None where the layout's map serves
    absent: Tensor | None  # (m,) the constraints that lack rows of a cell; None: none does
    finite: bool

    @property
    def f(self) -> Tensor:
        return self.values[0]

    def estimate(self) -> Estimate:
        """The numbers alone."""
        return Estimate(self.f, self.c, lambda w: torch.full_like(w, torch.nan))

    def weighted(self, plan: ConstraintMatrix, reading: BatchStatistics, asked: Asked) -> list[Tensor]:
        """What every entry of the reading's tensors counts in f * F + w'C."""
        f, w = asked
        if w is not None and self.absent is not None:
            w = w.masked_fill(self.absent, 0.0)
        if self.counts is not None:
            return reading.spread(plan.weights(f, w, self.counts))
        rows = reading.layout.map
        assert rows is not None
        found = combined(rows.objective, rows.constraints, f, w)
        return [found if found.dtype == reading.values[0].dtype else found.to(reading.values[0].dtype)]

    def sample(self, x: Tensor, pull: Pull) -> Sample:
        """The mini-batch as a function of the point, which is known at the model's present parameters only."""

        def rows() -> Tensor:
            unit = torch.eye(self.c.shape[0], dtype=self.c.dtype, device=self.c.device)
            return torch.stack([pull((0.0, one)) for one in unit])

        def at(point: Tensor) -> LoopEstimate:
            refuse_another(point, x)
            return LoopEstimate(self.values, self.c, pull, rows)

        return Sample(at)  # type: ignore[arg-type]  # what a method asks of an Estimate, it has


def refuse_another(point: Tensor, x: Tensor) -> None:
    """A loop has a mini-batch at one point."""
    if point is not x:
        raise ValueError(
            "this method asks for a mini-batch at a second point, and a loop has it at the model's present parameters "
            "only; use fairbound.run on a Problem, which evaluates anywhere"
        )


def evaluated_alone(plan: ConstraintMatrix, reading: BatchStatistics, last: Tensor | None) -> Evaluated:
    """[f, c] of one mini-batch."""
    rows = reading.layout.map
    if rows is None:
        return evaluated(plan, reading.totals(), last)
    losses = plain(reading.values[0], rows.objective.dtype)
    values = torch.cat([torch.dot(rows.objective, losses)[None], torch.addmv(rows.minus_bound, rows.rows_of_c, losses)])
    if not _finite(values):
        return evaluated(plan, reading.totals(), last)
    c = values[1:]
    return Evaluated(values, c, c, None, None, True)


def evaluated(plan: ConstraintMatrix, totals: SumsCounts, last: Tensor | None) -> Evaluated:
    """[f, c] of sums and counts. `last` are the constraints' last values, for those that lack a group here."""
    values = plan.evaluated(totals)
    if _finite(values):
        c = values[1:]
        return Evaluated(values, c, c, totals.counts, None, True)
    present = plan.present(totals.counts)
    filled = plan.filled(totals)
    values = plan.evaluated(filled)
    known = torch.full_like(values[1:], torch.nan) if last is None else last
    c = torch.where(present[1:], values[1:], known.nan_to_num(nan=0.0).clamp(max=0.0))
    finite = bool(present[0]) and bool(torch.isfinite(values[0])) and bool(torch.isfinite(c).all())
    return Evaluated(values, c, torch.where(present[1:], c, known), filled.counts, ~present[1:], finite)


def _finite(values: Tensor) -> bool:
    """One look decides: NaN, infinities and absent groups all show in the sum."""
    return math.isfinite(sum(values.tolist()) if values.shape[0] <= FEW else float(values.sum()))
