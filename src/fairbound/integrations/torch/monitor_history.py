"""Where the multipliers and a method's own scalars were on the way: at most some two hundred records of any loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairbound.algorithms.diagnostics import signs_of_infeasibility

MOST = 200  # records; then every other one goes


class MonitorHistory:
    """Records at equal distances that double when there are too many."""

    def __init__(self) -> None:
        self.every = 1
        self.steps: list[int] = []
        self.records: list[dict[str, Tensor]] = []

    def add(self, step: int, record: dict[str, Tensor]) -> None:
        self.steps.append(step)
        self.records.append({name: value.detach().to("cpu", copy=True) for name, value in record.items()})
        if len(self.steps) > MOST:
            self.every *= 2
            kept = [i for i, seen in enumerate(self.steps) if seen % self.every == 0]
            self.steps, self.records = [self.steps[i] for i in kept], [self.records[i] for i in kept]

    def column(self, name: str) -> Tensor | None:
        """All records of one name, (records, ...), or None."""
        return torch.stack([r[name] for r in self.records]) if self.records and name in self.records[0] else None

    def sign(self) -> str | None:
        """A sign of an infeasible problem, as a sentence, or None."""
        if not self.records or not self.records[0]:
            return None
        history = {name: torch.stack([r[name] for r in self.records])[:, None] for name in self.records[0]}
        return signs_of_infeasibility(history, self.steps)[0]

    def state_dict(self) -> dict[str, Any]:
        records = [{name: value.clone() for name, value in record.items()} for record in self.records]
        return {"every": self.every, "steps": list(self.steps), "records": records}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        self.every, self.steps = int(kept["every"]), list(kept["steps"])
        self.records = [{name: value.to("cpu", copy=True) for name, value in r.items()} for r in kept["records"]]
