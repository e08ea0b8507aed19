"""Primal steps: SGD and Adam are torch.optim's, directly and through `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from methods import classification, spoilt
from own_method import Optimistic
from torch import Tensor, nn

from fairbound import MultiplierMethod, Sampler, run
from fairbound.algorithms import (
    PHRALM,
    SGD,
    SSLALM,
    DescentAscent,
    StochasticGhost,
    SwitchingSubgradient,
    primal,
)
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Draw, Iterate, Primal, Sample, inner, main_draw
from fairbound.training._hyperparams import with_hyperparams

F64 = torch.float64
OPTIMIZERS: dict[str, tuple[Primal, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "SGD": (primal.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (
        primal.SGD(lr=0.03, momentum=0.8),
        lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8),
    ),
    "Adam": (primal.Adam(lr=0.02), lambda p: torch.optim.Adam(p, lr=0.02)),
    "Adam, own numbers": (
        primal.Adam(lr=0.05, b1=0.7, b2=0.95, eps=0.01),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.7, 0.95), eps=0.01),
    ),
    "Adam, no memory": (
        primal.Adam(lr=0.05, b1=0.0, b2=0.0),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.0, 0.0)),
    ),
}
every_primal = pytest.mark.parametrize(("ours", "make"), OPTIMIZERS.values(), ids=OPTIMIZERS)
MULTIPLIER_METHODS: dict[str, MultiplierMethod[Any]] = {
    "SGD": SGD(),
    "DescentAscent": DescentAscent(eta=0.3),
    "SSLALM": SSLALM(),
    "ALM": SSLALM(mu=0.0),
    "PHRALM, second draw": PHRALM(second=True, lag=False),
    "a user's own": Optimistic(),
}
every_multiplier_method = pytest.mark.parametrize(
    "method", MULTIPLIER_METHODS.values(), ids=MULTIPLIER_METHODS
)


def gradients(steps: int = 40, n: int = 5) -> Tensor:
    """(steps, n), of sizes from 1e-4 to 10, some of them 0."""
    g = torch.randn(steps, n, dtype=F64, generator=torch.Generator().manual_seed(0))
    return torch.where(g.abs() < 0.1, 0.0, g) * torch.logspace(-4, 1, n, dtype=F64)


def path(ours: Any, steps: Tensor) -> Tensor:
    """The points after every step from 0: (steps, n)."""
    x, state, points = torch.zeros_like(steps[0]), ours.init(torch.zeros_like(steps[0])), []
    for g in steps:
        d, state = ours.step(g, state)
        x = x + d
        points.append(x)
    return torch.stack(points)


# Directly -----------------------------------------------------------------------------------------


@every_primal
def test_it_is_torch_s_step_by_step(ours: Primal, make: Any) -> None:
    parameter = nn.Parameter(torch.zeros(5, dtype=F64))
    optimizer = make([parameter])
    for g, x in zip(gradients(), path(ours, gradients()), strict=True):
        parameter.grad = g.clone()
        optimizer.step()
        assert (parameter.detach() - x).abs().max() <= 1e-12


@pytest.mark.parametrize("build", [primal.SGD, primal.Adam])
def test_a_schedule_is_torch_s_own(build: Any) -> None:
    parameter = nn.Parameter(torch.zeros(5, dtype=F64))
    optimizer = {primal.SGD: torch.optim.SGD, primal.Adam: torch.optim.Adam}[build](
        [parameter], lr=0.2
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (k + 1) ** -0.5)
    for g, x in zip(gradients(), path(build(lr=InverseSqrt(0.2)), gradients()), strict=True):
        parameter.grad = g.clone()
        optimizer.step()
        schedule.step()
        assert (parameter.detach() - x).abs().max() <= 1e-12


@pytest.mark.parametrize(
    ("ours", "numbers"),
    [
        (primal.SGD(momentum=0.5), {"lr": (0.1, 0.02), "momentum": (0.9, 0.0)}),
        (
            primal.Adam(),
            {"lr": (0.1, 0.02), "b1": (0.5, 0.0), "b2": (0.9, 0.99), "eps": (1e-8, 0.1)},
        ),
    ],
)
def test_numbers_stack(ours: Any, numbers: dict[str, tuple[float, float]]) -> None:
    hyper = {name: torch.tensor(values, dtype=F64) for name, values in numbers.items()}
    steps = gradients()
    stacked = torch.func.vmap(lambda own: path(with_hyperparams(ours, own), steps))(hyper)
    for i in range(2):
        alone = path(type(ours)(**{name: values[i] for name, values in numbers.items()}), steps)
        assert (stacked[i] - alone).abs().max() <= 1e-12


def test_float32_stays_float32() -> None:
    for ours in (primal.SGD(lr=InverseSqrt(0.1)), primal.Adam(lr=InverseSqrt(0.1))):
        assert path(ours, gradients().float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("build", "settings", "sentence"),
    [
        (primal.SGD, {"lr": -0.1}, r"SGD: lr must be a finite number >= 0, got -0\.1"),
        (primal.SGD, {"momentum": 1.0}, r"SGD: momentum must be at least 0 and below 1, got 1\.0"),
        (primal.Adam, {"lr": float("nan")}, r"Adam: lr must be a finite number >= 0, got nan"),
        (primal.Adam, {"b1": 1.0}, r"Adam: b1 must be at least 0 and below 1, got 1\.0"),
        (primal.Adam, {"b2": -0.1}, r"Adam: b2 must be at least 0 and below 1, got -0\.1"),
        (primal.Adam, {"eps": 0.0}, r"Adam: eps must be a finite number > 0, got 0\.0"),
    ],
)
def test_a_number_out_of_range_is_named(
    build: Any, settings: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(**settings)


# Through `run` ------------------------------------------------------------------------------------


def by_hand(
    method: MultiplierMethod[Any], sampler: Sampler, x0: Tensor, make: Any, steps: int
) -> Iterator[Tensor]:
    """The same steps with `start`, `step` and torch's optimizer; a smoothed x is pulled to its old
    mean."""
    problem = classification()[0]
    source, parameter = problem.source(sampler), nn.Parameter(x0.clone())
    optimizer, z = make([parameter]), x0
    state = method.start(x0, problem.m, None, source.first(method.evaluates)(x0).c)
    for _ in range(steps):
        x = parameter.detach().clone()
        draws = source.next(method.evaluates, None).samples
        estimates = [sample(x) for sample in draws]
        w, state = method.step(state, *(e.c for e in estimates))
        parameter.grad = estimates[main_draw(method)].grad(f=1.0, c=w)
        if method.smoothing is not None:
            mu, beta = method.smoothing
            parameter.grad += mu * (x - z)
            z = z + beta * (x - z)
        optimizer.step()
        yield parameter.detach().clone()


@every_primal
@every_multiplier_method
def test_a_run_is_torch_s_step_by_step(
    method: MultiplierMethod[Any], ours: Primal, make: Any
) -> None:
    problem, sampler, x0 = classification()
    records = run(problem, method, sampler, x0[0], 25, primal=ours, every=1, compile=False)
    for record, x in zip(records, by_hand(method, sampler, x0[0], make, 25), strict=True):
        assert (record.x[0] - x).abs().max() <= 1e-12
    assert (x - x0[0]).abs().max() > 1e-3


@every_multiplier_method
def test_sgd_at_tau_is_no_primal_at_all(method: MultiplierMethod[Any]) -> None:
    problem, sampler, x0 = classification()
    without = run(problem, method, sampler, x0[0], 25, compile=False).result()
    given = run(
        problem, method, sampler, x0[0], 25, primal=primal.SGD(lr=method.tau), compile=False
    ).result()
    assert torch.equal(without.x, given.x)
    assert torch.equal(without.multipliers.nan_to_num(), given.multipliers.nan_to_num())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_of_a_stack_have_primals_of_their_own(compiled: bool) -> None:
    """Rates within one structure are stacked; none, SGD and Adam are groups of their own."""
    problem, sampler, x0 = classification()
    primals: list[Primal | None] = [
        primal.Adam(lr=0.01),
        None,
        primal.Adam(lr=0.05),
        primal.SGD(lr=0.1, momentum=0.9),
        primal.SGD(lr=0.02, momentum=0.5),
        primal.Adam(lr=0.05, b1=0.5),
    ]
    methods = [DescentAscent(eta=0.1 * (i + 1)) for i in range(6)]
    together = run(
        problem, methods, sampler.seeded(*range(6)), x0[:6], 20, primal=primals, compile=compiled
    ).result()
    assert len(torch.unique(together.x, dim=0)) == 6
    for i, one in enumerate(primals):
        alone = run(
            problem, methods[i], sampler.seeded(i)[0], x0[i], 20, primal=one, compile=False
        ).result()
        assert (together.x[i] - alone.x[0]).abs().max() <= 1e-12
        assert (together.multipliers[i] - alone.multipliers[0]).abs().max() <= 1e-12


def test_one_method_with_several_rates_makes_as_many_runs() -> None:
    problem, sampler, x0 = classification()
    rates = [primal.Adam(lr=lr) for lr in (0.001, 0.01, 0.1)]
    result = run(problem, DescentAscent(), sampler, x0[0], 15, primal=rates, compile=False).result()
    assert result.x.shape == (3, 37)
    moved = (result.x - x0[0]).norm(dim=1)
    assert moved[0] < moved[1] < moved[2]
    with pytest.raises(ValueError, match=r"2 primals.*3 runs"):
        run(problem, DescentAscent(), sampler.seeded(0, 1, 2), x0[:3], 5, primal=rates[:2])


@pytest.mark.parametrize("method", [StochasticGhost(), SwitchingSubgradient()])
def test_a_method_with_a_step_of_its_own_takes_no_primal(method: Any) -> None:
    problem, sampler, x0 = classification()
    sentence = rf"{type(method).__name__} has a step of its own; primal= is for multiplier methods"
    for methods, primals in (
        (method, primal.Adam()),
        ([DescentAscent(), method], [None, primal.SGD()]),
    ):
        with pytest.raises(ValueError, match=sentence):
            run(problem, methods, sampler, x0[0], 5, primal=primals)
    run(
        problem,
        [DescentAscent(), method],
        sampler,
        x0[0],
        2,
        primal=[primal.SGD(), None],
        compile=False,
    ).result()


def test_a_skipped_step_keeps_what_the_primal_remembers() -> None:
    """A gradient that is not finite leaves Adam's means and its count as they were."""
    problem, sampler, x0 = classification()
    bad = spoilt(problem, torch.nan)
    going = run(bad, DescentAscent(), sampler, x0[0], 60, primal=primal.Adam(), compile=False)
    result = going.result()
    assert 0 < int(result.skipped[0]) < 60
    state = going._groups[0].state.primal
    assert int(state.k[0]) == 60 - int(result.skipped[0])
    assert all(leaf.isfinite().all() for leaf in state)


