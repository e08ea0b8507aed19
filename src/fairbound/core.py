"""The contract between problems and algorithms: `min E f(x) s.t. E c(x) <= 0`.

A mini-batch fixes a random function, a `Sample`. Called at a point it gives an `Estimate`: objective and constraints
there, with derivatives on demand. An `Algorithm` turns estimates into a step `d`; the caller adds `d` to `x`.

In a custom loop, on any function of `x`:

>>> import torch
>>> from fairbound import ALGORITHMS
>>> sample = Sample.of(lambda x: ((x - 2).square().sum() / 2, x - 1))     # min (x-2)^2/2  s.t.  x <= 1
>>> method = ALGORITHMS["DescentAscent"](tau=0.1, eta=0.1)
>>> x = torch.zeros(1, dtype=torch.float64)
>>> state = method.init(x, m=1)
>>> for k in range(500):
...     d, state = method.update(x, state, Draw.of(sample))
...     x = x + d
>>> round(x.item(), 4), round(method.multipliers(state).item(), 4)
(1.0, 1.0)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


class CellGradients(NamedTuple):
    """Gradients that the Jacobian of c is combined from: those of the cell means, of which there are often fewer."""

    size: int  # q
    gradients: Callable[[], Tensor]  # -> (q, n)
    combine: Callable[[Tensor], Tensor]  # (q, n) -> (m, n), linear


class Estimate(NamedTuple):
    """Objective and constraints at one point, from one mini-batch; derivatives on demand."""

    f: Tensor  # ()
    c: Tensor  # (m,); feasible means c <= 0
    vjp: Callable[[Tensor], Tensor]  # (1+m,) -> (n,): transposed Jacobian of [f, c]
    cells: CellGradients | None = None  # where c is a function of the means of cells
    absent: Tensor | None = None  # (m,) in a loop: the constraints whose groups the mini-batch lacks; None: none

    def grad(self, f: float | Tensor = 0.0, c: Tensor | None = None) -> Tensor:
        """Gradient of `f * F + c'C` in one backward pass: (n,)."""
        weight_f = f.to(self.f).reshape(1) if isinstance(f, Tensor) else self.f.new_full((1,), f)
        weight_c = torch.zeros_like(self.c) if c is None else c
        return self.vjp(torch.cat([weight_f, weight_c]))

    def jac(self) -> Tensor:
        """Jacobian of the constraints: (m, n)."""
        if self.cells is not None:
            return self.cells.combine(self.cells.gradients())
        m = self.c.shape[0]
        unit = torch.eye(1 + m, dtype=self.c.dtype, device=self.c.device)[1:]
        return torch.func.vmap(self.vjp)(unit)


class Sample(NamedTuple):
    """The random function that one mini-batch fixes."""

    at: Callable[[Tensor], Estimate]
    values_at: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # f and c alone, a cheaper forward pass

    def __call__(self, x: Tensor) -> Estimate:
        return self.at(x)

    def values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f () and c (m,) at a point, without the graph that derivatives need."""
        return self.values_at(x) if self.values_at is not None else self.at(x)[:2]

    @staticmethod
    def of(fun: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Sample:
        """A sample from `fun: x -> (f, c)`, a scalar and a vector, written with torch operations."""

        def stacked(x: Tensor) -> Tensor:
            f, c = fun(x)
            if f.numel() != 1 or c.ndim != 1:
                raise ValueError(
                    f"fun(x) must give a scalar and a vector (f, c), got shapes {tuple(f.shape)} and {tuple(c.shape)}; "
                    "use c.reshape(-1) for a single constraint"
                )
            return torch.cat([f.reshape(1), c])

        def at(x: Tensor) -> Estimate:
            value, pull = torch.func.vjp(stacked, x)[:2]
            return Estimate(value[0], value[1:], lambda w: pull(w)[0])

        def values_at(x: Tensor) -> tuple[Tensor, Tensor]:
            value = stacked(x)
            return value[0], value[1:]

        return Sample(at, values_at)


class Draw(NamedTuple):
    """What one step consumes: all its randomness, so that `update` stays pure."""

    samples: tuple[Sample, ...]  # independent mini-batches
    weight: Tensor  # () 1 / probability of this draw; 1 unless the number of examples is random (Ghost)
    uniform: Tensor  # () in [0, 1): the step's own random number (the output rule of switching)

    @staticmethod
    def of(*samples: Sample, weight: float | Tensor = 1.0, uniform: float | Tensor = 0.0) -> Draw:
        return Draw(samples, torch.as_tensor(weight), torch.as_tensor(uniform))

    def unpack(self, algorithm: Algorithm[Any]) -> tuple[Sample, ...]:
        """The samples, once their number has been checked."""
        if len(self.samples) != algorithm.draws:
            raise ValueError(
                f"{type(algorithm).__name__} needs {algorithm.draws} mini-batches a step, got {len(self.samples)}; "
                "pass one sample for each (the same one twice works, but is biased)"
            )
        return self.samples


class Source(Protocol):
    """Where a run's draws come from, step after step (`Problem.source`)."""

    def next(self, evaluates: Sequence[str], batch_size_probs: Sequence[float] | None) -> Draw: ...


class Algorithm(ABC, Generic[State]):
    """A stochastic method as a pure `(init, update)` pair; hyper-parameters are the fields of a frozen dataclass.

    A method writes `init`, `update` and `primal_step`. What a step consumes is data, with these defaults: a method
    overrides them by a class attribute (`draws = 2`), or by a property where they depend on its settings.
    `fairbound.testing.check_algorithm` certifies the whole.

    Float fields may hold tensors when many runs are stacked, so `update` never branches on their values in Python.
    """

    structural: ClassVar[tuple[str, ...]] = ()  # float fields that decide what is drawn: runs cannot stack over them
    solves: ClassVar[Literal["kkt", "penalty"] | None] = None
    """What the iterates tend to: a KKT point, the minimizer of a penalized objective, or neither (SGD)."""
    dual: ClassVar[tuple[str, ...]] = ()  # fields (m,) of the state that a dual step moves, for `algorithms.wrappers`

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Says what a method lacks, and which settings it has where one is not among them."""
        missing = " and ".join(sorted(cls.__abstractmethods__))
        if missing:
            raise TypeError(
                f"{cls.__name__} is abstract: it does not define {missing}, as every Algorithm does; "
                "`fairbound new algorithm my_file.py` writes a complete example"
            )
        known = [field for field, what in getattr(cls, "__dataclass_fields__", {}).items() if what.init]
        unknown = [name for name in settings if name not in known]
        if unknown and known:
            rate = "; in a loop the learning rate is the optimizer's" if unknown[0] in ("lr", "learning_rate") else ""
            raise TypeError(f"{cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(known)}{rate}")
        return super().__new__(cls)

    @property
    def draws(self) -> int:
        """Independent mini-batches per step."""
        return 1

    @property
    def evaluates(self) -> tuple[str, ...]:
        """What each draw is asked for: "f", "c" or "fc". Other examples do not pass through the model."""
        return ("fc",) * self.draws

    @property
    def passes(self) -> tuple[int, ...]:
        """How often the examples of each draw pass through the model in a step."""
        return (1,) * self.draws

    @property
    def points(self) -> int:
        """At how many points a step evaluates its mini-batches. A training loop has one: the model's parameters."""
        return 1

    @property
    def batch_size_probs(self) -> tuple[float, ...] | None:
        """Probabilities of the levels 0, 1, ... of a random batch size; None where sizes are fixed."""
        return None

    @property
    def needs_initial_estimate(self) -> bool:
        """Whether `init` uses an estimate at the starting point."""
        return False

    @property
    def needs_feasible_start(self) -> bool:
        """Whether it keeps what it promises from a feasible start alone; the drivers warn of another."""
        return False

    @property
    def is_gradient_step(self) -> bool:
        """Whether d is minus `primal_step` times one gradient, and x is read through its estimates only.

        In a user's loop such a method costs one backward pass into `.grad` and no vector of the model's size.
        """
        return False

    @property
    def uses_jacobian(self) -> bool:
        """Whether a step takes several gradients of one mini-batch, those of its constraints: a backward pass each."""
        return False

    @property
    def row_wise(self) -> bool:
        """Whether each constraint is treated alone.

        A driver with very many of them may then gather the rows of the state that a mini-batch shows, call the same
        `update`, and scatter them back.
        """
        return False

    @abstractmethod
    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> State:
        """State at the start.

        Args:
            x: (n,) the starting point.
            m: number of constraints.
            first: an estimate at `x`, for the methods that start from one.
            equality: (m,) bool, the constraints that are c = 0 instead of c <= 0; None: none is.
        """

    @abstractmethod
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        """The step `d` and the next state; the next point is `x + d`."""

    @abstractmethod
    def primal_step(self, state: State) -> float | Tensor:
        """The step size that a user's learning rate replaces: in a loop, `.grad` receives d divided by minus it."""

    def output(self, x: Tensor, state: State) -> Tensor:
        """What the method returns after its last step: (n,)."""
        return x

    def multipliers(self, state: State) -> Tensor | None:
        """The current estimate of the multipliers, (m,), for the methods that have one."""
        return None

    def monitor(self, state: State) -> dict[str, Tensor]:
        """Scalars that describe the progress of the method: resets, feasible steps, kappa. `diagnostics` reads them."""
        return {}

    def draw(self, source: Source) -> Draw:
        """The randomness of one step, for a custom loop."""
        return source.next(self.evaluates, self.batch_size_probs)


def equality_mask(x: Tensor, m: int, equality: Tensor | None) -> Tensor:
    """(m,) 1 for the constraints that are c = 0, else 0, in the precision of x: for a method's state."""
    return x.new_zeros(m) if equality is None else equality.to(x)


def refuse_equality(algorithm: Algorithm[Any], equality: Tensor | None) -> None:
    """For the methods that are for c <= 0 alone, in `init`."""
    if equality is not None and bool(equality.any()):
        raise ValueError(
            f"{type(algorithm).__name__} is for constraints c <= 0, and {int(equality.sum())} of {len(equality)} are "
            "equalities; use a method that takes them, such as DescentAscent, SSLALM or StochasticGhost"
        )


def no_feasible_start(algorithm: Algorithm[Any], where: str, c: float) -> str:
    """What a driver says where a method that `needs_feasible_start` has none, or one without room to move."""
    return (
        f"{type(algorithm).__name__} keeps a feasible path from a start with c < 0, and the first mini-batch of "
        f"{where} has a c of {c:.3g}; for gaps between groups start from a last layer of 0: "
        'initial_points(..., feasible="zero-last-layer"), or training.functional.zero_last_layer(model) in a loop'
    )


def violations(c: Tensor, equality: Tensor | None) -> Tensor:
    """(..., m) |c| of the constraints c = 0, c of the others: each is met where this is at most 0."""
    return c if equality is None else torch.where(equality.to(c.device) > 0, c.abs(), c)


class Bounds(NamedTuple):
    """A range that a hyper-parameter must lie in, and how to say so."""

    wording: str
    holds: Callable[[float], bool]


POSITIVE = Bounds("a finite number > 0", lambda v: 0 < v < math.inf)
NONNEGATIVE = Bounds("a finite number >= 0", lambda v: 0 <= v < math.inf)
CAP = Bounds("a number > 0 (infinity switches it off)", lambda v: v > 0)
OPEN_UNIT = Bounds("strictly between 0 and 1", lambda v: 0 < v < 1)
UNIT = Bounds("between 0 and 1", lambda v: 0 <= v <= 1)


def require(
    owner: Any, bounds: Bounds, *names: str, also: tuple[type, ...] = (), for_each_constraint: bool = False
) -> None:
    """Check numeric fields of a settings dataclass; `also` names the types (schedules) that may replace a number.

    Whole numbers become floats, so that `tau=1` and `tau=1.0` are the same setting. Tensors are refused: in a stack of
    runs they take the numbers' place without passing here (`hyperparams.with_hyperparams`). With `for_each_constraint`
    a tuple with one number or schedule for every constraint may be in the place of one for all.
    """

    def checked(value: Any, name: str) -> Any:
        if isinstance(value, also):
            return value
        where = f"{type(owner).__name__}: {name} must be {bounds.wording}"
        if isinstance(value, bool) or not isinstance(value, Real):
            tuples = ", or a tuple with one for each constraint" if for_each_constraint and "[" not in name else ""
            raise TypeError(f"{where}{' or a schedule' if also else ''}{tuples}, got {value!r}")
        if not bounds.holds(float(value)):
            raise ValueError(f"{where}, got {value}")
        return float(value)

    for name in names:
        value = getattr(owner, name)
        if for_each_constraint and isinstance(value, tuple):
            value = tuple(checked(one, f"{name}[{i}]") for i, one in enumerate(value))
        else:
            value = checked(value, name)
        object.__setattr__(owner, name, value)


def require_whole(owner: Any, low: int, high: int | None, *names: str) -> None:
    """Check integer fields; they decide the structure of a run and never stack."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or value < low or (high is not None and value > high):
            limit = f">= {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"{type(owner).__name__}: {name} must be a whole number {limit}, got {value!r}")
        object.__setattr__(owner, name, int(value))


def require_switch(owner: Any, *names: str) -> None:
    """Check fields that are True or False."""
    for name in names:
        if not isinstance(getattr(owner, name), bool):
            raise TypeError(f"{type(owner).__name__}: {name} must be True or False, got {getattr(owner, name)!r}")
