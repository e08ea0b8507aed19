"""Schedules against their formulas, and what they refuse."""

import math

import pytest
import torch

from fairbound.algorithms.schedules import Exponential, Factorial, InverseSqrt, Linear, Power, value


@pytest.mark.parametrize("k", [0, 1, 5, 100])
def test_formulas(k: int) -> None:
    step = torch.tensor(float(k), dtype=torch.float64)
    assert float(InverseSqrt(0.3).at(step)) == pytest.approx(0.3 / math.sqrt(k + 1))
    assert float(Power(0.3, 0.6).at(step)) == pytest.approx(0.3 / (k + 1) ** 0.6)
    assert float(Linear(0.3, 50, 0.1).at(step)) == pytest.approx(0.3 * (1 - 0.9 * min(k / 50, 1)))
    assert float(Exponential(0.3, 0.99).at(step)) == pytest.approx(0.3 * 0.99**k)
    assert value(0.3, step) == 0.3


def test_factorial_is_the_printed_recursion() -> None:
    expected = 0.25
    for k in range(1, 12):
        expected /= math.sqrt(k)
        assert float(
            Factorial(0.25).at(torch.tensor(float(k), dtype=torch.float64))
        ) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: InverseSqrt(-1.0), "InverseSqrt: start"),
        (lambda: Linear(0.1, 0), "Linear: steps"),
        (lambda: Linear(0.1, 10, 2.0), "Linear: end"),
        (lambda: Power(0.1, float("nan")), "Power: power"),
        (lambda: Exponential(0.1, 1.1), "Exponential: ratio"),
    ],
)
def test_out_of_range_is_named(build: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build()
