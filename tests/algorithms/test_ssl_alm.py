"""SSL-ALM's step against its equations in numpy; the draws' roles, the reset and the slacks'
start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transcription import Quadratic, draws, path

from fairbound.algorithms import SSLALM
from fairbound.algorithms.schedules import Linear
from fairbound.core import Draw, Sample, inner

ROLES = {1: (0, 0, 0), 2: (0, 0, 1), 3: (0, 1, 2)}


def transcribed(
    functions: list[Quadratic],
    x: np.ndarray,
    method: SSLALM,
    equal: np.ndarray,
) -> Iterator[dict[str, Any]]:
    """x and the state after every step, by the equations of the module's docstring: functions for
    the dual step, the gradient and the penalty's value. With lag the value is the last mini-batch's,
    and the primal step uses the old y; an equality has no slack."""
    tau, eta, rho, mu, beta = 0.05, 0.4, 1.5, method.mu, 0.3
    s = np.where(equal, 0, np.maximum(-functions[0].c(x), 0))
    y, r, zx, zs, resets = np.zeros(3), np.zeros(3), x, s, 0
    for k in range(0, len(functions), method.samples):
        dual, primal, penalty = (functions[k + i] for i in ROLES[method.samples])
        lagged, r = y + rho * r, penalty.c(x) + s
        y = y + eta * (dual.c(x) + s)
        if np.linalg.norm(y) >= method.y_max:
            y = y * method.y_max / np.linalg.norm(y) if method.clamp else np.zeros(3)
            resets += 1
        w = lagged if method.lag else y + rho * r
        after = x - tau * (primal.gradient(x) + primal.jacobian(x).T @ w + mu * (x - zx))
        s_after = np.where(equal, 0, np.maximum(s - tau * (w + mu * (s - zs)), 0))
        zx, zs = zx + beta * (x - zx), zs + beta * (s - zs)
        x, s = after, s_after
        yield {"x": x, "z": zx, "y": y, "s": s, "zs": zs, "resets": resets} | (
            {"r": r} if method.lag else {}
        )


@pytest.mark.parametrize(
    ("samples", "clamp", "lag"),
    [*((n, clamp, False) for n in (1, 2, 3) for clamp in (False, True)), (1, False, True)],
)
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_steps(samples: int, mu: float, clamp: bool, lag: bool) -> None:
    functions, made, x = draws(8 * samples, seed=4 if lag else samples)
    equal = np.array([True, False, False])
    method = SSLALM(
        tau=0.05,
        eta=0.4,
        rho=1.5,
        mu=mu,
        beta=0.3,
        y_max=1.5 if lag else 1.0,
        samples=samples,
        clamp=clamp,
        lag=lag,
    )
    assert (method.draws, method.smoothing is None) == (samples, mu == 0)
    steps = path(method, made, x, first=made[0](torch.tensor(x)), equality=equal)
    for (point, state), own in zip(steps, transcribed(functions, x, method, equal), strict=True):
        assert np.allclose(point, own.pop("x"), atol=1e-10)
        z = own.pop("z")
        assert mu == 0 or np.allclose(state.z, z, atol=1e-10)  # else nothing is kept
        for name, expected in own.items():
            assert np.allclose(getattr(inner(state), name), expected, atol=1e-10), name
    assert 0 < own["resets"] <= (7 if lag else 8)  # the safeguard was part of the comparison


def test_without_smoothing_no_vector_of_the_model_is_kept() -> None:
    x = torch.zeros(7)
    assert all(leaf.shape in ((), (3,)) for leaf in SSLALM(mu=0.0).init(x, 3))
    assert SSLALM().init(x, 3).z.shape == (7,)


@pytest.mark.parametrize("samples", [2, 3])
def test_lag_is_for_one_mini_batch(samples: int) -> None:
    with pytest.raises(ValueError, match=rf"samples={samples}.*samples=1.*lag=False"):
        SSLALM(samples=samples, lag=True)


def test_scheduled_steps_fall() -> None:
    _, made, x = draws(2)
    method = SSLALM(
        tau=Linear(0.1, 10, 0.0), eta=Linear(0.2, 10, 0.0), samples=2, slack_from_first=False
    )
    point = torch.tensor(x)
    state = method.init(point, 3)
    state = state._replace(method=state.method._replace(k=torch.tensor(10.0, dtype=torch.float64)))
    d, after = method.update(point, state, Draw.of(*made))
    assert d.abs().max() == 0
    assert torch.equal(after.method.y, state.method.y)


def test_slacks_start_at_the_first_estimate_or_at_zero() -> None:
    _, made, x = draws(1)
    point = torch.tensor(x)
    first = made[0](point)
    started = SSLALM().init(point, 3, first).method
    assert torch.equal(started.s, (-first.c).clamp(min=0))
    assert torch.equal(started.zs, started.s)
    assert SSLALM(slack_from_first=False).init(point, 3, first).method.s.abs().max() == 0
    assert SSLALM().init(point, 3).method.s.abs().max() == 0


def test_a_strictly_feasible_optimum_is_left_alone_only_with_the_slack_started() -> None:
    """F = x^2/2, c = x - 1, start at the solution 0: pushed to 0.37 from slack 0, never moves from
    slack 1."""
    sample = Sample.of(lambda x: (0.5 * x @ x, x - 1))
    x, furthest = torch.zeros(1, dtype=torch.float64), {}
    for from_first in (True, False):
        method = SSLALM(tau=0.01, eta=0.01, rho=1.0, slack_from_first=from_first)
        points = path(method, [sample] * 1000, x, 1, first=sample(x))
        furthest[from_first] = max(float(point.abs()) for point, _ in points)
    assert furthest[True] == 0
    assert furthest[False] == pytest.approx(0.37, abs=0.02)


def test_reset_is_by_norm_not_by_component() -> None:
    sample = Sample.of(
        lambda x: (x.sum() * 0, x * 0 + torch.tensor([3.0, 4.0], dtype=torch.float64))
    )
    x = torch.zeros(2, dtype=torch.float64)
    method = SSLALM(eta=1.0, y_max=5.0, samples=1)  # |(3, 4)| = 5, no component reaches it
    _, state = method.update(x, method.init(x, 2), Draw.of(sample))
    assert state.method.y.abs().max() == 0
    assert state.method.resets == 1
