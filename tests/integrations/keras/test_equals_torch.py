"""A Keras model trained by a method is its torch twin trained by the same method; on whatever
backend Keras runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")

import keras_twins as twins

from fairbound import SGD, SSLALM, DescentAscent, StochasticGhost, SwitchingSubgradient, run
from fairbound.core import Algorithm
from fairbound.integrations.keras import make_functional

STEPS = 200
METHODS: dict[str, tuple[Algorithm[Any], str]] = {
    "SGD": (SGD(), "float32"),
    "descent-ascent": (DescentAscent(eta=0.05), "float32"),
    "SSL-ALM": (SSLALM(), "float32"),
    "Ghost": (StochasticGhost(), "float32"),
    "SSw": (SwitchingSubgradient(), "float64"),  # where rounding cannot flip its branch
}


@pytest.mark.parametrize(("method", "precision"), METHODS.values(), ids=METHODS)
def test_200_steps_from_the_same_weights_and_batches(
    method: Algorithm[Any], precision: str
) -> None:
    dtype = getattr(torch, precision)
    forward, x0 = make_functional(twins.network(precision))
    assert x0.dtype == dtype
    mine, theirs = twins.problem(forward, dtype), twins.problem(twins.in_torch, dtype)
    a = run(mine, method, twins.sampler(mine), x0, STEPS).result()
    b = run(theirs, method, twins.sampler(theirs), x0, STEPS, compile=False).result()
    assert (a.x - x0).abs().max() > 0.05, "nothing was trained"
    assert (a.x - b.x).abs().max() < 1e-4
    assert (a.output - b.output).abs().max() < 1e-4
    assert torch.allclose(a.multipliers, b.multipliers, atol=1e-4, equal_nan=True)
    assert a.monitors[0] == pytest.approx(b.monitors[0], abs=1e-3)
    assert not a.skipped.any()
    whole = torch.arange(mine.data.rows)
    for own, twin in zip(mine.evaluate(a.x, whole), theirs.evaluate(b.x, whole), strict=True):
        assert torch.allclose(own, twin, atol=1e-4)
