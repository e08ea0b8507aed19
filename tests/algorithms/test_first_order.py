"""One step, and a few more, of SGD, the penalised problem and descent-ascent against their
equations in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from transcription import draws, path

from fairbound.algorithms import SGD, DescentAscent, Penalty
from fairbound.algorithms.schedules import InverseSqrt, Linear


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
