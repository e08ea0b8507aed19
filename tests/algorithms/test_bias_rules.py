"""What the noise of a mini-batch does to each method, in closed form: a re-used mini-batch is told
from a new one."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import problems
import pytest
import torch
from problems import F64

from fairbound import run
from fairbound.algorithms import SSLALM, SwitchingSubgradient
from fairbound.core import Algorithm
from fairbound.training._runner import Result

# for their statistics; the steps themselves are in the tests of each method
pytestmark = pytest.mark.slow
S = 0.5  # sd of zeta


def settled(
    known: problems.Known, method: Algorithm[Any], start: float, runs: int, steps: int, late: int
) -> Result:
    """Independent runs from (start, 0, 0), with the means of their later steps."""
    problem, (split,), cells = problems.table_of([known])
    samplers = problems.sampler_for(split, cells, 1).seeded(*range(runs))
    x0 = torch.tensor([start, 0, 0], dtype=F64)
    return run(problem, method, samplers, x0, steps, average_from=late, compile=True).result()


def slack_form(runs: int, steps: int, **settings: Any) -> torch.Tensor:
    """Multipliers with rho = 1 and eta = .2."""
    method = SSLALM(tau=0.02, eta=0.2, rho=1.0, mu=0.0, **settings)
    known = problems.sample_bias(S)
    late = settled(known, method, 1.0, runs, steps, steps // 4).mean_multipliers
    assert late is not None
    return late[:, 0]


def fixed_point(runs: int, steps: int, **settings: Any) -> torch.Tensor:
    """S2: x with rho = 10 and the dual step off."""
    method = SSLALM(tau=5e-4, eta=0.0, rho=10.0, mu=0.0, **settings)
    late = settled(problems.penalty_bias(S), method, 0.8, runs, steps, 2000).mean_x
    assert late is not None
    return late[:, 0]


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, 1 - 1.2 * S**2), (2, 1 - 0.2 * S**2), (3, 1.0)]
)
def test_slack_form_rule(samples: int, expected: float) -> None:
    """Multipliers settle at 1 with independent draws, 1 - eta s^2 with the paper's sharing, 1 -
    (rho + eta) s^2 with one batch.

    64 runs, so that a wrong rule (at least .05 off) is 5 standard errors away.
    """
    assert float(slack_form(64, 4000, samples=samples).mean()) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("samples", "expected"), [(1, 10 / (1 + 10 * (1 + S**2))), (2, 10 / 11)])
def test_penalty_fixed_point(samples: int, expected: float) -> None:
    """rho/(1+rho) with independent samples, rho/(1+rho(1+s^2)) with one used twice."""
    assert float(fixed_point(32, 4000, samples=samples).mean()) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("late", "expected", "within"), [(fixed_point, 10 / 11, 0.005), (slack_form, 1.0, 0.01)]
)
def test_with_lag_one_mini_batch_is_unbiased(late: Any, expected: float, within: float) -> None:
    """S2: x = rho/(1+rho) = .9091, where one mini-batch without lag gives .7407; slack form: y = 1,
    not .7.

    256 runs: the standard errors are asserted to be a third of the tolerances at most.
    """
    found = late(256, 8000, samples=1, lag=True)
    assert float(found.std()) / 256**0.5 < within / 3
    assert float(found.mean()) == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.0])
def test_switching_bias_rule(multiplier: float) -> None:
    """The test's noise moves the answer to C = eps + sd Phi^-1(q), q = y/(y + 1) for equal
    steps."""
    sd = 0.5
    method = SwitchingSubgradient(eta_f=0.01, eta_c=0.01, eps=0.0)
    late = settled(problems.noisy_test(multiplier, sd), method, 1.0, 64, 2000, 1000).mean_x
    predicted = sd * NormalDist().inv_cdf(multiplier / (multiplier + 1))
    assert late is not None
    assert float(late[:, 0].mean()) - 1 == pytest.approx(predicted, abs=0.03)
