"""Seconds that a step takes: what `timing.measure` finds and the store keeps. Reading them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One row's step: drawing its mini-batches and updating; nothing is evaluated.

    >>> Timing(wall=0.004, cpu=0.003, spread=0.0001, plain=0.001, steps=500).steps_in(60)
    15000
    """

    wall: float  # seconds a step, the median over rounds
    cpu: float  # the same in seconds of the processor, which other programs disturb less
    spread: float  # interquartile range of `cpu` over rounds, in seconds
    plain: float  # cpu seconds of a plain SGD step that passes as many rows through the model
    steps: int  # that were timed

    def steps_in(self, seconds: float) -> int:
        """How many steps this machine makes in that many seconds."""
        return int(seconds / self.wall)

    @property
    def times_plain(self) -> float:
        """What the step costs beside a plain SGD step on as many rows."""
        return self.cpu / self.plain
