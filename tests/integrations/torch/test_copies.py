"""What a loop keeps from step to step, and what it must not: copies, groups in memory that changes,
graphs, states."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from loops import BOTH, ONE_DRAW, knowledge, same, seeded, tensors
from methods import Descends
from own_method import Optimistic
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairbound import ALGORITHMS, Constrained, DescentAscent, constraints
from fairbound.core import Algorithm, Draw, Estimate, MultiplierMethod

GROUP = torch.arange(12) % 2
HALVES = (torch.arange(12) < 6).long()
both = pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)


def network() -> nn.Sequential:
    model: nn.Sequential = seeded(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    )
    return model


def losses_of(model: nn.Module) -> Tensor:
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    return model(X).square()


def begun(method: Algorithm[Any], steps: int = 2) -> tuple[nn.Sequential, Constrained]:
    model = network()
    fair = Constrained(model, constraints.loss_parity(["A", "B"], bound=0.02), method)
    for _ in range(steps):
        model.zero_grad()
        fair.backward(losses_of(model), GROUP)
    model.zero_grad()
    return model, fair


def infinite_gradient(model: nn.Sequential) -> Tensor:
    """Losses that are finite, with a gradient that is not."""
    return losses_of(model) + (model[0].weight.flatten()[0] * 0).sqrt()


@both
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
def test_a_copy_goes_on_and_leaves_out_what_is_not_finite(
    method: Algorithm[Any], copied: Callable[[Constrained], Constrained]
) -> None:
    model, fair = begun(method)
    twin = copied(fair)
    of_twin: nn.Sequential = twin.model  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert twin.backward(infinite_gradient(of_twin), GROUP).skipped
    assert all(p.grad is None or p.grad.isfinite().all() for p in of_twin.parameters())
    of_twin.zero_grad()
    fair.backward(losses_of(model), GROUP)
    twin.backward(losses_of(of_twin), GROUP)
    assert torch.equal(model[0].weight.grad, of_twin[0].weight.grad)
    assert (fair.skipped, twin.skipped) == (0, 1)


@both
def test_groups_in_memory_that_changes_are_read_anew(method: Algorithm[Any]) -> None:
    model, fair = begun(method)
    memory = GROUP.numpy().copy()
    shared, data = torch.from_numpy(memory), GROUP.clone()
    with torch.inference_mode():
        inference = GROUP.clone()
    for groups in (shared, data, inference):
        for _ in range(2):  # the same tensor twice is what a layout is kept for
            assert torch.equal(
                fair.backward(losses_of(model), groups).c, fair.backward(losses_of(model), GROUP).c
            )
    memory[:] = HALVES.numpy()
    data.data.copy_(HALVES)
    with torch.inference_mode():
        inference.copy_(HALVES)
    truth = fair.backward(losses_of(model), HALVES).c
    fair.backward(losses_of(model), GROUP)
    for groups in (shared, data, inference):
        assert torch.equal(fair.backward(losses_of(model), groups).c, truth)


@both
def test_what_a_step_returns_keeps_neither_its_graph_nor_a_model(method: Algorithm[Any]) -> None:
    model, fair = begun(method)
    losses = losses_of(model)
    graph = weakref.ref(losses)
    seen = fair.backward(losses, GROUP)
    del losses
    gc.collect()
    assert graph() is None
    assert seen.loss.isfinite()


class Raises(Descends):
    """Fails at its fourth step."""

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:
        made = super().update(x, state, draw)
        if float(state.k) == 3:
            raise RuntimeError("the fourth step")
        return made


class MultiplierRaises(Optimistic):
    """The same, of the other kind."""

    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        if float(state.k) == 3:
            raise RuntimeError("the fourth step")
        return super().step(state, c)


@pytest.mark.parametrize("method", [Raises(), MultiplierRaises()], ids=["general", "multipliers"])
def test_an_error_in_a_method_puts_back_the_gradients_of_this_step(method: Algorithm[Any]) -> None:
    model, fair = begun(method, steps=3)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="the fourth step"):
        fair.backward(losses_of(model), GROUP)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())


class Velocity(NamedTuple):
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class Heavy(Descends):
    """Momentum: the direction is a multiple of what the state keeps."""

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> Velocity:
        return Velocity(torch.zeros_like(x))

    def update(self, x: Tensor, state: Velocity, draw: Draw) -> tuple[Tensor, Velocity]:
        v = 0.9 * state.v + draw.samples[0](x).grad(f=1.0)
        return -self.tau * v, Velocity(v)


def test_clipping_gradients_does_not_change_a_method_s_state() -> None:
    model, fair = begun(Heavy())
    fair.backward(losses_of(model), GROUP)
    before = fair.state_dict()["state"]["v"]["0.weight"].clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    assert torch.equal(fair.state_dict()["state"]["v"]["0.weight"], before)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@both
def test_another_default_precision(method: Algorithm[Any], default: torch.dtype) -> None:
    model = network()
    torch.set_default_dtype(default)
    try:
        fair = Constrained(model, constraints.loss_parity(["A", "B"], bound=0.02), method)
        found = [fair.backward(losses_of(model), GROUP).skipped for _ in range(2)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == [False, False]


@both
@pytest.mark.parametrize("steps", [0, 1])
def test_the_warning_of_a_step_left_out_points_at_the_user_s_line(
    method: Algorithm[Any], steps: int
) -> None:
    for spoilt in (lambda model: losses_of(model) * torch.nan, infinite_gradient):
        model, fair = begun(method, steps)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fair.backward(spoilt(model), GROUP)
        assert [one.filename for one in told] == [__file__]


@both
def test_the_first_mini_batch_after_a_resumption_is_checked(method: Algorithm[Any]) -> None:
    _, fair = begun(method)
    for given in ({"groups": GROUP + 0.7}, {"groups": GROUP, "weight": -torch.ones(12)}):
        model, resumed = begun(method, steps=0)
        resumed.load_state_dict(fair.state_dict())
        with pytest.raises(ValueError, match=r"groups|weight"):
            resumed.backward(losses_of(model), **given)


# What is skipped changes nothing ------------------------------------------------------------------


WAYS: dict[str, Callable[[Constrained, Tensor], bool]] = {
    "first": lambda fair, losses: fair.backward(losses, GROUP).skipped,
    "scale": lambda fair, losses: fair.backward(losses, GROUP, scale=0.5).skipped,
    "accumulated": lambda fair, losses: (
        (fair.accumulate(losses.detach(), GROUP), fair.backward(losses, GROUP))[1].skipped
    ),
}
POSSIBLE = {  # general methods do not accumulate
    f"{way}, {name}": (way, method)
    for way in WAYS
    for name, method in BOTH.items()
    if way != "accumulated" or isinstance(method, MultiplierMethod)
}


@pytest.mark.parametrize("fails", ["NaN loss", "NaN gradient", "error"])
@pytest.mark.parametrize(("way", "method"), POSSIBLE.values(), ids=POSSIBLE)
def test_a_first_step_that_is_not_made_leaves_nothing_behind(
    way: str, method: Algorithm[Any], fails: str
) -> None:
    """What comes after it is what a fresh loop does from where the parameters are then."""
    model, fair = begun(method, steps=0)
    hook = model[0].weight.register_hook(lambda gradient: 1 / 0 if fails == "error" else None)
    losses = infinite_gradient(model) if fails == "NaN gradient" else losses_of(model)
    with (
        pytest.raises(ZeroDivisionError)
        if fails == "error"
        else pytest.warns(RuntimeWarning, match="skipped")
    ):
        assert WAYS[way](fair, losses * torch.nan if fails == "NaN loss" else losses)
    hook.remove()
    saved = fair.state_dict()
    assert saved["state"] is saved.get("smoothed") is None
    assert all(value.isnan() for value in saved["constraints"].values())
    assert (fair.steps, fair.multipliers) == (0, {})
    assert all(p.grad is None for p in model.parameters())
    copy.deepcopy(fair)
    fresh, other = begun(method, steps=0)
    for own, loop in ((model, fair), (fresh, other)):
        with torch.no_grad():
            own[0].weight += 1.0
        loop.start(losses_of(own).detach(), GROUP)  # it would say that the method has begun
        loop.backward(losses_of(own), GROUP)
    assert same(knowledge(fair), knowledge(other))
    assert all(
        torch.equal(p.grad, q.grad)
        for p, q in zip(model.parameters(), fresh.parameters(), strict=True)
    )


@both
def test_a_state_keeps_its_precision_whatever_the_losses_have(method: Algorithm[Any]) -> None:
    """A loop goes on from what it saved, bit for bit."""
    model = network()
    fair = Constrained(model, constraints.loss_parity(["A", "B"], bound=0.02), method)
    for way in ("first", "scale", "first"):
        model.zero_grad()
        WAYS[way](fair, losses_of(model).double())
        saved = fair.state_dict()
        assert {leaf.dtype for leaf in tensors([saved["state"], saved.get("smoothed")])} == {
            torch.float32
        }


@both
def test_what_is_handed_out_is_a_copy(method: Algorithm[Any]) -> None:
    model, fair = begun(method)
    seen = fair.backward(losses_of(model), GROUP)
    before, records = fair.constraints, fair.state_dict()["history"]["records"]
    seen.c.fill_(9.0)
    records[0]["objective"] = 7.0
    assert fair.constraints == before
    assert fair.state_dict()["history"]["records"][0]["objective"] < 7
    weight = weakref.ref(model[0].weight)
    del model, fair
    gc.collect()
    assert weight() is None  # although what was seen is kept


def test_a_gradient_that_is_the_rows_weights_can_be_scaled_in_place() -> None:
    """Losses that are a view of a parameter."""
    p = nn.Parameter(torch.ones(12))
    fair = Constrained([p], constraints.loss_parity(["A", "B"], bound=0.02), ALGORITHMS["SGD"]())
    seen = []
    for _ in range(3):
        p.grad = None
        seen.append(float(fair.backward(p.view(-1), GROUP).loss))
        p.grad.mul_(0.5)  # type: ignore[attr-defined]
    assert seen == [1.0] * 3


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    _, fair = begun(DescentAscent())
    for name, value in (
        ("history", {"every": 1}),
        ("steps", "many"),
        ("state", {}),
        ("constraints", {}),
    ):
        with pytest.raises((ValueError, KeyError)):
            fair.load_state_dict(fair.state_dict() | {"steps": 99} | {name: value})
        assert fair.steps == 2


# Memory -------------------------------------------------------------------------------------------

WIDE = 50 * 400  # numbers of the first layer


class Allocations(TorchDispatchMode):
    """The tensors of at least the first layer's size that operations make, views and results in
    place left out."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage().data_ptr() for leaf in tensors([list(args), kwargs or {}])}
        result = func(*args, **(kwargs or {}))
        for leaf in tensors(list(result) if isinstance(result, list | tuple) else [result]):
            if leaf.numel() >= WIDE and leaf.untyped_storage().data_ptr() not in known:
                self.made.append(leaf)  # kept, so that its memory is not used again
        return result


