"""Progress of a loop: steps, what they observed, recorded monitors, and the warnings that follow
from them.

A step leaves its tensors here; they are read some hundred steps at a time, or when somebody asks,
since reading waits for a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound._utils.frames import frames_of_ours
from fairbound.algorithms._diagnostics import (
    WINDOW,
    monitor_record,
    sign_of_divergence,
    signs_of_infeasibility,
)
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.core import Algorithm
from fairbound.integrations.torch._estimate import BatchEstimate
from fairbound.integrations.torch._state_dict import by_constraint, by_name

NEVER_OBSERVED_AFTER = 50  # steps after which a constraint that no example was about is warned of
SELDOM_OBSERVED_AFTER = 500  # steps after which one is warned of that few mini-batches showed
SELDOM = 0.05  # share of the mini-batches
_MAX_RECORDS = 200  # of the monitors; then every other one goes
MOST_NAMED = 20  # constraints that logs and plots show one by one; of more, the largest
# steps that wait on the device until they are read, and a loop that diverges is warned of
READ_TOGETHER = 100


class MonitorHistory:
    """What `diagnostics.monitor_record` keeps of a step, at equal distances, which double when
    there are too many records."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps: list[int] = []
        self.records: list[dict[str, float]] = []

    def add(self, steps: list[int], columns: dict[str, Tensor]) -> None:
        """Keep the records of some steps, (T,) each."""
        # read at once
        rows = torch.stack([values.double() for values in columns.values()], 1).tolist()
        self.steps += steps
        self.records += [dict(zip(columns, row, strict=True)) for row in rows]
        while len(self.steps) > _MAX_RECORDS:
            self.every *= 2
            places = [i for i, step in enumerate(self.steps) if step % self.every == 0]
            self.steps, self.records = (
                [self.steps[i] for i in places],
                [self.records[i] for i in places],
            )

    def infeasible(self) -> str | None:
        """A sign of an infeasible problem, as a sentence, or None."""
        if not self.records or not self.records[0]:
            return None
        history = {
            name: torch.tensor([[r[name]] for r in self.records]) for name in self.records[0]
        }
        return signs_of_infeasibility(history, self.steps)[0]

    def diverging(self) -> str | None:
        """A sign that the run diverges, as a sentence, or None."""
        ends = (
            self.records
            if len(self.records) < 2 * WINDOW
            else self.records[:WINDOW] + self.records[-WINDOW:]
        )
        return (
            sign_of_divergence({name: [r[name] for r in ends] for name in ends[0]})
            if ends
            else None
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "every": self.every,
            "steps": list(self.steps),
            "records": [dict(record) for record in self.records],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.every, self.steps = int(saved["every"]), list(saved["steps"])
        self.records = [dict(record) for record in saved["records"]]


class LoggedStep(NamedTuple):
    """A step that was not read yet."""

    made: Tensor | None  # () bool where nobody looked; None: it was made
    values: Tensor  # (1+m,) [f, c] of its main mini-batch
    last: Tensor  # (1+m,) of its last one
    missing: Tensor | None  # (1+m,) bool: what that one does not show; None: it shows all
    state: Any  # after it, where monitors are recorded; else None
    # (m,) the multiplier at which a constraint pulls as hard as the objective, where measured
    unit: Tensor | None


class Progress:
    """Steps made and skipped, observations, the history of monitors, and what is warned of."""

    def __init__(self, constraints: ConstraintSet, method: Algorithm[Any], gathered: bool) -> None:
        self.constraints, self.method, self.gathered = constraints, method, gathered
        self.attempts = 0  # steps, and on a GPU those that turn out to be skipped
        self.tried = 0  # steps, and those skipped, on any device
        self._steps = self._skipped = 0
        self._history = MonitorHistory(100 if gathered else 1)
        self._unread: list[LoggedStep] = []
        # steps that showed a constraint
        self.observed = torch.zeros(constraints.m * (not gathered), dtype=torch.long)
        # the last of them; one for no cell
        self.at: Tensor = torch.zeros(constraints.m + gathered, dtype=torch.long)
        # values then
        self._last = torch.full((constraints.m + gathered,), torch.nan, dtype=torch.float64)
        self._warned_of_skipping = False
        self._warned_of_divergence = False

    # A step ---------------------------------------------------------------------------------------

    def add(
        self,
        state: Any,
        values: Tensor,
        last: BatchEstimate,
        made: Tensor | None,
        table: Tensor | None,
        unit: Tensor | None = None,
    ) -> None:
        """Count a step to a state, from the values of its main mini-batch and from its last one.

        With very many constraints `table` (1+rows,) has their last values.
        """
        self._last = self._last if table is None else table[1:]
        self.attempts += 1
        self.tried += 1
        if last.rows is not None and last.absent is not None:
            self.at = self.at.to(last.rows.device)
            self.at[last.rows] = torch.where(last.absent, self.at[last.rows], self.attempts)
        state = state if self.attempts % self._history.every == 0 else None
        self._unread.append(LoggedStep(made, values, last.values, last.missing, state, unit))
        if self.attempts in (NEVER_OBSERVED_AFTER, SELDOM_OBSERVED_AFTER) and not self.gathered:
            self._read()
            self._warn_of_seldom_observed()
        if self.attempts % READ_TOGETHER == 0:
            self._read()
            if self._skipped:
                self._warn_of_skipping("steps were")
            self._warn_of_divergence()

    def _read(self) -> None:
        """Read what waits on the device, at once."""
        if not self._unread:
            return
        unread, self._unread = self._unread, []
        made = torch.ones(len(unread), dtype=torch.bool)
        unsure = [i for i, step in enumerate(unread) if step.made is not None]
        if unsure:
            made[unsure] = torch.stack(
                [flag for step in unread if (flag := step.made) is not None]
            ).cpu()
        numbers = self._steps + made.cumsum(0)
        if not self.gathered:
            shown = made[:, None].repeat(1, len(self.at))  # (T, m)
            lacking = [i for i, step in enumerate(unread) if step.missing is not None]
            if lacking:
                missing = torch.stack(
                    [part for step in unread if (part := step.missing) is not None]
                )
                shown[lacking] &= ~missing[:, 1:].cpu()
            self.observed += shown.sum(0)
            self.at = torch.maximum(self.at, (shown * numbers[:, None]).amax(0))
            values, (any_shown, which) = (
                torch.stack([step.last for step in unread])[:, 1:].cpu(),
                _last(shown),
            )
            self._last = torch.where(any_shown, values.gather(0, which[None])[0], self._last)
        recorded_steps = [i for i, step in enumerate(unread) if step.state is not None and made[i]]
        if recorded_steps:
            columns = self._columns([unread[i] for i in recorded_steps])
            first = self.attempts - len(unread) + 1
            self._history.add([first + i for i in recorded_steps], columns)
        skipped = int((~made).sum())
        self._steps, self._skipped = self._steps + len(unread) - skipped, self._skipped + skipped

    def _columns(self, steps: list[LoggedStep]) -> dict[str, Tensor]:
        """(T,) each: what is recorded of T steps."""
        m, monitors = self.constraints.m, [self.method.monitor(step.state) for step in steps]
        together = {name: torch.stack([each[name] for each in monitors]) for name in monitors[0]}
        multipliers = [self.method.multipliers(step.state) for step in steps]
        y = (
            None
            if multipliers[0] is None
            else torch.stack([y[:m] for y in multipliers if y is not None])
        )
        values = torch.stack([step.values for step in steps])
        c = self._last[None, :m] if self.gathered else values[:, 1:]
        return monitor_record(
            together, y, values[:, 0], c, self.constraints.equality
        ) | self._drawn(steps, y, c)

    def _drawn(self, steps: list[LoggedStep], y: Tensor | None, c: Tensor) -> dict[str, Tensor]:
        """(T,) each: every constraint, and its force or multiplier, of few constraints; y and c are
        (T, m)."""
        m, names = self.constraints.m, self.constraints.names
        if m > MOST_NAMED:
            return {}
        units = [step.unit for step in steps if step.unit is not None]
        kinds = {"constraint": c}
        if y is not None and len(units) == len(steps):
            kinds["force"] = forces(y, torch.stack(units)[:, :m])
        elif y is not None:
            kinds["multiplier"] = y
        return {
            f"{kind}/{name}": part[:, i]
            for kind, part in kinds.items()
            for i, name in enumerate(names)
        }

    def skip(self) -> None:
        """Count a step that is not made, and warn of the first."""
        self._skipped += 1
        self.tried += 1
        self._warn_of_skipping(f"step {self.attempts + 1} was")

    # What is known --------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        self._read()
        return self._steps

    @property
    def skipped(self) -> int:
        self._read()
        return self._skipped

    @property
    def history(self) -> MonitorHistory:
        self._read()
        return self._history

    def observations(self) -> tuple[Tensor, Tensor]:
        """(m,) steps that showed a constraint (not counted where there are very many), and steps
        since the last."""
        return self.observed, (self.steps - self.at[: self.constraints.m]).cpu()

    def last_values(self) -> Tensor:
        """(m,) the last value of every constraint, NaN before the first; one more with very many
        constraints."""
        self._read()
        return self._last

    def state_dict(self) -> dict[str, Any]:
        names = self.constraints.names
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "history": self.history.state_dict(),
            "constraints": by_name(self._last.clone(), names),
            "observed": None if self.gathered else by_name(self.observed.clone(), names),
            "at": by_name(self.at.clone(), names),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        history, rows = MonitorHistory(), len(self.at)
        history.load_state_dict(saved["history"])
        last, at = (
            by_constraint(saved[name], self.constraints.names, rows)
            for name in ("constraints", "at")
        )
        if not self.gathered:
            self.observed = by_constraint(saved["observed"], self.constraints.names, rows).clone()
        self._steps, self._skipped = int(saved["steps"]), int(saved["skipped"])
        self.attempts, self._unread, self._history = self._steps, [], history
        self._last, self.at, self.tried = last.clone(), at.clone(), self._steps + self._skipped

    # Warnings -------------------------------------------------------------------------------------

    def _warn_of_divergence(self) -> None:
        sign = None if self._warned_of_divergence else self._history.diverging()
        if sign is not None:  # once, while it happens
            self._warned_of_divergence = True
            warnings.warn(
                f"by step {self.attempts} {sign}", RuntimeWarning, stacklevel=frames_of_ours()
            )

    def _warn_of_seldom_observed(self) -> None:
        counts = self.observed
        least = int(counts.argmin())
        count = int(counts[least])
        few = SELDOM * self.attempts if self.attempts >= SELDOM_OBSERVED_AFTER else 0
        if count > few or (count == 0 and self.attempts > NEVER_OBSERVED_AFTER):  # said before
            return
        warnings.warn(
            f"{'none' if count == 0 else f'only {count}'} of {self.attempts} mini-batches had the"
            f" examples that {self.constraints.names[least]!r} is about, so it constrains"
            f" {'nothing' if count == 0 else 'little'}; check groups, labels (1 is the positive"
            " one) and values, merge groups, or draw batches with fairbound.BalancedBatchSampler",
            UserWarning,
            stacklevel=frames_of_ours(),
        )

    def _warn_of_skipping(self, which: str) -> None:
        if not self._warned_of_skipping:
            self._warned_of_skipping = True
            warnings.warn(
                f"{which} skipped: the loss, a constraint or the direction is NaN or infinite; such"
                " steps are counted in `skipped` and change nothing",
                RuntimeWarning,
                stacklevel=frames_of_ours(),
            )


def forces(y: Tensor, unit: Tensor) -> Tensor:
    """How many times as hard as the objective each constraint pulls; 0 where nothing was
    measured."""
    return torch.where(unit > 0, y / unit.clamp(min=torch.finfo(unit.dtype).tiny), 0.0)


def _last(shown: Tensor) -> tuple[Tensor, Tensor]:
    """(m,) whether any of T steps showed a constraint, and the last that did; `shown` is (T, m)."""
    which = (shown * torch.arange(1, 1 + len(shown))[:, None]).amax(0)
    return which > 0, (which - 1).clamp(min=0)
