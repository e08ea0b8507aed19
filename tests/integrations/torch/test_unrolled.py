"""Formulas over a few constraints as plain numbers: the same steps as in tensors, and tensors wherever they end."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fairbound import ALGORITHMS, SSLALM, Constrained, DescentAscent, limits
from fairbound.algorithms.schedules import InverseSqrt, Schedule
from fairbound.core import Algorithm, Draw, Estimate, Sample
from fairbound.integrations.torch.gradients import _quotient
from fairbound.integrations.torch.undivided import Product, undivided
from fairbound.integrations.torch.unrolled import MOST, Unrolled, Weights, unrolled
from fairbound.integrations.torch.unrolled import _quotient as divided

METHODS: list[Algorithm[Any]] = [
    DescentAscent(),
    DescentAscent(eta=0.5, y_max=0.3),
    SSLALM(samples=1),
    SSLALM(samples=1, eta=0.9, y_max=0.8),
    SSLALM(samples=1, eta=0.9, y_max=0.8, clamp=True),
    SSLALM(samples=1, mu=0.0),
    ALGORITHMS["SGD"](),
]
EACH = pytest.mark.parametrize("method", METHODS, ids=str)


def program(method: Algorithm[Any], m: int = 2, dtype: torch.dtype = torch.float64) -> Unrolled:
    found = unrolled(undivided(method), m, dtype)
    assert found is not None
    return found


def direction(d: Tensor | Product, method: Algorithm[Any], state: Any) -> Tensor:
    return _quotient(d, method.primal_step(state))


@EACH
@pytest.mark.parametrize("m", [1, 2, MOST])
def test_steps_in_numbers_are_steps_in_tensors(method: Algorithm[Any], m: int) -> None:
    """300 steps on noisy linear constraints, float64; with the caps above, multipliers meet them."""
    generator = torch.Generator().manual_seed(m)
    a, J = torch.randn(4, generator=generator).double(), torch.randn(m, 4, generator=generator).double()
    own, x = program(method, m), torch.zeros(4, dtype=torch.float64)
    state = method.init(x, m, Estimate(x.sum(), -torch.ones(m).double(), lambda w: x))
    plain, met = own.plain(state), 0
    for _ in range(300):
        c = J @ x + 0.3 * torch.randn(m, generator=generator).double()

        def grad(f: float = 0.0, c: Tensor | None = None, at: Tensor = x) -> Tensor:
            return f * (at - a) + (0 if c is None else J.T @ c)

        sample = Sample(lambda at, c=c, grad=grad: Estimate(c[0], c, lambda w: grad(w[0], w[1:])))  # type: ignore[misc]
        d, state = method.update(x, state, Draw.of(sample))
        of_numbers, plain = own.step(plain, c.tolist(), x, grad)
        assert torch.allclose(direction(of_numbers, method, state), direction(d, method, state), rtol=1e-10, atol=1e-12)
        for left, right in zip(own.tensors(plain), state, strict=True):
            assert left.shape == right.shape
            assert torch.allclose(left, right.double(), rtol=1e-10, atol=1e-12)
        x = x + 0.2 * d
        met = max(met, *(int(value) for value in method.monitor(state).values()), 0)
    assert met > 0 or getattr(method, "y_max", math.inf) > 5


@dataclass(frozen=True, kw_only=True)
class Louder(SSLALM):
    """A user's own, which may do anything."""


@pytest.mark.parametrize(
    "method",
    [
        DescentAscent(tau=InverseSqrt(0.1)),
        DescentAscent(eta=InverseSqrt(0.1)),
        Louder(samples=1),
        ALGORITHMS["SwitchingSubgradient"](),
        ALGORITHMS["Penalty"](),
    ],
    ids=["tau", "eta", "a user's", "switching", "penalty"],
)
def test_what_cannot_be_unrolled_stays_in_tensors(method: Algorithm[Any]) -> None:
    assert unrolled(undivided(method), 2, torch.float32) is None


@pytest.mark.parametrize("m", [0, MOST + 1])
def test_none_and_many_constraints_stay_in_tensors(m: int) -> None:
    assert unrolled(DescentAscent(), m, torch.float32) is None


@EACH
def test_a_new_state_is_one_that_tensors_hold(method: Algorithm[Any]) -> None:
    """So that a loop resumed from tensors goes on bit for bit."""
    own, x = program(method, 2, torch.float32), torch.ones(3)
    plain = own.plain(method.init(x, 2, Estimate(x.sum(), torch.tensor([-0.1, 0.3]), lambda w: x)))
    for _ in range(5):
        plain = own.step(plain, [0.1, -0.3], x, lambda f, c: x / 3)[1]
        assert own.plain(own.tensors(plain)).numbers == plain.numbers


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_has_memory_of_its_own(copied: Any) -> None:
    own = program(DescentAscent(), 2, torch.float32)
    plain, seen = own.plain(DescentAscent().init(torch.ones(1), 2)), []

    def keep(f: float, c: Tensor) -> Tensor:
        seen.append(c)
        return torch.ones(1)

    plain = own.step(plain, [1.0, 2.0], torch.ones(1), keep)[1]
    copied(own).step(plain, [1.0, 2.0], torch.ones(1), keep)
    assert seen[0].tolist() == [0.0, 0.0]  # the first step's, not the copy's
    assert seen[1].tolist() != [0.0, 0.0]


