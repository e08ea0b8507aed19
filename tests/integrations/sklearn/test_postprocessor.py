"""`FairPostprocessor` around any classifier: corrected decisions, certificates, and scikit-learn's
contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from two_groups import make_data, make_shifted, people, postprocessor, rate_gap

from fairbound import constraints
from fairbound.integrations.sklearn import _certification as certification
from fairbound.integrations.sklearn import _cross_fitting as cross_fitting
from fairbound.integrations.sklearn import _mixin as mixin

# What it is for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("group_at_prediction", [False, True])
def test_the_gap_is_narrowed_on_data_that_nothing_has_seen(group_at_prediction: bool) -> None:
    X, y, group = make_shifted(3000)
    fair = postprocessor(group_at_prediction=group_at_prediction).fit(
        X, y, sensitive_features=group
    )
    new_X, new_y, new_group = make_shifted(20_000, seed=1)
    decisions = fair.predict(new_X, sensitive_features=new_group if group_at_prediction else None)
    assert rate_gap(fair.unconstrained_.predict(new_X), new_group) > 0.4
    assert abs(rate_gap(decisions, new_group)) < 0.1
    assert (decisions == new_y).mean() > 0.6
    assert fair.choice_.startswith("corrected")
    assert max(fair.multipliers_.values()) > 0


@pytest.mark.parametrize("group_at_prediction", [False, True])
def test_a_ratio_of_rates_is_bounded(group_at_prediction: bool) -> None:
    """The four-fifths rule; a rule for nobody, which meets every ratio, is none."""
    X, y, group = make_shifted(4000)
    X[:, 0] -= 1.0  # few positive decisions: the ratio allows a difference of a tenth or less
    y = (X[:, 0] + np.random.default_rng(3).normal(size=len(y)) > 0).astype(int)
    fit, new = np.arange(len(y)) % 4 == 0, np.arange(len(y)) % 4 != 0
    settings: dict[str, Any] = {"constraint": "demographic_parity_ratio", "bound": 0.8}
    fair = postprocessor(**settings, max_accuracy_loss=0.2, group_at_prediction=group_at_prediction)
    fair.fit(X[fit], y[fit], sensitive_features=group[fit])
    decisions = fair.predict(X[new], sensitive_features=group[new] if group_at_prediction else None)
    before, after = (
        [one[group[new] == name].mean() for name in "AB"]
        for one in (fair.unconstrained_.predict(X[new]), decisions)
    )
    assert min(before) < 0.5 * max(before)
    assert min(after) > 0.75 * max(after)
    assert max(after) > 0.1


def test_with_the_group_at_prediction_there_is_a_threshold_for_each() -> None:
    X, y, group = make_shifted(1500)
    fair = postprocessor(group_at_prediction=True).fit(X, y, sensitive_features=group)
    before = fair.unconstrained_.decision_function(X)
    shift = before - fair.decision_function(X, sensitive_features=group)
    for name in "AB":
        assert np.ptp(shift[group == name]) < 1e-9
    assert shift[group == "A"][0] > 0 > shift[group == "B"][0]


def test_flattening_keeps_every_decision() -> None:
    X, y, group = make_shifted(2000)
    rng = np.random.default_rng(5)
    y = np.where((group == "B") & (rng.random(2000) < 0.3), 1 - y, y)  # B is harder to predict
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.05).fit(
        X, y, sensitive_features=group
    )
    assert fair.choice_.startswith("corrected")
    np.testing.assert_array_equal(fair.predict(X), fair.unconstrained_.predict(X))
    flatter, before = (
        np.abs(fair.decision_function(X)),
        np.abs(fair.unconstrained_.decision_function(X)),
    )
    assert (flatter <= before).all()
    assert (flatter < before).any()
    values = dict(fair.candidates_)
    assert values[fair.choice_].violation < values["unconstrained"].violation


def test_a_bound_that_is_met_leaves_the_model_alone() -> None:
    X, y, group = make_shifted(1500, shift=0.0)
    fair = postprocessor(bound=0.5).fit(X, y, sensitive_features=group)
    assert (fair.choice_, fair.certified_) == ("unconstrained", True)
    assert set(fair.multipliers_.values()) == {0.0}
    assert [name for name, _ in fair.candidates_] == ["unconstrained"]
    np.testing.assert_array_equal(fair.predict_proba(X), fair.unconstrained_.predict_proba(X))


def test_the_least_corrected_candidate_that_is_certified_is_chosen() -> None:
    X, y, group = make_shifted(4000)
    fair = postprocessor(bound=0.2).fit(X, y, sensitive_features=group)
    assert fair.certified_
    assert fair.verdict_.decision == "holds"
    names = [name for name, _ in fair.candidates_]
    assert names[-1] == "unconstrained" != fair.choice_


def test_no_sample_certifies_beyond_the_chosen_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration data on which everything seems to hold: the unconstrained model is not
    returned."""
    judge = certification.judge

    def lucky(*given: Any) -> Any:
        return replace(judge(*given), decision="holds")

    monkeypatch.setattr(certification, "judge", lucky)
    X, y, group = make_shifted(1500)
    fair = postprocessor(bound=0.2).fit(X, y, sensitive_features=group)
    assert fair.choice_ == "corrected, strictness 0" != fair.candidates_[-1][0]
    assert abs(rate_gap(fair.predict(X), group)) < 0.2


