"""One step, and a few more, of SGD, the penalised problem and descent-ascent against their
equations in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound.algorithms import SGD, DescentAscent, Penalty
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.core import Draw, Sample


def test_sgd() -> None:
    functions, samples, x = draws(3)
    for k, (point, _) in enumerate(path(SGD(tau=InverseSqrt(0.1)), samples, x)):
        x = x - 0.1 / np.sqrt(k + 1) * functions[k].gradient(x)
        assert np.allclose(point, x, atol=1e-12)


def test_penalty() -> None:
    functions, samples, x = draws(3)
    for one, (point, _) in zip(
        functions, path(Penalty(tau=0.05, weight=0.7), samples, x), strict=True
    ):
        weights = 0.7 * (one.c(x) > 0)
        x = x - 0.05 * (one.gradient(x) + one.jacobian(x).T @ weights)
        assert np.allclose(point, x, atol=1e-12)


def test_penalty_with_both_sides_at_bound_zero_is_eq_13() -> None:
    """[a]_+ + [-a]_+ = |a|: value and gradient of lambda * sum |gap|."""
    from fairbound.constraints._notions import loss_parity

    losses = torch.tensor([0.3, 0.9, 0.4], dtype=torch.float64)
    constraint = loss_parity(3, bound=0.0)
    c, contrast = constraint.value(losses), constraint.contrast.matrix()
    leaf = losses.clone().requires_grad_()
    printed = (leaf - leaf.mean()).abs().sum()
    printed.backward()
    assert torch.allclose(c.clamp(min=0).sum(), printed.detach())
    assert torch.allclose((c > 0).double() @ contrast, leaf.grad)


@pytest.mark.parametrize("second", [False, True])
def test_descent_ascent(second: bool) -> None:
    functions, samples, x = draws(8)
    method = DescentAscent(tau=Linear(0.1, 4, 0.5), eta=0.3, y_max=0.6, second=second)
    y = np.zeros(3)
    for k, (point, state) in enumerate(path(method, samples[: 4 * method.draws], x)):
        tau = 0.1 * (1 - 0.5 * k / 4)
        first, last = functions[k * method.draws], functions[(k + 1) * method.draws - 1]
        c = last.c(x)
        x = x - tau * (first.gradient(x) + first.jacobian(x).T @ y)
        y = np.minimum(np.maximum(y + 0.3 * c, 0), 0.6)
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(method.multipliers(state), y, atol=1e-12)
    assert (y > 0).any()
    assert y.max() <= 0.6


def test_simultaneous_steps_on_a_bilinear_game_spiral_out() -> None:
    """L = x y, equal steps h: the distance to the saddle grows by sqrt(1 + h^2) a step, as long as
    y stays positive."""
    h = 0.1
    game = Sample.of(lambda x: (0 * x.sum(), x))
    method = DescentAscent(tau=h, eta=h)
    x = torch.tensor([1.0], dtype=torch.float64)
    state = method.init(x, 1)._replace(y=torch.tensor([0.5], dtype=torch.float64))
    for _ in range(10):
        before = x.square() + state.y.square()
        d, state = method.update(x, state, Draw.of(game))
        x = x + d
        assert float((x.square() + state.y.square()) / before) == pytest.approx(1 + h**2)
