"""`FairRegressor`: bounds on the squared errors of groups."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from two_groups import small_regressor

import fairbound
from fairbound import constraints
from fairbound.algorithms import SSLALM
from fairbound.integrations.sklearn import FairRegressor

WHY = "folds and mini-batches are random, so an example given twice is another sample than one of weight 2"
FAILS = {
    "check_sample_weight_equivalence_on_dense_data": WHY,
    "check_sample_weight_equivalence_on_sparse_data": WHY,
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([small_regressor(epochs=30, random_state=None)], expected_failed_checks=lambda _: FAILS)
def test_scikit_learn_s_contract(estimator: FairRegressor, check: Callable[[Any], None]) -> None:
    check(estimator)


def two_rules(n: int = 1000, seed: int = 0) -> tuple[Any, Any, Any]:
    """y follows the first column in A, the second in B, in units of hundreds."""
    rng = np.random.default_rng(seed)
    group = np.where(rng.random(n) < 0.25, "B", "A")
    X = rng.standard_normal((n, 2))
    return X, 500 + 100 * np.where(group == "A", X[:, 0], X[:, 1]) + 10 * rng.standard_normal(n), group


def test_weights_bring_the_loss_of_the_small_group_to_its_bound() -> None:
    X, y, group = two_rules()
    fair = small_regressor(bound=8000.0, epochs=10).fit(X, y, sensitive_features=group)
    values = dict(fair.candidates_)
    assert fair.choice_ == "re-weighted"
    assert values["re-weighted"].violation < 0.6 * values["unconstrained"].violation

    def loss(one: FairRegressor, name: str) -> float:
        return float(np.mean((one.predict(X) - y)[group == name] ** 2))

    assert loss(fair, "B") < 0.8 * loss(fair.unconstrained_, "B")
    assert loss(fair, "A") > loss(fair.unconstrained_, "A")
    assert "the loss rose for A; the loss fell for B" in " ".join(fair.report().split())
    assert max(map(len, fair.report().splitlines())) <= 80  # losses of thousands


def test_a_bound_that_is_met_changes_nothing() -> None:
    X, y, group = two_rules(1500)
    fair = small_regressor(bound=1e6, epochs=5).fit(X, y, sensitive_features=group)
    assert (fair.choice_, fair.certified_, fair.verdict_.decision) == ("unconstrained", True, "holds")


def test_judging_is_the_verdict_on_squared_errors() -> None:
    X, y, group = two_rules(600)
    fair = small_regressor(bound=1e4).fit(X, y, sensitive_features=group)
    new_X, new_y, new_group = two_rules(500, seed=1)
    found = fair.judge(new_X, new_y, new_group)
    expected = fairbound.verdict(
        constraints.bounded_group_loss(["A", "B"], bound=1e4), new_group, losses=(fair.predict(new_X) - new_y) ** 2
    )
    assert [gap.estimate for gap in found.gaps] == pytest.approx([gap.estimate for gap in expected.gaps])
    assert found.decision == expected.decision


def test_large_bounds_on_differences_are_in_the_units_of_y() -> None:
    X, y, group = two_rules(600)
    fair = small_regressor(constraint="loss_parity", bound=2e4).fit(X, y, sensitive_features=group)
    assert fair.choice_ == "unconstrained"
    assert fair.leverage_ is None or fair.leverage_.reaches[0].bound == 2e4


def test_weights_clones_pickles_modules_and_methods() -> None:
    X, y, group = two_rules(400)
    weight = np.random.default_rng(0).random(400)
    fair = small_regressor(bound=1e5).fit(X, y, sensitive_features=group, sample_weight=weight)
    same = clone(fair).fit(X, y, sensitive_features=group, sample_weight=weight)
    for other in (same, pickle.loads(pickle.dumps(fair))):
        np.testing.assert_array_equal(fair.predict(X), other.predict(X))
    scaled = (y - 500) / 100
    linear = small_regressor(module=nn.Linear(2, 1), bound=2.0, epochs=10).fit(X, scaled, sensitive_features=group)
    assert linear.score(X, scaled) > 0.3
    method = small_regressor(algorithm=SSLALM(samples=1), bound=1e4).fit(X, y, sensitive_features=group)
    assert np.isfinite(method.predict(X)).all()


@pytest.mark.parametrize(
    ("settings", "y", "sentence"),
    [
        ({"constraint": "demographic_parity", "bound": 0.1}, None, "FairRegressor takes constraints on losses"),
        ({"hidden": 64}, None, "hidden is a sequence of widths"),
        ({"bound": -1.0}, None, "bound must be a finite number >= 0"),
        ({}, np.full(400, np.nan), "y contains NaN"),
    ],
)
def test_errors_are_sentences(settings: dict[str, Any], y: Any, sentence: str) -> None:
    X, own, group = two_rules(400)
    with pytest.raises(ValueError, match=sentence):
        small_regressor(**settings).fit(X, own if y is None else y, sensitive_features=group)
