"""`FairClassifier` keeps scikit-learn's contract and its own: disjoint sets of examples, and an explanation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from two_groups import make_data, small

from fairbound import constraints
from fairbound.algorithms import SSLALM
from fairbound.integrations.sklearn import FairClassifier, classifier
from fairbound.integrations.sklearn.inputs import group_codes
from fairbound.integrations.sklearn.splits import has_held_out, split_examples


def expected(estimator: FairClassifier) -> dict[str, str]:
    why = "mini-batches are random, so an example given twice is another sample than an example of weight 2"
    return {
        "check_sample_weight_equivalence_on_dense_data": why,
        "check_sample_weight_equivalence_on_sparse_data": why,
    }


@pytest.mark.filterwarnings("ignore:no sensitive_features")
@parametrize_with_checks([small(steps=100)], expected_failed_checks=expected)
def test_scikit_learn_s_contract(estimator: FairClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_without_groups_it_warns_that_training_is_unconstrained() -> None:
    X, y, _ = make_data(300)
    with pytest.warns(UserWarning, match="no sensitive_features were given: training is unconstrained"):
        fitted = small().fit(X, y)
    assert (fitted.mode_, fitted.constraint_, fitted.verdict_, fitted.kkt_) == ("unconstrained", None, None, None)
    assert len(fitted.parts_.calibration) == 42  # as with groups, so that both can be compared


@pytest.mark.slow
def test_it_narrows_the_gap_of_unconstrained_training() -> None:
    X, y, group = make_data(3000)
    settings: dict[str, Any] = {"steps": 1200, "bound": 0.05, "mode": "train_duals", "compile": False}
    fair = small(**settings).fit(X, y, sensitive_features=group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = small(**settings).fit(X, y)

    def gap(fitted: FairClassifier) -> float:
        p = fitted.predict_proba(X)[:, 1].clip(1e-9, 1 - 1e-9)
        loss = -np.where(y == 1, np.log(p), np.log(1 - p))
        return float(loss[group == "B"].mean() - loss[group == "A"].mean())

    assert gap(plain) > 0.1
    assert abs(gap(fair)) < 0.6 * gap(plain)
    assert fair.multipliers_["B - A"] > 0
    assert fair.kkt_.multipliers == pytest.approx(fair.multipliers_)


def test_the_verdict_comes_from_examples_that_nothing_else_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels and inputs in the calibration set change the verdict, and nothing of the model."""
    X, y, group = make_data(2000)
    one = small(bound=0.3, steps=80).fit(X, y, sensitive_features=group)
    held_out = one.parts_.calibration.numpy()
    others = np.setdiff1d(np.arange(len(X)), held_out)
    changed_X, changed_y = X.copy(), y.copy()
    changed_X[held_out] *= 3.0
    changed_y[held_out] = 1 - y[held_out]
    monkeypatch.setattr(classifier, "split_examples", lambda *given: one.parts_)  # strata depend on the labels
    other = small(bound=0.3, steps=80).fit(changed_X, changed_y, sensitive_features=group)
    np.testing.assert_array_equal(one.predict_proba(X[others]), other.predict_proba(X[others]))
    assert one.decision_ == other.decision_
    assert [gap.estimate for gap in one.verdict_.gaps] != [gap.estimate for gap in other.verdict_.gaps]


def test_sets_are_disjoint_and_every_group_is_in_each() -> None:
    codes = np.repeat([0, 1], [900, 400])
    split = split_examples(codes, None, seed=3)
    listed = [split.train, split.dual, split.validation, split.calibration]
    assert sorted(torch.cat(listed).tolist()) == list(range(1300))
    assert all(set(codes[part.numpy()]) == {0, 1} for part in listed)
    assert all(np.bincount(codes[part.numpy()])[1] == round(400 * len(part) / 1300) for part in listed)


def test_small_strata_train_as_a_whole_and_of_little_data_nothing_is_held_out() -> None:
    codes = np.repeat([0, 1], [900, 7])
    split = split_examples(codes, None, seed=3)
    assert has_held_out(split)
    assert set(range(900, 907)) <= set(split.train.tolist())
    tiny = split_examples(np.repeat([0, 1], [150, 50]), None, seed=3)
    assert not has_held_out(tiny)
    assert sorted(tiny.train.tolist()) == list(range(200))


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"train": 0.5, "rest": 0.5}, "a share for each of train, dual, validation, calibration"),
        ({"train": 0.7, "dual": 0.2, "validation": 0.1, "calibration": 0.1}, "positive and sum to 1"),
        ({"train": 0.8, "dual": 0.2, "validation": 0.0, "calibration": 0.0}, "positive and sum to 1"),
    ],
)
def test_shares_that_are_no_shares(shares: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        split_examples(np.zeros(1000, dtype=int), shares, seed=0)


@pytest.mark.parametrize("mode", ["train_duals", "held_out_duals", "auto"])
def test_modes(mode: str) -> None:
    X, y, group = make_data(1200)
    fitted = small(mode=mode, bound=0.1).fit(X, y, sensitive_features=group)
    tried = {entry["mode"] for entry in fitted.history_}
    least = {
        "train_duals": {mode},
        "held_out_duals": {"unconstrained", mode},
        "auto": {"unconstrained", "train_duals"},
    }[mode]
    assert tried - {"held_out_duals"} == least - {"held_out_duals"}
    assert tried >= least
    assert fitted.mode_ in tried
    assert "validation data" in fitted.decision_


def test_tables_of_any_kind_give_the_same_model() -> None:
    X, y, group = make_data(600)
    names = [f"x{j}" for j in range(X.shape[1])]
    found = [
        small(steps=60).fit(X, y, sensitive_features=group).predict_proba(X),
        small(steps=60)
        .fit(pd.DataFrame(X, columns=names), y, sensitive_features=pd.Series(group))
        .predict_proba(pd.DataFrame(X, columns=names)),
        small(steps=60)
        .fit(pl.DataFrame(X, schema=names), y, sensitive_features=pl.Series(group))
        .predict_proba(pl.DataFrame(X, schema=names)),
    ]
    for other in found[1:]:  # up to the last bit: tables have another memory layout
        np.testing.assert_allclose(found[0], other, rtol=1e-13)


def test_pipelines_and_cross_validation_route_the_groups() -> None:
    X, y, group = make_data(600)
    with config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), small(steps=60).set_fit_request(sensitive_features=True))
        scores = cross_val_score(pipeline, X, y, cv=3, params={"sensitive_features": group})
        pipeline.fit(X, y, sensitive_features=group)
    assert scores.min() > 0.5
    assert pipeline[-1].groups_ == ["A", "B"]


