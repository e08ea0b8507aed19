"""A multiplier method of a user's own (own_method.py): certified, so that every driver runs it; its
steps in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from loops import LR
from own_method import Optimistic
from transcription import draws

from fairbound import SSLALM, check_algorithm
from fairbound.core import Draw

METHOD = Optimistic(tau=LR, eta=0.2)


def test_it_is_certified() -> None:
    assert check_algorithm(METHOD).startswith("Optimistic passes 11 checks: ")


def test_its_steps_against_numpy() -> None:
    functions, samples, x = draws(8, seed=1)
    equality = np.array([False, True, False])
    point = torch.tensor(x)
    state = METHOD.init(point, 3, samples[0](point), torch.tensor(equality))
    y, last, signs = np.zeros(3), functions[0].c(x), set()
    for k in range(8):
        d, state = METHOD.update(point, state, Draw.of(samples[k]))
        point = point + d
        c = functions[k].c(x)
        y = y + 0.2 * (2 * c - last)
        y, last = np.where(equality, y, np.maximum(y, 0)), c
        x = x - LR * (functions[k].gradient(x) + functions[k].jacobian(x).T @ y)
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(METHOD.multipliers(state), y, atol=1e-12)
        signs |= {
            (bool(equal), float(np.sign(one))) for equal, one in zip(equality, y, strict=True)
        }
    assert signs >= {(True, -1.0), (False, 0.0), (False, 1.0)}


def test_it_may_be_smoothed() -> None:
    """`smoothing` is SSL-ALM's pull of x: with weights of 0 the steps of both are the same."""

    class Smoothed(Optimistic):
        smoothing = (2.0, 0.5)

    _, samples, x = draws(6)
    ours, theirs = (
        Smoothed(eta=0.0),
        SSLALM(tau=0.05, eta=0.0, rho=0.0, mu=2.0, beta=0.5, samples=1),
    )
    points = [torch.tensor(x), torch.tensor(x)]
    states: list[Any] = [
        method.init(point, 3) for method, point in zip((ours, theirs), points, strict=True)
    ]
    for sample in samples:
        for i, method in enumerate((ours, theirs)):
            d, states[i] = method.update(points[i], states[i], Draw.of(sample))
            points[i] = points[i] + d
        assert torch.equal(points[0], points[1])
        assert torch.equal(states[0].z, states[1].z)
    assert (states[0].z - points[0]).abs().max() > 1e-3
