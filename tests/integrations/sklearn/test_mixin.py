"""What both estimators share: scikit-learn's contract, held-out calibration data, judging, copies
and routing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from two_groups import make_data, make_shifted, people, postprocessor, rate_gap, small

import fairbound
from fairbound import constraints
from fairbound.integrations.sklearn import FairPostprocessor
from fairbound.integrations.sklearn import _mixin as mixin

WHY = (
    "folds and mini-batches are random, so an example given twice is another sample than one of"
    " weight 2"
)
FAILS = {
    "check_sample_weight_equivalence_on_dense_data": WHY,
    "check_sample_weight_equivalence_on_sparse_data": WHY,
}
both = pytest.mark.parametrize("build", [small, postprocessor])


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        small(random_state=None),
        FairPostprocessor(LogisticRegression(), constraint="demographic_parity"),
    ],
    expected_failed_checks=lambda _: FAILS,
)
def test_scikit_learn_s_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@both
def test_the_types_of_parameters_can_be_read(build: Any) -> None:
    """Of those of the mixin too, as the documentation reads them: each in the names of the
    estimator's module."""
    hints = get_type_hints(type(build()).__init__)
    assert {*build().get_params(deep=False), "return"} == {*hints}


@both
def test_calibration_data_change_nothing_of_the_models(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other inputs, labels and weights there change the verdict only; none is certified, so that it
    chooses nothing."""
    X, y, group = make_shifted(800)
    weight = np.random.default_rng(1).lognormal(size=800)
    settings: dict[str, Any] = {"constraint": "equal_opportunity", "bound": 0.02}
    one = build(**settings).fit(X, y, sensitive_features=group, sample_weight=weight)
    at = one.calibration_
    other_X, other_y, weight = X.copy(), y.copy(), weight.copy()
    other_X[at], other_y[at], weight[at] = 100 + 3 * X[at], 1 - y[at], 1000 * weight[at]
    split = (one.development_, at)
    # strata depend on the labels
    monkeypatch.setattr(mixin, "calibration_split", lambda *given: split)
    other = build(**settings).fit(other_X, other_y, sensitive_features=group, sample_weight=weight)
    assert not one.certified_
    assert not other.certified_
    for model, twin in ((one, other), (one.unconstrained_, other.unconstrained_)):
        np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))
    assert one.candidates_[0][1].accuracy == other.candidates_[0][1].accuracy
    assert [gap.estimate for gap in one.verdict_.gaps] != [
        gap.estimate for gap in other.verdict_.gaps
    ]


@both
def test_clones_pickles_and_seeds(build: Any) -> None:
    X, y, group = make_shifted(400)
    fair = build(bound=0.1).fit(X, y, sensitive_features=group)
    same = clone(fair).fit(X, y, sensitive_features=group)
    loaded = pickle.loads(pickle.dumps(fair))
    for other in (same, loaded):
        np.testing.assert_array_equal(fair.predict_proba(X), other.predict_proba(X))
    assert loaded.report() == fair.report()
    other = build(bound=0.1, random_state=1).fit(X, y, sensitive_features=group)
    assert not np.array_equal(fair.predict_proba(X), other.predict_proba(X))
    assert not np.array_equal(fair.development_, other.development_)
    assert fair.fit(X, y, sensitive_features=group) is fair


def test_a_function_without_a_name_is_saved_by_what_saves_functions() -> None:
    """As the processes of a grid search do."""
    cloudpickle = pytest.importorskip("cloudpickle")
    X, y, group = make_shifted(400)
    fair = postprocessor(
        constraint=lambda names, bound: constraints.demographic_parity(names, bound=bound)
    )
    fair.fit(X, y, sensitive_features=group)
    np.testing.assert_array_equal(pickle.loads(cloudpickle.dumps(fair)).predict(X), fair.predict(X))
    assert fair.unconstrained_.predict(X).shape == (400,)
    assert "Choice" in fair.report()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            small,
            [
                "models of the label: epoch 2.0 of 2, validation loss 0.",
                "models of the groups: epoch 2.0 of",
            ],
        ),
        (
            postprocessor,
            ["models of the label: 4 of 4 folds", "models of the groups: 4 of 4 folds"],
        ),
    ],
)
def test_progress_is_printed_where_it_is_asked_for(
    build: Any, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    X, y, group = make_shifted(300)
    build(bound=0.0).fit(X, y, sensitive_features=group)
    assert capsys.readouterr().out == ""
    build(bound=0.0, verbose=True).fit(X, y, sensitive_features=group)
    out = capsys.readouterr().out
    assert all(part in out for part in said)


@both
@pytest.mark.parametrize("sparse", [False, True])
def test_pipelines_inside_and_outside(build: Any, sparse: bool) -> None:
    X, y, group = people()
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=sparse), ["work"]),
        remainder=StandardScaler(),
        sparse_threshold=float(sparse),
    )
    with config_context(enable_metadata_routing=True):
        fair = build(constraint="demographic_parity", pos_label="yes").set_fit_request(
            sensitive_features=True
        )
        outside = make_pipeline(encode, fair).fit(X, y, sensitive_features=group)
    assert outside[-1].groups_ == {"group": ["f", "m"]}
    assert set(outside.predict(X)) <= {"no", "yes"}
    assert outside.score(X, y) > 0.6
    if build is postprocessor:
        inside = postprocessor(make_pipeline(clone(encode), LogisticRegression()), pos_label="yes")
        assert inside.fit(X, y, sensitive_features=group).score(X, y) > 0.6
        assert abs(rate_gap(outside.predict(X) == "yes", np.where(group == "m", "A", "B"))) < 0.15


# Judging ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_at_prediction", [False, True])
def test_judging_new_data_is_the_verdict_on_its_decisions(group_at_prediction: bool) -> None:
    X, y, group = make_shifted(800)
    fair = postprocessor(constraint="equal_opportunity", group_at_prediction=group_at_prediction)
    fair.fit(X, y, sensitive_features=group)
    new_X, new_y, new_group = make_shifted(1000, seed=1)
    weight = np.random.default_rng(0).random(1000)
    judged = fair.judge(new_X, new_y, new_group, sample_weight=weight)
    expected = fairbound.verdict(
        constraints.equal_opportunity(["A", "B"], bound=0.1),
        new_group,
        predictions=fair.predict(
            new_X, sensitive_features=new_group if group_at_prediction else None
        ),
        labels=new_y,
        weight=weight,
    )
    assert judged.gaps == expected.gaps
    at = fair.calibration_
    assert fair.judge(X[at], y[at], group[at]).gaps == fair.verdict_.gaps


def test_judging_losses() -> None:
    X, y, group = make_data(800)
    fair = postprocessor(constraint="pairwise_loss_parity").fit(X, y, sensitive_features=group)
    judged = fair.judge(X, y, group)
    p = fair.predict_proba(X)[np.arange(800), y]
    expected = fairbound.verdict(
        constraints.pairwise_loss_parity(["A", "B"], bound=0.1), group, losses=-np.log(p)
    )
    assert [gap.estimate for gap in judged.gaps] == pytest.approx(
        [gap.estimate for gap in expected.gaps]
    )
    with pytest.raises(ValueError, match=r"class 7, .*its classes"):
        fair.judge(X, np.full(800, 7), group)
    with pytest.warns(UserWarning, match="training is unconstrained"):
        plain = postprocessor().fit(X, y)
    with pytest.raises(ValueError, match=r"without sensitive_features.*no constraint"):
        plain.judge(X, y, group)


# Groups: routed, asked for, and in the order of X -------------------------------------------------


def test_grid_search_and_cross_validation_route_the_groups() -> None:
    X, y, group = make_shifted(400)
    with config_context(enable_metadata_routing=True):
        fair = postprocessor(group_at_prediction=True)
        scores = cross_val_score(fair, X, y, cv=2, params={"sensitive_features": group})
        search = GridSearchCV(fair, {"bound": [0.1, 0.8], "estimator__C": [1.0]}, cv=2)
        search.fit(X, y, sensitive_features=group)
    assert scores.min() >= 0.5
    with pytest.warns(UserWarning, match=r"sklearn\.set_config\(enable_metadata_routing=True\)"):
        cross_val_score(fair, X, y, cv=2, params={"sensitive_features": group})
    assert search.best_params_["bound"] == 0.8  # accuracy alone rewards the loosest
    assert search.best_estimator_.groups_ == {"group": ["A", "B"]}


def test_the_group_at_prediction_is_asked_for_and_must_be_known() -> None:
    X, y, group = make_shifted(600)
    fair = postprocessor(group_at_prediction=True).fit(X, y, sensitive_features=group)
    assert (
        fair.score(X, y, sensitive_features=group)
        == (fair.predict(X, sensitive_features=group) == y).mean()
    )
    for ask in (lambda: fair.predict(X), lambda: fair.score(X, y)):
        with pytest.raises(
            ValueError,
            match=r"group_at_prediction=True.*sensitive_features=",
        ):
            ask()
    with pytest.raises(ValueError, match=r"'C'.*A and B"):
        fair.predict(X[:1], sensitive_features=["C"])


def test_an_index_in_another_order_is_refused() -> None:
    X, y, group = make_shifted(300)
    table, who = pd.DataFrame(X), pd.Series(group)
    shuffled = who.sample(frac=1.0, random_state=0)
    with pytest.raises(ValueError, match=r"sensitive_features.*index of X.*loc\[X.index\]"):
        postprocessor().fit(table, y, sensitive_features=shuffled)
    with pytest.raises(ValueError, match=r"y has.*index of X"):
        postprocessor().fit(table, pd.Series(y).loc[shuffled.index], sensitive_features=who)
    fair = postprocessor(group_at_prediction=True).fit(
        table, y, sensitive_features=shuffled.loc[table.index]
    )
    with pytest.raises(ValueError, match=r"sensitive_features.*index of X"):
        fair.predict(table, sensitive_features=shuffled)
    other = who.set_axis(range(1000, 1300))  # other labels: by position
    np.testing.assert_array_equal(
        fair.predict(table, sensitive_features=other), fair.predict(table, group)
    )


def test_the_hash_of_the_data_is_that_of_its_entries() -> None:
    X, y, group = make_shifted(300)
    one, same, other = (
        postprocessor().fit(table, y, sensitive_features=who).data_hash_
        for table, who in (
            (X, group),
            (pd.DataFrame(X), pd.Series(group)),
            (X + (np.arange(300) == 7)[:, None], group),
        )
    )
    assert one == same != other
