"""Linear methods on symbols: what is linear, that it equals the method on flat vectors, and the memory it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from loops import LR, WholeVectors, flat, knowledge, network, numbers_for, people, rows_of, step, three_constraints
from methods import IN_A_LOOP as METHODS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairbound import Constrained, constraints
from fairbound.algorithms import (
    SSLALM,
    AdamDescentAscent,
    DescentAscent,
    Extragradient,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.algorithms.schedules import Linear
from fairbound.algorithms.switching import Adaptive
from fairbound.core import Algorithm, Draw, Estimate
from fairbound.integrations.torch import flat_params
from fairbound.integrations.torch.flat_params import FlatParams
from fairbound.integrations.torch.vectors import Combination, Vector, why_not_linear

WHO = people()
PARITY = constraints.loss_parity(["A", "B"], bound=0.02)
GROUP = torch.arange(12) % 2


class Velocity(NamedTuple):
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class Heavy(Algorithm[Velocity]):
    """Momentum: a new vector that has the gradient in it."""

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> Velocity:
        return Velocity(torch.zeros_like(x))

    def update(self, x: Tensor, state: Velocity, draw: Draw) -> tuple[Tensor, Velocity]:
        v = 0.9 * state.v + draw.samples[0](x).grad(f=1.0)
        return -0.1 * v, Velocity(v)

    def primal_step(self, state: Velocity) -> float:
        return 0.1


NOT_LINEAR: dict[str, Algorithm[Any]] = {
    "a vector of the model's size": WholeVectors(),  # clamp
    "square of": SwitchingSubgradient(eta_c=Adaptive()),
    "made of others": Heavy(),
    "stack": StochasticGhost(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_which_methods_are_linear(method: Algorithm[Any]) -> None:
    """Switching reads the norm of a gradient, Adam its squares; the optimistic form keeps one."""
    found = why_not_linear(method, FlatParams(network()).x)
    assert (found is None) is not isinstance(
        method, StochasticGhost | SwitchingSubgradient | AdamDescentAscent | Extragradient
    )


@pytest.mark.parametrize("why", NOT_LINEAR)
def test_what_is_not_linear_is_found(why: str) -> None:
    assert why in str(why_not_linear(NOT_LINEAR[why], FlatParams(network()).x))


EXPRESSIONS: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "sum": lambda a, b, c: -0.1 * (a + 2 * (b - a)),
    "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
    "where": lambda a, b, c: torch.where(c > 0, a, b) - torch.where(c < 0, a, b),
    "a tensor's": lambda a, b, c: c * a + a * c - torch.mul(c, b) / c + torch.mul(a, c),
    "zero": lambda a, b, c: b - torch.zeros_like(a) + torch.clone(a).clone(),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_combination_is_what_its_vectors_give(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((5,), (5,), ()))
    like = torch.ones(())
    found = EXPRESSIONS[name](*(Combination({Vector([v]): 1.0}, like) for v in (a, b)), c)
    total = sum(v.tensors[0] * coefficient for v, coefficient in found.vectors().items())
    assert torch.allclose(total, EXPRESSIONS[name](a, b, c))


@pytest.mark.parametrize("wrong", [lambda v: v + 1.0, lambda v: v * v, lambda v: v.norm(), lambda v: torch.ones(3) * v])
def test_what_is_no_combination_is_a_type_error(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        wrong(Combination({Vector([torch.ones(3)]): 1.0}, torch.ones(())))


class Texts(nn.Module):
    """Sparse and unused parameters, in two precisions."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 3, sparse=sparse)
        self.unused = nn.Parameter(torch.ones(2))
        self.large = nn.Parameter(torch.full((3,), 1e4))
        self.narrow = nn.Parameter(torch.randn(3).to(torch.bfloat16))

    def forward(self, rows: Tensor) -> Tensor:
        rest = 1e-4 * self.large.sum() + self.narrow.float().sum()
        return (self.words(rows).sum(-1) + rest).square()


def trained(method: Algorithm[Any], sparse: bool, accumulated: bool) -> tuple[Texts, Constrained]:
    model = Texts(sparse)
    fair = Constrained(model, PARITY, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for k in range(4):
        if not accumulated:
            optimizer.zero_grad()
        fair.backward(model((torch.arange(12) * (k + 1)) % 7), GROUP, scale=0.5)
        if k % 2 or not accumulated:
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(k % 4))
    fair.backward(model(torch.arange(12) % 7), GROUP)
    return model, fair


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_in_place_equals_flat(sparse: bool, accumulated: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parameters of size 10^4 whose distance from their smoothed copy is small, and with few at a time."""
    monkeypatch.setattr(flat_params, "AT_ONCE", at_once)
    settings: dict[str, Any] = {"samples": 1, "tau": 0.01, "mu": 0.5}
    (model, fair), (other, whole) = (trained(kind(**settings), sparse, accumulated) for kind in (SSLALM, WholeVectors))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None) == (p is model.unused)
        if p.grad is not None:
            assert q.grad is not None
            assert torch.allclose(
                p.grad.to_dense().float(), q.grad.to_dense().float(), rtol=1e-2 if p is model.narrow else 1e-4
            )
    for a, b in zip(knowledge(fair), knowledge(whole), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [DescentAscent(tau=Linear(0.05, 2, 0.0)), SSLALM(samples=1, tau=0.0)])
def test_a_step_of_zero_is_no_direction(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, three_constraints(), method)
    for numbers in numbers_for(method, 4, WHO):
        step(fair, torch.optim.SGD(model.parameters(), lr=LR), model, WHO, numbers)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


class Largest(TorchDispatchMode):
    """The tensors that operations make, by their number of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.sizes += [found.numel()] if isinstance(found, Tensor) else []
        return found


@pytest.mark.parametrize(("method", "vectors"), [(DescentAscent(), 0), (SSLALM(samples=1), 1)])
def test_no_vector_of_the_model_s_size_is_made(method: Algorithm[Any], vectors: int) -> None:
    """Of a model of several parameters; the state keeps what it began with."""
    model = network()
    fair = Constrained(model, three_constraints(), method)
    rows = [rows_of(model, WHO, torch.arange(24)) for _ in range(2)]

    def addresses() -> list[list[int]]:
        found = [v for leaf in fair._steps.state.state if isinstance(leaf, Combination) for v in leaf.terms]
        return [[part.data_ptr() for part in v.tensors] for v in found if isinstance(v, Vector)]

    fair.backward(rows[0])
    before = addresses()
    assert len(before) == vectors
    with Largest() as made:
        fair.backward(rows[1])
    assert addresses() == before
    assert flat(model).numel() not in made.sizes
    assert max(made.sizes) <= 24 * 6  # the activations
