"""Cross-fitting: folds, calibration data, and scores of models that have not seen the example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from two_groups import make_shifted, postprocessor

from fairbound.integrations.sklearn._cross_fitting import (
    as_logits,
    calibration_split,
    class_probabilities,
    cross_fit_estimator,
    seeded,
    stratified_folds,
)


class Memorizing(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Certain of the examples that it has seen, and of nothing else."""

    def fit(self, X: Any, y: Any) -> Memorizing:
        self.classes_ = np.unique(y)
        self.seen_ = {
            tuple(row): label for row, label in zip(np.asarray(X).tolist(), y, strict=True)
        }
        return self

    def predict_proba(self, X: Any) -> Any:
        labels = [self.seen_.get(tuple(row)) for row in np.asarray(X).tolist()]
        even = np.full(len(self.classes_), 1 / len(self.classes_))
        return np.array(
            [even if label is None else self.classes_ == label for label in labels], dtype=float
        )


# Folds --------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.integers(2, 5), st.integers(0, 9))
def test_every_stratum_is_spread_evenly(strata: list[int], folds: int, seed: int) -> None:
    given = np.array(strata)
    fold = stratified_folds(given, folds, seed)
    assert set(fold) <= set(range(folds))
    for stratum in set(strata):
        counts = np.bincount(fold[given == stratum], minlength=folds)
        assert counts.max() - counts.min() <= 1
    whole = np.bincount(fold, minlength=folds)
    assert whole.max() - whole.min() <= 1


def test_folds_and_calibration_follow_the_seed() -> None:
    strata = np.repeat([0, 1, 2], 100)
    assert np.array_equal(stratified_folds(strata, 4, 1), stratified_folds(strata, 4, 1))
    assert not np.array_equal(stratified_folds(strata, 4, 1), stratified_folds(strata, 4, 2))
    assert not np.array_equal(
        calibration_split(strata, 0.2, 1)[1], calibration_split(strata, 0.2, 2)[1]
    )


def test_calibration_data_are_a_stratified_share() -> None:
    strata = np.repeat([0, 1, 2], [600, 300, 4])
    development, calibration = calibration_split(strata, 0.2, seed=0)
    assert sorted([*development, *calibration]) == list(range(904))
    # 4 are too few to divide
    assert np.bincount(strata[calibration], minlength=3).tolist() == [120, 60, 0]


@pytest.mark.parametrize(
    ("examples", "share", "expected"), [(149, 0.2, 0), (150, 0.2, 30), (1000, 0.0, 0)]
)
def test_nothing_is_held_out_where_it_would_be_too_small(
    examples: int, share: float, expected: int
) -> None:
    development, calibration = calibration_split(np.zeros(examples, dtype=int), share, seed=0)
    assert (len(development), len(calibration)) == (examples - expected, expected)


# Any classifier -----------------------------------------------------------------------------------


def test_out_of_fold_scores_come_from_models_that_have_not_seen_the_example() -> None:
    X, y, _ = make_shifted(80)
    fold = stratified_folds(y, 4, 0)
    found = cross_fit_estimator(Memorizing(), X, y, np.array([0, 1]), None, fold)
    assert torch.equal(found.out_of_fold, torch.zeros(80, dtype=torch.float64))
    inside = found.model.logits(X)  # three of four models know it
    np.testing.assert_allclose(inside, np.where(y == 1, 1, -1) * np.log(0.875 / 0.125))
    assert found.note == "the average of 4 fits of Memorizing"


def test_no_example_is_memorized_in_a_whole_fit() -> None:
    """Neither by models of the label nor by those of the group: out of fold all is even, and nobody
    gets a yes."""
    X, y, group = make_shifted(400)
    fair = postprocessor(Memorizing(), constraint="equal_opportunity", bound=0.01).fit(
        X, y, sensitive_features=group
    )
    values = dict(fair.candidates_)["unconstrained"]
    assert values.violation == 0
    assert values.loss == pytest.approx(np.log(2))
    assert fair.unconstrained_.score(X[fair.development_], y[fair.development_]) == 1.0


def test_the_average_of_the_models_predicts() -> None:
    X, y, _ = make_shifted(200)
    fold = stratified_folds(y, 3, 0)
    found = cross_fit_estimator(LogisticRegression(), X, y, np.array([0, 1]), None, fold)
    fitted = [LogisticRegression().fit(X[fold != k], y[fold != k]) for k in range(3)]
    p = np.mean([one.predict_proba(X)[:, 1] for one in fitted], axis=0)
    np.testing.assert_allclose(found.model.logits(X), np.log(p / (1 - p)), rtol=1e-6)
    own = [fitted[k].predict_proba(X[i : i + 1])[0, 1] for i, k in enumerate(fold)]
    np.testing.assert_allclose(found.out_of_fold.sigmoid(), own, rtol=1e-6)


def test_weights_reach_the_estimator_and_zero_leaves_out() -> None:
    X, y, _ = make_shifted(200)
    fold, weight = stratified_folds(y, 2, 0), np.random.default_rng(0).random(200)
    weight[:50] = 0
    found = cross_fit_estimator(LogisticRegression(), X, y, np.array([0, 1]), weight, fold)
    train = (fold != 0) & (weight > 0)
    alone = LogisticRegression().fit(X[train], y[train], sample_weight=weight[train])
    np.testing.assert_allclose(
        found.out_of_fold[fold == 0].sigmoid(), alone.predict_proba(X[fold == 0])[:, 1]
    )
    with pytest.raises(ValueError, match=r"KNeighborsClassifier.*not.*sample_weight"):
        cross_fit_estimator(KNeighborsClassifier(), X, y, np.array([0, 1]), weight, fold)
    only_left_out = (weight > 0).astype(float)
    cross_fit_estimator(KNeighborsClassifier(), X, y, np.array([0, 1]), only_left_out, fold)


def test_classes_in_another_order_and_classes_not_seen() -> None:
    fitted = DummyClassifier(strategy="prior").fit(np.zeros((4, 1)), ["b", "b", "b", "c"])
    found = class_probabilities(fitted, np.zeros((1, 1)), np.array(["c", "a", "b"]))
    np.testing.assert_allclose(found, [[0.25, 0.0, 0.75]])


def test_probabilities_as_logits() -> None:
    np.testing.assert_allclose(as_logits(np.array([[0.2, 0.8]])), [np.log(4)])
    assert as_logits(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == pytest.approx(
        [-np.log(1e6), np.log(1e6)]
    )
    three = as_logits(np.array([[0.5, 0.5, 0.0]]))
    assert three.isfinite().all()
    np.testing.assert_allclose(three.softmax(1), [[0.5, 0.5, 0.0]], atol=1e-5)


def test_seeds_that_are_open_are_set() -> None:
    inside = seeded(make_pipeline(RandomForestClassifier()), 3)
    assert inside[-1].random_state == 3
    assert seeded(RandomForestClassifier(random_state=5), 3).random_state == 5
    assert isinstance(seeded(KNeighborsClassifier(), 3), KNeighborsClassifier)
