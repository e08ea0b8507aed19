r"""Changes to the dual steps of any method that has them: made seldom on means, or taken back on inactive constraints.

    AveragedDual(method, every=K)      y moves every K steps, by the mean of c over them
    DualRestarts(method, after=K)      y_i returns to where it began while the tracked c_i has been <= 0 for K steps

A wrapper is a method: it runs alone, stacked and in a loop as the one inside does, consumes what that one consumes, and
adds a few numbers for each constraint to its state. It moves the fields of the state that the method names in `dual`.

Both are of the field's practice (algorithms-2.md, N13). Elenter, Chamon and Ribeiro (arXiv 2403.11844, abstract) show
that near-feasible last iterates need near-minimization between dual steps; Cooper before 1.0 set y_i = 0 whenever one
mini-batch met the constraint, which noise does on every second one where it is active.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fairbound.core import UNIT, Algorithm, Draw, Estimate, Sample, equality_mask, require, require_whole


class MeanState(NamedTuple):
    method: Any  # the state of the method inside
    sums: tuple[Tensor, ...]  # each (m,) of c since the last dual step, one for each draw
    shown: Tensor  # (m,) steps in them

    @property
    def equality(self) -> Tensor | None:
        return getattr(self.method, "equality", None)


class RestartState(NamedTuple):
    method: Any  # the state of the method inside
    u: Tensor  # (m,) tracked c
    met: Tensor  # (m,) steps since it was last > 0
    start: tuple[Tensor, ...]  # each (m,) the dual fields at the start
    equality: Tensor  # (m,) 1 where c = 0, which is never met from one side; 0 where c <= 0


@dataclass(frozen=True)
class DualWrapper(Algorithm[Any]):
    """What both have in common: everything but the dual step is the method's."""

    method: Algorithm[Any]

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.method, Algorithm):
            raise TypeError(f"{name} takes a method that is built, such as DescentAscent(), got {self.method!r}")
        if not self.method.dual:
            raise ValueError(
                f"{name} changes dual steps, and {type(self.method).__name__} names no fields of its state in `dual`; "
                "use a method that moves multipliers, such as DescentAscent or SSLALM"
            )

    @property
    def solves(self) -> Literal["kkt", "penalty"] | None:  # type: ignore[override]
        return self.method.solves

    @property
    def draws(self) -> int:
        return self.method.draws

    @property
    def evaluates(self) -> tuple[str, ...]:
        return self.method.evaluates

    @property
    def passes(self) -> tuple[int, ...]:
        return self.method.passes

    @property
    def points(self) -> int:
        return self.method.points

    @property
    def batch_size_probs(self) -> tuple[float, ...] | None:
        return self.method.batch_size_probs

    @property
    def needs_initial_estimate(self) -> bool:
        return self.method.needs_initial_estimate

    @property
    def is_gradient_step(self) -> bool:
        return self.method.is_gradient_step

    @property
    def uses_jacobian(self) -> bool:
        return self.method.uses_jacobian

    @property
    def row_wise(self) -> bool:
        return self.method.row_wise  # both treat each constraint alone

    def primal_step(self, state: Any) -> float | Tensor:
        return self.method.primal_step(state.method)

    def output(self, x: Tensor, state: Any) -> Tensor:
        return self.method.output(x, state.method)

    def multipliers(self, state: Any) -> Tensor | None:
        return self.method.multipliers(state.method)

    def monitor(self, state: Any) -> dict[str, Tensor]:
        return self.method.monitor(state.method)

    def _step(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any, list[Tensor | None]]:
        """The method's own step, and c of every draw at its last evaluation; None where c is not evaluated."""
        seen: list[list[Tensor]] = [[] for _ in draw.unpack(self)]
        samples = tuple(Sample(_noting(sample.at, own)) for sample, own in zip(draw.samples, seen, strict=True))
        d, new = self.method.update(x, state.method, draw._replace(samples=samples))
        return d, new, [own[-1] if "c" in what else None for own, what in zip(seen, self.evaluates, strict=True)]

    def _with_dual(self, state: Any, choose: Callable[[int, str], Tensor]) -> Any:
        return state._replace(**{name: choose(i, name) for i, name in enumerate(self.method.dual)})