def test_numbers_beyond_single_precision_are_infinite() -> None:
    tensor_of = Weights(2, torch.float32)
    assert tensor_of(1.0, 2.0).tolist() == [1.0, 2.0]
    assert tensor_of(1e300, 0.0).tolist() == [math.inf, 0.0]
    own = program(DescentAscent(eta=1.0), 1, torch.float32)
    state = own.plain(DescentAscent().init(torch.ones(1), 1))
    assert own.step(state, [1e300], torch.ones(1), lambda f, c: torch.ones(1))[1].numbers[0] == math.inf


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (-1.0, 0.0), (1.0, -0.0), (0.0, 0.0), (math.nan, 0.0), (3.0, 4.0)])
def test_a_division_by_zero_is_torch_s(a: float, b: float) -> None:
    expected = float(torch.tensor(a) / torch.tensor(b))
    assert divided(a, b) == expected or (math.isnan(divided(a, b)) and math.isnan(expected))


@pytest.mark.parametrize("method", [DescentAscent(eta=1e38), SSLALM(samples=1, eta=1e38, y_max=math.inf)], ids=str)
def test_a_loop_whose_multipliers_overflow_leaves_the_step_out(method: Algorithm[Any]) -> None:
    """Whatever was in `.grad` stays there."""
    model = nn.Linear(2, 1)
    fair = Constrained(model, limits.loss_parity(["A", "B"], bound=0.0), method)
    X, group = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.5, 0.1], [2.0, 2.0]]), torch.tensor([0, 0, 1, 1])
    fair.start(model(X)[:, 0].square(), group)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    losses = (model(X)[:, 0] + 1).square() * torch.tensor([1e4, 1e4, 1.0, 1.0])
    with pytest.warns(RuntimeWarning, match="left out"):
        seen = fair.backward(losses, group)
    assert seen.skipped
    assert all(y == 0 for y in fair.multipliers.values())
    assert all((p.grad == 7.0).all() for p in model.parameters())


@pytest.mark.parametrize("method", [DescentAscent(eta=0.1), SSLALM(samples=1, eta=0.1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loop_in_numbers_is_the_loop_in_tensors(method: Algorithm[Any], dtype: torch.dtype) -> None:
    def trained(in_tensors: bool) -> tuple[nn.Module, Constrained]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        fair = Constrained(model, limits.loss_parity(["A", "B"], bound=0.01), method)
        if in_tensors:
            fair._steps.progress.unrolled = None
        for _ in range(60):
            optimizer.zero_grad()
            X, group = torch.randn(16, 3, dtype=dtype), torch.randint(2, (16,))
            fair.backward((model(X) - group - X[:, 0]).square(), group)
            optimizer.step()
        return model, fair

    model, fair = trained(in_tensors=False)
    assert fair._steps.progress.plain is not None
    twin, other = trained(in_tensors=True)
    assert other._steps.progress.plain is None
    within = 1e-12 if dtype is torch.float64 else 1e-5
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=within, atol=within)
    assert max(fair.multipliers.values()) > 0.01
    for name, y in fair.multipliers.items():
        assert y == pytest.approx(other.multipliers[name], rel=10 * within, abs=10 * within)


class Outside(Schedule):
    """A rate that lives elsewhere, as in an optimizer: what a program would have written down for good."""

    rate: ClassVar[float] = 0.5

    def at(self, k: Tensor) -> Tensor:
        return torch.as_tensor(self.rate * (1 + 0 * k))


def test_a_schedule_is_asked_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    fair = Constrained(model, limits.bounded_group_loss(["A", "B"], bound=0.0), DescentAscent(eta=Outside()))
    X, group = torch.ones(4, 2), torch.arange(4) % 2
    fair.backward(model(X)[:, 0].square() + 1, group)
    before = fair.multipliers
    monkeypatch.setattr(Outside, "rate", 0.0)
    fair.backward(model(X)[:, 0].square() + 1, group)
    assert fair.multipliers == before


def test_a_multiplier_at_its_cap_is_counted_as_in_tensors() -> None:
    """The nearest number of single precision to .7 is below .7."""
    method = DescentAscent(eta=1.0, y_max=0.7)
    own, x = program(method, 1, torch.float32), torch.ones(1)
    state = method.init(x, 1)
    plain = own.plain(state)
    for c in [1.0, 0.0, 0.0]:
        state = method.update(x, state, Draw.of(Sample.of(lambda x, c=c: (x.sum(), 0 * x + c))))[1]  # type: ignore[misc]
        plain = own.step(plain, [c], x, lambda f, c: x)[1]
    assert float(own.tensors(plain).capped) == float(state.capped) == 3
