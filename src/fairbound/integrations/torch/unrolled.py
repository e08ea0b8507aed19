"""A method's formulas over a few constraints, unrolled into plain Python numbers.

A step of SSL-ALM is sixteen operations on vectors of m numbers and of n. For two constraints and a small model torch's
calls on the former cost more than the arithmetic of the latter: an eighth of the step. Methods are pure, so `update` is
run once on symbols that write down what is done with them, one line for every number; the program is then run in its
place. What a symbol does not know (a schedule, a branch on a value) ends the writing, and the method stays as it is.

>>> from fairbound.algorithms import DescentAscent
>>> print(unrolled(DescentAscent(tau=0.5, eta=0.1), m=1, dtype=torch.float64).source)
def step(numbers, vectors, c, x, grad):
    (y_0, k, capped) = numbers
    (c_0,) = c
    v0 = grad(1.0, tensor_of(y_0))
    v1 = -0.5 * v0
    v2 = y_0 + 0.1 * c_0
    v3 = 0.0 if v2 <= 0.0 else v2
    v4 = k + 1
    return v1, (v3, v4, capped), ()

Numbers are in double precision; a new state is rounded to that of the loop, so that a state saved in tensors is the
state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.core import Algorithm, Draw
from fairbound.integrations.torch.state_dict import CONSTRAINT, PARAMETER, kinds
from fairbound.integrations.torch.symbols import Program, Symbol, SymbolicEstimate, UnknownError
from fairbound.integrations.torch.undivided import Product

MOST = 16  # constraints: numbers save a tenth there, and with 32 or 64 nothing for descent-ascent


class Plain(NamedTuple):
    """A state as numbers and vectors, in the order of its fields."""

    numbers: tuple[float, ...]
    vectors: tuple[Tensor, ...]


Step = Callable[[tuple[float, ...], tuple[Tensor, ...], list[float], Tensor, Any], tuple[Any, Any, Any]]


class Unrolled:
    """A method's `update` for m constraints as a program, and its state to and from plain numbers."""

    def __init__(self, source: str, form: type, fields: list[str], m: int, dtype: torch.dtype, primal: float) -> None:
        self.source, self.form, self.fields, self.m, self.dtype = source, form, fields, m, dtype
        self.primal_step = primal
        self._made: tuple[Step, Struct] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_made": None}  # a program cannot be pickled; its source can

    def _compiled(self) -> tuple[Step, Struct]:
        names: dict[str, Any] = {"torch": torch, "Product": Product, "hypot": math.hypot, "inf": math.inf}
        names |= {"quotient": _quotient, "tensor_of": Weights(self.m, self.dtype)}
        exec(compile(self.source, f"<{self.form.__module__} unrolled>", "exec"), names)
        width = sum(self.m if field == CONSTRAINT else field != PARAMETER for field in self.fields)
        self._made = names["step"], Struct(f"{width}f")
        return self._made

    def step(self, state: Plain, c: list[float], x: Tensor, grad: Any) -> tuple[Any, Plain]:
        """The step d and the next state, which is one that tensors of the loop's precision can hold."""
        step, single = self._made or self._compiled()
        d, numbers, vectors = step(state.numbers, state.vectors, c, x, grad)
        if self.dtype is torch.float32:  # what is beyond it becomes infinite
            numbers = single.unpack(single.pack(*numbers))
        return d, Plain(numbers, vectors)

    def plain(self, state: Any) -> Plain:
        """A state in numbers."""
        numbers: list[float] = []
        vectors = []
        for leaf, kind in zip(state, self.fields, strict=True):
            if kind == PARAMETER:
                vectors.append(leaf)
            else:
                numbers.extend(leaf.reshape(-1).tolist())
        return Plain(tuple(numbers), tuple(vectors))

    def tensors(self, state: Plain) -> Any:
        """A state in tensors."""
        numbers, vectors, found = iter(state.numbers), iter(state.vectors), []
        for kind in self.fields:
            if kind == PARAMETER:
                found.append(next(vectors))
            elif kind == CONSTRAINT:
                found.append(torch.tensor([next(numbers) for _ in range(self.m)], dtype=self.dtype, device="cpu"))
            else:
                found.append(torch.tensor(next(numbers), dtype=self.dtype, device="cpu"))
        return self.form(*found)


class Weights:
    """A tensor of m numbers, always the same one: making it anew would cost ten times what filling it does."""

    def __init__(self, m: int, dtype: torch.dtype) -> None:
        self.memory, self.format = bytearray(m * dtype.itemsize), Struct(f"{m}{'f' if dtype is torch.float32 else 'd'}")
        self.tensor = torch.frombuffer(self.memory, dtype=dtype)

    def __call__(self, *numbers: float) -> Tensor:
        self.format.pack_into(self.memory, 0, *numbers)
        return self.tensor


def _quotient(a: float, b: float) -> float:
    """a / b as torch has it."""
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def unrolled(algorithm: Algorithm[Any], m: int, dtype: torch.dtype) -> Unrolled | None:
    """The program of one of our methods with one mini-batch a step; None where there is none."""
    ours = type(algorithm).__module__.startswith("fairbound.algorithms.")  # another's may do more than give its result
    constant = all(isinstance(value, float | int) for value in vars(algorithm).values())  # not so a schedule
    if not ours or not constant or algorithm.draws != 1 or not 0 < m <= MOST:
        return None
    try:
        return _written_down(algorithm, m, dtype)
    except (UnknownError, TypeError):
        return None


def _written_down(algorithm: Algorithm[Any], m: int, dtype: torch.dtype) -> Unrolled:
    program, fields, form = Program(dtype), kinds(algorithm), type(algorithm.init(torch.zeros(1), m))
    state = form(*(_given(program, name, kind, m) for name, kind in zip(form._fields, fields, strict=True)))
    primal = algorithm.primal_step(state)
    if not isinstance(primal, float):
        raise UnknownError("a step that changes")
    estimate, x, unread = SymbolicEstimate(program, m), Symbol(program, ["x"], "n"), Symbol(program, [], "")
    made: tuple[Any, Any] = algorithm.update(x, state, Draw((estimate,), unread, unread))  # type: ignore[arg-type]
    d, new = made
    if [one.shape_of for one in (d, *new)] != [one.shape_of for one in (x, *state)]:
        raise UnknownError("another form")
    lines = [f"{_listed(state, large=False)} = numbers", f"{_listed(state, large=True)} = vectors"]
    lines = [line for line in lines if not line.startswith("() ")]
    lines += [f"{_tuple(estimate.c.names)} = c", *program.lines]
    lines += [f"return {d.names[0]}, {_listed(new, large=False)}, {_listed(new, large=True)}"]
    source = "\n    ".join(["def step(numbers, vectors, c, x, grad):", *lines])
    return Unrolled(source, form, fields, m, dtype, float(primal))


def _given(program: Program, name: str, kind: str, m: int) -> Symbol:
    if kind == CONSTRAINT:
        return Symbol(program, [f"{name}_{i}" for i in range(m)], "m")
    return Symbol(program, [name], "n" if kind == PARAMETER else "")


def _listed(state: Sequence[Symbol], large: bool) -> str:
    return _tuple([name for one in state if (one.shape_of == "n") is large for name in one.names])


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
