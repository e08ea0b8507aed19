"""`FairClassifier`: scikit-learn's contract, tables of all kinds, networks, modules and methods of
users."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from loops import seeded
from torch import nn
from two_groups import Arrays, make_data, make_shifted, rate_gap, small

from fairbound import constraints
from fairbound.algorithms import SSLALM
from fairbound.integrations.sklearn import FairClassifier

# What it is for -----------------------------------------------------------------------------------


def test_rates_are_equalized_on_data_that_nothing_has_seen() -> None:
    X, y, group = make_shifted(2000)
    fair = small(constraint="demographic_parity", bound=0.1, epochs=5, max_accuracy_loss=1.0)
    fair.fit(X, y, sensitive_features=group)
    new_X, _, new_group = make_shifted(5000, seed=1)
    assert rate_gap(fair.unconstrained_.predict(new_X), new_group) > 0.35
    assert abs(rate_gap(fair.predict(new_X), new_group)) < 0.12
    assert fair.choice_.startswith("corrected")


def test_a_loss_gap_is_narrowed_without_another_decision() -> None:
    X, y, group = make_shifted(2000)
    y = np.where((group == "B") & (np.random.default_rng(5).random(2000) < 0.3), 1 - y, y)
    fair = small(bound=0.1, epochs=5).fit(X, y, sensitive_features=group)
    np.testing.assert_array_equal(fair.predict(X), fair.unconstrained_.predict(X))

    def gap(one: FairClassifier) -> float:
        loss = -np.log(one.predict_proba(X)[np.arange(len(y)), y])
        return float(loss[group == "B"].mean() - loss[group == "A"].mean())

    assert gap(fair.unconstrained_) > 0.12
    assert gap(fair) < 0.7 * gap(fair.unconstrained_)


def test_a_bound_on_the_loss_of_every_group_weights_them() -> None:
    """Two rules: the network learns more of B's where B's loss is bounded."""
    rng = np.random.default_rng(0)
    group = np.where(rng.random(1500) < 0.25, "B", "A")
    X = rng.standard_normal((1500, 2))
    y = (3 * np.where(group == "A", X[:, 0], X[:, 1]) + rng.standard_normal(1500) > 0).astype(int)
    fair = small(constraint="bounded_group_loss", bound=0.6, epochs=5).fit(
        X, y, sensitive_features=group
    )
    values = dict(fair.candidates_)
    assert "re-weighted" in values
    assert values["re-weighted"].violation < values["unconstrained"].violation - 0.05


# Tables of all kinds ------------------------------------------------------------------------------


def test_tables_of_any_kind_give_the_same_model() -> None:
    X, y, group = make_data(300)
    names = [f"x{j}" for j in range(X.shape[1])]
    made: list[tuple[Any, Any]] = [
        (X, group),
        (pd.DataFrame(X, columns=names), pd.Series(group)),
        (pl.DataFrame(X, schema=names), pl.Series(group)),
        (np.asfortranarray(X), group.tolist()),
    ]
    found = [
        small(bound=0.5).fit(table, y, sensitive_features=who).predict_proba(table)
        for table, who in made
    ]
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=1e-6)


def mixed(n: int = 500) -> tuple[pd.DataFrame, Any, Any]:
    rng = np.random.default_rng(0)
    group = rng.choice(["f", "m"], n)
    X = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 80, n)),
            "work": rng.choice(["own", "state", "none"], n),
            "level": pd.Categorical(rng.choice([1, 2, 3], n)),
            "married": rng.random(n) < 0.5,
        }
    )
    return (
        X,
        np.where((X["work"] == "own") + X["married"] + rng.random(n) > 1.3, "yes", "no"),
        group,
    )


def test_text_categories_booleans_and_missing_values() -> None:
    X, y, group = mixed()
    fair = small(bound=0.5, epochs=10).fit(X, y, sensitive_features=group)
    assert fair.score(X, y) > 0.75
    assert fair.feature_names_in_.tolist() == ["age", "work", "level", "married"]
    strange = X.head(3).assign(work=["new", None, "own"])
    assert np.isfinite(fair.predict_proba(strange)).all()


def test_codes_that_are_declared_categories() -> None:
    """A label that depends on the code in no order: as a number it cannot be learned so fast."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 30, 900)
    y, group = rng.permutation(30)[code] % 2, rng.choice(["A", "B"], 900)
    X = code[:, None].astype(float)
    settings: dict[str, Any] = {"bound": 0.9, "epochs": 5, "hidden": (16,)}
    as_category = small(categorical_features=[0], **settings).fit(X, y, sensitive_features=group)
    as_number = small(**settings).fit(X, y, sensitive_features=group)
    assert as_category.score(X, y) > 0.95 > as_number.score(X, y)
    with pytest.raises(ValueError, match=r"categorical_features.*'code'.*X: \['x'\]"):
        small(categorical_features=["code"]).fit(
            pd.DataFrame(X, columns=["x"]), y, sensitive_features=group
        )


