"""A method in motion: its state, the last values of the constraints, its coins, what it shows on the way."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.integrations.torch import state_dict
from fairbound.integrations.torch.flat_params import Parameters
from fairbound.integrations.torch.monitor_history import MonitorHistory
from fairbound.integrations.torch.random_draws import Coins

LONG_ABSENT = 50  # steps after which a limit that no row was about is told of


class TrainingState:
    """Everything of a loop that changes with its steps, beside the model."""

    def __init__(self, algorithm: Algorithm[Any], names: tuple[str, ...], parameters: Parameters, seed: int) -> None:
        self.algorithm, self.names, self.parameters = algorithm, names, parameters
        self.state: Any = None  # the method's; None before the first mini-batch
        self.last: Tensor | None = None  # (m,) the last value of every constraint
        self.steps = 0
        self.skipped = 0
        self.coins = Coins(seed)
        self.trend = MonitorHistory()
        self._kinds = state_dict.kinds(algorithm)
        self._warned = False

    def begin(self, first: Estimate | None) -> None:
        """The method's state at the start, from a first estimate where it starts from one."""
        self.state = self._initial(first)

    def rollback(self, begun: bool) -> None:
        """A first step that was not made has not begun either."""
        if begun:
            self.state = None

    def _initial(self, first: Estimate | None) -> Any:
        x = self.parameters.stand_in if self.algorithm.is_gradient_step else self.parameters.flat()
        return self.algorithm.init(x, len(self.names), first if self.algorithm.needs_initial_estimate else None)

    def draw(self, samples: Sequence[Sample], weight: float, x: Tensor) -> Draw:
        """What the next step consumes."""
        return Draw(tuple(samples), self.parameters.one if weight == 1.0 else x.new_full((), weight), self.coin(x))

    def coin(self, x: Tensor) -> Tensor:
        """The next step's coin, where x is."""
        coin = self.coins.coin(self.steps)
        return coin if x.is_cpu else coin.to(x.device)

    def commit(self, new: Any, absent: Sequence[Tensor], last: Tensor) -> None:
        """After a step; the constraints marked in `absent` keep what the state has of them."""
        for gone in absent:
            new = state_dict.kept_where(gone, self.state, new, self._kinds)
        self.state = state_dict.in_precision_of(self.state, new)
        self._count(last)

    def _count(self, last: Tensor) -> None:
        self.last = last
        self.steps += 1
        if self.steps == LONG_ABSENT:
            self._tell_of_never_seen(last)
        if self.steps % self.trend.every == 0:
            y = self.multipliers
            self.trend.add(self.steps, self.algorithm.monitor(self.state) | ({} if y is None else {"multipliers": y}))

    def _tell_of_never_seen(self, last: Tensor) -> None:
        never = [name for name, value in zip(self.names, last.tolist(), strict=True) if value != value]
        if never:
            warnings.warn(
                f"in {LONG_ABSENT} steps no mini-batch had the rows that {never[0]!r} is about, so it limits nothing; "
                "look at groups and labels (1 is the positive one)",
                UserWarning,
                stacklevel=_frames_of_ours(),
            )

    def skip(self) -> None:
        """Count a step that is not made, and tell of the first."""
        self.skipped += 1
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"step {self.steps + 1} was left out: its loss, a constraint or its direction is NaN or infinite; "
                "such steps are counted in `skipped` and change nothing",
                RuntimeWarning,
                stacklevel=_frames_of_ours(),
            )

    @property
    def multipliers(self) -> Tensor | None:
        return None if self.state is None else self.algorithm.multipliers(self.state)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, told by the names of constraints and parameters."""
        last = None if self.last is None else dict(zip(self.names, self.last.detach().clone().unbind(), strict=True))
        state = self.state
        return {
            "method": type(self.algorithm).__name__,
            "state": None if state is None else state_dict.saved(state, self._kinds, self.names, self.parameters),
            "constraints": last,
            "steps": self.steps,
            "skipped": self.skipped,
            "trend": self.trend.state_dict(),
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        name = type(self.algorithm).__name__
        missing = {"method", "state", "constraints", "steps", "skipped", "trend"} - set(kept)
        if missing:
            raise ValueError(f"this is no state of Constrained: it has no {min(missing)!r}")
        if kept["method"] != name:
            raise ValueError(f"the saved state is of {kept['method']}, this loop runs {name}")
        state, last, trend = kept["state"], kept["constraints"], MonitorHistory()
        trend.load_state_dict(kept["trend"])  # before anything is changed, like the rest of what is kept
        if state is not None:
            state = state_dict.loaded(state, self._initial(None), self._kinds, self.names, self.parameters)
        if last is not None:
            last = state_dict.by_constraint(last, self.names).to(self.parameters.device)
        steps, skipped = int(kept["steps"]), int(kept["skipped"])
        self.state, self.last, self.steps, self.skipped, self.trend = state, last, steps, skipped, trend


def _frames_of_ours() -> int:
    """How far up from here the user's own line is, so that a warning points at it."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fairbound."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level + 1
