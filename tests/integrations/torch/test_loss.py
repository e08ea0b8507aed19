"""`fair.loss`: a scalar that any trainer passes backward, and a state that moves with the
optimizer's steps."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from loops import (
    LR,
    flat,
    knowledge,
    network,
    numbers_for,
    people,
    rows_of,
    same,
    three_constraints,
)
from torch import Tensor, nn

from fairbound import (
    SGD,
    SSLALM,
    Constrained,
    DescentAscent,
    MiniBatch,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
    constraints,
)
from fairbound.algorithms.schedules import Linear
from fairbound.core import Algorithm
from fairbound.integrations.torch._loss import DROPPED_IN_A_ROW

WHO = people()
STEPS = 8
RACE = constraints.bounded_group_loss(3, bound=0.3)
METHODS: dict[str, Algorithm[Any]] = {
    "DescentAscent": DescentAscent(eta=Linear(0.3, 20)),
    "Penalty": Penalty(),
    "SGD": SGD(),
}


each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=LR),
}


class Loop:
    """A model, its optimizer and `Constrained`, and mini-batches of 24 examples."""

    def __init__(self, method: Algorithm[Any], optimizer: str = "SGD") -> None:
        self.model = network()
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.fair = Constrained(self.model, three_constraints(), method)
        self.numbers = numbers_for(DescentAscent(), 2 * STEPS, WHO)[:, 0]

    def rows(self, k: int) -> MiniBatch:
        return rows_of(self.model, WHO, self.numbers[k])

    def step(self, k: int, loss: Callable[[MiniBatch], Tensor] | None = None) -> Tensor:
        self.optimizer.zero_grad()
        value = (loss or self.fair.loss)(self.rows(k))
        value.backward()
        self.optimizer.step()
        return value

    def knows(self) -> list[Tensor]:
        return [flat(self.model), *knowledge(self.fair)]


def with_backward(
    method: Algorithm[Any], optimizer: str = "SGD", steps: int = STEPS
) -> list[Tensor]:
    loop = Loop(method, optimizer)
    for k in range(steps):
        loop.optimizer.zero_grad()
        loop.fair.backward(loop.rows(k))
        loop.optimizer.step()
    return loop.knows()


@each_method
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_equals_backward_bit_for_bit(method: Algorithm[Any], optimizer: str) -> None:
    loop = Loop(method, optimizer)
    for k in range(STEPS):
        loop.step(k)
        assert loop.fair.steps == k + 1
    assert same(loop.knows(), with_backward(method, optimizer))
    assert isinstance(method, DescentAscent) == any(
        value > 0.01 for value in loop.fair.multipliers.values()
    )


def test_every_kind_of_constraint_equals_backward() -> None:
    """A proxy, one observed at every other step, and values that are handed over."""
    kinds = {
        "rate": constraints.demographic_parity(["f", "m"], bound=0.01, by="sex", proxy=True),
        "norm": constraints.weight_norm(0.5),
        "given": constraints.given("size"),
    }
    ends = []
    for hands_over in (True, False):
        model = network()
        fair = Constrained(model, kinds, DescentAscent(eta=0.3))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for k in range(STEPS):
            rows = rows_of(model, WHO, torch.arange(24) + 8 * k)
            assert rows.outputs is not None
            values = {"size": rows.outputs.square().mean() - 0.001} if k % 2 else {}
            optimizer.zero_grad()
            given = {"labels": rows.labels, "outputs": rows.outputs, "values": values}
            if hands_over:
                fair.loss(rows.losses, rows.groups, **given).backward()
            else:
                fair.backward(rows.losses, rows.groups, **given)
            optimizer.step()
        ends.append([flat(model), *knowledge(fair)])
    assert same(*ends)
    assert (
        min(
            max(v for name, v in fair.multipliers.items() if name.startswith(kind))
            for kind in kinds
        )
        > 0
    )


def test_its_value_is_the_mean_loss_of_the_objective() -> None:
    loop = Loop(DescentAscent(eta=5.0))
    loop.step(0)
    rows = loop.rows(1)
    assert torch.equal(loop.fair.loss(rows), rows.losses.detach().mean())
    weight, some = torch.rand(24, dtype=torch.float64), torch.arange(24) < 9
    value = loop.fair.loss(rows._replace(weight=weight, objective=some))
    assert value.item() == pytest.approx(
        ((weight * rows.losses)[some].sum() / weight[some].sum()).item()
    )


def of_sexes(model: nn.Module, numbers: Tensor) -> MiniBatch:
    return rows_of(model, WHO, numbers)._replace(groups=WHO.sex[numbers])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_window_of_two_mini_batches_moves_the_state_once(set_to_none: bool) -> None:
    """Of equally many examples of every group it is one step over all of them, as `accumulate`
    makes it."""
    parity = constraints.pairwise_loss_parity(["f", "m"], bound=0.01)
    pools = [(WHO.sex == sex).nonzero().flatten() for sex in (0, 1)]
    ends = []
    for accumulates in (True, False):
        model = network()
        fair = Constrained(model, parity, DescentAscent(eta=0.3))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for k in range(0, 12, 2):
            parts = [
                torch.cat([pool[torch.arange(8) + 4 * k + 2 * i] for pool in pools]) % 120
                for i in (0, 1)
            ]
            batches = [partial(of_sexes, model, numbers) for numbers in parts]
            if accumulates:
                for batch in batches:
                    fair.accumulate(batch())
                for batch in batches:
                    fair.backward(batch())
            else:
                for batch in batches:
                    (fair.loss(batch()) / 2).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        assert fair.steps == 6
        ends.append((flat(model), torch.tensor(list(fair.multipliers.values()))))
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    assert ends[0][1].max() > 1e-3


def test_evaluation_moves_nothing() -> None:
    loop, plain = Loop(DescentAscent()), Loop(DescentAscent())
    before = loop.fair.state_dict()["state"]
    for k in range(STEPS):
        with torch.no_grad():
            value = loop.fair.loss(loop.rows(9))
        assert torch.equal(value, loop.rows(9).losses.detach().mean())
        loop.model.eval()
        assert torch.equal(loop.fair.loss(loop.rows(9)), value)
        loop.model.train()
        loop.fair.loss(loop.rows(9))  # never passed backward
        assert k or loop.fair.state_dict()["state"] is before is None
        loop.step(k)
        plain.step(k)
    assert same(loop.knows(), plain.knows())


def test_a_backward_pass_in_evaluation_mode_is_refused() -> None:
    loop = Loop(DescentAscent())
    loop.model.eval()
    with pytest.raises(ValueError, match=r"evaluation mode.*model.train\(\)"):
        loop.fair.loss(loop.rows(0)).backward()


# Skipped steps ------------------------------------------------------------------------------------


def scaled_step(
    loop: Loop, scaler: torch.amp.GradScaler, k: int, spoil: float = 1.0, set_to_none: bool = True
) -> None:
    """Mixed precision's own order; Lightning's: the loss comes before zero_grad."""
    value = scaler.scale(loop.fair.loss(loop.rows(k)))
    loop.optimizer.zero_grad(set_to_none=set_to_none)
    (value * spoil).backward()
    scaler.step(loop.optimizer)
    scaler.update()


@each_method
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_that_a_scaler_skips_is_dropped(method: Algorithm[Any], set_to_none: bool) -> None:
    loop, scaler = Loop(method), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    for k in range(STEPS):
        if k in (0, 3):
            before = loop.knows()
            scaled_step(loop, scaler, 9, torch.inf, set_to_none)
            assert same(before, loop.knows())
        scaled_step(loop, scaler, k, set_to_none=set_to_none)
    assert scaler.get_scale() == 2.0
    assert same(loop.knows(), with_backward(method))


def nan_loss(rows: MiniBatch) -> MiniBatch:
    return rows._replace(
        losses=torch.where(torch.arange(24) == 0, rows.losses * torch.nan, rows.losses)
    )


@each_method
def test_a_loss_that_is_not_finite_skips_the_step(method: Algorithm[Any]) -> None:
    """Momentum and weight decay included: `.grad` has nothing."""
    loop = Loop(method, "AdamW")

    def train() -> None:
        for k in range(STEPS):
            if k in (0, 3):
                before = loop.knows()
                assert loop.step(9, lambda rows: loop.fair.loss(nan_loss(rows))).isnan()
                assert same(before, loop.knows())
            loop.step(k)

    with pytest.warns(RuntimeWarning, match="skipped") as seen:
        train()
    assert len([w for w in seen if w.category is RuntimeWarning]) == 1
    assert loop.fair.skipped == 2
    assert same(loop.knows(), with_backward(method, "AdamW"))


def test_a_scaler_skips_the_step_of_a_loss_that_is_not_finite() -> None:
    loop, scaler = Loop(DescentAscent()), torch.amp.GradScaler("cpu", init_scale=8.0)
    loop.fair.prepare(loop.model, scaler)
    scaled_step(loop, scaler, 0)
    before = loop.knows()
    loop.optimizer.zero_grad()
    with pytest.warns(RuntimeWarning, match="skipped"):
        scaler.scale(loop.fair.loss(nan_loss(loop.rows(1)))).backward()
    scaler.step(loop.optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert same(before, loop.knows())


# Optimizers ---------------------------------------------------------------------------------------


def test_only_an_optimizer_of_the_model_moves_the_state() -> None:
    loop, other = Loop(DescentAscent()), network(seed=1)
    elsewhere = torch.optim.SGD(other.parameters(), lr=LR)
    loop.fair.loss(loop.rows(0)).backward()
    elsewhere.step()
    assert loop.fair.steps == 0
    loop.optimizer.step()
    assert loop.fair.steps == 1
    loop.optimizer.step()  # nothing is pending
    assert loop.fair.steps == 1


def test_two_optimizers_of_one_model_are_one_step() -> None:
    loop = Loop(DescentAscent())
    halves = [
        torch.optim.SGD([p for p in loop.model.parameters() if (p.ndim > 1) == wide], lr=LR)
        for wide in (0, 1)
    ]
    loop.fair.loss(loop.rows(0)).backward()
    for half in halves:
        half.step()
    assert loop.fair.steps == 1


def test_two_models_each_move_their_own() -> None:
    first, second = Loop(DescentAscent()), Loop(DescentAscent())
    (first.fair.loss(first.rows(0)) + second.fair.loss(second.rows(1))).backward()
    first.optimizer.step()
    assert (first.fair.steps, second.fair.steps) == (1, 0)
    second.optimizer.step()
    assert (first.fair.steps, second.fair.steps) == (1, 1)


def test_a_copy_goes_on() -> None:
    loop = Loop(DescentAscent())
    loop.step(0)
    twin = copy.deepcopy(loop)
    twin.optimizer = OPTIMIZERS["SGD"](twin.model)
    loop.optimizer = OPTIMIZERS["SGD"](loop.model)
    for k in range(1, STEPS):
        loop.step(k)
    assert twin.fair.steps == 1
    for k in range(1, STEPS):
        twin.step(k)
    assert same(loop.knows(), twin.knows())


def test_a_resumed_loop_is_the_same() -> None:
    whole, first, second = (Loop(DescentAscent()) for _ in range(3))
    for k in range(STEPS):
        whole.step(k)
    for k in range(4):
        first.step(k)
    first.fair.loss(first.rows(9)).backward()  # pending is not saved, as gradients are not
    for part in ("model", "optimizer", "fair"):
        getattr(second, part).load_state_dict(getattr(first, part).state_dict())
    for k in range(4, STEPS):
        second.step(k)
    assert same(whole.knows(), second.knows())


def test_an_optimizer_step_that_never_comes_is_warned_of() -> None:
    loop = Loop(DescentAscent())

    def window() -> None:
        loop.optimizer.zero_grad()
        loop.fair.loss(loop.rows(0)).backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(DROPPED_IN_A_ROW):
            window()
    with pytest.warns(UserWarning, match=r"not move.*Constrained"):
        window()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        ),
    ],
)
def test_a_model_that_is_moved_after_it_was_given(device: str) -> None:
    """As trainers do; its state may have been loaded before. The fused optimizer skips its first
    steps itself."""
    model = network(dtype=torch.float32)
    fair = Constrained(model, {"norm": constraints.weight_norm(0.1), "race": RACE}, DescentAscent())
    X, groups = WHO.X.float(), WHO.race
    fair.start(model(X)[:, 0].square(), groups)
    model, X, groups = model.to(device), X.to(device), groups.to(device)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**30)
    fair.prepare(model, scaler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            losses = model(X)[:, 0].float().square()
        scaler.scale(fair.loss(losses, groups)).backward()
        scaler.step(optimizer)
        scaler.update()
    skipped = round(30 - math.log2(scaler.get_scale()))
    assert skipped > 0
    assert (fair.steps, fair.skipped) == (40 - skipped, 0)
    assert max(fair.multipliers.values()) > 0


# Wrong use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            SSLALM(samples=1),
            (
                r"SSLALM adds a vector to the gradient.*fair.backward\(losses,"
                r" groups\).*SSLALM\(mu=0.0\)"
            ),
        ),
        (
            StochasticGhost(),
            (
                r"of StochasticGhost is not the gradient of a loss; use fair.backward\(.*or"
                r" DescentAscent"
            ),
        ),
        (SwitchingSubgradient(), "of SwitchingSubgradient is not the gradient of a loss"),
        (
            DescentAscent(second=True),
            r"needs 2 independent mini-batches.*fair.backward\(losses, groups, extra_batches",
        ),
    ],
)
def test_a_method_that_no_loss_can_express_is_refused(method: Algorithm[Any], message: str) -> None:
    loop = Loop(method)
    with pytest.raises(ValueError, match=message):
        loop.fair.loss(loop.rows(0))


def test_losses_without_a_graph_are_refused() -> None:
    loop = Loop(DescentAscent())
    rows = loop.rows(0)
    with pytest.raises(ValueError, match="carry no graph"):
        loop.fair.loss(rows._replace(losses=rows.losses.detach()))


def test_an_unknown_group_is_explained() -> None:
    model = network()
    fair = Constrained(model, constraints.loss_parity(2, bound=0.1), DescentAscent())
    fair.loss(rows_of(model, WHO, torch.arange(24))._replace(groups=WHO.sex[:24]))
    with pytest.raises(ValueError, match=r"groups.*0 to 1"):
        fair.loss(rows_of(model, WHO, torch.arange(24))._replace(groups=WHO.sex[:24] + 1))


def test_a_step_begun_by_accumulate_comes_first() -> None:
    loop = Loop(DescentAscent())
    loop.fair.accumulate(loop.rows(0))
    with pytest.raises(ValueError, match=r"accumulate\(\) .*in progress"):
        loop.fair.loss(loop.rows(0))