# The state ----------------------------------------------------------------------------------------


def test_what_is_of_the_size_of_x_is_kept_apart_from_the_method_s_state() -> None:
    x = torch.zeros(7, dtype=F64)
    assert type(DescentAscent().init(x, 2)).__name__ == "State"
    for method, ours, sizes in (
        (DescentAscent(), primal.Adam(), ((), (7,))),
        (SSLALM(), None, ((7,), ())),
        (SSLALM(), primal.SGD(), ((7,), (7,))),
    ):
        state = method.init(x, 2, primal=ours)
        assert isinstance(state, Iterate)
        assert inner(state) is state.method
        assert (tuple(state.z.shape), tuple(state.primal[0].shape) if state.primal else ()) == sizes
        assert torch.equal(method.multipliers(state), torch.zeros(2, dtype=F64))
        assert method.primal_step(state) == method.tau
        assert set(method.monitor(state)) == set(method.monitor(state.method))


def test_monitors_are_the_scalars_but_for_the_count() -> None:
    x, sample = torch.zeros(2, dtype=F64), Sample.of(lambda x: (x.sum(), x + 1))
    method = Optimistic(eta=0.5)
    _, state = method.update(x, method.init(x, 2), Draw.of(sample))
    assert method.monitor(state) == {"largest": torch.tensor(1.0, dtype=F64)}
    assert state.k == 1
