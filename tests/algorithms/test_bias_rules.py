"""What the noise of a mini-batch does to each method, in closed form: a re-used mini-batch is told
from a new one."""

from __future__ import annotations

from statistics import NormalDist

import problems
import pytest
import torch
from problems import F64

from fairbound import run
from fairbound.algorithms import SSLALM, SwitchingSubgradient

# for their statistics; the steps themselves are in the tests of each method
pytestmark = pytest.mark.slow
S = 0.5  # sd of zeta


def mean_and_error(of_runs: torch.Tensor) -> tuple[float, float]:
    """Mean over independent runs, and its standard error."""
    return float(of_runs.mean()), float(of_runs.std() / len(of_runs) ** 0.5)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_slack_form_rule(samples: int) -> None:
    """Multipliers settle at 1 with independent draws, 1 - eta s^2 with the paper's sharing, 1 -
    (rho + eta) s^2 with one batch.

    64 runs, so that a wrong rule (at least .05 off) is 5 standard errors away.
    """
    rho, eta = 1.0, 0.2
    problem, (split,), cells = problems.table_of([problems.sample_bias(S)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(64))
    method = SSLALM(tau=0.02, eta=eta, rho=rho, mu=0.0, samples=samples)
    result = run(
        problem,
        method,
        runs,
        torch.tensor([1.0, 0, 0], dtype=F64),
        4000,
        average_from=1000,
        compile=True,
    ).result()
    expected = {1: 1 - (rho + eta) * S**2, 2: 1 - eta * S**2, 3: 1.0}[samples]
    assert float(result.mean_multipliers[:, 0].mean()) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("samples", [1, 2])
def test_penalty_fixed_point(samples: int) -> None:
    """S2: with the dual step off, rho/(1+rho) with independent samples, rho/(1+rho(1+s^2)) with one
    used twice."""
    rho = 10.0
    problem, (split,), cells = problems.table_of([problems.penalty_bias(S)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(32))
    method = SSLALM(tau=5e-4, eta=0.0, rho=rho, mu=0.0, samples=samples)
    result = run(
        problem,
        method,
        runs,
        torch.tensor([0.8, 0, 0], dtype=F64),
        4000,
        average_from=2000,
        compile=True,
    ).result()
    expected = {1: rho / (1 + rho * (1 + S**2)), 2: rho / (1 + rho)}[samples]
    assert float(result.mean_x[:, 0].mean()) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("eta", "rho", "start", "known"),
    [(0.0, 10.0, 0.8, "S2"), (0.2, 1.0, 1.0, "slack")],
    ids=["S2", "slack"],
)
def test_with_lag_one_mini_batch_is_unbiased(
    eta: float, rho: float, start: float, known: str
) -> None:
    """S2: x = rho/(1+rho) = .9091, where one mini-batch without lag gives .7407; slack form: y = 1,
    not .7.

    256 runs: the standard errors are asserted to be a third of the tolerances at most.
    """
    one = problems.penalty_bias(S) if known == "S2" else problems.sample_bias(S)
    problem, (split,), cells = problems.table_of([one])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(256))
    method = SSLALM(
        tau=5e-4 if known == "S2" else 0.02, eta=eta, rho=rho, mu=0.0, samples=1, lag=True
    )
    result = run(
        problem,
        method,
        runs,
        torch.tensor([start, 0, 0], dtype=F64),
        8000,
        average_from=2000,
        compile=True,
    ).result()
    if known == "S2":
        mean, error = mean_and_error(result.mean_x[:, 0])
        assert error < 0.005 / 3
        assert mean == pytest.approx(rho / (1 + rho), abs=0.005)
    else:
        mean, error = mean_and_error(result.mean_multipliers[:, 0])
        assert error < 0.01 / 3
        assert mean == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.0])
def test_switching_bias_rule(multiplier: float) -> None:
    """The test's noise moves the answer to C = eps + sd Phi^-1(q), q = y/(y + 1) for equal
    steps."""
    sd = 0.5
    problem, (split,), cells = problems.table_of([problems.noisy_test(multiplier, sd)])
    runs = problems.sampler_for(split, cells, 1).seeded(*range(64))
    method = SwitchingSubgradient(eta_f=0.01, eta_c=0.01, eps=0.0)
    result = run(
        problem,
        method,
        runs,
        torch.tensor([1.0, 0, 0], dtype=F64),
        2000,
        average_from=1000,
        compile=True,
    ).result()
    predicted = sd * NormalDist().inv_cdf(multiplier / (multiplier + 1))
    assert float(result.mean_x[:, 0].mean()) - 1 == pytest.approx(predicted, abs=0.03)
