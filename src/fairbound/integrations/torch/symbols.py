"""Symbols that stand for tensors while a method runs, and write down what is done with them.

A vector of m numbers is m names, a scalar is one, and so is a vector of the model's size, on which torch's operations
are written down. What a symbol does not know raises `UnknownError`.

>>> program = Program(torch.float64)
>>> y, c = (Symbol(program, [f"{name}_0", f"{name}_1"], "m") for name in "yc")
>>> torch.relu(y + 0.1 * c).names
['v4', 'v5']
>>> program.lines[2:]
['v2 = y_0 + v0', 'v3 = y_1 + v1', 'v4 = 0.0 if v2 <= 0.0 else v2', 'v5 = 0.0 if v3 <= 0.0 else v3']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from fairbound.integrations.torch.undivided import StepSize


class UnknownError(Exception):
    """Something that is not unrolled."""


class Program:
    """Lines of Python for numbers of one precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.lines: list[str] = []
        self.dtype = dtype

    def constant(self, value: float) -> str:
        """A setting as torch would read it beside tensors: a multiplier at its cap is at the cap that is kept."""
        if not isinstance(value, float):
            return repr(value)
        return repr(torch.tensor(value, dtype=self.dtype, device="cpu").item())

    def named(self, expression: str) -> str:
        """A new name for what an expression gives."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name


class Symbol:
    """Stands for a tensor while the program is written."""

    is_cpu = False  # `one_more` then writes k + 1

    def __init__(self, program: Program, names: Sequence[str], shape: str) -> None:
        self.program = program
        self.names = list(names)  # one for every number; one for a whole vector of the model's size
        self.shape_of = shape  # "m", "n", or "" for a scalar

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownError(name)

    def __bool__(self) -> NoReturn:
        raise UnknownError("a branch on a value")

    def __eq__(self, other: object) -> NoReturn:
        raise UnknownError("a branch on a value")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Symbol:
        if func not in FUNCTIONS:
            raise UnknownError(func)
        return FUNCTIONS[func](*args, **(kwargs or {}))

    def __add__(self, other: Any) -> Symbol:
        return linear("{} + {}", self, other)

    def __sub__(self, other: Any) -> Symbol:
        return linear("{} - {}", self, other)

    def __mul__(self, other: Any) -> Symbol:
        return linear("{} * {}", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        if isinstance(other, StepSize) and self.shape_of == "n":
            return linear(f"Product({float(other)!r}, {{}})", self)
        return linear("{} * {}", other, self)

    def __rtruediv__(self, other: Any) -> Symbol:
        return written("quotient({}, {})", other, self)

    def __ge__(self, other: Any) -> Symbol:
        return written("{} >= {}", self, other)

    def masked_fill(self, mask: Any, value: float) -> Symbol:
        return written("{1} if {2} else {0}", self, value, mask)

    def clamp(self, *, max: float) -> Symbol:  # noqa: A002  # the name that torch has
        return written("{1} if {0} >= {1} else {0}", self, max)

    def any(self) -> Symbol:
        return Symbol(self.program, [self.program.named(" or ".join(self.names))], "")


def written(form: str, *operands: Any) -> Symbol:
    """What is done with numbers alone."""
    if any(isinstance(one, Symbol) and one.shape_of == "n" for one in operands):
        raise UnknownError(form)
    return linear(form, *operands)


def linear(form: str, *operands: Any) -> Symbol:
    """A line for every number of the result; a scalar, or a constant, serves them all."""
    for one in operands:
        if not isinstance(one, Symbol | float | int):  # a tensor, which is no constant
            raise UnknownError(type(one))
    symbols = [one for one in operands if isinstance(one, Symbol)]
    shape = "".join(sorted({one.shape_of for one in symbols}))
    if shape == "mn":
        raise UnknownError(form)
    program, width = symbols[0].program, max(len(one.names) for one in symbols)
    lines = [form.format(*(_at(program, one, i) for one in operands)) for i in range(width)]
    return Symbol(program, [program.named(line) for line in lines], shape)


def _at(program: Program, operand: Any, i: int) -> str:
    if isinstance(operand, Symbol):
        return operand.names[i if len(operand.names) > 1 else 0]
    return program.constant(operand)


def _sum(y: Any, x: Any, *, alpha: float = 1.0) -> Symbol:
    if isinstance(y, Symbol) and y.shape_of == "n":
        return linear(f"torch.add({{}}, {{}}, alpha={float(alpha)!r})", y, x)
    return written("{} + {} * {}", y, alpha, x)


def _norm(y: Symbol) -> Symbol:
    if y.shape_of == "n":
        raise UnknownError("shapes")
    return Symbol(y.program, [y.program.named(f"hypot({', '.join(y.names)})")], "")


FUNCTIONS: dict[Any, Callable[..., Symbol]] = {
    torch.add: _sum,
    torch.relu: lambda y: written("0.0 if {0} <= 0.0 else {0}", y),  # a NaN stays one
    torch.where: lambda mask, a, b: written("{1} if {0} else {2}", mask, a, b),
    torch.linalg.vector_norm: _norm,
}


class SymbolicEstimate:
    """The estimate, and the sample that gives it."""

    def __init__(self, program: Program, m: int) -> None:
        self.program, self.c = program, Symbol(program, [f"c_{i}" for i in range(m)], "m")

    def __call__(self, point: Any) -> SymbolicEstimate:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownError(name)

    def grad(self, f: Any = 0.0, c: Symbol | None = None) -> Symbol:
        weights = "None" if c is None else f"tensor_of({', '.join(c.names)})"
        return Symbol(self.program, [self.program.named(f"grad({_at(self.program, f, 0)}, {weights})")], "n")
