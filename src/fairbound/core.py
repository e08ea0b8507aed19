"""The contract between problems and algorithms: `min E f(x) s.t. E c(x) <= 0`.

A mini-batch fixes a random function, a `Sample`. Called at a point it gives an `Estimate`:
objective and constraints there, with derivatives on demand. An `Algorithm` turns estimates into a
step `d`; the caller adds `d` to `x`. Most methods are of a simpler kind, a `MultiplierMethod`: it
turns values c into weights w, and d follows from grad f + J'w.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, final

import torch
from torch import Tensor

from fairbound._utils.measuring import Measurements, sampled
from fairbound._utils.measuring import Sizes as Sizes

_State = TypeVar("_State")


class CellGradients(NamedTuple):
    """Gradients that the Jacobian of c is combined from: those of the cell means, of which there
    are often fewer."""

    size: int  # q
    gradients: Callable[[], Tensor]  # -> (q, n)
    combine: Callable[[Tensor], Tensor]  # (q, n) -> (m, n), linear


class Estimate(NamedTuple):
    """Objective and constraints at one point, from one mini-batch; derivatives on demand.

    >>> estimate = Sample.of(lambda x: (x.square().sum(), x - 1))(torch.tensor([3.0]))
    >>> estimate.f.item(), estimate.c.item(), estimate.grad(f=1.0, c=torch.ones(1)).item()
    (9.0, 2.0, 7.0)
    """

    f: Tensor  # ()
    c: Tensor  # (m,); feasible means c <= 0
    vjp: Callable[[Tensor], Tensor]  # (1+m,) -> (n,): transposed Jacobian of [f, c]
    cells: CellGradients | None = None  # where c is a function of the means of cells
    # (m,) in a loop: the constraints whose groups the mini-batch lacks; None: none
    absent: Tensor | None = None

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
    """The random function that one mini-batch fixes.

    >>> Sample.of(lambda x: (x.square().sum(), x - 1))(
    ...     torch.tensor([3.0])
    ... ).c  # min x^2 s.t. x <= 1, at 3
    tensor([2.])
    """

    at: Callable[[Tensor], Estimate]

    def __call__(self, x: Tensor) -> Estimate:
        return self.at(x)

    @staticmethod
    def of(fun: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Sample:
        """A sample from `fun: x -> (f, c)`, a scalar and a vector, written with torch
        operations."""

        def stacked(x: Tensor) -> Tensor:
            f, c = fun(x)
            if f.numel() != 1 or c.ndim != 1:
                raise ValueError(
                    f"fun(x) must give a scalar and a vector (f, c), got shapes {tuple(f.shape)}"
                    f" and {tuple(c.shape)}; use c.reshape(-1) for a single constraint"
                )
            return torch.cat([f.reshape(1), c])

        def at(x: Tensor) -> Estimate:
            value, pull = torch.func.vjp(stacked, x)[:2]
            return Estimate(value[0], value[1:], lambda w: pull(w)[0])

        return Sample(at)


class Draw(NamedTuple):
    """What one step consumes: all its randomness, so that `update` stays pure.

    >>> sample = Sample.of(lambda x: (x.square().sum(), x - 1))
    >>> len(Draw.of(sample, sample).samples)
    2
    """

    samples: tuple[Sample, ...]  # independent mini-batches
    # () 1 / probability of this draw; 1 unless the number of examples is random (Ghost)
    weight: Tensor
    uniform: Tensor  # () in [0, 1): the step's own random number (the output rule of switching)

    @staticmethod
    def of(*samples: Sample, weight: float | Tensor = 1.0, uniform: float | Tensor = 0.0) -> Draw:
        return Draw(samples, torch.as_tensor(weight), torch.as_tensor(uniform))

    def unpack(self, method: Algorithm[Any]) -> tuple[Sample, ...]:
        """The samples, after a check of their number."""
        if len(self.samples) != method.draws:
            raise ValueError(
                f"{type(method).__name__} needs {method.draws} mini-batches a step, got"
                f" {len(self.samples)}; pass one sample for each (the same one twice works, but is"
                " biased)"
            )
        return self.samples


class Algorithm(ABC, Generic[_State]):
    """A stochastic method as a pure `(init, update)` pair; hyper-parameters are the fields of a
    frozen dataclass.

    A method implements `init`, `update` and `primal_step`; the other members have defaults, which a
    class attribute (`evaluates = ("c", "fc")`) or a property replaces. Most methods are simpler:
    see `MultiplierMethod`. `fairbound.check_algorithm` tests a method.

    Float fields may hold tensors when many runs are stacked, so `update` never branches on their
    values in Python.

    >>> from fairbound import DescentAscent
    >>> sample = Sample.of(
    ...     lambda x: ((x - 2).square().sum() / 2, x - 1)
    ... )  # min (x-2)^2/2  s.t.  x <= 1
    >>> method = DescentAscent(tau=0.1, eta=0.1)
    >>> x = torch.zeros(1, dtype=torch.float64)
    >>> state = method.init(x, m=1)
    >>> for k in range(500):
    ...     d, state = method.update(x, state, Draw.of(sample))
    ...     x = x + d
    >>> round(x.item(), 4), round(method.multipliers(state).item(), 4)
    (1.0, 1.0)
    """

    solves: ClassVar[Literal["kkt", "penalty"] | None] = None
    """What the iterates tend to: a KKT point, the minimizer of a penalized objective, or neither
    (SGD)."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Names the settings of a method where one is given that it does not have."""
        known = [
            name for name, field in getattr(cls, "__dataclass_fields__", {}).items() if field.init
        ]
        unknown = [name for name in settings if name not in known]
        if unknown and known:
            rate = (
                "; in a loop the learning rate is the optimizer's"
                if unknown[0] in ("lr", "learning_rate")
                else ""
            )
            raise TypeError(
                f"{cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(known)}{rate}"
            )
        return super().__new__(cls)

    @property
    def evaluates(self) -> tuple[str, ...]:
        """What each mini-batch of a step is asked for, "f", "c" or "fc"; the mini-batches are
        independent."""
        return ("fc",)

    @property
    def batch_size_probs(self) -> tuple[float, ...] | None:
        """Probabilities of the levels 0, 1, ... of a random batch size; None where sizes are
        fixed."""
        return None

    @property
    @final
    def draws(self) -> int:
        """Mini-batches per step."""
        return len(self.evaluates)

    @abstractmethod
    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> _State:
        """State at the start.

        Args:
            x: (n,) the starting point.
            m: number of constraints.
            first: an estimate at `x`; None where a loop has none, or where a mini-batch shows few
                of very many rows.
            equality: (m,) bool, the constraints that are c = 0 instead of c <= 0; None: none is.
        """

    @abstractmethod
    def update(self, x: Tensor, state: _State, draw: Draw) -> tuple[Tensor, _State]:
        """The step `d` and the next state; the next point is `x + d`."""

    @abstractmethod
    def primal_step(self, state: _State) -> float | Tensor:
        """The step size that a user's learning rate replaces: in a loop, `.grad` receives d divided
        by minus it."""

    def output(self, x: Tensor, state: _State) -> Tensor:
        """What the method returns after its last step: (n,)."""
        return x

    def multipliers(self, state: _State) -> Tensor | None:
        """The current estimate of the multipliers, (m,), for the methods that have one."""
        return None

    def monitor(self, state: _State) -> dict[str, Tensor]:
        """Scalars that describe the progress of the method: feasible steps, kappa. `diagnostics`
        reads them."""
        return {}


