"""Axes that methods share: when a method leaves one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairbound.benchmark.axes import not_finite, shared


@pytest.mark.parametrize(("others", "stray", "beyond"), [
    ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.2), False),  # most are at one point, which counts as 0.1 wide
    ([(0.0, 0.0), (0.0, 0.0)], (0.0, 0.5), True),
    ([(0.4, 0.7)], (0.4, 1.5), False),
    ([(0.4, 0.7)], (0.4, 1.7), True),
    ([(0.4, 0.7)], (-1e9, 0.7), True),
    ([(0.4, 0.7)], (float("nan"), float("inf")), False),
])  # fmt: skip
def test_how_far_is_beyond_the_axis(others: list[tuple[float, float]], stray: Any, beyond: bool) -> None:
    values = {f"other {i}": [np.array(ends)] for i, ends in enumerate(others)} | {"stray": [np.array(stray)]}
    axis = shared(values)
    assert ("stray" in axis.beyond) == beyond
    ends = [end for part in values.values() for end in part[0] if np.isfinite(end)]
    assert (axis.range[0] <= min(ends) and max(ends) <= axis.range[1]) != beyond


def test_an_axis_of_nothing_shows_the_bounds() -> None:
    assert shared({"A": []}, also=[-0.05, 0.05]).range == pytest.approx((-0.055, 0.055))


def test_methods_that_are_not_finite_are_named() -> None:
    values = {"A": [np.array([0.1, 0.2])], "B": [np.array([0.1]), np.array([np.inf])], "C": [np.array([np.nan])]}
    assert not_finite(values) == ["B", "C"]
