"""What every algorithm of the registry must do. Being listed in ALGORITHMS is being tested here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from methods import F64, classification, every_method
from torch import Tensor
from transcription import draws

from fairbound import ALGORITHMS, run
from fairbound.algorithms import SSLALM, Adaptive, SwitchingSubgradient
from fairbound.core import Algorithm, Draw, Sample
from fairbound.training.hyperparams import numbers, with_hyperparams


def tree_leaves(state: Any) -> list[Tensor]:
    return list(torch.utils._pytree.tree_flatten(state)[0])


def scaled(method: Algorithm[Any], factor: float) -> Algorithm[Any]:
    """The same method with its first number changed: tau, eta_f or alpha, or a schedule's start."""
    name, value = next(iter(numbers(method).items()))
    return with_hyperparams(method, {name: value * factor})


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_precision_are_the_point_s(method: Algorithm[Any], dtype: torch.dtype) -> None:
    functions, _, x = draws(method.draws)
    point = torch.tensor(x, dtype=dtype)
    samples = [
        q._replace(**{k: v.astype(str(dtype).split(".")[1]) for k, v in q._asdict().items()}).sample()
        for q in functions
    ]
    state = method.init(point, 3, samples[0](point))
    for _ in range(3):
        d, after = method.update(point, state, Draw.of(*samples, weight=2.5, uniform=0.3))
        assert d.shape == point.shape
        assert d.dtype == dtype
        assert [(leaf.shape, leaf.dtype) for leaf in tree_leaves(after)] == [
            (leaf.shape, leaf.dtype) for leaf in tree_leaves(state)
        ]
        assert method.output(point, after).shape == point.shape
        y = method.multipliers(after)
        assert y is None or (y.shape == (3,) and y.dtype == dtype)
        assert all(value.shape == () for value in method.monitor(after).values())
        state = after


@every_method
def test_update_is_pure(method: Algorithm[Any]) -> None:
    _, samples, x = draws(method.draws)
    point = torch.tensor(x)
    state = method.init(point, 3, samples[0](point))
    kept = [leaf.clone() for leaf in (point, *tree_leaves(state))]
    torch.manual_seed(1)
    first = method.update(point, state, Draw.of(*samples, weight=2.5, uniform=0.3))
    torch.manual_seed(2)
    second = method.update(point, state, Draw.of(*samples, weight=2.5, uniform=0.3))
    assert all(torch.equal(a, b) for a, b in zip(kept, (point, *tree_leaves(state)), strict=True))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(first[1]), tree_leaves(second[1]), strict=True))


