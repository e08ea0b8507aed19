"""Vectors of the model's size without a copy: `update` runs on symbols, and the result is evaluated in place.

A step that is linear in x, its gradients and the state's vectors (SGD, penalties, descent-ascent, SSL-ALM) needs none
of their numbers: `update` gets a `Combination`, a coefficient for each `Vector`, and
gives one. The coefficient of a gradient goes into the weights of its backward pass, the rest is added to `.grad`.
Whether a method is linear is found by a trial, `why_not_linear`; one that is not runs on flat vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.core import Algorithm, CellGradients, Draw, Estimate, Sample

Coefficient = float | Tensor  # a tensor is ()


class Vector:
    """A vector of the model's size, one tensor for each parameter; known by its identity."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors


class Gradient:
    """The gradient of a mini-batch, not computed yet; `asked` is what its backward pass needs."""

    def __init__(self, *asked: Any) -> None:
        self.asked = asked


class NotLinearError(TypeError):
    """An operation that is not linear in the vectors."""


class Combination:
    """A linear combination; `like` is an ordinary tensor with the precision and device of the vectors."""

    def __init__(self, terms: dict[Vector | Gradient, Coefficient], like: Tensor) -> None:
        self.terms, self.like = terms, like

    def gradients(self) -> list[tuple[Gradient, Coefficient]]:
        return [(one, c) for one, c in self.terms.items() if isinstance(one, Gradient)]

    def vectors(self) -> dict[Vector, float]:
        """The other terms, with numbers as coefficients; those of 0 are left out."""
        found = {one: float(c) for one, c in self.terms.items() if isinstance(one, Vector)}
        return {one: c for one, c in found.items() if c}

    def divided(self, step: Coefficient) -> Combination:
        """Divided by a step size; 0 for a step of 0, whose d is 0."""
        if isinstance(step, Tensor):
            return Combination({one: torch.where(step == 0, 0.0, c / step) for one, c in self.terms.items()}, self.like)
        return self / step if step else self * 0.0

    def _times(self, factor: Any) -> Combination:
        factor = _scalar(factor)
        return Combination({one: c * factor for one, c in self.terms.items()}, self.like)

    def _plus(self, other: Any) -> Combination:
        if not isinstance(other, Combination):
            raise NotLinearError(f"a vector of the model's size plus {type(other).__name__}")
        terms = dict(self.terms)
        for one, c in other.terms.items():
            terms[one] = terms[one] + c if one in terms else c
        return Combination(terms, self.like)

    __mul__ = __rmul__ = _times
    __add__ = __radd__ = _plus

    def __truediv__(self, divisor: Any) -> Combination:
        divisor = _scalar(divisor)
        return Combination({one: c / divisor for one, c in self.terms.items()}, self.like)

    def __neg__(self) -> Combination:
        return self._times(-1.0)

    def __sub__(self, other: Any) -> Combination:
        return self._plus(-other)

    def __rsub__(self, other: Any) -> Combination:
        return (-self)._plus(other)

    def clone(self) -> Combination:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("new_") or name in ("dtype", "device", "is_cpu"):
            return getattr(self.like, name)
        if name.startswith("__"):
            raise AttributeError(name)  # as `inspect` and `copy` expect
        raise NotLinearError(f"{name} of a vector of the model's size")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in FUNCTIONS:
            raise NotLinearError(f"{getattr(func, '__name__', func)} of a vector of the model's size")
        return FUNCTIONS[func](*args, **(kwargs or {}))


def _scalar(value: Any) -> Coefficient:
    if not isinstance(value, int | float | Tensor) or (isinstance(value, Tensor) and value.ndim):
        raise NotLinearError(f"a vector of the model's size times or over {type(value).__name__}")
    return value


def _where(mask: Tensor, one: Any, other: Any) -> Any:
    chosen = mask.to((one if isinstance(one, Combination) else other).dtype)
    return one * chosen + other * (1 - chosen)


FUNCTIONS: dict[Any, Callable[..., Any]] = {  # of torch, beside the operators
    torch.mul: lambda a, b: b * a if isinstance(b, Combination) else a * b,
    Tensor.mul: lambda a, b: b * a,
    Tensor.add: lambda a, b: b + a,
    Tensor.sub: lambda a, b: -b + a,
    Tensor.to: lambda a, b: a.to(b.like),
    torch.lerp: lambda a, b, weight: a + (b - a) * weight,
    torch.where: _where,
    torch.clone: lambda a: a,
    torch.zeros_like: lambda a: Combination({}, a.like),
}


def why_not_linear(algorithm: Algorithm[Any], x: Combination) -> Exception | None:
    """What a method does that is not linear, found by a step of it on symbols; None: its steps are linear.

    Its step must be a combination of gradients, x and the state's vectors, each new vector one of x and the old one.
    """
    m, zero = 2, x.new_zeros(())
    cells = CellGradients(m, _no_jacobian, lambda rows: rows)

    def at(point: Any) -> Estimate:
        if point is not x:
            raise NotLinearError("a mini-batch at a second point")
        return Estimate(zero, x.new_zeros(m), lambda w: Combination({Gradient(): 1.0}, x.like), cells)  # type: ignore[arg-type, return-value]

    try:
        state = algorithm.init(x, m, at(x) if algorithm.needs_initial_estimate else None, None)  # type: ignore[arg-type]
        old = [Vector([]) if isinstance(leaf, Combination) else None for leaf in tree_leaves(state)]
        leaves = [
            leaf if one is None else Combination({one: 1.0}, x.like)
            for leaf, one in zip(tree_leaves(state), old, strict=True)
        ]
        state = tree_unflatten(state, iter(leaves))
        draws = algorithm.draws if algorithm.batch_size_probs is None else 4
        d, new = algorithm.update(x, state, Draw((Sample(at),) * draws, zero + 1, zero))  # type: ignore[arg-type]
        if not isinstance(d, Combination) or not d.gradients():
            raise NotLinearError("a step without a gradient")
        for leaf, one in zip(tree_leaves(new), old, strict=True):
            if (one is not None) != isinstance(leaf, Combination):
                raise NotLinearError("a vector of the model's size that comes or goes")
            if isinstance(leaf, Combination) and not leaf.terms.keys() <= {one, *x.terms}:
                raise NotLinearError("a new vector made of others than x and the old one")
    except Exception as error:
        return error
    return None


def _no_jacobian() -> Tensor:
    raise NotLinearError("a Jacobian")


# In place -------------------------------------------------------------------------------------------------------------


def add_sum(targets: list[Tensor], terms: list[tuple[list[Tensor], float]]) -> None:
    """targets += the sum of c v over the terms (v, c), which are added first: x - z is exact then."""
    if not terms or not targets:
        return
    (total, scale), *rest = terms
    for tensors, c in rest:
        total = torch._foreach_add(total, tensors, alpha=c / scale)  # type: ignore[assignment]
    torch._foreach_add_(targets, total, alpha=scale)


def move(own: list[Tensor], kept: float, terms: list[tuple[list[Tensor], float]]) -> None:
    """own = kept * own + the sum of c v over the terms (v, c)."""
    if len(terms) == 1 and abs(kept + terms[0][1] - 1.0) < 1e-12:
        torch._foreach_lerp_(own, *terms[0])  # one pass
        return
    if kept != 1.0:
        torch._foreach_mul_(own, kept)
    add_sum(own, terms)
