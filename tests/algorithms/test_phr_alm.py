"""PHR-ALM: its steps against the equations in numpy, the classical method in it, the resilient form
and its biases."""

from __future__ import annotations

from functools import partial
from math import inf, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound.algorithms import PHRALM, SSLALM, DescentAscent
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.core import Draw, Sample

F64 = torch.float64


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("resilient", [inf, 2.0])
def test_steps(lag: bool, second: bool, resilient: float) -> None:
    functions, samples, x = draws(16, seed=2)
    equal, eta = np.array([True, False, False]), np.array([0.3, 0.3, 0.7])
    rho, a, y_max = 0.5, 0.4, 0.25  # a gain below 1 and one that is cut at 1
    method = PHRALM(
        tau=Linear(0.1, 8, 0.5),
        eta=(0.3, 0.3, 0.7),
        rho=rho,
        a=a,
        y_max=y_max,
        resilient=resilient,
        lag=lag,
        second=second,
    )
    assert (method.draws, method.evaluates) == ((2, ("fc", "c")) if second else (1, ("fc",)))
    y, u, capped = np.zeros(3), np.zeros(3), 0
    steps = path(method, samples[: 8 * method.draws], x, equality=equal)
    for k, (point, state) in enumerate(steps):
        first, last = functions[k * method.draws], functions[(k + 1) * method.draws - 1]
        u_after = (1 - a) * u + a * (last.c(x) - y / resilient)
        w = y + rho * (u if lag else u_after)
        w = np.where(equal, w, np.maximum(w, 0))
        x = x - 0.1 * (1 - 0.5 * k / 8) * (first.gradient(x) + first.jacobian(x).T @ w)
        u, kappa = u_after, np.minimum(eta / rho, 1)
        ascent = np.where(equal, y + eta * u, np.maximum(y + eta * u, 0))
        gain = y + kappa * (np.maximum(y + rho * u, 0) - y)
        y = np.clip(np.where(equal | (eta > rho), ascent, gain), -y_max, y_max)
        capped += bool((np.abs(y) >= y_max).any())
        assert np.allclose(point, x, atol=1e-11)
        assert np.allclose(state.y, y, atol=1e-11)
        assert np.allclose(state.u, u, atol=1e-11)
        assert float(method.monitor(state)["capped"]) == capped
    assert capped > 0


def test_the_classical_step_sets_y_to_the_weight() -> None:
    _, samples, x = draws(5, seed=3)
    before, y = torch.tensor(x), torch.zeros(3, dtype=F64)
    steps = path(PHRALM(eta=1.5, rho=1.5, a=1.0, lag=False), samples, x)
    for sample, (point, state) in zip(samples, steps, strict=True):
        y = torch.relu(y + 1.5 * sample(before).c)
        assert torch.allclose(state.y, y, atol=1e-12)
        before = point


@pytest.mark.parametrize("eta", [0.0, 0.3, InverseSqrt(0.3)])
def test_without_a_penalty_it_is_descent_ascent(eta: Any) -> None:
    """rho = 0 divides by nothing: the same points and multipliers, bit for bit."""
    _, samples, x = draws(6, seed=5)
    *_, (ours, state) = path(PHRALM(tau=0.05, eta=eta, rho=0.0, a=1.0), samples, x)
    *_, (theirs, plain) = path(DescentAscent(tau=0.05, eta=eta), samples, x)
    assert torch.equal(ours, theirs)
    assert torch.equal(state.y, plain.y)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_the_resilient_form(alpha: float) -> None:
    """F = (x-2)^2/2, C = x - 1: y* = alpha/(1+alpha), relaxed by y*/alpha = 1/(1+alpha), x* = 2 -
    y*."""
    sample = Sample.of(lambda x: (0.5 * (x - 2) @ (x - 2), x - 1))
    *_, (x, state) = path(PHRALM(resilient=alpha), [sample] * 3000, torch.zeros(1, dtype=F64), 1)
    y = alpha / (1 + alpha)
    assert float(state.y) == pytest.approx(y, abs=1e-6)
    assert float(x) == pytest.approx(2 - y, abs=1e-6)
    assert float(x) - 1 == pytest.approx(1 / (1 + alpha), abs=1e-6)


@pytest.mark.parametrize("build", [partial(PHRALM, a=1.0), partial(SSLALM, mu=0.0, samples=1)])
@pytest.mark.parametrize(("lag", "limit"), [(True, 1.0), (False, 2.0)])
def test_the_penalty_is_stable_below_its_limit(build: Any, lag: bool, limit: float) -> None:
    """c = 2 x = 0, eta = 0: with a = tau rho |J|^2 the roots of z^2 - z + a = 0 (lag) or z = 1 - a
    decide."""
    sample = Sample.of(lambda x: (0 * x.sum(), 2 * x))
    for share in (0.9, 1.1):
        method = build(tau=0.05, eta=0.0, rho=share * limit / (0.05 * 4), lag=lag)
        *_, (x, _) = path(method, [sample] * 200, torch.ones(1, dtype=F64), 1, equality=[True])
        assert (abs(float(x)) < 1e-3) if share < 1 else (abs(float(x)) > 1e3)


def jensen(rho: float, sd: float) -> float:
    """x of F = (x-2)^2/2, C = x - 1 where w = y, with noise of this sd in w's value: E [y + rho (c
    + e)]_+ = y."""
    low, high = 0.0, 2.0
    for _ in range(60):
        y = (low + high) / 2
        mean, spread = y + rho * (1 - y), rho * sd
        z = mean / spread
        excess = mean * NormalDist().cdf(z) + spread * NormalDist().pdf(z) - y
        low, high = (y, high) if excess > 0 else (low, y)
    return 2 - (low + high) / 2


@pytest.mark.slow
@pytest.mark.parametrize("a", [1.0, 0.2])
def test_the_bias_of_the_positive_part(a: float) -> None:
    """sd 1, rho 2: x = 0.763 from the newest value alone; the tracked one has its sd times
    sqrt(a / (2 - a)).

    256 replicates of 4,000 steps with small steps: standard error below .005, asserted.
    """
    rho, generator = 2.0, torch.Generator().manual_seed(0)
    method = PHRALM(tau=0.005, eta=0.01, rho=rho, a=a)

    def step(x: torch.Tensor, state: Any, noise: torch.Tensor) -> Any:
        sample = Sample.of(lambda x: (0.5 * (x - 2) @ (x - 2), x - 1 + noise))
        d, new = method.update(x, state, Draw.of(sample))
        return x + d, new

    x = torch.ones(256, 1, dtype=F64)
    state, mean = torch.func.vmap(lambda x: method.init(x, 1))(x), torch.zeros(256, 1, dtype=F64)
    for k in range(4000):
        x, state = torch.func.vmap(step)(
            x, state, torch.randn(256, 1, dtype=F64, generator=generator)
        )
        mean += x / 2000 if k >= 2000 else 0
    assert mean.std() / 16 < 0.005
    assert float(mean.mean()) == pytest.approx(jensen(rho, sqrt(a / (2 - a))), abs=0.02)
