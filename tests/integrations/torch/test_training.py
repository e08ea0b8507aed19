"""`Constrained` beside what loops have: mixed precision, accumulation, clipping, compilation,
models of all kinds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import (
    BOTH,
    F64,
    FIXED,
    LR,
    MULTIPLIERS,
    ONE_DRAW,
    Partly,
    flat,
    knowledge,
    network,
    numbers_for,
    people,
    rows_of,
    same,
    seeded,
    step,
    three_constraints,
)
from methods import bce
from torch import Tensor, nn

from fairbound import Constrained, MiniBatch, constraints
from fairbound.algorithms import SGD, SSLALM, DescentAscent, Penalty
from fairbound.algorithms.schedules import Linear
from fairbound.core import Algorithm

WHO = people()
F32 = torch.float32
both = pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)


def gradients(model: nn.Module) -> Tensor:
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in model.parameters()
        ]
    )


# Mixed precision ----------------------------------------------------------------------------------

NARROW = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"]
)


class Mixed:
    """A float32 model under autocast, after two steps, with a scaler that starts at a given
    scale."""

    def __init__(self, method: Algorithm[Any], dtype: torch.dtype, scale: float) -> None:
        self.who, self.model, self.dtype = people(dtype=F32), network(dtype=F32), dtype
        self.fair = Constrained(
            self.model, constraints.loss_parity(3, bound=0.02, by="race"), method
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for start in (0, 24):
            self.backward(start)
            self.optimizer.step()

    def backward(self, start: int, scaler: torch.amp.GradScaler | None = None) -> bool:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.dtype):
            rows = rows_of(self.model, self.who, torch.arange(start, start + 24))
        assert rows.outputs is not None
        assert rows.outputs.dtype == self.dtype  # autocast is on
        return self.fair.backward(rows, scaler=scaler).skipped


@both
@NARROW
def test_a_scaled_gradient_unscaled_is_the_gradient(
    method: Algorithm[Any], dtype: torch.dtype
) -> None:
    plain, mixed = Mixed(method, dtype, 1.0), Mixed(method, dtype, 2.0**12)
    plain.backward(48)
    mixed.backward(48, mixed.scaler)
    expected = gradients(plain.model)
    assert torch.allclose(
        gradients(mixed.model), 2.0**12 * expected, rtol=2e-3, atol=2.0**12 * 1e-5
    )
    mixed.scaler.unscale_(mixed.optimizer)
    # a power of two changes no digit there; float16 underflows without a scale
    exact = dtype == torch.bfloat16
    assert torch.allclose(
        gradients(mixed.model), expected, rtol=0.0 if exact else 2e-3, atol=0.0 if exact else 1e-5
    )
    assert expected.norm() > 1e-2
    before = flat(mixed.model)
    mixed.scaler.step(mixed.optimizer)
    mixed.scaler.update()
    assert torch.allclose(flat(mixed.model), before - LR * expected, rtol=2e-3, atol=1e-5)
    pairs = zip(knowledge(plain.fair), knowledge(mixed.fair), strict=True)
    assert (
        all(torch.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True) for a, b in pairs)
        or not exact
    )


@pytest.mark.filterwarnings("ignore:step . was skipped:RuntimeWarning")
@both
def test_a_scale_that_is_too_large_is_lowered_by_the_scaler(method: Algorithm[Any]) -> None:
    """It must see the infinities that it made."""
    mixed = Mixed(method, torch.float16, 2.0**40)
    before, known = flat(mixed.model), knowledge(mixed.fair)
    mixed.backward(48, mixed.scaler)
    mixed.scaler.step(mixed.optimizer)
    mixed.scaler.update()
    assert torch.equal(flat(mixed.model), before)
    assert mixed.scaler.get_scale() < 2.0**40
    assert same(knowledge(mixed.fair), known)
    for _ in range(40):  # and with a scale that fits it goes on
        mixed.backward(48, mixed.scaler)
        mixed.scaler.step(mixed.optimizer)
        mixed.scaler.update()
    assert (flat(mixed.model) - before).norm() > 1e-3
    assert all(part.isfinite().all() for part in (flat(mixed.model), *knowledge(mixed.fair)))


def test_a_scaler_that_is_switched_off_changes_nothing() -> None:
    mixed = Mixed(SSLALM(samples=1), torch.bfloat16, 1.0)
    off = torch.amp.GradScaler("cpu", enabled=False)
    other = Mixed(SSLALM(samples=1), torch.bfloat16, 1.0)
    mixed.backward(48, off)
    other.backward(48)
    assert torch.equal(gradients(mixed.model), gradients(other.model))


@both
def test_a_model_in_bfloat16_trains(method: Algorithm[Any]) -> None:
    who, model = people(dtype=torch.bfloat16), network(dtype=torch.bfloat16)
    fair = Constrained(model, constraints.loss_parity(3, bound=0.02, by="race"), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for numbers in numbers_for(method, 5, who):
        step(fair, optimizer, model, who, numbers)
    assert all(
        p.dtype == torch.bfloat16 and p.grad is not None and p.grad.isfinite().all()
        for p in model.parameters()
    )


# Accumulation -------------------------------------------------------------------------------------

PARTS = [5, 20, 9, 30]  # rows of the mini-batches: sorted by race, so that each lacks some


def accumulate(fair: Constrained, model: nn.Module, numbers: Tensor, **options: Any) -> None:
    for own in numbers.split(PARTS):
        with torch.no_grad():
            rows = rows_of(model, WHO, own)
        fair.accumulate(rows)
    for own in numbers.split(PARTS):
        fair.backward(rows_of(model, WHO, own), **options)


@pytest.mark.parametrize("method", ONE_DRAW.values(), ids=ONE_DRAW)
def test_an_accumulated_step_is_one_on_all_rows(method: Algorithm[Any]) -> None:
    """Four mini-batches with unequal groups, three limits of three kinds, five steps: 1e-12."""
    models = [network(), network()]
    fairs = [Constrained(model, three_constraints(), method) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR) for model in models]
    for numbers in numbers_for(method, 5, WHO, size=sum(PARTS)):
        ordered = numbers[0][WHO.race[numbers[0]].argsort()]
        assert len({len(WHO.race[own].unique()) for own in ordered.split(PARTS)}) > 1
        step(fairs[0], optimizers[0], models[0], WHO, ordered[None])
        optimizers[1].zero_grad()
        accumulate(fairs[1], models[1], ordered)
        optimizers[1].step()
        assert torch.allclose(flat(models[0]), flat(models[1]), atol=1e-12)
    assert all(
        torch.allclose(a, b, atol=1e-12)
        for a, b in zip(knowledge(fairs[0]), knowledge(fairs[1]), strict=True)
    )
    assert fairs[1].steps == 5


@pytest.mark.parametrize("method", MULTIPLIERS.values(), ids=MULTIPLIERS)
def test_an_accumulated_step_may_be_scaled(method: Algorithm[Any]) -> None:
    models = [network(), network()]
    fairs = [Constrained(model, three_constraints(), method) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    accumulate(fairs[0], models[0], torch.arange(sum(PARTS)))
    accumulate(fairs[1], models[1], torch.arange(sum(PARTS)), scaler=scaler)
    assert torch.allclose(2.0**10 * gradients(models[0]), gradients(models[1]), rtol=1e-12)


def test_a_share_is_a_share_of_the_direction() -> None:
    """Every mini-batch is a step of the multipliers; `.grad` is the mean of the directions."""
    model, other = network(), network()
    limit = constraints.bounded_group_loss(3, bound=0.3, by="race")
    fair, apart = (
        Constrained(model, limit, DescentAscent(eta=0.5)),
        Constrained(other, limit, DescentAscent(eta=0.5)),
    )
    directions = []
    for start in (0, 40, 80):
        numbers = torch.arange(start, start + 40)
        fair.backward(rows_of(model, WHO, numbers), scale=1 / 3)
        other.zero_grad()
        apart.backward(rows_of(other, WHO, numbers))
        directions.append(gradients(other))
    assert torch.allclose(gradients(model), torch.stack(directions).mean(0), atol=1e-12)
    assert (directions[2] - directions[0]).norm() > 1e-3
    assert fair.multipliers == apart.multipliers
    assert fair.steps == 3


@pytest.mark.parametrize("build", [SGD, Penalty, DescentAscent, SSLALM])
def test_a_step_size_of_zero_is_no_division_by_zero(build: Callable[..., Algorithm[Any]]) -> None:
    """A schedule that ends at 0: nothing is NaN, alone or accumulated, and nothing moves."""
    method = build(tau=Linear(0.1, 1, end=0.0), **({"samples": 1} if build is SSLALM else {}))
    model = network()
    fair = Constrained(model, three_constraints(), method)
    fair.backward(rows_of(model, WHO, torch.arange(64)))
    before = flat(model)
    for last in (fair.backward, lambda rows: accumulate(fair, model, torch.arange(64))):
        assert fair.primal_step == 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=fair.primal_step)
        optimizer.zero_grad()
        last(rows_of(model, WHO, torch.arange(64)))
        assert gradients(model).isfinite().all()
        optimizer.step()
    assert torch.equal(flat(model), before)
    assert fair.steps == 3


# What else a loop does ----------------------------------------------------------------------------


@both
def test_the_direction_may_be_clipped(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, three_constraints(), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fair.backward(rows_of(model, WHO, torch.arange(64)))
    before, direction = flat(model), gradients(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    assert float(norm) == pytest.approx(float(direction.norm()))
    assert torch.allclose(flat(model), before - 0.01 * direction / direction.norm(), atol=1e-7)


needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on this machine"
)
COMPILED = [
    pytest.param(DescentAscent(), "aot_eager", id="traced"),
    pytest.param(SSLALM(samples=1), "aot_eager", id="smoothing, traced"),
    pytest.param(SSLALM(samples=2), "inductor", id="smoothing, compiled", marks=needs_compiler),
]


@pytest.mark.parametrize(("method", "backend"), COMPILED)
def test_a_compiled_model_equals_the_eager_one(method: Algorithm[Any], backend: str) -> None:
    """And what it saved an eager one can load."""
    eager, compiled = network(), network()
    fast: Any = torch.compile(compiled, backend=backend)
    fairs = [Constrained(model, three_constraints(), method) for model in (eager, fast)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR) for model in (eager, compiled)]
    for numbers in numbers_for(method, 3, WHO):
        step(fairs[0], optimizers[0], eager, WHO, numbers)
        step(fairs[1], optimizers[1], fast, WHO, numbers)
    assert torch.allclose(flat(eager), flat(compiled), atol=1e-12)
    fairs[0].load_state_dict(fairs[1].state_dict())
    assert same(knowledge(fairs[0]), knowledge(fairs[1]))


@pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)
def test_frozen_and_unused_parameters_are_left_alone(method: Algorithm[Any]) -> None:
    model = seeded(Partly).double()
    model.body.requires_grad_(False)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    fair = Constrained(model, constraints.bounded_group_loss(3, bound=0.3, by="race"), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for numbers in numbers_for(method, 3, WHO):
        step(fair, optimizer, model, WHO, numbers)
    for name, p in model.named_parameters():
        if name.startswith("head"):
            assert not torch.equal(p, kept[name])
        else:
            assert p.grad is None
            assert torch.equal(p, kept[name])


@both
def test_parameter_groups_have_rates_of_their_own(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, three_constraints(), method)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.0}]  # type: ignore[index]
    )
    before = flat(model)
    step(fair, optimizer, model, WHO, torch.arange(64)[None])
    rate = torch.cat([torch.full((30,), 0.1, dtype=F64), torch.zeros(7, dtype=F64)])
    assert torch.allclose(flat(model), before - rate * gradients(model), atol=1e-15)
    assert (flat(model) - before)[:30].norm() > 1e-4


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.out.weight = self.into.weight

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.into(X))).sum(-1)
        return out


@pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)
def test_tied_parameters_are_one(method: Algorithm[Any]) -> None:
    """A shared matrix is one parameter, whose gradient is the sum over its places; a list of them
    gives the same."""
    models = [seeded(Tied).double(), seeded(Tied).double()]
    limit = constraints.bounded_group_loss(3, bound=0.3, by="race")
    fairs = [
        Constrained(models[0], limit, method),
        Constrained([*models[1].parameters()], limit, method),
    ]
    before = flat(models[0])
    for fair, model in zip(fairs, models, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for numbers in numbers_for(method, 3, WHO):
            step(fair, optimizer, model, WHO, numbers)
        assert model.out.weight is model.into.weight
    assert flat(models[0]).numel() == 24
    assert torch.equal(flat(models[0]), flat(models[1]))
    assert (flat(models[0]) - before).norm() > 1e-5


# Models of all kinds ------------------------------------------------------------------------------


class Reader(nn.Module):
    """Words through an embedding and a transformer; numbers through batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.numbers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 1)

    def forward(self, words: Tensor, X: Tensor) -> Tensor:
        out: Tensor = self.head(
            torch.cat([self.encoder(self.words(words)).mean(1), self.numbers(X)], -1)
        )
        return out.squeeze(-1)


@pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)
def test_a_model_with_everything_trains(method: Algorithm[Any]) -> None:
    who, model = people(dtype=F32), seeded(Reader)
    words = torch.randint(1, 11, (120, 5), generator=torch.Generator().manual_seed(0))
    fair = Constrained(model, three_constraints(), method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = flat(model)

    def rows(numbers: Tensor) -> MiniBatch:
        outputs = model(words[numbers], who.X[numbers])
        return MiniBatch(
            bce(outputs, who.y[numbers]),
            {"race": who.race[numbers], "sex": who.sex[numbers]},
            None,
            outputs,
        )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        for numbers in numbers_for(method, 4, who):
            optimizer.zero_grad()
            with torch.no_grad():
                further = [rows(own) for own in numbers[1:]]
            seen = fair.backward(rows(numbers[0]), extra_batches=further)
            optimizer.step()
            assert not seen.skipped
    assert flat(model).isfinite().all()
    assert (flat(model) - before).norm() > 1e-3
    assert int(model.numbers[1].num_batches_tracked) == 4 * method.draws
    assert torch.equal(model.words.weight[0], torch.zeros(8))


def test_several_classes_and_numbers_to_predict() -> None:
    """The losses are whatever a loop has: cross entropy and squared errors keep a bound alike."""
    who = people(rows=400)
    hot = (who.X.sum(1) > 0).long() + (who.X.sum(1) > 2).long()
    kinds: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "classes": (3, lambda out: nn.functional.cross_entropy(out, hot, reduction="none")),
        "numbers": (1, lambda out: (out[:, 0] - who.X.sum(1)).square() / 4),
    }
    for width, loss in kinds.values():
        model = seeded(lambda width=width: nn.Linear(4, width)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tight = 0.5 * float(loss(model(who.X)).detach()[who.race == 2].mean())
        fair = Constrained(
            model, constraints.bounded_group_loss(3, bound=tight, by="race"), DescentAscent(eta=0.5)
        )
        for _ in range(150):
            optimizer.zero_grad()
            fair.backward(loss(model(who.X)), {"race": who.race})
            optimizer.step()
        assert max(fair.constraints.values()) < 1e-2
