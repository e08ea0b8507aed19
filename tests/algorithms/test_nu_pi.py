"""nuPI: its recursion in numpy, the methods that it equals, Cooper's, and where it diverges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transcription import draws

from fairbound.algorithms import SSLALM, DescentAscent, NuPI
from fairbound.algorithms.schedules import Linear
from fairbound.core import Draw

F64 = torch.float64


@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_steps(nu: float) -> None:
    functions, samples, x = draws(8, seed=1)
    equal, eta = np.array([True, False, False]), np.array([0.3, 0.2, 0.4])
    method = NuPI(
        tau=Linear(0.1, 8, 0.5), eta=tuple(eta.tolist()), kp=1.5, ki=0.8, nu=nu, y_max=0.7
    )
    point = torch.tensor(x)
    state = method.init(point, 3, None, torch.tensor(equal))
    y, xi, capped = np.zeros(3), np.zeros(3), 0
    for k in range(8):
        d, state = method.update(point, state, Draw.of(samples[k]))
        point = point + d
        c = functions[k].c(x)
        x = x - 0.1 * (1 - 0.5 * k / 8) * (
            functions[k].gradient(x) + functions[k].jacobian(x).T @ y
        )
        before, xi = xi, nu * xi + (1 - nu) * c
        y = y + eta * (0.8 * c + 1.5 * (xi - before))
        y = np.clip(np.where(equal, y, np.maximum(y, 0)), -0.7, 0.7)
        capped += bool((np.abs(y) >= 0.7).any())
        assert np.allclose(point, x, atol=1e-11)
        assert np.allclose(state.y, y, atol=1e-11)
        assert np.allclose(state.xi, xi, atol=1e-11)
        assert float(method.monitor(state)["capped"]) == capped
    assert capped > 0


def test_without_its_proportional_part_it_is_descent_ascent() -> None:
    _, samples, x = draws(6)
    ours, theirs = NuPI(tau=0.05, eta=0.3, kp=0.0), DescentAscent(tau=0.05, eta=0.3)
    points, states = (
        [torch.tensor(x)] * 2,
        [method.init(torch.tensor(x), 3) for method in (ours, theirs)],
    )
    for sample in samples:
        for i, method in enumerate((ours, theirs)):
            d, states[i] = method.update(points[i], states[i], Draw.of(sample))  # type: ignore[call-overload]
            points[i] = points[i] + d
        assert torch.equal(*points)
        assert torch.equal(states[0].y, states[1].y)


def test_on_equalities_it_is_the_lagged_augmented_lagrangian() -> None:
    """nu = 0: penalty eta K_P, dual step eta K_I, to rounding; on inequalities the projection tells
    them apart."""
    eta, kp, ki = 0.1, 3.0, 0.5
    pi = NuPI(tau=0.02, eta=eta, kp=kp, ki=ki, nu=0.0)
    alm = SSLALM(tau=0.02, eta=eta * ki, rho=eta * kp, mu=0.0, samples=1, lag=True)
    _, samples, x = draws(100, seed=7)
    furthest = {}
    for equal in (True, False):
        mask = torch.full((3,), equal)
        points = [torch.tensor(x)] * 2
        states: list[Any] = [method.init(points[0], 3, None, mask) for method in (pi, alm)]
        furthest[equal] = 0.0
        for sample in samples:
            for i, method in enumerate((pi, alm)):
                d, states[i] = method.update(points[i], states[i], Draw.of(sample))  # type: ignore[attr-defined]
                points[i] = points[i] + d
            furthest[equal] = max(furthest[equal], float((points[0] - points[1]).abs().max()))
    assert furthest[True] < 1e-13
    assert furthest[False] > 1e-3


@pytest.mark.parametrize("nu", [0.0, 0.9])
def test_cooper_s_optimizer_moves_the_multipliers_alike(nu: float) -> None:
    """From the start xi = 0, its `ZEROS`; the optimizer alone, projected as its multipliers are."""
    cooper = pytest.importorskip("cooper", reason="pip install -r benchmarks/requirements.txt")
    _, samples, x = draws(30, seed=3)
    method = NuPI(tau=0.02, eta=0.2, kp=2.0, ki=0.7, nu=nu)
    theirs = torch.nn.Parameter(torch.zeros(3, dtype=F64))
    optimizer = cooper.optim.nuPI(
        [theirs],
        lr=0.2,
        Kp=torch.tensor(2.0, dtype=F64),
        Ki=torch.tensor(0.7, dtype=F64),
        ema_nu=nu,
        maximize=True,
        init_type=cooper.optim.nuPIInitType.ZEROS,
    )
    point = torch.tensor(x)
    state, projected = method.init(point, 3), False
    for sample in samples:
        theirs.grad = sample(point).c
        d, state = method.update(point, state, Draw.of(sample))
        point = point + d
        optimizer.step()
        projected |= bool((theirs < 0).any())
        theirs.data.clamp_(min=0.0)
        assert torch.allclose(state.y, theirs.data, atol=1e-12)
    assert projected
