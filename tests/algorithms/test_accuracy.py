"""Methods on P1 to P5 of benchmarks/defaults.py with noise, beside the known solutions; and where
they must fail.

Medians of 32 replicates, mini-batches of 4 examples; the bounds are about twice what was measured.
"""

from __future__ import annotations

import pytest
import torch
from problems import KNOWN, ONE, defaults, errors

from fairbound.algorithms import (
    PHRALM,
    SPBM,
    SSLALM,
    DescentAscent,
    ExactPenalty,
    LevelConstrained,
    NuPI,
    SQPAdam,
    TrackedSQP,
)
from fairbound.algorithms.schedules import Linear
from fairbound.core import Algorithm, Draw

pytestmark = pytest.mark.slow
FALLING = {"tau": Linear(0.05, 4000), "eta": Linear(0.05, 4000)}
# problem -> |x - x*|, violation and |y - y*|, as many as are known
Within = dict[str, tuple[float, ...]]
TRACKED: Within = {"P1": (0.09, 0.04), "P2": (0.05, 0.03), "P4": (0.08, 0.03)}
SOLVED: dict[str, tuple[Algorithm, int, Within]] = {  # method, steps, errors
    "DescentAscent": (
        DescentAscent(**FALLING),
        4000,
        {
            "P1": (0.05, 0.02, 0.04),
            "P2": (0.03, 0.01, 0.02),
            "P3": (0.09, 0.01, 0.02),
            "P5": (0.05, 0.01, 0.08),
        },
    ),
    "SSLALM": (
        SSLALM(**FALLING, rho=2.0, mu=2.0, y_max=10.0),
        4000,
        {
            "P1": (0.05, 0.01, 0.11),
            "P2": (0.03, 0.01, 0.04),
            "P3": (0.09, 0.01, 0.03),
            "P4": (0.04, 0.01, 0.04),
            "P5": (0.05, 0.01, 0.06),
        },
    ),
    "NuPI": (
        NuPI(**FALLING, kp=0.5),
        4000,
        {
            "P1": (0.05, 0.02, 0.05),
            "P2": (0.03, 0.01, 0.05),
            "P3": (0.09, 0.01, 0.05),
            "P5": (0.06, 0.01, 0.08),
        },
    ),
    "PHRALM": (
        PHRALM(**FALLING, rho=2.0),
        4000,
        {"P1": (0.05,), "P2": (0.03,), "P3": (0.09,), "P4": (0.04,), "P5": (0.06,)},
    ),
    "SPBM": (  # its bias is on the safe side
        SPBM(**FALLING),
        4000,
        {
            "P1": (0.17, 0.005),
            "P2": (0.05, 0.005),
            "P3": (0.09, 0.005),
            "P4": (0.04, 0.005),
            "P5": (0.15, 0.005),
        },
    ),
    "ExactPenalty": (
        ExactPenalty(),
        2000,
        {
            "P1": (0.26, 0.01, 0.3),
            "P2": (0.04, 0.01, 0.04),
            "P3": (0.12, 0.01, 0.06),
            "P4": (0.11, 0.01, 0.12),
            "P5": (0.05, 0.015, 0.75),
        },
    ),
    "SQPAdam": (SQPAdam(), 4000, {"P1": (0.05, 0.03), "P3": (0.08, 0.03)}),
    "TrackedSQP": (TrackedSQP(), 1000, TRACKED),
    "TrackedSQP, crz": (TrackedSQP(rhs="crz"), 1000, TRACKED),
    "TrackedSQP, decay": (TrackedSQP(rhs="decay"), 1000, TRACKED),
    "TrackedSQP, two steps": (TrackedSQP(alpha_c=0.2), 1000, TRACKED),
    "LevelConstrained": (
        LevelConstrained(),
        1000,
        {
            "P1": (0.17, 0.02, 0.23),
            "P2": (0.07, 0.02, 0.10),
            "P3": (0.16, 0.02, 0.03),
            "P4": (0.10, 0.02, 0.06),
            "P5": (0.08, 0.02, 0.06),
        },
    ),
}


@pytest.mark.parametrize(
    ("name", "problem"), [(name, problem) for name in SOLVED for problem in SOLVED[name][2]]
)
def test_known_answers_with_noise(name: str, problem: str) -> None:
    method, steps, within = SOLVED[name]
    for error, bound in zip(
        errors(method, problem, steps).medians(), within[problem], strict=False
    ):
        assert error < bound


def test_averages_remove_the_bias_of_one_mini_batch() -> None:
    """P1: the hinge of a mini-batch measured 0.58 where the tracked one has 0.13; SQP with one
    mini-batch 0.33."""
    hinge = errors(ExactPenalty(tau=0.01, gamma=1.0), "P1", 2000).medians()[0]
    tracked = errors(ExactPenalty(tau=0.01, gamma=0.05), "P1", 2000).medians()[0]
    assert hinge == pytest.approx(0.58, abs=0.06)
    assert tracked < 0.3 * hinge
    x, violation, _ = errors(TrackedSQP(average=1.0), "P1", 1000).medians()
    assert x > 0.2
    assert violation > 0.12


@pytest.mark.parametrize(
    ("method", "problem", "at_least"),
    [
        # no multiplier makes the Lagrangian convex there
        (NuPI(tau=0.05, eta=0.05, kp=0.5), "P4", 1e3),
        (DescentAscent(), "P4", 1e3),
        (PHRALM(tau=0.05, eta=0.05, rho=0.3), "P4", 1e3),  # a penalty below the negative curvature
        (SPBM(p=3.0), "P4", 0.2),  # L's curvature is y / p - 1, and y* = 1
        (SQPAdam(), "P5", 0.1),  # a kink of the constraint
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Algorithm) else str(part),
)
def test_documented_failures(method: Algorithm, problem: str, at_least: float) -> None:
    assert not errors(method, problem, 2000, replicates=2).medians()[0] < at_least


def test_a_margin_makes_more_iterates_of_level_constrained_feasible() -> None:
    """P2: about half of all iterates without one, 0.85 with one standard deviation, 0.98 with
    two."""
    shares = []
    for z in (0.0, 1.0, 2.0):
        method, problem, generator = (
            LevelConstrained(z=z),
            KNOWN["P2"],
            torch.Generator().manual_seed(3),
        )
        x, feasible = problem.start, 0
        noise = 0.5 * torch.randn(501, 2 * defaults.N + 1, dtype=torch.float64, generator=generator)
        state = method.init(x, 1, defaults.sample(problem, ONE, ONE, noise[-1])(x))
        for row in noise[:-1]:
            d, state = method.update(x, state, Draw.of(defaults.sample(problem, ONE, ONE, row)))
            x = x + d
            feasible += int(problem.at(x).c.max() <= 0)
        shares.append(feasible / 500)
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.9
