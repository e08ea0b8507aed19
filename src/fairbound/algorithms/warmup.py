r"""One method for the first steps, another afterwards.

    k < steps:    the step is `first`'s
    k >= steps:   the step is `then`'s, whose state begins at the point and the mini-batch of step k = steps

For methods that suffer from a bad start: tracked derivatives of features that still move, penalties far from the
feasible set, multipliers that grow while the loss is still large. A wrapper, not a row of its own.

One state holds both, and both steps are computed at every step; which of them counts is data (`torch.where`), so
that runs stack and compile. The cost is that of both: a mini-batch passes through the model once for both of them, and
has a backward pass for each. In a loop of your own that matters, two `Constrained`, one after the other, cost less.

A step draws what the more demanding of the two draws. `first` uses the first mini-batches of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.core import Algorithm, Draw, Estimate, Sample, equality_mask, require_whole

T = TypeVar("T")


class State(NamedTuple):
    first: Any  # the state of the first method, which stays as it is from step `steps` on
    then: Any  # of the second, made anew at every step before
    k: Tensor  # () step
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True)
class Warmup(Algorithm[State]):
    """`first` for a number of steps, `then` afterwards.

    >>> from fairbound import SGD, SSLALM
    >>> Warmup(SGD(), 100, SSLALM()).evaluates
    ('fc', 'c')
    """

    first: Algorithm[Any]
    steps: int
    then: Algorithm[Any]

    def __post_init__(self) -> None:
        for method in (self.first, self.then):
            if not isinstance(method, Algorithm):
                raise TypeError(
                    f"Warmup takes methods that are built, such as Warmup(SGD(), 100, SSLALM()), got {method!r}"
                )
        require_whole(self, 0, None, "steps")
        probs = {method.batch_size_probs for method in (self.first, self.then)} - {None}
        names = f"{type(self.first).__name__} and {type(self.then).__name__}"
        if len(probs) > 1:
            raise ValueError(f"{names} draw mini-batches of random size by different laws; give both the same p0, cap")
        if probs and min(self.first.draws, self.then.draws) not in (1, 4):
            raise ValueError(
                f"Warmup: one of {names} draws mini-batches of random size, the first alone of a fixed one, and "
                f"the other needs {min(self.first.draws, self.then.draws)}; use a method with one draw, such as SGD"
            )

    @property
    def solves(self) -> Literal["kkt", "penalty"] | None:  # type: ignore[override]
        return self.then.solves

    @property
    def draws(self) -> int:
        return max(self.first.draws, self.then.draws)

    @property
    def evaluates(self) -> tuple[str, ...]:
        pairs = _pairs(self.first.evaluates, self.then.evaluates, "")
        return tuple("".join(part for part in "fc" if part in one + other) for one, other in pairs)

    @property
    def passes(self) -> tuple[int, ...]:
        # the evaluation at x serves both
        pairs = _pairs(self.first.passes, self.then.passes, 1)
        return tuple(one + other - 1 for one, other in pairs)

    @property
    def points(self) -> int:
        return self.first.points + self.then.points - 1

    @property
    def batch_size_probs(self) -> tuple[float, ...] | None:
        return self.first.batch_size_probs or self.then.batch_size_probs

    @property
    def needs_initial_estimate(self) -> bool:
        return self.first.needs_initial_estimate or self.then.needs_initial_estimate

    @property
    def uses_jacobian(self) -> bool:
        return self.first.uses_jacobian or self.then.uses_jacobian

    def primal_step(self, state: State) -> Tensor:
        one, other = self.first.primal_step(state.first), self.then.primal_step(state.then)
        return torch.where(state.k < self.steps, 0 * state.k + one, 0 * state.k + other)

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> State:
        one, other = (method.init(x, m, first, equality) for method in (self.first, self.then))
        return State(one, other, x.new_zeros(()), equality_mask(x, m, equality))

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        samples = tuple(Sample(_once(sample.at, x), sample.values_at) for sample in draw.unpack(self))
        warm, starts = state.k < self.steps, state.k <= self.steps
        equality = None if getattr(state.then, "equality", None) is None else state.equality
        best = max(zip(self.evaluates, samples, strict=True), key=lambda one: ("c" in one[0], len(one[0])))[1]
        begun = _where(starts, self.then.init(x, len(state.equality), best(x), equality), state.then)

        d_first, first = self.first.update(x, state.first, draw._replace(samples=samples[: self.first.draws]))
        d_then, then = self.then.update(x, begun, draw._replace(samples=samples[: self.then.draws]))
        d = torch.where(warm, d_first, d_then)
        return d, State(_where(warm, first, state.first), _where(warm, begun, then), state.k + 1, state.equality)

    def output(self, x: Tensor, state: State) -> Tensor:
        return torch.where(state.k <= self.steps, self.first.output(x, state.first), self.then.output(x, state.then))

    def multipliers(self, state: State) -> Tensor | None:
        one, other = self.first.multipliers(state.first), self.then.multipliers(state.then)
        if one is None and other is None:
            return None
        none = torch.zeros_like(state.equality)
        return torch.where(state.k <= self.steps, none if one is None else one, none if other is None else other)

    def monitor(self, state: State) -> dict[str, Tensor]:
        return self.then.monitor(state.then)


def _pairs(one: tuple[T, ...], other: tuple[T, ...], missing: T) -> list[tuple[T, T]]:
    """What the two have of every draw; `missing` where one draws less."""
    size = max(len(one), len(other))
    padded = (own + (missing,) * (size - len(own)) for own in (one, other))
    return list(zip(*padded, strict=True))


def _once(at: Callable[[Tensor], Estimate], x: Tensor) -> Callable[[Tensor], Estimate]:
    """The same function; its estimate at x is made once."""
    made: list[Estimate] = []

    def once(point: Tensor) -> Estimate:
        if point is not x:
            return at(point)
        if not made:
            made.append(at(x))
        return made[0]

    return once


def _where(mask: Tensor, one: Any, other: Any) -> Any:
    """One state or the other."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return tree_unflatten(one, iter([torch.where(mask, a, b) for a, b in pairs]))
