"""Objective and constraints of a mini-batch in a training loop, whether they can be used, and the sample of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.constraint_set import ConstraintSet, SumsCounts
from fairbound.constraints.layouts import GroupedLayout
from fairbound.core import Estimate, Sample
from fairbound.integrations.torch.distributed import whole


class BatchStatistics:
    """One mini-batch: per-example values and functions with their graphs, and where its examples count."""

    def __init__(
        self, own: ConstraintSet, values: list[Tensor], functions: list[Tensor], layout: GroupedLayout
    ) -> None:
        self.own, self.values, self.functions, self.layout = own, values, functions, layout

    @staticmethod
    def of(own: ConstraintSet, batch: MiniBatch, *, exact: bool = False) -> BatchStatistics:
        """Of a mini-batch; `exact` takes the rates in place of their surrogates."""
        if batch.losses.ndim != 1:
            batch.check()  # explains it
        functions = [whole(value) for value in own.function_values(lambda _: batch)]
        return BatchStatistics(own, own.example_values(batch, exact=exact), functions, own.layout(batch))

    @property
    def tensors(self) -> list[Tensor]:
        """What is differentiated."""
        return [*self.values, *self.functions]

    def totals(self) -> SumsCounts:
        return self.own.sums_counts(self.values, [one.detach() for one in self.functions], self.layout)

    def weights(self, mean_weights: Tensor, counts: Tensor) -> list[Tensor]:
        """What every entry of `tensors` counts, from a weight on every mean; `counts` may be those of many batches."""
        found = self.own.example_weights(mean_weights, counts, self.layout, self.values)
        if self.functions:
            found = [weight.to(tensor.dtype) for weight, tensor in zip(found, self.tensors, strict=True)]
        return found

    def halves(self) -> tuple[BatchStatistics, BatchStatistics]:
        """The examples of every cell, assigned alternately to two mini-batches."""
        odd, even = self.layout.halves()
        return (
            BatchStatistics(self.own, self.values, self.functions, odd),
            BatchStatistics(self.own, self.values, self.functions, even),
        )


class Observed(NamedTuple):
    """[f, c] of a mini-batch, or of several together."""

    own: ConstraintSet
    f: Tensor  # ()
    c: Tensor  # (m,); of a constraint that the batch does not show its last value, but at most 0
    last: Tensor  # (m,) the last values; NaN before the first
    totals: SumsCounts  # without empty cells
    means: Tensor  # (1+q,) theirs
    absent: Tensor | None  # (m,) the constraints that lack examples of a cell; None: none does
    finite: bool

    @staticmethod
    def of(own: ConstraintSet, totals: SumsCounts, last: Tensor | None) -> Observed:
        """From sums and counts. `last` are the constraints' last values, for those that lack a group here."""
        means = totals.means
        values = own.value(means)
        if math.isfinite(float(values.sum())):  # NaN, infinities and absent groups all show in the sum
            c = values[1:]
            return Observed(own, values[0], c, c, totals, means, None, True)
        observed = own.observed(totals.counts)
        filled = totals.filled()
        means = filled.means
        values = own.value(means)
        known = torch.full_like(values[1:], torch.nan) if last is None else last.to(values)
        c = torch.where(observed[1:], values[1:], known.nan_to_num(nan=0.0).clamp(max=0.0))
        finite = bool(observed[0]) and bool(torch.isfinite(values[0])) and bool(torch.isfinite(c).all())
        return Observed(own, values[0], c, torch.where(observed[1:], c, known), filled, means, ~observed[1:], finite)

    def mean_weights(self, w: Tensor) -> Tensor:
        """(1+q,) the weight of every mean in w'[f, c], w (1+m,); a constraint that is absent has none."""
        w = w.to(self.totals.sums)
        if self.absent is not None:
            w = torch.cat([w[:1], w[1:].masked_fill(self.absent, 0.0)])
        return self.own.mean_weights(self.means, w)

    def sample(self, x: Tensor, vjp: Callable[[Tensor], Tensor]) -> Sample:
        """The mini-batch as a function of the point, which is known at the model's present parameters only.

        `vjp` gives the gradient (n,) of a weighted sum of the means, (1+q,).
        """

        def jacobian() -> Tensor:
            means = self.means
            unit = torch.eye(means.shape[0], dtype=means.dtype, device=means.device)
            rows = [vjp(one) for one in unit[1:]]
            found = self.own.jacobian(means, torch.stack([torch.zeros_like(x), *rows]))
            return found if self.absent is None else found.masked_fill(self.absent[:, None], 0.0)

        def at(point: Tensor) -> Estimate:
            if point is not x:
                raise ValueError(
                    "this method asks for a mini-batch at a second point, and a loop has it at the model's present "
                    "parameters only; use fairbound.run on a Problem, which evaluates anywhere"
                )
            return Estimate(self.f, self.c, lambda w: vjp(self.mean_weights(w)), jacobian)

        return Sample(at)

    def estimate(self) -> Estimate:
        """The numbers alone."""
        return Estimate(self.f, self.c, lambda w: torch.full_like(w, torch.nan))


def added(totals: Sequence[SumsCounts]) -> SumsCounts:
    """Of several mini-batches together."""
    whole = totals[0]
    for part in totals[1:]:
        whole = whole.plus(part)
    return whole
