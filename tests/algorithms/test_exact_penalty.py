"""The tracked exact penalty: steps against numpy, its fixed points, what tracking does against
noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound.algorithms import ExactPenalty
from fairbound.algorithms._exact_penalty import State
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.core import Sample

F64 = torch.float64
# min (x - 3)^2 / 2  s.t.  x <= 1, whose multiplier is 2
SIMPLE = Sample.of(lambda x: (0.5 * (x - 3).square().sum(), x - 1))


def test_steps_against_numpy() -> None:
    functions, samples, x = draws(8, seed=1)
    equality = np.array([False, True, False])
    method = ExactPenalty(tau=Linear(0.1, 4, 0.5), gamma=InverseSqrt(0.6), weight=0.7, nu=0.8)
    u, y, signs = np.zeros(3), np.zeros(3), set()
    for k, (point, state) in enumerate(path(method, samples, x, equality=equality)):
        g = max(0.6 / np.sqrt(k + 1), 1 / (k + 1))
        c = functions[k].c(x)
        u = (1 - g) * u + g * c
        w = 0.7 * np.clip(u / 0.8, np.where(equality, -1, 0), 1)
        tau = 0.1 * (1 - 0.5 * min(k / 4, 1))
        x = x - tau * (functions[k].gradient(x) + functions[k].jacobian(x).T @ w)
        y = y + 0.01 * (w - y)
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(state.u, u, atol=1e-12)
        assert np.allclose(method.multipliers(state), y, atol=1e-12)
        signs |= set(np.sign(w[equality])) | {2.0 * bool((w[~equality] == 0.7).any())}
    assert -1.0 in signs  # an equality below 0, and a hinge at its full slope
    assert 2.0 in signs


def end(method: ExactPenalty) -> tuple[float, State]:
    """Of 1000 steps from 0."""
    *_, (x, state) = path(method, [SIMPLE] * 1000, torch.zeros(1, dtype=F64), 1)
    return float(x), state


def test_it_stops_where_the_smoothed_penalty_does() -> None:
    """x - 3 + weight (x - 1) / nu = 0: outside by nu y / weight."""
    x, state = end(ExactPenalty(weight=5.0, nu=0.5, tau=0.02))
    assert x == pytest.approx(13 / 11, abs=1e-6)
    assert float(state.y) == pytest.approx(20 / 11, abs=2e-3)


def test_a_weight_below_the_multiplier_does_not_reach_the_solution() -> None:
    """It stops at the minimizer of (x - 3)^2 / 2 + [x - 1]_+, which is 2, and shows that its weight
    is used up."""
    method = ExactPenalty(weight=1.0)
    x, state = end(method)
    assert x == pytest.approx(2.0, abs=1e-6)
    assert float(method.monitor(state)["full_weight"]) == pytest.approx(1.0, abs=1e-3)
    x, state = end(ExactPenalty(weight=4.0))
    assert x == pytest.approx(1.0, abs=0.03)
    # y = 2 over the weight 1 here
    assert float(method.monitor(state)["full_weight"]) == pytest.approx(2.0, abs=0.1)
