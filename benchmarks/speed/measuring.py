"""Contestants in one run: they alternate, and medians are compared; CPU time decides, wall time stands beside it.

A shared machine is noisy: what runs a minute later runs on another machine.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

Contestant = Callable[[], int]  # does some work and says how many units (steps, or runs x steps) it did


class Time(NamedTuple):
    """Microseconds a unit: medians over the rounds."""

    cpu: float
    wall: float


def alternate(contestants: Mapping[str, Contestant], rounds: int, warm: int = 1) -> dict[str, Time]:
    """Every contestant once a round; the first rounds warm up."""
    times: dict[str, list[Time]] = {name: [] for name in contestants}
    for turn in range(warm + rounds):
        for name, work in contestants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            units = work()
            spent = Time((time.process_time() - cpu) / units * 1e6, (time.perf_counter() - wall) / units * 1e6)
            if turn >= warm:
                times[name].append(spent)
    return {
        name: Time(statistics.median(t.cpu for t in own), statistics.median(t.wall for t in own))
        for name, own in times.items()
    }


def machine() -> str:
    """One line on where this ran."""
    load = os.getloadavg()[0]
    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__}, Python {platform.python_version()}"
    )


class Checks:
    """Claims with their limits; the process ends with 1 where one is missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def at_least(self, what: str, found: float, limit: float) -> None:
        self._say(what, found, f">= {limit:g}", found >= limit)

    def at_most(self, what: str, found: float, limit: float) -> None:
        self._say(what, found, f"<= {limit:g}", found <= limit)

    def _say(self, what: str, found: float, limit: str, met: bool) -> None:
        print(f"{'met   ' if met else 'MISSED'} {what}: {found:.3g} (wanted {limit})", flush=True)
        if not met:
            self.missed.append(what)

    @property
    def status(self) -> int:
        return 1 if self.missed else 0
