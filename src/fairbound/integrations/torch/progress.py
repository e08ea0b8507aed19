"""Progress of a loop: counters, recorded monitors, and the warnings that follow from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.frames import frames_of_ours
from fairbound.algorithms.diagnostics import WINDOW, recorded, sign_of_divergence, signs_of_infeasibility
from fairbound.integrations.torch.constraint_record import ConstraintRecord

NEVER_OBSERVED_AFTER = 50  # steps after which a constraint that no example was about is warned of
SELDOM_OBSERVED_AFTER = 500  # steps after which one is warned of that few mini-batches showed
SELDOM = 0.05  # share of the mini-batches
MAX_RECORDS = 200  # of the monitors; then every other one goes
READ_TOGETHER = 100  # records that wait on the device until they are read, and a loop that diverges is warned of


class MonitorHistory:
    """What `diagnostics.recorded` keeps of a step, at equal distances, which double when there are too many records."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps: list[int] = []
        self.records: list[dict[str, float]] = []
        self.pending: list[tuple[int, dict[str, Tensor]]] = []  # on the device, not read yet

    def add(self, step: int, record: dict[str, Tensor]) -> bool:
        """Keep a record; whether it is time to read those that wait."""
        self.pending.append((step, record))
        return len(self.pending) >= READ_TOGETHER

    def read(self) -> None:
        """Read what waits on the device, at once."""
        if not self.pending:
            return
        names = list(self.pending[0][1])
        if names:
            rows = torch.stack([torch.stack([record[name] for name in names]) for _, record in self.pending]).tolist()
        for i, (step, _) in enumerate(self.pending):
            self.steps.append(step)
            self.records.append(dict(zip(names, rows[i], strict=True)) if names else {})
        self.pending = []
        while len(self.steps) > MAX_RECORDS:
            self.every *= 2
            places = [i for i, step in enumerate(self.steps) if step % self.every == 0]
            self.steps, self.records = [self.steps[i] for i in places], [self.records[i] for i in places]

    def infeasible(self) -> str | None:
        """A sign of an infeasible problem, as a sentence, or None."""
        self.read()
        if not self.records or not self.records[0]:
            return None
        history = {name: torch.tensor([[r[name]] for r in self.records]) for name in self.records[0]}
        return signs_of_infeasibility(history, self.steps)[0]

    def diverging(self) -> str | None:
        """A sign that the run diverges, as a sentence, or None."""
        self.read()
        ends = self.records if len(self.records) < 2 * WINDOW else self.records[:WINDOW] + self.records[-WINDOW:]
        return sign_of_divergence({name: [r[name] for r in ends] for name in ends[0]}) if ends else None

    def state_dict(self) -> dict[str, Any]:
        self.read()
        return {"every": self.every, "steps": list(self.steps), "records": [dict(record) for record in self.records]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.every, self.steps = int(saved["every"]), list(saved["steps"])
        self.records = [dict(record) for record in saved["records"]]


class Progress:
    """Steps made and skipped, their history, and what is warned of."""

    def __init__(self, record: ConstraintRecord) -> None:
        self.record = record
        self.attempts = 0  # steps, and on a GPU those that turn out to be skipped
        self.unseen: Tensor | int = 0  # of these, skipped on the device without a look
        self._skipped = 0
        self.history = MonitorHistory(100 if record.gathered else 1)
        self._warned_of_skipping = False
        self._warned_of_divergence = False

    @property
    def steps(self) -> int:
        return self.attempts - int(self.unseen)

    @property
    def skipped(self) -> int:
        return self._skipped + int(self.unseen)

    def load(self, steps: int, skipped: int, history: MonitorHistory) -> None:
        """Go on from saved numbers."""
        self.attempts, self._skipped, self.unseen, self.history = steps, skipped, 0, history

    def stepped(self) -> bool:
        """Count a step; whether its monitors are to be recorded."""
        self.attempts += 1
        if self.attempts in (NEVER_OBSERVED_AFTER, SELDOM_OBSERVED_AFTER) and not self.record.gathered:
            self._warn_of_seldom_observed()
        return self.attempts % self.history.every == 0

    def add(self, monitors: Mapping[str, Tensor], multipliers: Tensor | None, objective: Tensor) -> None:
        """Record the monitors of a step."""
        constraints, last = self.record.constraints, self.record.last
        last = None if last is None else last[: constraints.m]
        record = recorded(monitors, multipliers, objective, last, constraints.equality)
        if not self.history.add(self.attempts, record):
            return
        if int(self.unseen):
            self._warn_of_skipping()
        sign = None if self._warned_of_divergence else self.history.diverging()
        if sign is not None:  # once, while it happens
            self._warned_of_divergence = True
            warnings.warn(f"by step {self.attempts} {sign}", RuntimeWarning, stacklevel=frames_of_ours())

    def _warn_of_seldom_observed(self) -> None:
        counts = self.record.observations()[0]
        least = int(counts.argmin())
        count = int(counts[least])
        few = SELDOM * self.attempts if self.attempts >= SELDOM_OBSERVED_AFTER else 0
        if count > few or (count == 0 and self.attempts > NEVER_OBSERVED_AFTER):  # said before
            return
        warnings.warn(
            f"{'none' if count == 0 else f'only {count}'} of {self.attempts} mini-batches had the examples that "
            f"{self.record.constraints.names[least]!r} is about, so it constrains "
            f"{'nothing' if count == 0 else 'little'}; check groups and labels (1 is the positive one), merge groups, "
            "or draw batches with fairbound.BalancedBatchSampler",
            UserWarning,
            stacklevel=frames_of_ours(),
        )

    def skip(self) -> None:
        """Count a step that is not made, and warn of the first."""
        self._skipped += 1
        self._warn_of_skipping()

    def _warn_of_skipping(self) -> None:
        if not self._warned_of_skipping:
            self._warned_of_skipping = True
            which = "steps were" if int(self.unseen) else f"step {self.attempts + 1} was"
            warnings.warn(
                f"{which} skipped: the loss, a constraint or the direction is NaN or infinite; such steps are counted "
                "in `skipped` and change nothing",
                RuntimeWarning,
                stacklevel=frames_of_ours(),
            )
