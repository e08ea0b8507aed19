"""Contestants in one run: they alternate, and what is compared are ratios within a round; CPU time
decides.

A shared machine is noisy: what runs a minute later runs on another machine. So a ratio is the
median of the ratios of all rounds, printed with its quartiles.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

# does some work and says how many units (steps, or runs x steps) it did
Contestant = Callable[[], int]

# a part ends with it where a target is missed: Python itself ends with 1 and 2 on errors
MISSED_STATUS = 3
SKIPPED = "skipped"  # how the line begins that tells what could not be measured here


class Time(NamedTuple):
    """Microseconds a unit."""

    cpu: float
    wall: float


class Ratio(NamedTuple):
    """Of CPU times: the median of the rounds' ratios, and their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g}, quartiles {self.low:.3g} to {self.high:.3g}"


class Rounds:
    """What every contestant took, round by round."""

    def __init__(self, times: Mapping[str, list[Time]]) -> None:
        self.times = times

    def medians(self) -> dict[str, Time]:
        return {
            name: Time(
                statistics.median(t.cpu for t in own), statistics.median(t.wall for t in own)
            )
            for name, own in self.times.items()
        }

    def ratio(self, name: str, to: str) -> Ratio:
        """The time of one contestant divided by that of another."""
        both = zip(self.times[name], self.times[to], strict=True)
        ratios = [own.cpu / other.cpu for own, other in both]
        low, median, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        return Ratio(median, low, high)


def alternate(contestants: Mapping[str, Contestant], rounds: int, warm: int = 1) -> Rounds:
    """Every contestant once a round; the first rounds warm up."""
    times: dict[str, list[Time]] = {name: [] for name in contestants}
    for turn in range(warm + rounds):
        for name, work in contestants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            units = work()
            spent = Time(
                (time.process_time() - cpu) / units * 1e6,
                (time.perf_counter() - wall) / units * 1e6,
            )
            if turn >= warm:
                times[name].append(spent)
    return Rounds(times)


def machine() -> str:
    """One line on where this ran."""
    load = os.getloadavg()[0]
    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f},"
        f" {torch.get_num_threads()} thread, torch {torch.__version__}, Python"
        f" {platform.python_version()}"
    )


def skip(what: str, why: object) -> None:
    """Tell what is not measured here; `all.py` repeats it at the end."""
    print(f"{SKIPPED} {what}: {why}", flush=True)


class Checks:
    """Claims with their targets; the process ends with a status of its own where one is missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def at_least(self, what: str, found: float | Ratio, limit: float) -> None:
        self._say(what, found, f">= {limit:g}", _number(found) >= limit)

    def at_most(self, what: str, found: float | Ratio, limit: float) -> None:
        self._say(what, found, f"<= {limit:g}", _number(found) <= limit)

    def _say(self, what: str, found: float | Ratio, limit: str, met: bool) -> None:
        value = found if isinstance(found, Ratio) else f"{found:.3g}"
        print(f"{'met   ' if met else 'MISSED'} {what}: {value} (wanted {limit})", flush=True)
        if not met:
            self.missed.append(what)

    @property
    def status(self) -> int:
        return MISSED_STATUS if self.missed else 0


def _number(found: float | Ratio) -> float:
    return found.median if isinstance(found, Ratio) else found