def test_one_decision_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chosen model that alone would hold, after a stricter one did not: it is not certified, and
    not said to hold."""
    judge = certification.judge
    strictest: list[Any] = []

    def unlucky(correction: Any, *given: Any) -> Any:
        strictest.append(correction)
        return replace(
            judge(correction, *given),
            decision="holds" if correction is not strictest[0] else "undecided",
        )

    monkeypatch.setattr(certification, "judge", unlucky)
    monkeypatch.setattr(mixin, "judge", unlucky)
    X, y, group = make_shifted(2000)
    fair = postprocessor(bound=0.2).fit(X, y, sensitive_features=group)
    assert (fair.certified_, fair.verdict_.decision) == (False, "undecided")
    assert "the sequence of tests ended at a stricter correction" in fair.verdict_.sentence
    # no number of examples
    assert {(gap.needed, gap.needed_between) for gap in fair.verdict_.gaps} == {(None, None)}
    for one in (fair, postprocessor(bound=0.3).fit(X, y, sensitive_features=group)):
        assert one.certified_ == (one.verdict_.decision == "holds")


def test_a_reweighted_model_that_costs_too_much_is_left_out() -> None:
    """Two rules: a small loss of B, a quarter of the examples, costs accuracy; and only such bounds
    train again."""
    rng = np.random.default_rng(0)
    group = np.where(rng.random(1500) < 0.25, "B", "A")
    X = rng.standard_normal((1500, 2))
    y = (3 * np.where(group == "A", X[:, 0], X[:, 1]) + rng.standard_normal(1500) > 0).astype(int)

    def candidates(notion: str, bound: float, price: float) -> list[str]:
        fair = postprocessor(constraint=notion, bound=bound, max_accuracy_loss=price).fit(
            X, y, group
        )
        return [name for name, _ in fair.candidates_]

    assert candidates("bounded_group_loss", 0.55, 1.0) == ["re-weighted", "unconstrained"]
    assert candidates("bounded_group_loss", 0.55, 0.0) == ["unconstrained"]
    assert "re-weighted" not in candidates("pairwise_loss_parity", 0.02, 1.0) != ["unconstrained"]


def test_development_and_calibration_data_are_all_examples() -> None:
    X, y, group = make_shifted(1000)
    fair = postprocessor(calibration=0.3).fit(X, y, sensitive_features=group)
    assert sorted([*fair.development_, *fair.calibration_]) == list(range(1000))
    assert len(fair.calibration_) == pytest.approx(300, abs=2)
    without = postprocessor(calibration=0.0)
    with pytest.warns(UserWarning, match="no verdict"):
        without.fit(X, y, sensitive_features=group)
    assert without.verdict_ is None
    assert not without.certified_


# Judging ------------------------------------------------------------------------------------------


# Many groups, small groups, few examples ----------------------------------------------------------


def with_third(people: int, positives: bool = True, n: int = 3000) -> tuple[Any, Any, Any]:
    """Two groups with another rate, and a third of a few people at random."""
    X, y, group = make_shifted(n, shift=0.6)
    third = np.random.default_rng(9).permutation(n)[:people]
    group = group.astype(object)
    group[third] = "third"
    if not positives:
        y[third] = 0
    return X, y, group


@pytest.mark.parametrize("group_at_prediction", [False, True])
@pytest.mark.parametrize(
    ("people", "positives"), [(3, True), (20, True), (60, True), (300, True), (150, False)]
)
def test_a_random_third_group_costs_nearly_nothing(
    people: int, positives: bool, group_at_prediction: bool
) -> None:
    X, y, group = make_shifted(3000, shift=0.6)
    two = postprocessor(bound=0.05, group_at_prediction=group_at_prediction).fit(
        X, y, sensitive_features=group
    )
    X, y, group = with_third(people, positives)
    three = postprocessor(bound=0.05, group_at_prediction=group_at_prediction).fit(
        X, y, sensitive_features=group
    )
    new_X, new_y, new_group = make_shifted(8000, seed=1, shift=0.6)
    given = {"sensitive_features": new_group} if group_at_prediction else {}
    accuracies = [model.score(new_X, new_y, **given) for model in (two, three)]
    # of 8,000 examples, and other folds
    assert accuracies[1] > accuracies[0] - (0.015 if positives else 0.05)
    assert (
        0.5 < three.predict(new_X, **given).mean() / three.unconstrained_.predict(new_X).mean() < 2
    )


def test_a_constant_rule_is_not_returned_unless_it_is_allowed() -> None:
    """Nearly nobody may get a positive decision: only the word of the user makes that a rule."""
    X, y, group = make_shifted(1500)
    nearly_nobody = constraints.maximum_rate(0.01)
    fair = postprocessor(constraint=nearly_nobody).fit(X, y, sensitive_features=group)
    assert fair.choice_ == "unconstrained"
    assert "Left out: 7 candidates with the same decision for nearly everybody;" in " ".join(
        fair.report().split()
    )
    assert fair.verdict_.decision == "violated"
    allowed = postprocessor(constraint=nearly_nobody, allow_constant=True).fit(
        X, y, sensitive_features=group
    )
    assert allowed.predict(X).mean() < 0.1 * fair.predict(X).mean()
    assert allowed.report().startswith("This is nearly a constant rule")


# Classifiers and inputs of all kinds --------------------------------------------------------------


def test_data_frames_reach_the_estimator_as_they_are() -> None:
    X, y, group = people()
    X["work"] = X["work"].astype("category")
    X.loc[::7, "age"] = np.nan
    trees = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype")
    fair = postprocessor(trees, pos_label="yes").fit(X, y, sensitive_features=group)
    assert fair.score(X, y) > 0.6
    with pytest.raises(ValueError, match="feature names"):
        fair.predict(X.rename(columns={"age": "years"}))


def test_a_fitted_estimator_is_kept_as_it_is() -> None:
    X, y, group = make_shifted(800)
    other_X, other_y, _ = make_shifted(800, seed=7)
    fitted = LogisticRegression().fit(other_X, other_y)
    fair = postprocessor(FrozenEstimator(fitted)).fit(X, y, sensitive_features=group)
    np.testing.assert_allclose(
        fair.unconstrained_.predict_proba(X), fitted.predict_proba(X), atol=1e-5
    )
    assert fair.choice_.startswith("corrected")


def test_another_estimator_for_the_group() -> None:
    X, y, group = make_shifted(600)
    fair = postprocessor(group_estimator=GaussianNB()).fit(X, y, sensitive_features=group)
    (model,) = fair._membership.models.values()
    assert all(isinstance(one, GaussianNB) for one in model.estimators)


def test_an_estimator_without_probabilities() -> None:
    X, y, group = make_shifted(100)
    with pytest.raises(TypeError, match=r"predict_proba, got LinearSVC.*CalibratedClassifierCV"):
        postprocessor(LinearSVC()).fit(X, y, sensitive_features=group)


# Classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pos_label", ["deny", "grant"])
def test_the_positive_class(pos_label: str) -> None:
    """A minimum of its rate."""
    X, y, group = make_shifted(800)
    answer = np.array(["deny", "grant"])[y]
    wanted = constraints.minimum_rate(0.75)
    fair = postprocessor(constraint=wanted, pos_label=pos_label).fit(
        X, answer, sensitive_features=group
    )
    assert (fair.predict(X) == pos_label).mean() > 0.72
    assert fair.positive_class_ == pos_label
    assert list(fair.multipliers_) == [f"class {pos_label}: rate of all >= 0.75"]
    assert f"Positive class: {pos_label}." in " ".join(fair.report().split())
    assert fair.classes_.tolist() == ["deny", "grant"]
    p = fair.predict_proba(X)
    np.testing.assert_array_equal(fair.classes_[p.argmax(1)], fair.predict(X))
    np.testing.assert_array_equal(fair.decision_function(X) > 0, p[:, 1] > 0.5)
    plain = LogisticRegression().fit(X, answer).predict_proba(X)
    # in the order of the classes
    assert np.abs(fair.unconstrained_.predict_proba(X) - plain).max() < 0.1


def test_of_two_texts_the_positive_one_must_be_named() -> None:
    """Sorted, "deny" comes first and "grant" last; "reject" would come after "accept"."""
    X, y, group = make_shifted(300)
    answer = np.array(["accept", "reject"])[y]
    with pytest.raises(ValueError, match=r"pos_label='reject' or pos_label='accept'"):
        postprocessor().fit(X, answer, sensitive_features=group)
    losses = postprocessor(constraint="pairwise_loss_parity").fit(
        X, answer, sensitive_features=group
    )
    assert losses.classes_.tolist() == ["accept", "reject"]  # about no decision


@pytest.mark.parametrize("pos_label", [None, "high"])
def test_several_classes(pos_label: str | None) -> None:
    X, _, group = make_shifted(1200)
    noise = np.random.default_rng(3).standard_normal(1200)
    y = np.array(["low", "middle", "high"])[
        (X[:, 0] + noise > 0).astype(int) + (X[:, 0] + noise > 1.5)
    ]
    fair = postprocessor(pos_label=pos_label, bound=0.15).fit(X, y, sensitive_features=group)
    assert fair.predict_proba(X).shape == (1200, 3)
    wanted = ["high"] if pos_label else ["high", "low", "middle"]
    assert [c.names[0] for c in fair.constraints_] == [f"class {name}: A - B" for name in wanted]
    before, after = (
        rate_gap(one.predict(X) == "high", group) for one in (fair.unconstrained_, fair)
    )
    assert before > 0.3
    assert abs(after) < 0.2


def test_class_and_sample_weights() -> None:
    X, y, group = make_shifted(800)
    X[y == 1, 1] += 0.3
    rare = y * (np.arange(800) % 4 == 0)
    one, balanced, given = (
        postprocessor(bound=0.9, class_weight=weight).fit(X, rare, sensitive_features=group)
        for weight in (None, "balanced", {0: 1.0, 1: 6.0})
    )
    assert one.predict(X).mean() + 0.1 < min(balanced.predict(X).mean(), given.predict(X).mean())
    # constraints and verdict are about examples as they are weighted by sample_weight, not by
    # class_weight
    heavy = np.where((group == "B") & (y == 1), 5.0, 1.0)
    weighted = postprocessor(bound=0.9).fit(X, y, sensitive_features=group, sample_weight=heavy)
    at = weighted.calibration_
    assert weighted.judge(X[at], y[at], group[at], heavy[at]).gaps[0].estimate == pytest.approx(
        weighted.verdict_.gaps[0].estimate
    )


# Several constraints and columns ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subgroups", "columns"), [("marginal", 2), ("intersectional", 1), ("both", 3)]
)
def test_several_columns_of_groups(subgroups: str, columns: int) -> None:
    X, y, group = make_shifted(1000)
    half = np.random.default_rng(1).choice(["x", "y"], 1000)
    both = pd.DataFrame({"race": group, "sex": half})
    fair = postprocessor(subgroups=subgroups).fit(X, y, sensitive_features=both)
    assert len(fair.groups_) == len(fair.constraints_) == columns
    assert (
        abs(rate_gap(fair.predict(X), group))
        < 0.2
        < rate_gap(fair.unconstrained_.predict(X), group)
    )
    assert fair.judge(X, y, both).examples == 1000
    with pytest.raises(ValueError, match=r"has 1 columns.*given 2"):
        fair.judge(X, y, group)


# scikit-learn -------------------------------------------------------------------------------------


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        ({"pos_label": "yes"}, {}, r"pos_label='yes' is not among the classes \[0, 1\]"),
        ({"cv": 1}, {}, "cv is a number of folds, 2 or more, got 1"),
        ({"cv": 2.5}, {}, "cv is a number of folds, 2 or more, got 2.5"),
        (
            {"calibration": 2},
            {},
            "calibration is a share of the examples, from 0 to below 1, got 2",
        ),
        ({"max_accuracy_loss": 5}, {}, "max_accuracy_loss is a share such as 0.05, got 5"),
        ({"level": 95}, {}, "level is a confidence level such as 0.95, got 95"),
        (
            {"subgroups": "all"},
            {},
            "subgroups must be one of 'intersectional', 'marginal', 'both', got 'all'",
        ),
        ({}, {"sensitive_features": ["A"] * 60}, "one group only, 'A'"),
        (
            {},
            {"sensitive_features": ["A"]},
            "one entry, or one row of entries, for each of the 60 rows",
        ),
        ({}, {"sensitive_features": [None] * 60}, "missing entries"),
        ({}, {"sample_weight": -np.ones(60)}, "Negative values in data passed to `sample_weight`"),
        ({}, {"sample_weight": np.zeros(60)}, "at least one non-zero"),
        (
            {},
            {"sample_weight": make_data(60)[1]},
            r"a positive sample_weight have one class only, \[1\]",
        ),
    ],
)
def test_errors_are_sentences(
    settings: dict[str, Any], given: dict[str, Any], sentence: str
) -> None:
    X, y, group = make_data(60)
    with pytest.raises(ValueError, match=sentence):
        postprocessor(**settings).fit(X, y, **({"sensitive_features": group} | given))


def test_one_class_and_no_groups() -> None:
    X, y, group = make_data(60)
    with pytest.raises(ValueError, match=r"one class.*\[1\.0\]"):
        postprocessor().fit(X, np.ones(60), sensitive_features=group)
    with pytest.raises(ValueError, match="requires y"):
        postprocessor().fit(X, None, sensitive_features=group)
    with pytest.warns(UserWarning, match=r"no sensitive_features.*unconstrained"):
        fair = postprocessor().fit(X, y)
    assert (fair.choice_, fair.verdict_, fair.constraints_, fair.multipliers_) == (
        "unconstrained",
        None,
        (),
        {},
    )


def test_small_tables_are_fitted_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []

    class Watched(GaussianNB):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Watched:
            seen.append(torch.get_num_threads())
            super().fit(X, y, sample_weight)
            return self

    X, y, group = make_data(400)
    torch.set_num_threads(2)
    try:
        postprocessor(Watched(), constraint="pairwise_loss_parity", bound=0.3).fit(
            X, y, sensitive_features=group
        )
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        seen.clear()
        monkeypatch.setattr(cross_fitting, "SMALL_TABLE", 100)
        postprocessor(Watched(), constraint="pairwise_loss_parity", bound=0.3).fit(
            X, y, sensitive_features=group
        )
        assert set(seen) == {2}
    finally:
        torch.set_num_threads(before)
