"""A job: one experiment on one source of data within one budget, as the options of the commands say it.

A job is a few texts and numbers, so that another process can prepare it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairbound.benchmark import config
from fairbound.benchmark.custom_algorithm import own_method, with_own
from fairbound.benchmark.executor import Budget, Stack, stacks
from fairbound.benchmark.experiment import Setting
from fairbound.data.sources import best, load
from fairbound.data.table import Table


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be run."""

    experiment: str  # a name or a TOML file
    budget: Budget = "paper"
    folder: Path | None = None  # with census data
    source: str | None = None  # other data than the state's real or synthetic ones
    seeds: int | None = None
    splits: int | None = None
    steps: int | None = None  # no run is longer
    own: str | None = None  # a method of the user's own, my_file.py:MyMethod
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with its data, and its runs."""

    setting: Setting
    planned: list[Stack]
    synthetic: bool


def prepared(job: Job) -> Prepared:
    """The experiment's data and stacks of runs; nothing is computed yet."""
    experiment, files = config.load(job.experiment), []
    if job.own is not None:
        own = own_method(job.own)
        experiment, files = with_own(experiment, own), [own.path]
    experiment = experiment.within(job.budget)
    table = _table(job.source or best(experiment.state, job.folder), job.folder)
    setting = Setting.of(experiment, table, job.splits, job.device)
    planned = stacks(setting, budget=job.budget, seeds=job.seeds, steps=job.steps, own=files)
    return Prepared(setting, planned, table.synthetic)


@cache
def _table(source: str, folder: Path | None) -> Table:
    """Several experiments read the same rows."""
    return load(source, folder=folder)
