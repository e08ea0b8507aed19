"""The counter-based generator: known values, uniformity, independence of how it is asked."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from fairbound._utils.rng import bits, keys, mixed, uniforms


def test_splitmix_reference_values() -> None:
    """The first outputs of SplitMix64 from seed 1234567 (state advances by the golden gamma before
    each)."""
    gamma = 0x9E3779B97F4A7C15 - (1 << 64)
    states = 1234567 + gamma * torch.arange(1, 4)
    unsigned = [int(v) % (1 << 64) for v in mixed(states)]
    assert unsigned == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform() -> None:
    """Kolmogorov-Smirnov along slots, along steps and along seeds, level 1e-4; means within
    range."""
    many = torch.arange(20_000)
    zero = torch.zeros((), dtype=torch.long)
    for u in (
        uniforms(keys(zero), zero, many),
        uniforms(keys(zero), many, zero),
        uniforms(keys(many), zero, zero),
    ):
        assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
        assert u.min() >= 0
        assert u.max() < 1


def test_neighbors_are_uncorrelated() -> None:
    """Between adjacent slots, steps and seeds: |r| < 4/sqrt(n)."""
    n = 40_000
    # (seeds, steps)
    table = uniforms(keys(torch.arange(200))[:, None], torch.arange(200), torch.tensor(5))
    slots = uniforms(keys(torch.tensor(3)), torch.arange(200)[:, None], torch.arange(200))
    for a, b in (
        (table[:, 1:], table[:, :-1]),
        (table[1:], table[:-1]),
        (slots[:, 1:], slots[:, :-1]),
    ):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 4 / n**0.5


def test_no_collisions() -> None:
    drawn = bits(
        keys(torch.arange(100))[:, None, None], torch.arange(50)[:, None], torch.arange(40)
    )
    assert drawn.unique().numel() == drawn.numel()
