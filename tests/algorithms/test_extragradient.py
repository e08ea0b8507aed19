"""Extragradient and its optimistic form: steps against numpy, the bilinear game, and what they do not cure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from known_problems import errors
from transcription import draws

from fairbound import Constrained, constraints
from fairbound.algorithms import DescentAscent, Extragradient
from fairbound.algorithms.schedules import Linear
from fairbound.core import Algorithm, Draw, Sample

F64 = torch.float64
EQUALITY = np.array([False, True, False])


def projected(y: np.ndarray) -> np.ndarray:
    return np.clip(np.where(EQUALITY, y, np.maximum(y, 0)), -0.6, 0.6)


@pytest.mark.parametrize("second", [False, True])
def test_steps_against_numpy(second: bool) -> None:
    functions, samples, x = draws(10)
    method = Extragradient(tau=Linear(0.1, 4, 0.5), eta=0.3, y_max=0.6, second=second)
    point, y = torch.tensor(x), np.zeros(3)
    state = method.init(point, 3, equality=torch.tensor(EQUALITY))
    for k in range(5):
        used = (2 * k, 2 * k + 1) if second else (2 * k,)
        d, state = method.update(point, state, Draw.of(*(samples[i] for i in used)))
        point = point + d
        tau, one, other = 0.1 * (1 - 0.5 * min(k / 4, 1)), functions[used[0]], functions[used[-1]]
        trial = x - tau * (one.gradient(x) + one.jacobian(x).T @ y)
        trial_y = projected(y + 0.3 * one.c(x))
        x = x - tau * (other.gradient(trial) + other.jacobian(trial).T @ trial_y)
        y = projected(y + 0.3 * other.c(trial))
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(method.multipliers(state), y, atol=1e-12)
    assert state.capped > 0


def test_optimistic_steps_against_numpy() -> None:
    functions, samples, x = draws(6)
    method = Extragradient(tau=Linear(0.1, 4, 0.5), eta=0.3, y_max=0.6, optimistic=True)
    point, y = torch.tensor(x), np.zeros(3)
    state = method.init(point, 3, equality=torch.tensor(EQUALITY))
    u_prev = c_prev = None
    for k in range(6):
        d, state = method.update(point, state, Draw.of(samples[k]))
        point = point + d
        tau = 0.1 * (1 - 0.5 * min(k / 4, 1))
        u, c = functions[k].gradient(x) + functions[k].jacobian(x).T @ y, functions[k].c(x)
        u_prev, c_prev = (u, c) if k == 0 else (u_prev, c_prev)
        x = x - tau * (2 * u - u_prev)
        y = projected(y + 0.3 * (2 * c - c_prev))
        u_prev, c_prev = u, c
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(method.multipliers(state), y, atol=1e-12)


def test_what_it_declares() -> None:
    plain, second, optimistic = Extragradient(), Extragradient(second=True), Extragradient(optimistic=True)
    assert [(m.draws, m.points, m.passes) for m in (plain, second, optimistic)] == [
        (1, 2, (2,)),
        (2, 2, (1, 1)),
        (1, 1, (1,)),
    ]
    with pytest.raises(ValueError, match=r"optimistic=True has one point, so second=True has no place; omit one"):
        Extragradient(optimistic=True, second=True)


def test_a_loop_takes_the_optimistic_form_alone() -> None:
    model, parity = torch.nn.Linear(2, 1), constraints.pairwise_loss_parity(2, bound=0.1)
    with pytest.raises(ValueError, match=r"Extragradient evaluates a mini-batch at 2 points a step"):
        Constrained(model, parity, Extragradient())
    fair = Constrained(model, parity, Extragradient(optimistic=True))
    fair.backward(model(torch.randn(8, 2)).square()[:, 0], torch.arange(8) % 2)
    assert model.weight.grad.abs().max() > 0


# The bilinear game L = x y --------------------------------------------------------------------------------------------


def bilinear(method: Algorithm[Any], steps: int) -> list[float]:
    """x^2 + y^2 after every step, from (1, .5), with an equality: y has no sign."""
    game = Sample.of(lambda x: (0 * x.sum(), x))
    x = torch.tensor([1.0], dtype=F64)
    state = method.init(x, 1, equality=torch.tensor([True]))._replace(y=torch.tensor([0.5], dtype=F64))
    found = [1.25]
    for _ in range(steps):
        d, state = method.update(x, state, Draw.of(game))
        x = x + d
        found.append(float(x.square() + state.y.square()))
    return found


@pytest.mark.parametrize("h", [0.1, 0.5, 0.9])
def test_it_contracts_a_bilinear_game_by_a_known_factor(h: float) -> None:
    found = bilinear(Extragradient(tau=h, eta=h), 20)
    for before, after in pairwise(found):
        assert after / before == pytest.approx(1 - h**2 + h**4, rel=1e-12)


def test_the_optimistic_form_contracts_it_and_descent_ascent_does_not() -> None:
    """The recursion z+ = z - i h (2 z - z_prev) has the roots of l^2 - (1 - 2 i h) l - i h = 0, the larger |l| < 1."""
    h, steps = 0.3, 200
    largest = max(abs(root) for root in np.roots([1, -(1 - 2j * h), -1j * h]))
    assert largest < 1
    found = bilinear(Extragradient(tau=h, eta=h, optimistic=True), steps)
    assert (found[-1] / found[-101]) ** (1 / 200) == pytest.approx(largest, rel=1e-4)
    assert bilinear(DescentAscent(tau=h, eta=h), 20)[-1] == pytest.approx(1.25 * (1 + h**2) ** 20)


@pytest.mark.parametrize("optimistic", [False, True])
def test_it_does_not_cure_a_concave_lagrangian(optimistic: bool) -> None:
    """P4, whose negative curvature is 1, without noise: it diverges with a dual step of .1."""
    found = errors(Extragradient(optimistic=optimistic), "P4", 2000, batch=float("inf"), replicates=1)
    assert not float(found.x) < 0.2


def test_a_dual_step_above_the_negative_curvature_acts_as_a_penalty() -> None:
    """The multipliers ahead, y + eta c, are those of an augmented Lagrangian with rho = eta."""
    found = errors(Extragradient(eta=1.5), "P4", 2000, batch=float("inf"), replicates=1)
    assert float(found.x) < 0.02


# Medians of 32 replicates with noise, 2,000 steps of 4 examples; the bounds are about twice what was measured:
# P1 .032/.006/.020, P2 .018/.002/.011, P3 .058/.025/.016, P5 .166/.081/.15 (|x - x*| / violation / |y - y*|).
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "x", "violation", "y"),
    [("P1", 0.065, 0.015, 0.04), ("P2", 0.036, 0.005, 0.022), ("P3", 0.12, 0.05, 0.032), ("P5", 0.33, 0.16, 0.3)],
)
def test_known_answers_with_noise(name: str, x: float, violation: float, y: float) -> None:
    found = errors(Extragradient(), name, 2000).medians()
    assert found[0] <= x
    assert found[1] <= violation
    assert found[2] <= y
