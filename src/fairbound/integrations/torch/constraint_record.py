"""What a loop remembers of its constraints: last values, when each was observed, running means, scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound._utils.sequences import LazySequence
from fairbound.constraints.constraint_set import ConstraintSet
from fairbound.constraints.contrasts import Others
from fairbound.constraints.linear import SumsCounts
from fairbound.constraints.running_means import MEMORY, RunningMeans
from fairbound.integrations.torch.estimate import BatchEstimate, ShownCells

SCALE_MEMORY = 0.95  # of the mean size of a constraint, whose largest value is its scale

SAVED = ("observed", "at", "sizes", "scales", "any_absent")


class ConstraintRecord:
    """Of all m rows. With very many constraints a step reads and writes the rows that its mini-batch shows."""

    def __init__(self, constraints: ConstraintSet, *, gathered: bool, normalize: bool) -> None:
        self.constraints, self.gathered, self.normalize = constraints, gathered, normalize
        self.looks = True  # False on a GPU, where a look would wait: running means are then kept from the start
        self.any_absent: Tensor | None = None  # () bool, whether a group has been absent, where nobody looks
        self.rows = constraints.m + gathered  # one more, for places of no cell
        self.last: Tensor | None = None  # (rows,) the last value of every constraint; NaN before the first
        self.steps = 0
        self.observed: Tensor | None = None  # (rows,) steps that showed it; None: all did
        self.at: Tensor | None = None  # (rows,) the last of these steps
        self.running: list[RunningMeans | None] | None = None  # None while no group has been absent
        self.complete: SumsCounts | None = None  # the last mini-batch without an absent group
        self.sizes: Tensor | None = None  # (parts,) running mean of the largest |c| of each
        self.scales: Tensor | None = None  # (parts,) the largest of these means

    # Running means of groups that are absent --------------------------------------------------------------------------

    def others(self, counts: Tensor, cells: ShownCells | None) -> list[Others | None]:
        """For every part what is known of the cells that a mini-batch does not show."""
        if self.running is None:
            if self.looks and not self.gathered and not bool((counts == 0).any()):
                return [None] * len(self.constraints.parts)  # NaN has another cause
            self.running = self.constraints.to(counts.device, torch.float64).running_means()
            if not self.looks and not self.gathered:
                self.any_absent = torch.zeros((), dtype=torch.bool, device=counts.device)
            if self.complete is not None:
                self._add(self.complete, None)
        if self.any_absent is not None:
            self.any_absent = self.any_absent | (counts == 0).any()
        parts = self._by_part(counts, cells)
        return [
            None if known is None else known.others(part_cells, n)
            for known, (part_cells, n) in zip(self.running, parts, strict=True)
        ]

    def _add(self, totals: SumsCounts, cells: ShownCells | None) -> None:
        assert self.running is not None
        memory: float | Tensor = MEMORY
        if self.any_absent is not None:  # until then the last mini-batch is remembered alone, as `complete` is
            memory = self.any_absent.double() * MEMORY
        sums, counts = self._by_part(totals.sums, cells), self._by_part(totals.counts, cells)
        for known, (part_cells, total), (_, count) in zip(self.running, sums, counts, strict=True):
            if known is not None:
                known.add(part_cells, total, count, memory)

    def _by_part(self, values: Tensor, cells: ShownCells | None) -> list[tuple[Tensor, Tensor]]:
        """For every part its cells, and the entries of (1+q,) values that are theirs."""
        shown_cells = cells or [None] * len(self.constraints.parts)
        sizes = [
            part.size if part_cells is None else len(part_cells)
            for part, part_cells in zip(self.constraints.parts, shown_cells, strict=True)
        ]
        _, *split = values.split_with_sizes([1, *sizes])
        return [
            (torch.arange(len(part), device=part.device) if part_cells is None else part_cells, part)
            for part_cells, part in zip(shown_cells, split, strict=True)
        ]

    # Scales -----------------------------------------------------------------------------------------------------------

    def scaled(self, estimate: BatchEstimate) -> BatchEstimate:
        """With what every row of c is divided by; in the first step by its own size."""
        if not estimate.finite:
            return estimate
        scales = self._sizes(estimate) if self.scales is None else self.scales
        scales = torch.where(scales > 0, scales, 1.0).to(estimate.c.dtype)
        rows = torch.tensor([part.m for part in estimate.constraints.parts], device=scales.device)
        return estimate._replace(scale=scales.repeat_interleave(rows, output_size=len(estimate.c)))

    @staticmethod
    def _sizes(estimate: BatchEstimate) -> Tensor:
        """(parts,) the largest |c| of each; 0 where nothing was observed."""
        size = estimate.c.abs() if estimate.absent is None else estimate.c.abs().masked_fill(estimate.absent, 0.0)
        parts = size.split_with_sizes([part.m for part in estimate.constraints.parts])
        return torch.stack([part.max() for part in parts])

    def in_units(self, y: Tensor) -> Tensor:
        """Multipliers (m,) of the scaled constraints as those of the constraints themselves."""
        if not self.normalize or self.scales is None:
            return y
        scales = torch.where(self.scales > 0, self.scales, 1.0).to(y)
        rows = torch.tensor([part.m for part in self.constraints.parts], device=y.device)
        return y / scales.repeat_interleave(rows, output_size=len(y))

    # After a step -----------------------------------------------------------------------------------------------------

    def add(self, estimate: BatchEstimate, cells: ShownCells | None) -> None:
        """One more mini-batch of a step."""
        if self.running is None:
            self.complete = estimate.totals if estimate.absent is None else self.complete
        else:
            self._add(estimate.shown, cells)
        if self.normalize:
            self._track_scale(estimate)
        if estimate.rows is None:
            self.last = estimate.last
        else:
            if self.last is None:
                self.last = torch.full((self.rows,), torch.nan, dtype=estimate.c.dtype, device=estimate.c.device)
            self.last[estimate.rows] = estimate.last.to(self.last)

    def _track_scale(self, estimate: BatchEstimate) -> None:
        sizes = self._sizes(estimate)
        if self.sizes is None:
            self.sizes = self.scales = sizes
            return
        assert self.scales is not None
        share = torch.where(self.sizes > 0, 1 - SCALE_MEMORY, 1.0)  # the first observation counts whole
        self.sizes = torch.where(sizes > 0, self.sizes + share * (sizes - self.sizes), self.sizes)
        self.scales = torch.maximum(self.scales, self.sizes)

    def step(self, estimate: BatchEstimate) -> None:
        """A step was made, and this is its last mini-batch."""
        self.steps += 1
        if estimate.rows is not None:
            self._gathered_step(estimate.rows, estimate.absent)
            return
        if estimate.absent is None and self.observed is None:
            return
        if self.observed is None or self.at is None:
            self.observed = torch.full((self.rows,), self.steps - 1, device=estimate.c.device)
            self.at = self.observed.clone()
        shown = torch.ones_like(estimate.c, dtype=torch.bool) if estimate.absent is None else ~estimate.absent
        self.observed, self.at = self.observed + shown, torch.where(shown, self.steps, self.at)

    def _gathered_step(self, rows: Tensor, absent: Tensor | None) -> None:
        if self.at is None:
            self.at = torch.zeros(self.rows, dtype=torch.long, device=rows.device)
        self.at[rows] = self.steps if absent is None else torch.where(absent, self.at[rows], self.steps)

    def observations(self) -> tuple[Tensor, Tensor]:
        """(m,) steps that showed a constraint (not counted where there are very many), and steps since the last."""
        m = self.constraints.m
        everywhere = torch.full((m,), self.steps)
        observed = everywhere if self.observed is None else self.observed[:m]
        return observed, torch.zeros_like(everywhere) if self.at is None else self.steps - self.at[:m]

    # Saving -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """By rows and cells in their order, which is saved as well."""
        names = self.constraints.names
        return {
            "order": None if isinstance(names, LazySequence) else list(names),
            **{name: _copy(getattr(self, name)) for name in SAVED},
            "running": None if self.running is None else [r and r.state_dict() for r in self.running],
            "whole": None if self.complete is None else [part.clone() for part in self.complete],
        }

    def load_state_dict(self, saved: dict[str, Any], steps: int, last: Tensor | None, device: torch.device) -> None:
        """Where constraints are listed in another order, observations and running means begin anew."""
        self.steps, self.last, names = steps, last, self.constraints.names
        if saved["order"] != (None if isinstance(names, LazySequence) else list(names)):
            saved = dict.fromkeys(saved)
        for name in SAVED:
            setattr(self, name, _copy(saved[name], device))
        self.complete = (
            None if saved["whole"] is None else SumsCounts(*(part.to(device, copy=True) for part in saved["whole"]))
        )
        self.running = None
        if saved["running"] is not None:
            self.running = self.constraints.to(device, torch.float64).running_means()
            for known, state in zip(self.running, saved["running"], strict=True):
                if known is not None:
                    known.load_state_dict(state)


def _copy(tensor: Tensor | None, device: torch.device | None = None) -> Tensor | None:
    return None if tensor is None else tensor.to(device or tensor.device, copy=True)