def _noting(at: Callable[[Tensor], Estimate], seen: list[Tensor]) -> Callable[[Tensor], Estimate]:
    def noted(x: Tensor) -> Estimate:
        e = at(x)
        seen.append(e.c)
        return e

    return noted


@dataclass(frozen=True)
class AveragedDual(DualWrapper):
    """Dual steps every `every` steps, on the mean of c over them: the steps of "epoch-duals".

    In between the multipliers are held, and the primal step works towards the minimizer of one Lagrangian. A step is
    the method's `update` on its mini-batches, whose dual fields are dropped; where one is due they come from a second
    call on the mean of c with a zero gradient, which costs nothing. A constraint that a mini-batch does not show is not
    counted, so its step comes later. Of a method that evaluates at two points it is c at the second.

    The dual step stays eta: multipliers move `every` times slower, and their noise falls. With eta times `every` they
    keep their speed: then the noise of an active constraint's stays, since a sum of c is a sum either way, and that
    of inactive ones falls, whose noise the projection at 0 no longer turns into a positive mean.

    >>> from fairbound import DescentAscent
    >>> AveragedDual(DescentAscent(eta=1.0), every=10).draws
    1
    """

    every: int = field(kw_only=True)  # steps between dual steps

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, None, "every")

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> MeanState:
        sums = tuple(x.new_zeros(m) for _ in self.evaluates)
        return MeanState(self.method.init(x, m, first, equality), sums, x.new_zeros(m))

    def update(self, x: Tensor, state: MeanState, draw: Draw) -> tuple[Tensor, MeanState]:
        d, new, c = self._step(x, state, draw)
        sums = [total if own is None else total + own for total, own in zip(state.sums, c, strict=True)]
        shown = state.shown + 1
        due = shown >= self.every
        means = tuple(_constant(total / shown, x) for total in sums)
        _, averaged = self.method.update(x, state.method, draw._replace(samples=means))
        new = self._with_dual(
            new, lambda _, name: torch.where(due, getattr(averaged, name), getattr(state.method, name))
        )
        return d, MeanState(new, tuple(total.masked_fill(due, 0.0) for total in sums), shown.masked_fill(due, 0.0))


def _constant(c: Tensor, x: Tensor) -> Sample:
    """A mini-batch whose values are the same everywhere."""
    zero = torch.zeros_like(x)
    return Sample(lambda _: Estimate(c.new_zeros(()), c, lambda w: zero))


@dataclass(frozen=True)
class DualRestarts(DualWrapper):
    """The multiplier of a constraint that has been met for `after` steps, as tracked, returns to where it began.

        u+ = (1 - rate) u + rate c,      y_i = its initial value while u_i has been <= 0 for `after` steps or more

    It removes what noise, reflected at 0, leaves in the multipliers of inactive constraints, and an early overshoot.
    Where a constraint is active its tracked value has either sign, so let `after` be many times 1 / rate: a run
    of negative values of that length is then rare. With rate=1 and after=1, a reset by every mini-batch, the
    multipliers of active constraints never settle. An equality is never restarted.

    >>> from fairbound import DescentAscent
    >>> DualRestarts(DescentAscent()).after
    500
    """

    after: int = field(default=500, kw_only=True)  # steps with a tracked value <= 0
    rate: float = field(default=0.05, kw_only=True)  # of the tracked values

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, None, "after")
        require(self, UNIT, "rate")

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> RestartState:
        inner = self.method.init(x, m, first, equality)
        start = tuple(getattr(inner, name).clone() for name in self.method.dual)
        return RestartState(inner, x.new_zeros(m), x.new_zeros(m), start, equality_mask(x, m, equality))

    def update(self, x: Tensor, state: RestartState, draw: Draw) -> tuple[Tensor, RestartState]:
        d, new, values = self._step(x, state, draw)
        c = next(own for own in values if own is not None)
        u = torch.lerp(state.u, c, self.rate)
        met = (state.met + 1).masked_fill((u > 0) | (state.equality > 0), 0.0)
        new = self._with_dual(new, lambda i, name: torch.where(met >= self.after, state.start[i], getattr(new, name)))
        return d, RestartState(new, u, met, state.start, state.equality)