class Schedule(ABC):
    """A number for every step."""

    @abstractmethod
    def at(self, k: Tensor) -> Tensor:
        """The value at step k: ()."""


def value(setting: float | Tensor | Schedule, k: Tensor) -> float | Tensor:
    """The setting at step k, whether it is constant or a schedule."""
    return setting if isinstance(setting, float | Tensor) else setting.at(k)


class Primal(Protocol):
    """How x moves along a gradient, as a `torch.optim` optimizer does in a loop
    (`algorithms.primal`)."""

    def init(self, x: Tensor) -> Any:
        """State at the start."""

    def step(self, g: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The step d (n,) and the next state, from the gradient g (n,)."""


class Iterate(NamedTuple):
    """A multiplier method's state, and what has the size of x: smoothing and the primal's state."""

    method: Any  # what `start` and `step` return
    z: Tensor  # (n,) the smoothed x; () without smoothing
    primal: Any  # the primal's state; () under SGD(tau)
    measured: Measurements | tuple[()] = ()  # of a method that `measures`


class MultiplierMethod(Algorithm[Any], Generic[_State]):
    """A method whose step is one gradient, grad f + J'w, with weights w and a state of O(m)
    numbers.

    It implements `start` and `step`, elementwise and independent of x, so that a loop can run it at
    any scale: c, w, example weights, one backward pass. Its state is a NamedTuple of tensors (m,)
    and (); `k` counts the steps, `y` are the multipliers where it has them, the other scalars are
    monitors.

    >>> from fairbound import DescentAscent
    >>> method = DescentAscent(eta=0.5)
    >>> w, state = method.step(method.start(torch.zeros(()), m=2), torch.tensor([0.2, -1.0]))
    >>> w, state.y  # this step's weights, and the next multipliers
    (tensor([0., 0.]), tensor([0.1000, 0.0000]))
    """

    # a field: the step of x where no other primal is given, x+ = x - tau (grad f + J'w)
    tau: float | Schedule

    @property
    def smoothing(self) -> tuple[float, float] | None:
        """(mu, beta): the gradient is increased by mu (x - z), then z += beta (x - z), both with
        the old x."""
        return None

    @property
    def row_wise(self) -> bool:
        """Whether rows are independent: a driver may then keep a table of them and update those in
        a batch."""
        return False

    measures: ClassVar[bool] = False
    """Whether `step` takes `sizes=`, which drivers then measure now and then (`Sizes`)."""

    @abstractmethod
    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> _State:
        """State at the start.

        Args:
            like: a tensor of the right precision and device, for `like.new_zeros(m)`.
            m: number of constraints.
            equality: (m,) bool, the constraints that are c = 0 instead of c <= 0; None: none is.
            first: (m,) c at the starting point, or None.
        """

    @abstractmethod
    def step(self, state: _State, *values: Tensor) -> tuple[Tensor | None, _State]:
        """w (m,) and the next state, from the values c (m,) of the step's mini-batches; w is None
        for SGD.

        That of a method that `measures` has one more argument, `sizes: Sizes | None = None`.
        """

    # Derived, once for all ------------------------------------------------------------------------

    @final
    def init(
        self,
        x: Tensor,
        m: int,
        first: Estimate | None = None,
        equality: Tensor | None = None,
        primal: Primal | None = None,
    ) -> _State | Iterate:
        state = self.start(x.new_zeros(()), m, equality, None if first is None else first.c)
        if self.smoothing is None and primal is None and not self.measures:
            return state
        z = x.new_zeros(()) if self.smoothing is None else x.clone()
        measured = Measurements.begin(x, m, len(sampled(len(x))[0])) if self.measures else ()
        return Iterate(state, z, () if primal is None else primal.init(x), measured)

    @final
    def update(
        self,
        x: Tensor,
        state: _State | Iterate,
        draw: Draw,
        primal: Primal | None = None,
        probe: bool = True,
    ) -> tuple[Tensor, _State | Iterate]:
        """`probe`: whether the sizes of a method that `measures` are measured here, by two more
        backward passes."""
        estimates = [sample(x) for sample in draw.unpack(self)]
        before, main = inner(state), estimates[main_draw(self)]
        measured = state.measured if isinstance(state, Iterate) else ()
        if isinstance(measured, Measurements):
            at, weight = sampled(len(x))
            at, m = at.to(x.device), len(main.c)
            measured = measured.complete(x[at], weight)
            sizes = {"sizes": measured.sizes(m)}
            w, new = self.step(before, *(e.c for e in estimates), **sizes)
            if probe:
                row = measured.next_row(m, main.absent)
                measured = measured.probe(row, x[at], main.grad(f=1.0)[at], main.grad(c=row)[at])
        else:
            w, new = self.step(before, *(e.c for e in estimates))
        g = main.grad(f=1.0, c=w)
        if not isinstance(state, Iterate):
            return -value(self.tau, before.k) * g, new
        z, memory = state.z, state.primal
        if self.smoothing is not None:
            mu, beta = self.smoothing
            g, z = g + mu * (x - z), torch.lerp(z, x, beta)
        if primal is None:
            d = -value(self.tau, before.k) * g
        else:
            d, memory = primal.step(g, memory)
        return d, Iterate(new, z, memory, measured)

    @final
    def primal_step(self, state: _State | Iterate) -> float | Tensor:
        return value(self.tau, inner(state).k)

    @final
    def multipliers(self, state: _State | Iterate) -> Tensor | None:
        y: Tensor | None = getattr(inner(state), "y", None)
        return y

    def monitor(self, state: _State | Iterate) -> dict[str, Tensor]:
        fields = inner(state)._asdict()
        return {name: leaf for name, leaf in fields.items() if leaf.ndim == 0 and name != "k"}


def inner(state: Any) -> Any:
    """The state of the multiplier method itself, without what has the size of x."""
    return state.method if isinstance(state, Iterate) else state


def main_draw(method: Algorithm[Any]) -> int:
    """Index of the mini-batch of a step that the objective is evaluated on."""
    return next(i for i, evaluates in enumerate(method.evaluates) if "f" in evaluates)


def equality_mask(x: Tensor, m: int, equality: Tensor | None) -> Tensor:
    """(m,) 1 for the constraints that are c = 0, else 0, in the precision of x: for a method's
    state."""
    return x.new_zeros(m) if equality is None else equality.to(x)


def capped(y: Tensor, y_max: float, count: Tensor) -> tuple[Tensor, Tensor]:
    """(m,) multipliers within y_max, and the () steps after which one stood there; without a cap
    there are none."""
    if isinstance(y_max, float) and y_max == inf:
        return y, count
    y = y.clamp(-y_max, y_max)
    return y, count + (y.abs() >= y_max).any()


def refuse_equality(method: Algorithm[Any], equality: Tensor | None) -> None:
    """Raise if there are equalities: for `init` or `start` of a method that takes c <= 0 only."""
    if equality is not None and bool(equality.any()):
        raise ValueError(
            f"{type(method).__name__} is for constraints c <= 0, and {int(equality.sum())} of"
            f" {len(equality)} are equalities; use a method that takes them, such as DescentAscent,"
            " SSLALM or StochasticGhost"
        )


def violations(c: Tensor, equality: Tensor | None) -> Tensor:
    """(..., m) |c| of the constraints c = 0, c of the others: each is met where this is at most
    0."""
    return c if equality is None else torch.where(equality.to(c.device) > 0, c.abs(), c)
