"""nuPI: its recursion in numpy, the methods that it equals, Cooper's, and where it diverges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound.algorithms import SSLALM, DescentAscent, NuPI
from fairbound.algorithms.schedules import Linear

F64 = torch.float64


@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_steps(nu: float) -> None:
    functions, samples, x = draws(8, seed=1)
    equal, eta = np.array([True, False, False]), np.array([0.3, 0.2, 0.4])
    method = NuPI(
        tau=Linear(0.1, 8, 0.5), eta=tuple(eta.tolist()), kp=1.5, ki=0.8, nu=nu, y_max=0.7
    )
    y, xi, capped = np.zeros(3), np.zeros(3), 0
    for k, (point, state) in enumerate(path(method, samples, x, equality=equal)):
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
    ours, theirs = (
        path(method, samples, x)
        for method in (NuPI(tau=0.05, eta=0.3, kp=0.0), DescentAscent(tau=0.05, eta=0.3))
    )
    for (a, state), (b, plain) in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(state.y, plain.y)


def test_on_equalities_it_is_the_lagged_augmented_lagrangian() -> None:
    """nu = 0: penalty eta K_P, dual step eta K_I, to rounding; on inequalities the projection tells
    them apart."""
    eta, kp, ki = 0.1, 3.0, 0.5
    pi = NuPI(tau=0.02, eta=eta, kp=kp, ki=ki, nu=0.0)
    alm = SSLALM(tau=0.02, eta=eta * ki, rho=eta * kp, mu=0.0, samples=1, lag=True)
    _, samples, x = draws(100, seed=7)
    furthest = {}
    for equal in (True, False):
        paths = (path(method, samples, x, equality=[equal] * 3) for method in (pi, alm))
        furthest[equal] = max(
            float((a - b).abs().max()) for (a, _), (b, _) in zip(*paths, strict=True)
        )
    assert furthest[True] < 1e-13
    assert furthest[False] > 1e-3


@pytest.mark.parametrize("nu", [0.0, 0.9])
def test_cooper_s_optimizer_moves_the_multipliers_alike(nu: float) -> None:
    """From the start xi = 0, its `ZEROS`; the optimizer alone, projected as its multipliers are."""
    cooper = pytest.importorskip("cooper", reason="pip install -r benchmarks/requirements.txt")
    _, samples, x = draws(30, seed=3)
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
    before, projected = torch.tensor(x), False
    ours = path(NuPI(tau=0.02, eta=0.2, kp=2.0, ki=0.7, nu=nu), samples, x)
    for sample, (point, state) in zip(samples, ours, strict=True):
        theirs.grad = sample(before).c
        optimizer.step()
        projected |= bool((theirs < 0).any())
        theirs.data.clamp_(min=0.0)
        assert torch.allclose(state.y, theirs.data, atol=1e-12)
        before = point
    assert projected
