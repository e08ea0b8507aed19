"""What changes in a loop with its steps, beside the model: the method's state, the last constraints, the monitors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.frames import frames_of_ours
from fairbound._utils.rng import LEVEL, UNIFORM, checked_seed, keys, uniforms
from fairbound.algorithms.diagnostics import WINDOW, recorded, sign_of_divergence, signs_of_infeasibility
from fairbound.core import Algorithm, CellGradients, Draw, Estimate, Sample, no_feasible_start
from fairbound.integrations.torch import state_dict
from fairbound.integrations.torch.constraint_record import ConstraintRecord
from fairbound.integrations.torch.estimate import Observed, ShownCells
from fairbound.integrations.torch.flat_params import FlatParams
from fairbound.integrations.torch.vectors import why_not_linear
from fairbound.training.contract import checked_init
from fairbound.training.state_rows import CELL, gathered, kinds, scattered, with_own_tables

NEVER_OBSERVED_AFTER = 50  # steps after which a constraint that no example was about is warned of
SELDOM_OBSERVED_AFTER = 500  # steps after which one is warned of that few mini-batches showed
SELDOM = 0.05  # share of the mini-batches
DRAWN_AHEAD = 512  # steps whose random numbers are made at once
MAX_RECORDS = 200  # of the monitors; then every other one goes


class MonitorHistory:
    """What `diagnostics.recorded` keeps of a step, at equal distances, which double when there are too many records."""

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.steps: list[int] = []
        self.records: list[dict[str, float]] = []

    def add(self, step: int, record: Mapping[str, Tensor]) -> None:
        self.steps.append(step)
        numbers = torch.stack([*record.values()]).tolist() if record else []  # one wait for the device
        self.records.append(dict(zip(record, numbers, strict=True)))
        if len(self.steps) > MAX_RECORDS:
            self.every *= 2
            kept = [i for i, seen in enumerate(self.steps) if seen % self.every == 0]
            self.steps, self.records = [self.steps[i] for i in kept], [self.records[i] for i in kept]

    def infeasible(self) -> str | None:
        """A sign of an infeasible problem, as a sentence, or None."""
        if not self.records or not self.records[0]:
            return None
        history = {name: torch.tensor([[r[name]] for r in self.records]) for name in self.records[0]}
        return signs_of_infeasibility(history, self.steps)[0]

    def diverging(self) -> str | None:
        """A sign that the run diverges, as a sentence, or None."""
        ends = self.records if len(self.records) < 2 * WINDOW else self.records[:WINDOW] + self.records[-WINDOW:]
        return sign_of_divergence({name: [r[name] for r in ends] for name in ends[0]}) if ends else None

    def state_dict(self) -> dict[str, Any]:
        return {"every": self.every, "steps": list(self.steps), "records": [dict(record) for record in self.records]}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        self.every, self.steps = int(kept["every"]), list(kept["steps"])
        self.records = [dict(record) for record in kept["records"]]


class TrainingState:
    """A method's state in a loop, and how it moves from step to step."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        record: ConstraintRecord,
        parameters: FlatParams,
        seed: int,
    ) -> None:
        self.algorithm, self.record, self.parameters = algorithm, record, parameters
        self.names = record.constraints.names
        equality = record.constraints.equality
        if equality is not None:
            equality = torch.cat([equality, equality.new_zeros(record.rows - len(equality))]).to(parameters.device)
        self.equality = equality
        self.state: Any = None  # None before the first mini-batch
        self.steps = 0
        self.skipped = 0
        self.history = MonitorHistory(100 if record.gathered else 1)
        self._key = keys(torch.tensor(checked_seed(seed)))  # the numbers that a `Sampler` with the same seed gives
        self._drawn: dict[int, tuple[int, tuple[Tensor, ...]]] = {}  # by slot: the first step, and its numbers
        self._kinds = kinds(algorithm)
        more = why_not_linear(algorithm, parameters.x)
        self.linear = more is None  # whether `update` runs on symbols (`vectors`), or on flat vectors
        if more is not None:
            what = f"{type(algorithm).__name__} needs whole vectors ({more})"
            parameters.check_whole(what, "use DescentAscent, Penalty or SSLALM")
        self._warned = False
        self._warned_of_divergence = False

    # Steps ------------------------------------------------------------------------------------------------------------

    def begin(self, first: Estimate | None) -> None:
        """The method's state at the start, from a first estimate where it starts from one."""
        if self.algorithm.needs_feasible_start and first is not None and bool((first.c >= 0).any()):
            sentence = no_feasible_start(self.algorithm, "the loop", float(first.c.max()))
            warnings.warn(sentence, UserWarning, stacklevel=frames_of_ours())
        self.state = self._initial(first)

    def _initial(self, first: Estimate | None) -> Any:
        x: Any = self.parameters.x if self.linear else self.parameters.flat()
        if self.record.gathered or not self.algorithm.needs_initial_estimate:
            first = None  # a mini-batch shows few of very many constraints, so none starts from it
        state = self.parameters.in_parts(checked_init(self.algorithm, x, self.record.rows, first, self.equality))
        return with_own_tables(state, self._kinds) if self.record.gathered else state

    def rollback(self, begun: bool) -> None:
        """Also undo the initialization if the first step failed."""
        if begun:
            self.state = None

    def _uniform(self, slot: int) -> Tensor:
        first = self.steps - self.steps % DRAWN_AHEAD
        if self._drawn.get(slot, (-1, ()))[0] != first:
            numbers = uniforms(self._key, torch.arange(first, first + DRAWN_AHEAD), torch.tensor(slot))
            self._drawn[slot] = first, numbers.unbind()
        return self._drawn[slot][1][self.steps - first]

    def draw(self, samples: Sequence[Sample], weight: float, x: Tensor) -> Draw:
        """What the next step consumes."""
        uniform = self._uniform(UNIFORM)
        return Draw(
            tuple(samples), x.new_full((), weight), uniform if x.is_cpu else uniform.to(x.device, non_blocking=True)
        )

    def level(self, probs: Sequence[float]) -> tuple[int, float]:
        """The next step's level of a random batch size, and 1 / its probability."""
        u = float(self._uniform(LEVEL))
        level = next((i for i, edge in enumerate(accumulate(probs[:-1])) if u < edge), len(probs) - 1)
        return level, 1 / probs[level]

    def at_rows(self, rows: Tensor | None) -> Any:
        """The state with the rows of some constraints, as copies; None: all of it, itself."""
        return self.state if rows is None else gathered(self.state, rows, self._kinds)

    def commit(
        self,
        before: Any,
        new: Any,
        seen: Sequence[Observed],
        cells: Sequence[ShownCells | None],
        objective: Tensor,
    ) -> None:
        """After a step from the state `before`; constraints that a mini-batch did not show keep what the state has."""
        for one, own in zip(seen, cells, strict=True):
            if one.absent is not None:
                new = state_dict.kept_where(one.absent, one.shown.counts[1:] <= 0, before, new, self._kinds)
            self.record.add(one, own)
        new, rows = state_dict.in_precision_of(before, new), seen[-1].rows
        self.state = new if rows is None else scattered(self.state, new, rows, self._kinds)
        self.steps += 1
        self.record.step(seen[-1])
        if self.steps in (NEVER_OBSERVED_AFTER, SELDOM_OBSERVED_AFTER) and not self.record.gathered:
            self._warn_of_seldom_observed()
        if self.steps % self.history.every == 0:
            monitors, equality = self.algorithm.monitor(self.state), self.record.constraints.equality
            last = None if self.record.last is None else self.record.last[: len(self.names)]
            self.history.add(self.steps, recorded(monitors, self.multipliers, objective, last, equality))
            self._warn_of_divergence()

    def _warn_of_divergence(self) -> None:
        """Once, while it happens."""
        sign = None if self._warned_of_divergence else self.history.diverging()
        if sign is not None:
            self._warned_of_divergence = True
            warnings.warn(f"by step {self.steps} {sign}", RuntimeWarning, stacklevel=frames_of_ours())

    def _warn_of_seldom_observed(self) -> None:
        counts = self.record.observations()[0]
        least = int(counts.argmin())
        count = int(counts[least])
        few = SELDOM * self.steps if self.steps >= SELDOM_OBSERVED_AFTER else 0
        if count > few or (count == 0 and self.steps > NEVER_OBSERVED_AFTER):  # said before
            return
        warnings.warn(
            f"{'none' if count == 0 else f'only {count}'} of {self.steps} mini-batches had the examples that "
            f"{self.names[least]!r} is about, so it constrains {'nothing' if count == 0 else 'little'}; check groups "
            "and labels (1 is the positive one), merge groups, or draw batches with fairbound.BalancedBatchSampler",
            UserWarning,
            stacklevel=frames_of_ours(),
        )

    def skip(self) -> None:
        """Count a step that is not made, and warn of the first."""
        self.skipped += 1
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"step {self.steps + 1} was skipped: its loss, a constraint or its direction is NaN or infinite; "
                "such steps are counted in `skipped` and change nothing",
                RuntimeWarning,
                stacklevel=frames_of_ours(),
            )

    @property
    def multipliers(self) -> Tensor | None:
        """(m,) of the constraints in the user's units."""
        y = None if self.state is None else self.algorithm.multipliers(self.state)
        return None if y is None else self.record.in_units(y[: len(self.names)])

    def _form(self) -> Estimate:
        """An estimate without its numbers, for the form of a state."""
        nothing = torch.zeros(self.record.rows, device=self.parameters.device)
        cells = CellGradients(len(self._cells), lambda: nothing, lambda rows: rows)
        return Estimate(nothing.sum(), nothing, lambda w: w, cells)

    @property
    def _cells(self) -> Sequence[str]:
        return self.record.constraints.mean_names if CELL in self._kinds else ()

    # Saving -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, by the names of constraints and parameters."""
        last, state = self.record.last, self.state
        if state is not None:
            state = state_dict.saved(state, self._kinds, self.names, self._cells, self.parameters)
        return {
            "method": type(self.algorithm).__name__,
            "state": state,
            "constraints": None if last is None else state_dict.by_name(last.detach().clone(), self.names),
            "record": self.record.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        name = type(self.algorithm).__name__
        missing = {"method", "state", "constraints", "record", "steps", "skipped", "history"} - set(kept)
        if missing:
            raise ValueError(f"this is no state of Constrained: it has no {min(missing)!r}")
        if kept["method"] != name:
            raise ValueError(f"the saved state is of {kept['method']}, this loop runs {name}")
        state, last, history = kept["state"], kept["constraints"], MonitorHistory()
        history.load_state_dict(kept["history"])  # before anything is changed, like the rest of what is kept
        if state is not None:
            form = self._initial(self._form())
            state = state_dict.loaded(state, form, self._kinds, self.names, self._cells, self.parameters)
        if last is not None:
            last = state_dict.by_constraint(last, self.names, self.record.rows).to(self.parameters.device)
        steps, skipped = int(kept["steps"]), int(kept["skipped"])
        self.record.load_state_dict(kept["record"], steps, last, self.parameters.device)
        self.state, self.steps, self.skipped, self.history = state, steps, skipped, history
