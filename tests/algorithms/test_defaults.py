"""The default settings over scales of the constraints: what their docstrings say, from
benchmarks/defaults.py."""

from __future__ import annotations

import pytest
from problems import KNOWN, defaults

from fairbound import SSLALM, DescentAscent, Penalty
from fairbound.algorithms import PHRALM, SPBM, NuPI
from fairbound.core import Algorithm

pytestmark = pytest.mark.slow
CASES = [f"c x {c:g}" if f == 1 else f"f x {f:g}" for f, c in defaults.cases()]
# Largest error of a default on P1, P2, P3 and P5 (10,000 steps), rounded up: (without noise, with
# noise). P4 is concave in one direction: there descent-ascent diverges, and the others need the
# size 1.
WITHIN = {
    "DescentAscent": {
        "c x 0.1": (0.09, 0.09),
        "c x 1": (0.07, 0.07),
        "c x 10": (0.14, 0.50),
        "f x 10": (0.07, 0.07),
    },
    "SSLALM": {
        "c x 0.1": (0.09, 0.09),
        "c x 1": (0.02, 0.06),
        "c x 10": (0.14, 0.25),
        "f x 10": (0.02, 0.06),
    },
    "Penalty": {"c x 1": (0.15, 0.25)},
    "PHRALM": {
        "c x 0.1": (0.06, 0.06),
        "c x 1": (0.02, 0.06),
        "c x 10": (0.08, 0.50),
        "f x 10": (0.02, 0.06),
    },
    "NuPI": {
        "c x 0.1": (0.06, 0.06),
        "c x 1": (0.02, 0.06),
        "c x 10": (0.06, 0.75),
        "f x 10": (0.02, 0.06),
    },
    "SPBM": {case: (0.03, 0.20 if case in ("c x 10", "c x 50") else 0.07) for case in CASES},
}
METHODS = [DescentAscent(), SSLALM(), Penalty(), PHRALM(), NuPI(), SPBM()]


NOISES = (0.0, 0.5)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_default_serves_the_scales_that_it_names(method: Algorithm) -> None:
    for problem in (KNOWN[name] for name in ("P1", "P5")):
        errors, _ = defaults.solve(problem, [method], 10_000, NOISES)
        for noise, row, number in zip(NOISES, errors[0].tolist(), (0, 1), strict=True):
            found = dict(zip(CASES, row, strict=True))
            for case, within in WITHIN[type(method).__name__].items():
                assert found[case] <= within[number], (problem.name, case, noise)
