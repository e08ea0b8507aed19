r"""What drivers measure for a method without settings: how hard f and each constraint pull, and how
far a step reaches.

At a probe, on the mini-batch of the step and with elementwise absolute values, for one constraint i
at a time:

    overlap_i = <|grad f|, |grad c_i|>      square_i = |grad c_i|^2

and, once the optimizer has moved x by dx,

    slope_i = <|grad c_i|, |dx|> / |dx|     length^2 = |dx|^2

Running means of these give the two sizes of every constraint (`Sizes`):

    unit_i  = overlap_i / square_i
            the multiplier at which c_i pulls as hard as f, where c_i acts
    reach_i = slope_i * length              by how much one step can change c_i

The sums run over a fixed sample of coordinates, so nothing of the model's size is kept. A driver
calls `complete` with the sampled x at the step after a probe, and `probe` at every step for which
`is_probe` is true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# steps between probes; during the first BEGINNING steps, where sizes change most
EVERY, EARLY = 50, 10
BEGINNING = 200
# The very start probes at every step, until each constraint had its turn: at least 10 steps, since
# a gradient may begin at 0 (a KL divergence from the starting point), at most 100.
_FIRST, _LAST = 10, 100
MEMORY = 20  # probes that a running mean remembers
SAMPLE = 4096  # coordinates


class Sizes(NamedTuple):
    """The sizes of the constraints; 0 where nothing has been measured."""

    unit: Tensor  # (m,) the multiplier at which a constraint pulls as hard as the objective
    reach: Tensor  # (m,) by how much one step of the optimizer can change a constraint


class Measurements(NamedTuple):
    """Running means, and the probe whose step is not yet made. `rows` is m, or 1 where all
    constraints share them."""

    overlap: Tensor  # (rows,)
    square: Tensor  # (rows,)
    slope: Tensor  # (rows,)
    probes: Tensor  # (rows,) how often each was measured
    length: Tensor  # () the mean of |dx|^2
    steps: Tensor  # () how often that was measured
    row: Tensor  # (rows,) 1 for the constraint that was probed last, 0 for the others
    x: Tensor  # (S,) there, as are the gradients
    of_f: Tensor  # (S,)
    of_c: Tensor  # (S,)

    @staticmethod
    def begin(like: Tensor, rows: int, size: int) -> Measurements:
        """Nothing measured yet, of `size` sampled coordinates."""
        scalars, sample = like.new_zeros(()), like.new_zeros(size)
        rows_ = like.new_zeros(rows)
        return Measurements(
            rows_, rows_, rows_, rows_, scalars, scalars, rows_, sample, sample, sample
        )

    def complete(
        self,
        x: Tensor,
        weights: Tensor | float,
        total: Callable[[Tensor], Tensor] = lambda sums: sums,
    ) -> Measurements:
        """Add the step that followed the last probe.

        Args:
            x: (S,) the sample of coordinates now.
            weights: what each coordinate counts.
            total: adds up sums over the processes that hold other coordinates.
        """
        moved, of_f, of_c = (x - self.x).abs(), self.of_f.abs(), self.of_c.abs()
        products = torch.stack([of_f * of_c, of_c * of_c, moved * moved, of_c * moved])
        overlap, square, length, slope = total((weights * products).sum(1))
        slope = slope / length.sqrt().clamp(min=torch.finfo(x.dtype).tiny)
        # A step of length 0 (gradients are being accumulated) and a constraint that the mini-batch
        # lacks tell nothing.
        is_step = (length > 0) & (self.row.sum() > 0) & torch.isfinite(overlap + square + slope)
        shown = (self.row > 0) & is_step & (square > 0)
        probes, steps = self.probes + shown, self.steps + is_step
        rate = 1 / probes.clamp(min=1, max=MEMORY)
        return self._replace(
            overlap=torch.where(
                shown, self.overlap + rate * (overlap - self.overlap), self.overlap
            ),
            square=torch.where(shown, self.square + rate * (square - self.square), self.square),
            slope=torch.where(shown, self.slope + rate * (slope - self.slope), self.slope),
            probes=probes,
            length=torch.where(
                is_step,
                self.length + (length - self.length) / steps.clamp(min=1, max=MEMORY),
                self.length,
            ),
            steps=steps,
            row=torch.zeros_like(self.row),
        )

    def next_row(self, m: int, absent: Tensor | None = None) -> Tensor:
        """(m,) 1 for the constraint to probe next: of those that the mini-batch shows, the one
        probed least."""
        rows = len(self.probes)
        turns = (
            self.probes
            if rows == m
            else (torch.arange(m, device=self.probes.device) - self.probes) % m
        )
        if absent is not None:
            turns = torch.where(absent, torch.inf, turns)
        chosen = turns.argmin(keepdim=True)
        return (torch.arange(m, device=turns.device) == chosen).to(self.square.dtype)

    def probe(self, row: Tensor, x: Tensor, of_f: Tensor, of_c: Tensor) -> Measurements:
        """Add the sampled point and the gradients of f and of the constraint `row` (m,)."""
        row = row if len(self.row) == len(row) else torch.ones_like(self.row)
        return self._replace(row=row, x=x, of_f=of_f, of_c=of_c)

    def sizes(self, m: int) -> Sizes:
        """Sizes of m constraints; one that was not probed yet takes the mean of those that were."""
        known = self.probes > 0
        count = known.sum().clamp(min=1)
        overlap, square, slope = (
            torch.where(known, mean, (mean * known).sum() / count)
            for mean in (self.overlap, self.square, self.slope)
        )
        unit = overlap / square.clamp(min=torch.finfo(square.dtype).tiny)
        return Sizes(unit.expand(m), (slope * self.length.sqrt()).expand(m))


def is_probe(step: int, m: int) -> bool:
    """Whether a driver probes at this step, counted from 0."""
    return step < min(max(m, _FIRST), _LAST) or step % (EARLY if step < BEGINNING else EVERY) == 0


def sampled(n: int) -> tuple[Tensor, float]:
    """(S,) evenly spaced coordinates of n, and what each counts."""
    size = min(n, SAMPLE)
    return (torch.arange(size) * n) // size, n / size
