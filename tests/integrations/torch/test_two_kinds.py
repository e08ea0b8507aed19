"""The two kinds of methods in a loop: what a step of each may hold, do and leave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from loops import (
    F64,
    FIXED,
    LR,
    Partly,
    WholeVectors,
    flat,
    network,
    people,
    rows_of,
    same,
    seeded,
    tensors,
)
from torch import Tensor, nn

from fairbound import Constrained, MiniBatch, constraints
from fairbound.core import Algorithm, MultiplierMethod

WHO = people()
GENERAL = {
    name: method for name, method in FIXED.items() if not isinstance(method, MultiplierMethod)
}
LIMIT = constraints.bounded_group_loss(3, bound=0.3, by="race")


def mini_batch(model: nn.Module) -> MiniBatch:
    return rows_of(model, WHO, torch.arange(60))


class Dual(NamedTuple):
    y: Tensor  # (m,)
    k: Tensor  # ()


@dataclass(frozen=True, kw_only=True)
class Late(MultiplierMethod[Dual]):
    """Dual ascent whose multipliers are clamped from its fourth step on: by an operation, or by a
    branch."""

    tau: float = 0.05
    branches: bool = False

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Dual:
        return Dual(like.new_zeros(m), like.new_zeros(()))

    def step(self, state: Dual, c: Tensor) -> tuple[Tensor, Dual]:
        y = torch.relu(state.y + 0.2 * c)
        if not self.branches:
            y = torch.where(state.k >= 3, y.clamp(max=0.1), y)
        elif float(state.k) >= 3:
            y = y.clamp(max=0.1).round(decimals=3)
        return y, Dual(y, state.k + 1)


@pytest.mark.parametrize("branches", [False, True])
def test_a_step_that_changes_on_the_way_trains(branches: bool) -> None:
    """What it does at first says nothing about what it does later."""
    method, model = Late(branches=branches), network()
    fair = Constrained(model, LIMIT, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    state, largest = method.start(torch.zeros((), dtype=F64), 3), []
    for _ in range(8):
        optimizer.zero_grad()
        batch = mini_batch(model)
        c = torch.stack([batch.losses[WHO.race[:60] == race].mean() for race in range(3)]) - 0.3
        w, state = method.step(state, c.detach())
        expected = torch.autograd.grad(
            batch.losses.mean() + w @ c, [*model.parameters()], retain_graph=True
        )
        assert not fair.backward(batch).skipped
        for p, gradient in zip(model.parameters(), expected, strict=True):
            assert p.grad is not None
            assert torch.allclose(p.grad, gradient, atol=1e-12)
        assert torch.allclose(
            torch.tensor([*fair.multipliers.values()]).double(), state.y, atol=1e-12
        )
        largest.append(max(fair.multipliers.values()))
        optimizer.step()
    assert max(largest[:3]) > 0.1
    assert max(largest[3:]) <= 0.1


# What a state may hold ----------------------------------------------------------------------------


class Mixed(NamedTuple):
    y: Tensor  # (m,)
    active: Tensor  # (m,) bool
    shared: Tensor  # (m,) expanded
    count: Tensor  # () whole
    k: Tensor  # ()


@dataclass(frozen=True, kw_only=True)
class OfAllKinds(MultiplierMethod[Mixed]):
    """A state with bools, whole numbers and an expanded tensor; a setting that is a list."""

    tau: float = 0.05
    etas: Any = None

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Mixed:
        y, zero = like.new_zeros(m), like.new_zeros(())
        return Mixed(y, y > 0, zero.expand(m), zero.long(), zero)

    def step(self, state: Mixed, c: Tensor) -> tuple[Tensor, Mixed]:
        y = torch.relu(state.y + self.etas[0] * c)
        return y, Mixed(y, y > 0, y.sum().expand(len(y)), state.count + 1, state.k + 1)


def test_a_state_may_hold_bools_whole_numbers_and_expanded_tensors() -> None:
    method, model = OfAllKinds(etas=[0.2]), network()
    fair = Constrained(model, LIMIT, method)
    for _ in range(3):
        model.zero_grad()
        assert not fair.backward(mini_batch(model)).skipped
    other = Constrained(network(), LIMIT, method)
    other.load_state_dict(fair.state_dict())
    saved = other.state_dict()["state"]
    assert same(tensors(saved), tensors(fair.state_dict()["state"]))
    assert (saved["count"].dtype, int(saved["count"])) == (torch.long, 3)
    assert {value.dtype for value in saved["active"].values()} == {torch.bool}


# A state that is not finite, though the direction is ----------------------------------------------


class Total(NamedTuple):
    y: Tensor  # (m,)
    total: Tensor  # () infinite after one step
    k: Tensor  # ()


@dataclass(frozen=True, kw_only=True)
class Overflows(MultiplierMethod[Total]):
    """Its weights are finite, its state is not."""

    tau: float = 0.05
    smooths: bool = False
    at: int = 2  # steps that are made before

    @property
    def smoothing(self) -> tuple[float, float] | None:
        return (0.5, 0.5) if self.smooths else None

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Total:
        return Total(like.new_zeros(m), like.new_zeros(()), like.new_zeros(()))

    def step(self, state: Total, c: Tensor) -> tuple[Tensor, Total]:
        y = state.y + 0.1 * torch.relu(c)
        total = torch.where(state.k == self.at, torch.inf, state.total + y.sum())
        return y, Total(y, total.to(y), state.k + 1)


def accumulated(fair: Constrained, model: nn.Module) -> bool:
    with torch.no_grad():
        fair.accumulate(mini_batch(model))
    return fair.backward(mini_batch(model)).skipped


WAYS: dict[str, Callable[[Constrained, nn.Module], bool]] = {
    "backward": lambda fair, model: fair.backward(mini_batch(model)).skipped,
    "share": lambda fair, model: fair.backward(mini_batch(model), scale=0.5).skipped,
    "closure": lambda fair, model: fair.backward_closure(lambda size: mini_batch(model)).skipped,
    "accumulated": accumulated,
}
OVERFLOW: dict[str, Algorithm[Any]] = {
    "multipliers": Overflows(),
    "multipliers, smoothing": Overflows(smooths=True),
    "general": WholeVectors(inside=Overflows()),
    "general, smoothing": WholeVectors(inside=Overflows(smooths=True)),
}
CASES = [
    pytest.param(way, method, id=f"{way}, {name}")
    for way in WAYS
    for name, method in OVERFLOW.items()
    if way != "accumulated" or isinstance(method, MultiplierMethod)
]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(("way", "method"), CASES)
def test_a_state_that_is_not_finite_skips_the_step(
    way: str, method: Algorithm[Any], at: int
) -> None:
    """And nothing changes, though the direction is finite."""
    inside = getattr(method, "inside", None)
    method = replace(
        method, **({"at": at} if inside is None else {"inside": replace(inside, at=at)})
    )  # type: ignore[type-var]
    model = network()
    fair = Constrained(model, LIMIT, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(at):
        optimizer.zero_grad()
        assert not WAYS[way](fair, model)
        optimizer.step()
    held = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    before = fair.state_dict()
    with pytest.warns(RuntimeWarning, match=f"step {at + 1} was skipped"):
        assert WAYS[way](fair, model)
    copy.deepcopy(fair)  # no graph is kept
    after = fair.state_dict()
    assert same(tensors(before), tensors(after))
    assert (before["steps"], before["history"]) == (after["steps"], after["history"])
    assert (before["skipped"], after["skipped"]) == (0, 1)
    assert same(held, [p.grad for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("method", OVERFLOW.values(), ids=OVERFLOW)
def test_a_scaler_skips_its_step_where_the_state_is_not_finite(method: Algorithm[Any]) -> None:
    model = network()
    fair, scaler = Constrained(model, LIMIT, method), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    points = []
    for k in range(3):
        optimizer.zero_grad()
        if k == 2:
            with pytest.warns(RuntimeWarning, match="step 3 was skipped"):
                fair.backward(mini_batch(model), scaler=scaler)
        else:
            fair.backward(mini_batch(model), scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        points.append(flat(model))
    assert not torch.equal(points[0], points[1])
    assert torch.equal(points[1], points[2])
    assert scaler.get_scale() == 4.0


def test_in_a_trainer_the_state_stays_where_it_would_not_be_finite() -> None:
    """The optimizer has made its step then."""
    model = network()
    fair = Constrained(model, LIMIT, Overflows())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(2):
        optimizer.zero_grad()
        fair.loss(mini_batch(model)).backward()
        optimizer.step()
    before = fair.state_dict()
    fair.loss(mini_batch(model)).backward()
    with pytest.warns(RuntimeWarning, match="step 3 was skipped"):
        optimizer.step()
    assert same(tensors(before), tensors(fair.state_dict()))
    assert (fair.steps, fair.skipped) == (2, 1)


# General methods ----------------------------------------------------------------------------------


def step_on(model: nn.Module, method: Algorithm[Any], **options: Any) -> None:
    further = [rows_of(model, WHO, torch.arange(60, 120)) for _ in range(method.draws - 1)]
    further = [batch._replace(losses=batch.losses.detach()) for batch in further]
    Constrained(model, LIMIT, method).backward(mini_batch(model), extra_batches=further, **options)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("method", GENERAL.values(), ids=GENERAL)
def test_what_grad_held_is_added_to(method: Algorithm[Any], scaled: bool) -> None:
    empty, full = seeded(Partly).double(), seeded(Partly).double()
    for p in full.parameters():
        p.grad = torch.full_like(p, 3.0)
    held = [p.grad for p in full.parameters()]
    for model in (empty, full):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None
        step_on(model, method, scaler=scaler, scale=0.5)
    assert all(p.grad is None for p in empty.unused.parameters())
    assert all(
        p.grad is not None and torch.equal(p.grad, torch.full_like(p, 3.0))
        for p in full.unused.parameters()
    )
    # not in place
    assert all(torch.equal(grad, torch.full_like(grad, 3.0)) for grad in held if grad is not None)
    moved = 0.0
    for p, q in zip(empty.parameters(), full.parameters(), strict=True):
        if p.grad is not None:
            assert q.grad is not None
            assert torch.allclose(q.grad, 3.0 + p.grad, atol=1e-12)
            moved += float(p.grad.norm())
    assert moved > 1e-3


def test_gradients_of_a_general_method_pass_by_grad() -> None:
    """Nothing is accumulated on the way, so that hooks of accumulation run at no time."""
    model, calls = network(), []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    Constrained(model, LIMIT, WholeVectors()).backward(mini_batch(model))
    assert not calls
    assert all(p.grad is not None for p in model.parameters())
