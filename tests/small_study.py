"""A small study on the synthetic census, as the text of a TOML file: what tests of the benchmark
run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fairbound.benchmark._engine import Done, Engine, ProgressCallback
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._store import Store
from fairbound.cli._engine import planned

ENTRIES = """
  { name = "SGD", method = "SGD", steps = 30 },
  { name = "SSL-ALM", method = "SSLALM", steps = 20 },
  { name = "SSL-ALM, longer", like = "SSL-ALM", steps = 30, equal_examples = false },
"""
BROKEN = """
from dataclasses import dataclass
from pathlib import Path
import torch
from fairbound.core import Algorithm

@dataclass(frozen=True, kw_only=True)
class Broken(Algorithm[torch.Tensor]):
    tau: float = 0.1

    evaluates = ("f",)

    def init(self, x, m, first=None, equality=None):
        return x.new_zeros(())

    def update(self, x, state, draw):
        if not Path("REPAIRED").exists():
            raise ValueError("this method cannot take a step")
        return -self.tau * draw.samples[0](x).grad(f=1.0), state

    def primal_step(self, state):
        return self.tau
"""  # a method that works once there is a file REPAIRED


def small_study(entries: str, *, seeds: int = 1, records: int = 1) -> str:
    """With these entries, inline tables of TOML."""
    return f"""
title = "Small"
seeds = {seeds}
records = {records}
entries = [{entries}]
[problem]
state = "OK"
group = "RAC1P=1"
groups = ["white", "non-white"]
notion = "pairwise"
bound = 0.005
hidden = [4]
batch = 8
split = {{ seed = 1 }}
"""


def small_plan(folder: Path, **options: Any) -> Plan:
    """Of the study with ENTRIES, whose file is written into the folder."""
    path = folder / "small.toml"
    if not path.exists():
        path.write_text(small_study(ENTRIES, seeds=2, records=2))
    return planned(str(path), source="synthetic:OK", **options)


def carry_out(
    plan: Plan, folder: Path, engine: Engine, progress: ProgressCallback | None = None
) -> Done:
    return plan.compute(Store(folder), engine, progress)


def contents(folder: Path) -> dict[str, list[bytes]]:
    """The bits of every stored result."""
    return {
        result.key: [
            np.ascontiguousarray(column).tobytes()
            for table in result.tables.values()
            for column in table.values()
        ]
        for result in Store(folder).results()
    }