def test_several_columns_are_intersections() -> None:
    codes, names = group_codes(pd.DataFrame({"sex": ["f", "m", "f"], "race": [1, 1, 2]}), 3)
    assert names == ("f, 1", "f, 2", "m, 1")
    assert codes.tolist() == [0, 2, 1]


def test_a_module_several_classes_weights_another_algorithm_and_another_constraint() -> None:
    X, y, group = make_data(500)
    three = y + (X[:, 1] > 1)
    weight = np.where(group == "B", 2.0, 1.0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    before = [p.clone() for p in module.parameters()]
    fitted = small(module=module, constraint="loss_parity", algorithm=SSLALM(samples=1)).fit(
        X, three, sensitive_features=group, sample_weight=weight
    )
    assert fitted.predict_proba(X).shape == (500, 3)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))  # a copy was trained
    recall = constraints.minimum_rate(0.8, groups=["A", "B"], group="B", label=1)
    assert small(constraint=recall).fit(X, y, sensitive_features=group).constraint_ is recall


@pytest.mark.parametrize("mode", ["train_duals", "held_out_duals"])
def test_a_bound_that_cannot_be_met_warns_and_gives_the_best_model_seen(mode: str) -> None:
    """The losses cannot all be below .01: multipliers grow to their cap, with a warning."""
    X, y, group = make_data(1200)
    impossible = small(constraint="bounded_group_loss", bound=0.01, mode=mode, steps=400, learning_rate=0.5)
    with pytest.warns(ConvergenceWarning, match=r"multipliers.*the best of its run on validation data"):
        impossible.fit(X, y, sensitive_features=group)
    assert all(np.isfinite(entry["loss"]) for entry in impossible.history_)
    assert impossible.score(X, y) > 0.5
    assert impossible.verdict_.decision == "violated"
    assert max(impossible.multipliers_.values()) <= (1.0 if mode == "held_out_duals" else 10.0)


def test_clones_and_seeds() -> None:
    X, y, group = make_data(400)
    one, same = (clone(small(steps=60)).fit(X, y, sensitive_features=group).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, small(steps=60, random_state=1).fit(X, y, sensitive_features=group).predict_proba(X))


def test_early_stopping_warns_of_growing_multipliers() -> None:
    """A run that was stopped warns like one that was not."""
    X, y, group = make_data(1200)
    settings: dict[str, Any] = {"constraint": "bounded_group_loss", "bound": 0.01, "mode": "train_duals"}
    stopped = small(early_stopping=True, n_iter_no_change=3, steps=400, learning_rate=0.5, **settings)
    with pytest.warns(ConvergenceWarning, match=r"multipliers.*the best of its run on validation data"):
        stopped.fit(X, y, sensitive_features=group)
    assert len(stopped.history_) < 40


def test_early_stopping_keeps_the_best_evaluation() -> None:
    X, y, group = make_data(400)
    short = small(early_stopping=True, n_iter_no_change=2, mode="train_duals").fit(X, y, sensitive_features=group)
    history = short.history_
    assert len(history) < 40
    best, later = history[-3], history[20:]  # two after the best were no better; the first half does not count
    assert short.n_iter_ == best["step"]
    least = min(one["violation"] for one in later)
    assert best["loss"] == min(one["loss"] for one in later if one["violation"] <= least + 0.02)


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({"mode": "best"}, {}, "mode must be one of 'auto'"),
        (
            {"mode": "held_out_duals"},
            {},
            "mode='held_out_duals' is not possible: there are too few examples",
        ),
        ({"constraint": "parity"}, {}, "constraint must be one of .*pairwise_loss_parity"),
        ({"parts": {"train": 0.5, "rest": 0.5}}, {}, "parts needs a share for each of train"),
        ({}, {"sensitive_features": ["A"]}, "one entry, or one row of entries, for each of the 60 rows"),
        ({}, {"sensitive_features": [None] * 60}, "missing entries"),
    ],
)
def test_errors_are_sentences(settings: dict[str, Any], given: dict[str, Any], sentence: str) -> None:
    X, y, group = make_data(60)
    with pytest.raises(ValueError, match=sentence):
        small(**settings).fit(X, y, **({"sensitive_features": group} | given))
