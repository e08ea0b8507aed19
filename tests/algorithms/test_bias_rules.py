"""What the noise of a mini-batch does to each method, in closed form: a re-used mini-batch is told from a new one."""

from __future__ import annotations

from statistics import NormalDist

import problems
import pytest
import torch
from problems import F64

from fairbound import run
from fairbound.algorithms import SSLALM, SwitchingSubgradient

S = 0.5  # sd of zeta


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_slack_form_rule(samples: int) -> None:
    """Multipliers settle at 1 with independent draws, 1 - eta s^2 with the paper's sharing, 1 - (rho + eta) s^2 with
    one batch.

    64 runs, so that a wrong rule (at least .05 off) is 5 standard errors away.
    """
    rho, eta = 1.0, 0.2
    problem, (split,), cells = problems.table_of([problems.sample_bias(S)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(64))
    method = SSLALM(tau=0.02, eta=eta, rho=rho, mu=0.0, samples=samples)
    result = run(
        problem, method, runs, torch.tensor([1.0, 0, 0], dtype=F64), 4000, average_from=1000, compile=True
    ).result()
    expected = {1: 1 - (rho + eta) * S**2, 2: 1 - eta * S**2, 3: 1.0}[samples]
    assert float(result.mean_multipliers[:, 0].mean()) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("samples", [1, 2])
def test_penalty_fixed_point(samples: int) -> None:
    """S2: with the dual step off, rho/(1+rho) with independent samples, rho/(1+rho(1+s^2)) with one used twice."""
    rho = 10.0
    problem, (split,), cells = problems.table_of([problems.penalty_bias(S)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(32))
    method = SSLALM(tau=5e-4, eta=0.0, rho=rho, mu=0.0, samples=samples)
    result = run(
        problem, method, runs, torch.tensor([0.8, 0, 0], dtype=F64), 4000, average_from=2000, compile=True
    ).result()
    expected = {1: rho / (1 + rho * (1 + S**2)), 2: rho / (1 + rho)}[samples]
    assert float(result.mean_x[:, 0].mean()) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.0])
def test_switching_bias_rule(multiplier: float) -> None:
    """The test's noise moves the answer to C = eps + sd Phi^-1(q), q = y/(y + 1) for equal steps (A3)."""
    sd = 0.5
    problem, (split,), cells = problems.table_of([problems.noisy_test(multiplier, sd)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(64))
    method = SwitchingSubgradient(eta_f=0.01, eta_c=0.01, eps=0.0)
    result = run(
        problem, method, runs, torch.tensor([1.0, 0, 0], dtype=F64), 2000, average_from=1000, compile=True
    ).result()
    predicted = sd * NormalDist().inv_cdf(multiplier / (multiplier + 1))
    assert float(result.mean_x[:, 0].mean()) - 1 == pytest.approx(predicted, abs=0.03)