def allocations(method: Algorithm[Any] | None) -> list[int]:
    """How many such tensors each of three steps makes; without a method those of plain training."""
    model = seeded(
        lambda: nn.Sequential(nn.Linear(50, 400), nn.Tanh(), nn.Linear(400, 1), nn.Flatten(0))
    )
    limits: list[Any] = [
        constraints.loss_parity(["A", "B"], bound=0.02),
        constraints.bounded_group_loss(2, bound=0.1),
    ]
    fair = None if method is None else Constrained(model, limits, method)
    counts = []
    for k in range(3):
        model.zero_grad()
        losses = model(torch.randn(12, 50, generator=torch.Generator().manual_seed(k))).square()
        with Allocations() as large:
            if fair is None:
                losses.mean().backward()
            else:
                fair.backward(losses, GROUP, scale=0.5)
        counts.append(len(large.made))
    return counts


WITHOUT = {name: method for name, method in ONE_DRAW.items() if method.smoothing is None}
WITH = {name: method for name, method in ONE_DRAW.items() if method.smoothing is not None}


@pytest.mark.parametrize("method", WITHOUT.values(), ids=WITHOUT)
def test_a_multiplier_method_makes_no_vector_of_the_model_s_size(method: Algorithm[Any]) -> None:
    """But for the gradient, which plain training makes as well."""
    assert allocations(method) == allocations(None)


@pytest.mark.parametrize("method", WITH.values(), ids=WITH)
def test_smoothing_makes_one_vector_and_keeps_one(method: Algorithm[Any]) -> None:
    """x - z in every step, of some parameters at once; z in the first."""
    assert [a - b for a, b in zip(allocations(method), allocations(None), strict=True)] == [2, 1, 1]


def test_a_compiled_step_is_not_compiled_again() -> None:
    """The step of a loop under torch.compile: up to `backward` and after it, once."""
    model = network()
    fair = Constrained(
        model, constraints.pairwise_loss_parity(2, bound=0.1), DescentAscent(eta=0.5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.zero_grad()
        fair.backward(losses_of(model), GROUP)
        optimizer.step()

    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(12):
            step()
    assert fair.steps == 12
    torch._dynamo.reset()