# Networks -----------------------------------------------------------------------------------------


def test_the_ensemble_has_a_multiple_of_the_folds() -> None:
    X, y, group = make_data(300)
    for size, cv, members in ((4, 4, 4), (8, 4, 8), (1, 3, 3), (7, 2, 6)):
        fair = small(ensemble_size=size, cv=cv, bound=0.9, epochs=1).fit(
            X, y, sensitive_features=group
        )
        assert fair.networks_.members == members


class Raw(nn.Module):
    """Learns only from columns as they are: the first holds years."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.drop, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(3)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        assert bool((X[:, 0] > 1900).all())
        found: torch.Tensor = self.layer(self.drop(self.norm(X)))[:, 0]
        return found


def test_a_module_gets_raw_columns_and_may_have_dropout_and_batch_norm() -> None:
    X, y, group = make_shifted(600)
    X[:, 0] += 2000
    module = seeded(Raw)  # of 60 other starts one learns nothing in 10 epochs
    before = [p.clone() for p in module.parameters()]
    fair = small(module=module, epochs=10, constraint="demographic_parity", bound=0.2)
    fair.fit(X, y, sensitive_features=group)
    # copies were trained
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert len(fair.networks_) == 4
    assert all(isinstance(one, Raw) and one is not module for one in fair.networks_)
    assert not any(torch.equal(one.norm.running_mean, torch.zeros(3)) for one in fair.networks_)
    # no dropout in prediction
    np.testing.assert_array_equal(fair.predict_proba(X), fair.predict_proba(X))
    mean = torch.stack([one(torch.from_numpy(X).float()) for one in fair.networks_]).mean(0)
    np.testing.assert_allclose(fair.unconstrained_.decision_function(X), mean.detach(), atol=1e-4)
    assert fair.unconstrained_.score(X, y) > 0.65


@pytest.mark.filterwarnings("ignore:100 examples are too few")
@pytest.mark.parametrize(
    ("X", "sentence"),
    [
        (pd.DataFrame({"a": ["x", "y"] * 50}), "module= takes columns of numbers.*OrdinalEncoder"),
        (
            np.where(np.arange(100)[:, None] == 3, np.nan, 1.0),
            "module= takes columns as they are.*missing values",
        ),
        (
            pd.DataFrame({"a": [1, None] * 50}, dtype="Int64"),
            "module= takes columns as they are.*missing values",
        ),
    ],
)
def test_columns_that_a_module_cannot_take(X: Any, sentence: str) -> None:
    y, group = np.arange(100) % 2, np.arange(100) // 2 % 2
    with pytest.raises(ValueError, match=sentence):
        small(module=nn.Linear(1, 1)).fit(X, y, sensitive_features=group)


def test_a_method_of_ours_trains_the_networks() -> None:
    X, y, group = make_data(300)
    fair = small(method=SSLALM(samples=1), bound=0.1, epochs=1).fit(X, y, sensitive_features=group)
    plain = small(bound=0.1, epochs=1).fit(X, y, sensitive_features=group)
    assert np.isfinite(fair.predict_proba(X)).all()
    assert len(fair.networks_) == 4  # one after the other, each with its multipliers
    assert not np.array_equal(
        fair.unconstrained_.predict_proba(X), plain.unconstrained_.predict_proba(X)
    )


def test_a_method_that_asks_for_several_mini_batches_and_a_module_of_several_classes() -> None:
    X, y, group = make_data(300)
    three = y + (X[:, 1] > 1)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    fair = small(module=module, method=SSLALM(), constraint="loss_parity", bound=0.3, epochs=1)
    fair.fit(X, three, sensitive_features=group)
    assert fair.predict_proba(X).shape == (300, 3)


def test_several_classes_rates_and_weights() -> None:
    X, _, group = make_shifted(900)
    y = np.array(["c", "b", "a"])[(X[:, 0] > 0).astype(int) + (X[:, 0] > 1.5)]
    fair = small(
        constraint="demographic_parity", bound=0.3, pos_label="a", class_weight="balanced", epochs=5
    )
    fair.fit(X, y, sensitive_features=group, sample_weight=np.where(group == "B", 2.0, 1.0))
    assert list(fair.multipliers_) == ["class a: A - B", "class a: B - A"]
    assert fair.predict_proba(X).sum(1) == pytest.approx(1.0)
    assert set(fair.predict(X)) <= {"a", "b", "c"}


def test_a_device() -> None:
    X, y, group = make_data(200)
    small(device="cpu", bound=0.9).fit(X, y, sensitive_features=group)
    for device in ("cuda:99", "gpu"):
        with pytest.raises(ValueError, match=rf"device='{device}'.*not available"):
            small(device=device).fit(X, y, sensitive_features=group)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"hidden": 64}, r"hidden is a sequence of widths such as \(64, 32\), got 64"),
        ({"hidden": (8, 0)}, r"hidden is a sequence of widths such as \(64, 32\), got \(8, 0\)"),
        ({"batch_size": None}, "batch_size must be 'auto' or a whole number > 0, got None"),
        ({"epochs": 0}, "epochs must be 'auto' or a whole number > 0, got 0"),
        ({"epochs": "many"}, "epochs must be 'auto' or a whole number > 0, got 'many'"),
        ({"ensemble_size": 0}, "ensemble_size must be a whole number > 0, got 0"),
        ({"learning_rate": -1}, "learning_rate must be a number > 0, got -1"),
        (
            {"method": "sgd"},
            r"method must be one of fairbound.algorithms such as SSLALM\(\), got 'sgd'",
        ),
        (
            {"module": nn.Linear(4, 2)},
            r"one output \(a logit\) per example; for 2 examples it returns \(2, 2\)",
        ),
        ({"module": "mlp"}, "a torch module or a Keras model, got str"),
        ({"bound": 5}, "bound=5 allows every difference of losses in practice"),
        ({"learning_rate": 1e30, "epochs": 3}, "NaN or infinite at every evaluation"),
    ],
)
def test_errors_are_sentences(settings: dict[str, Any], sentence: str) -> None:
    X, y, group = make_data(200)
    with pytest.raises((TypeError, ValueError), match=sentence):
        small(**settings).fit(X, y, sensitive_features=group)


# Data of all kinds: it trains, or says why not; what it returns is finite -------------------------


def columns_of_all_sizes() -> Arrays:
    X, y, group = make_data(600)
    return X * [1e-200, 1e200, 1.0, 1e300], y, group


def outliers() -> Arrays:
    X, y, group = make_data(600)
    X[:5] = [1e300, -1e300, 1e100, -1e10]
    return X, y, group


def constant_columns() -> Arrays:
    X, y, group = make_data(600)
    X[:, :2] = [0.1, 7e8]
    return X, y, group


def separable() -> Arrays:
    X, _, group = make_data(600)
    return X, (X[:, 0] > 0).astype(int), group


def a_tiny_group() -> Arrays:
    X, y, group = make_data(600)
    group[:] = "A"
    group[:6] = "B"
    return X, y, group


def the_group_is_the_label() -> Arrays:
    X, y, _ = make_data(600)
    return X, y, np.where(y == 1, "A", "B")


def one_label_is_rare() -> Arrays:
    X, y, group = make_data(600)
    return X, (np.arange(len(y)) < 12).astype(int), group


DATA = (
    columns_of_all_sizes,
    outliers,
    constant_columns,
    separable,
    a_tiny_group,
    the_group_is_the_label,
    one_label_is_rare,
)


@pytest.mark.parametrize("notion", ["pairwise_loss_parity", "demographic_parity"])
@pytest.mark.parametrize("make", DATA)
def test_whatever_the_data(make: Callable[[], Arrays], notion: str) -> None:
    X, y, group = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fair = small(constraint=notion, bound=0.0).fit(X, y, sensitive_features=group)
    assert np.isfinite(fair.decision_function(X)).all()
    assert np.isfinite(list(fair.multipliers_.values())).all()
    assert max(map(len, fair.report().splitlines())) <= 80
    assert fair.verdict_.decision != "holds"  # data cannot show that two groups are equal


def test_a_constraint_is_about_the_groups_that_it_names() -> None:
    X, y, group = make_data(600)
    found = [
        small(constraint=constraints.minimum_rate(0.9, groups=names, group="B")).fit(
            X, y, sensitive_features=group
        )
        for names in (["A", "B"], ["B", "A"])
    ]
    one, other = (fair.verdict_.gaps[0] for fair in found)
    assert one.estimate == other.estimate
    assert one.examples == other.examples == (group[found[0].calibration_] == "B").sum()
