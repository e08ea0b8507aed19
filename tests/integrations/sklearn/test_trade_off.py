"""The trade-off curve trains its models once, and the scorer does not reward the loosest bound."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from two_groups import make_shifted, postprocessor

from fairbound.integrations.sklearn import _cross_fitting as cross_fitting
from fairbound.integrations.sklearn import bounded_accuracy_scorer, trade_off_curve
from fairbound.integrations.sklearn._trade_off import bounded_accuracy


def test_the_models_are_trained_once_and_gaps_follow_the_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, group = make_shifted(4000)
    fits = []
    whole = cross_fitting.cross_fit_estimator

    def counted(*given: Any) -> Any:
        fits.append(given)
        return whole(*given)

    monkeypatch.setattr(
        "fairbound.integrations.sklearn._postprocessor.cross_fit_estimator", counted
    )
    curve = trade_off_curve(X, y, group, estimator=postprocessor(), bounds=[0.3, 0.05, 0.1])
    assert len(fits) == 2  # the label and the group
    assert [point.bound for point in curve.points] == [0.05, 0.1, 0.3, None]
    gaps = [point.gap for point in curve.points]
    assert gaps == sorted(gaps)
    assert gaps[0] < 0.1 < 0.25 < gaps[-1]
    assert curve.points[0].accuracy < curve.points[-1].accuracy
    assert [point.chosen for point in curve.points] == [False, True, False, False]
    certified = [point.certified for point in curve.points]
    # the verdict of the loosest fit is not that of its unconstrained models
    assert certified[2:] == [True, False]
    assert all(
        low <= point.gap <= high for point in curve.points for low, high in [point.gap_interval]
    )
    assert max(map(len, str(curve).splitlines())) <= 80
    assert list(pd.DataFrame(curve.points)["bound"])[:3] == [0.05, 0.1, 0.3]


def test_a_curve_is_that_of_single_fits() -> None:
    X, y, group = make_shifted(2000)
    two = trade_off_curve(X, y, group, estimator=postprocessor(), bounds=[0.05, 0.2]).points
    one = trade_off_curve(X, y, group, estimator=postprocessor(), bounds=[0.2]).points
    assert two[1] == one[0]


def test_a_curve_is_of_the_estimators_constraint_where_no_other_is_named() -> None:
    X, y, group = make_shifted(1500)
    fair = postprocessor(constraint="equal_opportunity")
    own, named = (
        trade_off_curve(X, y, group, estimator=fair, bounds=[0.1], constraints=c)
        for c in (None, ["equal_opportunity"])
    )
    assert own == named
    assert {point.constraint for point in own.points} == {"equal_opportunity"}
    with pytest.raises(ValueError, match=r"names of notions, .*constraints=\[\.\.\.\]"):
        trade_off_curve(
            X,
            y,
            group,
            estimator=postprocessor(constraint={"equal_opportunity": 0.1}),
            bounds=[0.1],
        )


def test_the_plot_has_a_label_for_every_bound() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    X, y, group = make_shifted(1500)
    axes = trade_off_curve(X, y, group, estimator=postprocessor(), bounds=[0.05, 0.1]).plot()
    assert {"0.05", "0.1", "unconstrained"} <= {
        part for text in axes.texts for part in text.get_text().split(", ")
    }


@pytest.mark.parametrize(
    ("predicted", "expected"),
    # rates of A and B: .5 .5, .5 1, 1 1
    [([0, 1, 0, 1], 1.0), ([0, 1, 1, 1], -0.4), ([1, 1, 1, 1], 0.5)],
)
def test_the_score_is_the_accuracy_within_the_bound_and_minus_the_violation_beyond(
    predicted: list[int], expected: float
) -> None:
    y, group = np.array([0, 1, 0, 1]), ["A", "A", "B", "B"]
    score = bounded_accuracy(
        y, np.array(predicted), sensitive_features=group, constraint="demographic_parity", bound=0.1
    )
    assert score == pytest.approx(expected)


def test_the_score_of_losses_and_of_several_classes() -> None:
    y, group = np.array(["a", "b", "c", "a"]), ["A", "A", "B", "B"]
    p = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]])
    gap = (np.log(0.8) - np.log(0.4)) / 2
    for notion, bound, expected in (
        ("loss_parity", 0.2, 1.0),
        ("pairwise_loss_parity", 0.1, 0.1 - gap),
        ("demographic_parity", 0.4, 0.4 - 0.5),
    ):
        score = bounded_accuracy(y, p, sensitive_features=group, constraint=notion, bound=bound)
        assert score == pytest.approx(expected)


def test_a_curve_of_ratios_is_refused() -> None:
    with pytest.raises(ValueError, match="curve shows differences"):
        trade_off_curve(
            *make_shifted(100), estimator=postprocessor(), constraints=["demographic_parity_ratio"]
        )


def test_a_scorer_without_metadata_routing_is_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"sklearn\.set_config\(enable_metadata_routing=True\) first"
    ):
        bounded_accuracy_scorer("demographic_parity", 0.1)


@pytest.mark.parametrize("group_at_prediction", [False, True])
def test_a_grid_search_does_not_choose_the_loosest_bound(group_at_prediction: bool) -> None:
    X, y, group = make_shifted(4000)
    with config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of a score that is NaN
        scorer = bounded_accuracy_scorer("demographic_parity", 0.12)
        estimator = postprocessor(group_at_prediction=group_at_prediction)
        search = GridSearchCV(estimator, {"bound": [0.05, 0.5]}, cv=2, scoring=scorer)
        search.fit(X, y, sensitive_features=group)
        piped = make_pipeline(StandardScaler(), estimator)
        scores = cross_val_score(
            piped, X, y, cv=2, scoring=scorer, params={"sensitive_features": group}
        )
    assert search.best_params_ == {"bound": 0.05}
    assert search.best_score_ > 0.6
    assert scores.min() > 0.6
    assert "BoundedAccuracy" in repr(search)
