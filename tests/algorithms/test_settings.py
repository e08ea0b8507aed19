"""What settings are refused, by every method, with a sentence that names the number; and what a
setting declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairbound import ALGORITHMS
from fairbound.algorithms import PHRALM, SPBM, LevelConstrained, NuPI, SQPAdam, TrackedSQP
from fairbound.algorithms.schedules import Power
from fairbound.training._hyperparams import float_settings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_number_out_of_range_is_named(name: str) -> None:
    build = ALGORITHMS[name]
    for field in float_settings(build()):
        if "." in field:
            continue
        for bad in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=rf"{name}: {field} must be .*got"):
                build(**{field: bad})
        for bad in ("0.1", True, None, [0.1], torch.tensor(0.1)):
            with pytest.raises(TypeError, match=rf"{name}: {field} must be"):
                build(**{field: bad})
        assert build(**{field: np.float32(0.25)}) == build(**{field: 0.25})


@pytest.mark.parametrize(
    ("build", "settings", "sentence"),
    [
        (LevelConstrained, {"L": (1.0, -1.0)}, r"L\[1\] must be a finite number >= 0, got -1"),
        (LevelConstrained, {"average": 1.5}, "average must be between 0 and 1, got 1.5"),
        (LevelConstrained, {"tau": 0.0}, "tau must be a finite number > 0, got 0"),
        (NuPI, {"nu": 1.0}, "nu must be at least 0 and below 1, got 1"),
        (NuPI, {"y_max": 0.0}, "y_max must be a number > 0"),
        (PHRALM, {"a": 0.0}, "a must be above 0 and at most 1, got 0"),
        (
            PHRALM,
            {"resilient": 0.0},
            r"resilient must be a number > 0 \(infinity switches it off\), got 0",
        ),
        (SPBM, {"y_min": 0.0}, "y_min must be a finite number > 0, got 0"),
        (
            SPBM,
            {"y_min": 2.0, "y_max": 1.0},
            "y_min must be at most y_max, got 2 and 1; lower y_min or raise y_max",
        ),
        (SPBM, {"p_min": 0.6, "p": 0.5}, "p_min must be at most p, got 0.6 and 0.5"),
        (SPBM, {"eta": 1.5}, "eta must be between 0 and 1, got 1.5"),
        (SPBM, {"shrink": 0.0}, "shrink must be above 0 and at most 1, got 0"),
        (SPBM, {"every": 0}, "every must be a whole number >= 1, got 0"),
        (SQPAdam, {"b1": 1.0}, "b1 must be at least 0 and below 1, got 1.0"),
        (SQPAdam, {"mu": 0.0}, "mu must be a finite number > 0"),
        (SQPAdam, {"rho": 30.0}, "rho must be smaller than beta, got rho=30.0 and beta=20.0"),
        (SQPAdam, {"alpha": Power(0.1, 0.5), "average": -0.1}, "average must be between 0 and 1"),
        (TrackedSQP, {"rhs": "newton"}, "rhs must be one of ghost, crz, decay, got 'newton'"),
        (
            TrackedSQP,
            {"rho": 3.0, "beta": 2.0},
            "rho must be smaller than beta, got rho=3.0 and beta=2.0",
        ),
        (TrackedSQP, {"average": 1.5}, "average must be between 0 and 1, got 1.5"),
        (TrackedSQP, {"alpha_c": 2.0}, "alpha_c must be between 0 and 1, got 2.0"),
        (TrackedSQP, {"lam": 1.0}, "lam must be strictly between 0 and 1"),
    ],
)
def test_bad_settings_are_sentences(build: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(**settings)


@pytest.mark.parametrize("build", [NuPI, PHRALM, SPBM])
def test_a_step_for_each_constraint_is_not_row_wise(build: Any) -> None:
    assert build().row_wise
    assert not build(eta=(0.1, 0.2)).row_wise
