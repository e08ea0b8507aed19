"""What changes in a loop with its steps, beside the model: the method's state, the last constraints, the monitors."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.rng import LEVEL, UNIFORM, checked_seed, keys, uniforms
from fairbound.algorithms.diagnostics import signs_of_infeasibility
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.integrations.torch import state_dict
from fairbound.integrations.torch.flat_params import FlatParams
from fairbound.integrations.torch.vectors import why_not_linear

NEVER_OBSERVED_AFTER = 50  # steps after which a constraint that no example was about is warned of
DRAWN_AHEAD = 512  # steps whose random numbers are made at once
MAX_RECORDS = 200  # of the monitors; then every other one goes


class MonitorHistory:
    """Multipliers and a method's own scalars at equal distances, which double when there are too many records."""

    def __init__(self) -> None:
        self.every = 1
        self.steps: list[int] = []
        self.records: list[dict[str, Tensor]] = []

    def add(self, step: int, record: dict[str, Tensor]) -> None:
        self.steps.append(step)
        self.records.append({name: value.detach().to("cpu", copy=True) for name, value in record.items()})
        if len(self.steps) > MAX_RECORDS:
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


class TrainingState:
    """A method's state in a loop, and how it moves from step to step."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        names: tuple[str, ...],
        equality: Tensor | None,
        parameters: FlatParams,
        seed: int,
    ) -> None:
        self.algorithm, self.names, self.parameters = algorithm, names, parameters
        self.equality = None if equality is None else equality.to(parameters.device)
        self.state: Any = None  # None before the first mini-batch
        self.last: Tensor | None = None  # (m,) the last value of every constraint
        self.steps = 0
        self.skipped = 0
        self.history = MonitorHistory()
        self._key = keys(torch.tensor(checked_seed(seed)))  # the numbers that a `Sampler` with the same seed gives
        self._drawn: dict[int, tuple[int, tuple[Tensor, ...]]] = {}  # by slot: the first step, and its numbers
        self._kinds = state_dict.kinds(algorithm)
        more = why_not_linear(algorithm, parameters.x)
        self.linear = more is None  # whether `update` runs on symbols (`vectors`), or on flat vectors
        if more is not None:
            what = f"{type(algorithm).__name__} needs whole vectors ({more})"
            parameters.check_whole(what, "use DescentAscent, Penalty or SSLALM")
        self._warned = False

    # Steps ------------------------------------------------------------------------------------------------------------

    def begin(self, first: Estimate | None) -> None:
        """The method's state at the start, from a first estimate where it starts from one."""
        self.state = self._initial(first)

    def _initial(self, first: Estimate | None) -> Any:
        x: Any = self.parameters.x if self.linear else self.parameters.flat()
        first = first if self.algorithm.needs_initial_estimate else None
        return self.parameters.in_parts(self.algorithm.init(x, len(self.names), first, self.equality))

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

    def commit(self, new: Any, absent: Sequence[Tensor], last: Tensor) -> None:
        """After a step; the constraints marked in `absent` keep what the state has of them."""
        for gone in absent:
            new = state_dict.kept_where(gone, self.state, new, self._kinds)
        self.state = state_dict.in_precision_of(self.state, new)
        self.last = last
        self.steps += 1
        if self.steps == NEVER_OBSERVED_AFTER:
            self._warn_of_never_observed(last)
        if self.steps % self.history.every == 0:
            y = self.multipliers
            self.history.add(self.steps, self.algorithm.monitor(self.state) | ({} if y is None else {"multipliers": y}))

    def _warn_of_never_observed(self, last: Tensor) -> None:
        never = [name for name, value in zip(self.names, last.tolist(), strict=True) if value != value]
        if never:
            warnings.warn(
                f"in {NEVER_OBSERVED_AFTER} steps no mini-batch had the examples that {never[0]!r} is about, so it "
                "constrains nothing; check groups and labels (1 is the positive one)",
                UserWarning,
                stacklevel=_frames_of_ours(),
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
                stacklevel=_frames_of_ours(),
            )

    @property
    def multipliers(self) -> Tensor | None:
        return None if self.state is None else self.algorithm.multipliers(self.state)

    # Saving -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, by the names of constraints and parameters."""
        last = None if self.last is None else dict(zip(self.names, self.last.detach().clone().unbind(), strict=True))
        state = self.state
        return {
            "method": type(self.algorithm).__name__,
            "state": None if state is None else state_dict.saved(state, self._kinds, self.names, self.parameters),
            "constraints": last,
            "steps": self.steps,
            "skipped": self.skipped,
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        name = type(self.algorithm).__name__
        missing = {"method", "state", "constraints", "steps", "skipped", "history"} - set(kept)
        if missing:
            raise ValueError(f"this is no state of Constrained: it has no {min(missing)!r}")
        if kept["method"] != name:
            raise ValueError(f"the saved state is of {kept['method']}, this loop runs {name}")
        state, last, history = kept["state"], kept["constraints"], MonitorHistory()
        history.load_state_dict(kept["history"])  # before anything is changed, like the rest of what is kept
        if state is not None:
            state = state_dict.loaded(state, self._initial(None), self._kinds, self.names, self.parameters)
        if last is not None:
            last = state_dict.by_constraint(last, self.names).to(self.parameters.device)
        steps, skipped = int(kept["steps"]), int(kept["skipped"])
        self.state, self.last, self.steps, self.skipped, self.history = state, last, steps, skipped, history


def _frames_of_ours() -> int:
    """How far up from here the user's own line is, so that a warning points at it."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fairbound."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level + 1
