"""SQP-Adam: steps against numpy, its closed form for equalities, the diagonal metric of the
subproblem, accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transcription import draws, ghost_direction, path

from fairbound.algorithms import SQPAdam
from fairbound.algorithms._sqp_adam import least_squares_multipliers
from fairbound.algorithms._subproblems import ghost_direction as solved
from fairbound.core import Draw, Sample

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def test_a_diagonal_metric_is_a_change_of_variables() -> None:
    """d = S u with u of the problem in S g and J S: against scipy on the scaled problem, boxes
    included."""
    g, c, J, scale = (
        normal(6),
        normal(3, seed=1),
        normal(3, 6, seed=2),
        (0.5 * normal(6, seed=3)).exp(),
    )
    box = {"tau": 1.3, "beta": 0.9, "rho": 0.2, "lam": 0.4}
    u = ghost_direction(*(part.numpy() for part in (g * scale, c, J * scale)), **box)
    assert np.allclose(solved(g, c, J, scale=scale, **box).d, u * scale.numpy(), atol=1e-6)


def test_for_equalities_it_is_the_closed_form() -> None:
    """Projected stochastic momentum's d, with averages that are the mini-batch (average = 1) and
    kappa near 0."""
    functions, samples, x = draws(4, m=2)
    method = SQPAdam(
        alpha=0.05,
        average=1.0,
        beta=1e6,
        rho=1e5,
        lam=1 - 1e-12,
        b1=0.8,
        b2=0.9,
        mu=1e-6,
        floor=0.0,
    )
    momentum, square = np.zeros(6), np.zeros(6)
    for k, (point, _) in enumerate(path(method, samples, x, 2, equality=[True, True])):
        q = functions[k]
        g, c, J = q.gradient(x), q.c(x), q.jacobian(x)
        p = g - J.T @ np.linalg.solve(J @ J.T, J @ g)
        momentum, square = 0.8 * momentum + 0.2 * p, 0.9 * square + 0.1 * p**2
        inverse = 1 / np.sqrt(square / (1 - 0.9 ** (k + 1)) + 1e-6)
        v = -J.T @ np.linalg.solve(J @ J.T, c)
        r = inverse * momentum / (1 - 0.8 ** (k + 1)) + v
        d = v - r + inverse * (J.T @ np.linalg.solve((J * inverse) @ J.T, J @ r))
        x = x + 0.05 * d
        assert np.allclose(point, x, atol=1e-7)


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_the_working_set_the_multipliers_and_the_floor(floor: float) -> None:
    """One step from multipliers (.5, 0, 0) where c = (-, -, +): the first and the last are
    active."""
    functions, _, x = draws(1, seed=5)
    q, point = functions[0], torch.tensor(x)
    q = q._replace(b=q.b + q.c(x) + np.array([0.3, 0.4, -0.2]))
    method = SQPAdam(alpha=1.0, average=1.0, mu=1e-6, floor=floor)
    state = method.init(point, 3)._replace(y=torch.tensor([0.5, 0.0, 0.0], dtype=F64))
    d, state = method.update(point, state, Draw.of(q.sample()))
    g, c, J = q.gradient(x), q.c(x), q.jacobian(x)
    assert (np.sign(c) == [-1, -1, 1]).all()
    A = J[[0, 2]]
    y = np.linalg.solve(A @ A.T, -A @ g)
    p = g + A.T @ y
    square, least = p**2 + 1e-6, (floor * g) ** 2
    assert (square < least).any() == (floor > 0)
    scale = np.maximum(square, least) ** -0.25
    u = ghost_direction((p - A.T @ y) * scale, c, J * scale, tau=1.0, beta=20.0, rho=0.2, lam=0.9)
    assert np.allclose(d, u * scale, atol=1e-5)
    assert (state.y >= 0).all()


@pytest.mark.parametrize(("floor", "longest"), [(0.1, 10.0), (0.0, 2500.0)])
def test_an_active_constraint_that_balances_the_gradient_makes_no_long_step(
    floor: float, longest: float
) -> None:
    """min (x - 2)^2 / 2 s.t. x <= 1 from x = 3: p = 0, so that H is sqrt(mu) or the floor."""
    method, x = SQPAdam(floor=floor, alpha=1.0), torch.full((1,), 3.0, dtype=F64)
    sample = Sample.of(lambda x: (0.5 * (x - 2).square().sum(), x - 1))
    d, _ = method.update(x, method.init(x, 1, sample(x)), Draw.of(sample))
    assert longest / 5 < float(d.abs()) <= longest
    assert float(d) < 0


def test_dependent_and_absent_rows_have_finite_multipliers() -> None:
    J = normal(1, 6).repeat(3, 1) * torch.tensor([[1.0], [-1.0], [0.0]], dtype=F64)
    g = normal(6, seed=4)
    y = least_squares_multipliers(g, J)
    left = g + y @ J
    assert y.isfinite().all()
    assert float((J @ left).abs().max()) < 1e-8
