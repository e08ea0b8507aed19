"""SPBM: its functions and steps against numpy, the authors' package, its limits and its documented
failures."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from transcription import draws, path

from fairbound.algorithms import SPBM
from fairbound.algorithms._spbm import log_slope, reciprocal_slope
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.core import Sample

F64 = torch.float64


def phi(t: np.ndarray, reciprocal: bool) -> np.ndarray:
    """The functions, of which the method has the slopes."""
    with np.errstate(all="ignore"):
        if reciprocal:
            return np.where(t >= -1 / 3, t + t**2 / 2, (32 / 27) / (1 - t) - 7 / 6)
        return np.where(t >= -1 / 2, t + t**2 / 2, -np.log(-2 * t) / 4 - 3 / 8)


def slope(t: np.ndarray, reciprocal: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        if reciprocal:
            return np.where(t >= -1 / 3, 1 + t, (32 / 27) / (1 - t) ** 2)
        return np.where(t >= -1 / 2, 1 + t, -1 / (4 * t))


@pytest.mark.parametrize("reciprocal", [False, True])
def test_the_slopes_are_those_of_the_functions(reciprocal: bool) -> None:
    t, h = np.linspace(-5, 3, 1601), 1e-6
    ours = (reciprocal_slope if reciprocal else log_slope)(torch.tensor(t)).numpy()
    assert np.allclose(ours, (phi(t + h, reciprocal) - phi(t - h, reciprocal)) / (2 * h), atol=1e-5)
    assert (np.diff(ours) > 0).all()  # convex
    assert ours[t == 0] == 1


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize(
    ("adapt", "shrink", "every"), [(1.0, 1.0, 1), (0.7, 1.0, 1), (1.0, 0.6, 3), (0.9, 0.5, 2)]
)
def test_steps(reciprocal: bool, adapt: float, shrink: float, every: int) -> None:
    functions, samples, x = draws(12, seed=2)
    eta = (0.4, 0.6, InverseSqrt(0.9))
    method = SPBM(
        tau=Linear(0.05, 12, 0.5),
        eta=eta,
        p=0.8,
        adapt=adapt,
        shrink=shrink,
        every=every,
        p_min=0.3,
        t_max=1.5,
        y_start=0.5,
        y_min=0.05,
        y_max=0.6,
        reciprocal=reciprocal,
    )
    y, p, capped, floored = np.full(3, 0.5), np.full(3, 0.8), 0, False
    for k, (point, state) in enumerate(path(method, samples, x)):
        c = functions[k].c(x)
        w = y * slope(np.minimum(c / p, 1.5), reciprocal)
        x = x - 0.05 * (1 - 0.5 * k / 12) * (
            functions[k].gradient(x) + functions[k].jacobian(x).T @ w
        )
        gamma = 1 - np.array([0.4, 0.6, 0.9 / np.sqrt(k + 1)])
        y = np.clip(gamma * y + (1 - gamma) * w, 0.05, 0.6)
        p = adapt * p + (1 - adapt) * p / slope(c, reciprocal)
        p = np.clip(p * (shrink if (k + 1) % every == 0 else 1), 0.3, 0.8)
        capped += bool((y >= 0.6).any())
        floored |= bool((y <= 0.05).any())
        assert np.allclose(point, x, atol=1e-11)
        assert np.allclose(state.y, y, atol=1e-11)
        assert np.allclose(state.p, p, atol=1e-11)
        assert float(method.monitor(state)["capped"]) == capped
    assert capped > 0
    assert floored


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("adapt", [1.0, 0.8])
def test_the_authors_package_makes_the_same_steps(reciprocal: bool, adapt: float) -> None:
    """t_max = infinity, a constant gamma; its float32 multipliers limit the agreement."""
    dual_optim = pytest.importorskip(
        "humancompatible.train.dual_optim", reason="benchmarks/requirements.txt"
    )
    _, samples, x = draws(10, seed=5)
    method = SPBM(
        tau=0.02,
        eta=0.3,
        p=1.0,
        adapt=adapt,
        p_min=0.1,
        t_max=inf,
        y_start=0.5,
        y_min=1e-6,
        y_max=100.0,
        reciprocal=reciprocal,
    )
    theirs = dual_optim.PBM(
        m=3,
        penalty_mult=adapt,
        gamma=0.7,
        penalty_update="dimin_adapt" if adapt < 1 else "const",
        pbf="quadratic_reciprocal" if reciprocal else "quadratic_logarithmic",
        init_duals=0.5,
        init_penalties=1.0,
        dual_range=(1e-6, 100.0),
        penalty_range=(0.1, 1.0),
        gamma_annealing=False,
        penalty_annealing=False,
    )
    model = torch.tensor(x, requires_grad=True)
    for sample, (point, state) in zip(samples, path(method, samples, x), strict=True):
        e = sample(model.detach())
        jacobian = torch.cat([e.grad(f=1.0)[None], e.jac()])

        # f and c with their gradients, as functions of the leaf: values of the sample, slopes of
        # its Jacobian
        linear = jacobian @ (model - model.detach())
        loss, c = e.f + linear[0], (e.c + linear[1:]).float()
        theirs.forward_update(loss.float(), c).backward()
        with torch.no_grad():
            model -= 0.02 * model.grad
        model.grad = None
        assert torch.allclose(point, model.detach(), atol=1e-4)
        assert torch.allclose(state.y, theirs.duals.double(), rtol=1e-4)
        assert torch.allclose(state.p, theirs.penalties.double(), rtol=1e-4)


def test_what_it_declares() -> None:
    assert (SPBM().draws, SPBM().row_wise) == (1, True)
    assert not SPBM(eta=(0.1, 0.2)).row_wise
    with pytest.raises(ValueError, match=r"SPBM.*c <= 0.*1 of 2"):
        SPBM().init(torch.zeros(2), 2, None, torch.tensor([True, False]))


def test_a_large_value_is_clipped() -> None:
    """c / p = 200 at the start: the step as published is 200 times as long as the multiplier,
    clipped it is 3 times."""
    sample = Sample.of(lambda x: (0 * x.sum(), x + 100))
    x = torch.zeros(1, dtype=F64)
    for t_max, weight in ((2.0, 3.0), (inf, 201.0)):
        method = SPBM(tau=0.1, eta=0.5, t_max=t_max)
        ((point, state),) = path(method, [sample], x, 1)
        assert float(point) == pytest.approx(-0.1 * weight)
        assert float(state.y) == pytest.approx(1 + 0.5 * (weight - 1))
