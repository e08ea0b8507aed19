"""`FairClassifier` with weights, groups, constraints and networks of all kinds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import two_groups
from torch import nn
from two_groups import make_data

from fairbound import constraints
from fairbound.algorithms import SSLALM
from fairbound.integrations.sklearn import FairClassifier, classifier, model_selection
from fairbound.integrations.sklearn.inputs import group_codes
from fairbound.integrations.sklearn.trainer import violation_scale
from fairbound.training.functional import make_functional


def small(**settings: Any) -> FairClassifier:
    return two_groups.small(**{"bound": 0.1, "compile": False} | settings)


# Weights --------------------------------------------------------------------------------------------------------------


def test_weights_that_leave_nothing_to_train_on_raise() -> None:
    X, y, group = make_data(600)
    held_out = small().fit(X, y, sensitive_features=group).parts_.validation.numpy()
    weight = np.zeros(len(y))
    weight[held_out] = 1.0
    with pytest.raises(ValueError, match="sample_weight is zero for all 432 training examples"):
        small().fit(X, y, sensitive_features=group, sample_weight=weight)


@pytest.mark.parametrize("mode", ["train_duals", "held_out_duals"])
@pytest.mark.parametrize("notion", ["pairwise_loss_parity", "equalized_odds"])
def test_weights_labels_and_groups_of_calibration_examples_do_not_reach_the_model(
    mode: str, notion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, group = make_data()
    weight = np.random.default_rng(1).lognormal(size=len(y))
    one = small(mode=mode, constraint=notion, steps=60).fit(X, y, sensitive_features=group, sample_weight=weight)
    at = one.parts_.calibration.numpy()
    y[at], group[at], weight[at] = 1 - y[at], np.where(group[at] == "A", "B", "A"), 1000 * weight[at]
    monkeypatch.setattr(classifier, "split_examples", lambda *given: one.parts_)  # strata depend on both
    other = small(mode=mode, constraint=notion, steps=60).fit(X, y, sensitive_features=group, sample_weight=weight)
    for a, b in zip(one.module_.parameters(), other.module_.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_random_weights_do_not_change_the_gap_on_training_data() -> None:
    """The mean weight of a cell is 1 in the pool that it is sampled from, whatever the weights are."""
    X, y, group = make_data(3000)
    weight = np.random.default_rng(2).lognormal(size=len(y))
    fair = small(mode="train_duals", bound=0.05, steps=1500)
    assert max(fair.fit(X, y, sensitive_features=group, sample_weight=weight).kkt_.constraints.values()) < 0.01


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weight, group: -weight, "sample_weight must not be negative, found -"),
        (lambda weight, group: 0 * weight, "zero"),
        (lambda weight, group: weight * (group == "A"), "sample_weight is zero for all examples of 'B' in the train"),
    ],
)
def test_invalid_weights_raise(change: Any, sentence: str) -> None:
    X, y, group = make_data(600)
    with pytest.raises(ValueError, match=sentence):
        small(mode="train_duals").fit(X, y, sensitive_features=group, sample_weight=change(np.ones(600), group))


# Constraints ----------------------------------------------------------------------------------------------------------


def test_a_constraint_is_about_the_groups_that_it_names() -> None:
    X, y, group = make_data()
    found = [
        small(constraint=constraints.minimum_rate(0.9, groups=names, group="B"), mode="train_duals")
        .fit(X, y, sensitive_features=group)
        .verdict_.gaps[0]
        for names in (["A", "B"], ["B", "A"])
    ]
    assert found[0].estimate == found[1].estimate
    assert found[0].examples == found[1].examples < 0.5 * len(y) * 0.14


@pytest.mark.parametrize(
    ("constraint", "sentence"),
    [
        (
            constraints.pairwise_loss_parity(["x", "y"], bound=0.1),
            "is about 'x', and the groups of the data are",
        ),
        (constraints.pairwise_loss_parity(3, bound=0.1), "about 3 groups, and the data has 2"),
        (constraints.pairwise_loss_parity(["A", "B"], bound=0.1, by="race"), "omit by="),
        ([constraints.pairwise_loss_parity(2, bound=0.1)], "constraint must be one of .*pairwise_loss_parity"),
    ],
)
def test_constraints_that_do_not_fit(constraint: Any, sentence: str) -> None:
    X, y, group = make_data(300)
    with pytest.raises(ValueError, match=sentence):
        small(constraint=constraint).fit(X, y, sensitive_features=group)


def test_a_function_that_returns_no_constraint() -> None:
    X, y, group = make_data(300)
    with pytest.raises(TypeError, match="must return a Constraint, got NoneType"):
        small(constraint=lambda names, bound: None).fit(X, y, sensitive_features=group)


def test_violations_of_a_level_are_not_scaled_by_the_level() -> None:
    assert violation_scale(constraints.minimum_rate(0.8, groups=2)) == pytest.approx(0.02)
    assert violation_scale(constraints.loss_parity(2, bound=0.05)) == pytest.approx(0.05)
    assert violation_scale(None) == 1.0


@pytest.mark.slow
def test_logits_that_look_like_probabilities_are_logits() -> None:
    """Most labels are 1 and the inputs carry no information: every logit is about log(.62 / .38)."""
    rng = np.random.default_rng(0)
    group, X = np.where(rng.random(1500) < 0.4, "B", "A"), rng.standard_normal((1500, 3))
    y = (rng.random(1500) < 0.62).astype(int)
    fair = small(constraint="demographic_parity", hidden=(), mode="train_duals", steps=1500, learning_rate=0.02)
    fair.fit(X, y, sensitive_features=group)
    logits = fair.decision_function(X)
    assert logits.min() > 0
    assert logits.max() < 1
    assert fair.verdict_.decision == "holds"  # all examples get the same decision


# Groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [["a", float("nan"), "b"], pd.Series(["a", None, "b"], dtype="string"), [["a", 1], ["b", None], ["a", 2]]],
)
def test_missing_groups_raise(entries: Any) -> None:
    with pytest.raises(ValueError, match="missing entries"):
        group_codes(entries, 3)


def test_intersections_with_commas_are_kept_apart() -> None:
    codes, names = group_codes([["a, b", "c"], ["a", "b, c"], ["a", "d"]], 3)
    assert len(set(codes.tolist())) == len(set(names)) == 3


def test_a_column_of_numbers_is_no_column_of_groups() -> None:
    with pytest.raises(ValueError, match="900 different entries for 900 examples; bin it into a few groups"):
        group_codes(np.linspace(0, 1, 900), 900)
    assert len(group_codes(np.arange(900) % 30, 900)[1]) == 30


# Networks and algorithms ----------------------------------------------------------------------------------------------


def test_a_layer_that_is_used_twice() -> None:
    shared = nn.Linear(4, 4)
    module = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 1))
    X, y, group = make_data(400)
    inputs = torch.from_numpy(X).float()
    before = module(inputs).clone()
    forward, x = make_functional(module)
    assert torch.allclose(forward(x, inputs), before[:, 0])
    assert not torch.allclose(forward(x + 1, inputs), before[:, 0])
    assert torch.equal(module(inputs), before)  # nothing of x + 1 is left in it
    fitted = small(module=module, mode="train_duals").fit(X, y, sensitive_features=group)
    assert fitted.score(X, y) > 0.6


def test_two_layers_that_share_a_weight() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    module, inputs = nn.Sequential(first, nn.Tanh(), second), torch.randn(5, 4)
    forward, x = make_functional(module)
    assert torch.allclose(forward(x, inputs), module(inputs))
    expected = (inputs @ (first.weight + 1).T + first.bias + 1).tanh() @ (first.weight + 1).T + second.bias + 1
    assert torch.allclose(forward(x + 1, inputs), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"module": nn.Linear(4, 2)}, r"one logit per example; .*\(2, 2\)"),
        ({"module": nn.Linear(4, 1).double()}, "trains in float32"),
        ({"module": "mlp"}, "a torch module or a Keras model, got str"),
        ({"algorithm": SSLALM(samples=1), "mode": "held_out_duals"}, "remove mode='held_out_duals' or algorithm="),
        ({"algorithm": "sgd"}, "a method such as"),
    ],
)
def test_networks_and_algorithms_that_do_not_fit(settings: dict[str, Any], sentence: str) -> None:
    X, y, group = make_data(300)
    with pytest.raises((TypeError, ValueError), match=sentence):
        small(**settings).fit(X, y, sensitive_features=group)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "train_duals", "held_out_duals"])
def test_early_stopping_does_not_stop_at_an_untrained_model(mode: str) -> None:
    """An untrained model treats all groups alike."""
    X, y, group = make_data(2000)
    settings: dict[str, Any] = {"mode": mode, "bound": 0.02, "steps": 800}
    stopped = small(early_stopping=True, n_iter_no_change=3, **settings).fit(X, y, sensitive_features=group)
    whole = small(**settings).fit(X, y, sensitive_features=group)
    assert stopped.score(X, y) > whole.score(X, y) - 0.04
    assert len(stopped.history_) < len(whole.history_)


# The line from the unconstrained model --------------------------------------------------------------------------------


@pytest.mark.slow
def test_held_out_duals_go_beyond_the_best_model_unless_the_loss_grows_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, group = make_data(3000)

    def percent() -> int:
        found = re.search(
            r"(\d+) % of the way", small(mode="held_out_duals").fit(X, y, sensitive_features=group).decision_
        )
        assert found is not None
        return int(found[1])

    monkeypatch.setattr(model_selection, "MAX_LOSS_RATIO", 100.0)
    further = percent()
    monkeypatch.setattr(model_selection, "EXTRA_FRACTIONS", ())
    assert further == percent() + 25
    monkeypatch.undo()
    monkeypatch.setattr(model_selection, "MAX_LOSS_RATIO", 0.0)
    assert percent() == 25  # the nearest there is
