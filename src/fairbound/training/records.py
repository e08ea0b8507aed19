"""Runs on their way: what is recorded of them every so often, and what they leave at the end.

The frame that stacked runs (`stepping.Group`) and a single one (`single.Single`) share.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.algorithms.diagnostics import signs_of_infeasibility
from fairbound.core import Algorithm
from fairbound.training.problem import Problem

log = logging.getLogger("fairbound")

BLOCK_BYTES = 32 << 20  # memory for the rows of one block of steps
RECORDS = 100  # how often a run looks at its monitors for the diagnosis


class Record(NamedTuple):
    """The runs of one group after `step` steps."""

    step: int
    runs: tuple[int, ...]  # which runs of the stack these are
    x: Tensor  # (R, n)
    output: Tensor  # (R, n) what the method would return now
    multipliers: Tensor | None  # (R, m), for the methods that have them
    monitors: dict[str, Tensor]  # the method's own scalars, (R,) each
    skipped: Tensor  # (R,) steps left out so far because something was not finite


class FinalState(NamedTuple):
    """What a group of runs leaves behind."""

    runs: tuple[int, ...]
    x: Tensor
    output: Tensor
    multipliers: Tensor
    mean_x: Tensor | None
    mean_multipliers: Tensor | None
    monitors: list[dict[str, float]]
    infeasible: list[str | None]
    skipped: Tensor


class Mean:
    """Running means of x and the multipliers over the steps from `start` on."""

    def __init__(self, start: int) -> None:
        self.start, self.count = start, 0
        self.x = self.y = torch.zeros(())

    def add(self, step: int, x: Tensor, y: Tensor) -> None:
        if step < self.start:
            return
        self.count += 1
        self.x = x.clone() if self.count == 1 else self.x.lerp_(x, 1 / self.count)
        self.y = y.clone() if self.count == 1 else self.y.lerp_(y, 1 / self.count)


class RunBase(ABC):
    """Runs of one method that take their steps together."""

    problem: Problem
    algorithm: Algorithm[Any]
    runs: tuple[int, ...]  # their numbers

    @abstractmethod
    def _draws(self, steps: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """What each step consumes: mini-batches, weight and coin."""

    @abstractmethod
    def _advance(self, step: int, parts: Any, weight: Tensor, u: Tensor) -> None:
        """One step of every run."""

    @abstractmethod
    def _points(self) -> Tensor:
        """(R, n) the iterates."""

    @abstractmethod
    def _output(self) -> Tensor:
        """(R, n) what the method would return now, as values of its own."""

    @abstractmethod
    def _multipliers(self) -> Tensor:
        """(R, m), or (R, 0) for a method that has none."""

    @abstractmethod
    def _monitors(self) -> dict[str, Tensor]:
        """The method's own scalars, (R,) each, as values of their own."""

    @abstractmethod
    def _skipped(self) -> Tensor:
        """(R,) steps left out."""

    def records(self, steps: int, every: int, average_from: int | None) -> Generator[Record, None, FinalState]:
        """Step to the end; a record every `every` steps and at the end. Returns the end."""
        history: list[dict[str, Tensor]] = []
        seen: list[int] = []
        mean = None if average_from is None else Mean(average_from)
        for k, (parts, weight, u) in enumerate(self._draws(steps)):
            done, last = k + 1, k + 1 == steps
            with torch.no_grad():  # not around the yield: it would switch gradients off for whoever reads the records
                self._advance(k, parts, weight, u)
                if mean is not None:
                    mean.add(k, self._points(), self._multipliers())
            if last or done % max(1, steps // RECORDS) == 0:
                y = self._multipliers()
                history.append(self._monitors() | ({"multipliers": y.clone()} if y.shape[1] else {}))
                seen.append(done)
            if last or done % every == 0:
                yield self._record(done)
        return self._end(history, seen, mean)

    def _record(self, step: int) -> Record:
        y = self._multipliers()
        return Record(
            step,
            self.runs,
            self._points().clone(),
            self._output(),
            y.clone() if y.shape[1] else None,
            self._monitors(),
            self._skipped(),
        )

    def _end(self, history: list[dict[str, Tensor]], seen: list[int], mean: Mean | None) -> FinalState:
        def filled(y: Tensor) -> Tensor:
            return y.clone() if y.shape[1] else y.new_full((len(self.runs), self.problem.m), torch.nan)

        recorded = {name: torch.stack([entry[name] for entry in history]) for name in history[0]}
        monitors, skipped = self._monitors(), self._skipped()
        if skipped.any():
            log.warning(
                f"{type(self.algorithm).__name__}: {int((skipped > 0).sum())} of {len(self.runs)} runs skipped steps "
                f"that were not finite (up to {int(skipped.max())}, run {self.runs[int(skipped.argmax())]}); its steps "
                "may be too long"
            )
        averaged = mean is not None and mean.count > 0
        return FinalState(
            runs=self.runs,
            x=self._points(),
            output=self._output(),
            multipliers=filled(self._multipliers()),
            mean_x=mean.x if mean is not None and averaged else None,
            mean_multipliers=filled(mean.y) if mean is not None and averaged else None,
            monitors=[{name: float(v[i]) for name, v in monitors.items()} for i in range(len(self.runs))],
            infeasible=signs_of_infeasibility(recorded, seen) or [None] * len(self.runs),
            skipped=skipped,
        )