@every_method
def test_vmap_equals_a_loop(method: Algorithm[Any]) -> None:
    """Over points, states and the first number among the hyper-parameters."""
    _, samples, x = draws(method.draws)
    points = torch.tensor(x) + torch.randn(5, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    name, value = next(iter(numbers(method).items()))
    values = value * torch.linspace(0.5, 1.5, 5, dtype=F64)

    def step(point: Tensor, number: Tensor) -> tuple[Tensor, Any]:
        own = with_hyperparams(method, {name: number})
        return own.update(point, own.init(point, 3, samples[0](point)), Draw.of(*samples, weight=2.5, uniform=0.3))

    d, states = torch.func.vmap(step)(points, values)
    for i in range(5):
        own = with_hyperparams(method, {name: float(values[i])})
        alone, state = own.update(
            points[i], own.init(points[i], 3, samples[0](points[i])), Draw.of(*samples, weight=2.5, uniform=0.3)
        )
        assert torch.allclose(d[i], alone, atol=1e-12)
        for stacked, single in zip(tree_leaves(states), tree_leaves(state), strict=True):
            assert torch.allclose(stacked[i] if stacked.ndim > single.ndim else stacked, single, atol=1e-12)


@every_method
def test_a_solution_inside_the_bounds_is_a_fixed_point(method: Algorithm[Any]) -> None:
    """min |x - a|^2/2 with c < 0 at a: nothing moves."""
    a = torch.tensor([1.0, -2.0], dtype=F64)
    sample = Sample.of(lambda x: (0.5 * (x - a) @ (x - a), torch.stack([x.sum() - 5, x[0] - 3])))
    state = method.init(a, 2, sample(a))
    if isinstance(method, SSLALM) and not method.slack_from_first:
        state = state._replace(s=-sample(a).c, zs=-sample(a).c)
    for _ in range(5):
        d, state = method.update(a, state, Draw.of(*[sample] * method.draws))
        assert d.abs().max() < 1e-12


@every_method
def test_run_of_a_stack_equals_the_run_alone(method: Algorithm[Any]) -> None:
    """200 steps, float64, 1e-10: what shares the stack changes nothing, Ghost's random sizes included."""
    problem, sampler, x0 = classification()
    methods = [scaled(method, factor) for factor in (1.0, 0.7, 1.3, 1.0)]
    samplers = sampler.seeded(3, 1, 4, 1)
    stacked = run(problem, methods, samplers, x0[:4], 200, compile=False).result()
    for i in (0, 2):
        alone = run(problem, methods[i], samplers[i], x0[i], 200, compile=False).result()
        assert (stacked.x[i] - x0[i]).norm() > 1e-4
        assert (stacked.x[i] - alone.x[0]).abs().max() < 1e-10
        assert (stacked.output[i] - alone.output[0]).abs().max() < 1e-10


@every_method
def test_hand_written_loop_equals_the_runner(method: Algorithm[Any]) -> None:
    """200 steps, float64, 1e-9."""
    problem, sampler, x0 = classification()
    result = run(problem, method, sampler, x0[0], 200, compile=False).result()
    source = problem.source(sampler)
    x = x0[0].clone()
    first = source.first(method.evaluates)(x)
    state = method.init(x, problem.m, first if method.needs_initial_estimate else None)
    for _ in range(200):
        d, state = method.update(x, state, method.draw(source))
        x = x + d
    assert (result.x[0] - x).abs().max() < 1e-9
    assert (result.output[0] - method.output(x, state)).abs().max() < 1e-9
    y = method.multipliers(state)
    assert result.multipliers.isnan().all() if y is None else (result.multipliers[0] - y).abs().max() < 1e-9


@every_method
def test_it_lowers_the_loss(method: Algorithm[Any]) -> None:
    """In float32, on a bound that never binds, every method is a descent method."""
    problem, sampler, x0 = classification(torch.float32, bound=100.0)
    quick = (
        replace(method, **{"alpha": 0.3} if hasattr(method, "alpha") else {})
        if not hasattr(method, "eta_f")
        else method
    )
    result = run(problem, quick, sampler.seeded(0, 1), x0[:2], 300, compile=False).result()
    rows = torch.arange(problem.data.rows)
    if isinstance(method, SwitchingSubgradient) and isinstance(method.eta_f, Adaptive):
        assert (
            problem.measure(result.x, rows).loss < problem.measure(x0[:2], rows).loss + 0.02
        ).all()  # tiny steps by design
    else:
        assert (problem.measure(result.x, rows).loss < problem.measure(x0[:2], rows).loss - 0.01).all()


@every_method
def test_a_wrong_number_of_mini_batches_is_a_sentence(method: Algorithm[Any]) -> None:
    _, samples, x = draws(method.draws + 1)
    point = torch.tensor(x)
    state = method.init(point, 3)
    with pytest.raises(ValueError, match=rf"{type(method).__name__} needs {method.draws} mini-batches a step, got"):
        method.update(point, state, Draw.of(*samples))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_number_out_of_range_is_named(name: str) -> None:
    build = ALGORITHMS[name]
    for field in numbers(build()):
        if "." in field:
            continue
        for bad in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=rf"{name}: {field} must be .*got"):
                build(**{field: bad})
        for bad in ("0.1", True, None, [0.1], torch.tensor(0.1)):
            with pytest.raises(TypeError, match=rf"{name}: {field} must be"):
                build(**{field: bad})
        assert build(**{field: np.float32(0.25)}) == build(**{field: 0.25})


@every_method
def test_what_is_read_is_declared(method: Algorithm[Any]) -> None:
    """`evaluates` names a part for each draw, and nothing undeclared is used: what is not read is NaN."""
    assert len(method.evaluates) == method.draws
    assert set(method.evaluates) <= {"f", "c", "fc"}
    problem, sampler, x0 = classification()
    result = run(problem, method, sampler, x0[0], 20, compile=False).result()
    assert torch.isfinite(result.x).all()
    assert result.skipped.sum() == 0
