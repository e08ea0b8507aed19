"""What `FairClassifier` makes of weights, groups, limits and networks that are given to it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import two_groups
from torch import nn
from two_groups import people

from fairbound import limits
from fairbound.algorithms import SSLALM
from fairbound.integrations.sklearn import FairClassifier, classifier, model_selection
from fairbound.integrations.sklearn.inputs import group_codes
from fairbound.integrations.sklearn.trainer import scale_of
from fairbound.training.functional import make_functional


def small(**settings: Any) -> FairClassifier:
    return two_groups.small(**{"bound": 0.1, "compile": False} | settings)


# Weights --------------------------------------------------------------------------------------------------------------


def test_weights_that_leave_nothing_to_train_on_are_told() -> None:
    X, y, group = people(600)
    aside = small().fit(X, y, sensitive_features=group).parts_.validation.numpy()
    weight = np.zeros(len(y))
    weight[aside] = 1.0
    with pytest.raises(ValueError, match="sample_weight is zero in all 432 rows that train"):
        small().fit(X, y, sensitive_features=group, sample_weight=weight)


@pytest.mark.parametrize("mode", ["train_duals", "held_out_duals"])
@pytest.mark.parametrize("notion", ["pairwise_loss_parity", "equalized_odds"])
def test_weights_labels_and_groups_of_verdict_rows_do_not_reach_the_model(
    mode: str, notion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, group = people()
    weight = np.random.default_rng(1).lognormal(size=len(y))
    one = small(mode=mode, constraint=notion).fit(X, y, sensitive_features=group, sample_weight=weight)
    rows = one.parts_.calibration.numpy()
    y[rows], group[rows], weight[rows] = 1 - y[rows], np.where(group[rows] == "A", "B", "A"), 1000 * weight[rows]
    monkeypatch.setattr(classifier, "parts_of", lambda *given: one.parts_)  # strata know labels and groups
    other = small(mode=mode, constraint=notion).fit(X, y, sensitive_features=group, sample_weight=weight)
    for a, b in zip(one.module_.parameters(), other.module_.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_that_say_nothing_leave_the_gap_on_training_rows_where_it_is() -> None:
    """The mean weight of a cell is 1 in the pool that it is drawn from, however the weights fall."""
    X, y, group = people(3000)
    weight = np.random.default_rng(2).lognormal(size=len(y))
    fair = small(mode="train_duals", bound=0.05, steps=1500)
    assert max(fair.fit(X, y, sensitive_features=group, sample_weight=weight).kkt_.constraints.values()) < 0.01


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weight, group: -weight, "sample_weight must not be negative, found -"),
        (lambda weight, group: 0 * weight, "zero"),
        (lambda weight, group: weight * (group == "A"), "'B' that train, or move the multipliers, weigh nothing"),
    ],
)
def test_weights_that_cannot_be(change: Any, sentence: str) -> None:
    X, y, group = people(600)
    with pytest.raises(ValueError, match=sentence):
        small(mode="train_duals").fit(X, y, sensitive_features=group, sample_weight=change(np.ones(600), group))


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_limit_is_about_the_groups_that_it_names() -> None:
    X, y, group = people()
    found = [
        small(constraint=limits.minimum_rate(0.9, groups=names, group="B"), mode="train_duals")
        .fit(X, y, sensitive_features=group)
        .verdict_.gaps[0]
        for names in (["A", "B"], ["B", "A"])
    ]
    assert found[0].estimate == found[1].estimate
    assert found[0].rows == found[1].rows < 0.5 * len(y) * 0.14


@pytest.mark.parametrize(
    ("constraint", "sentence"),
    [
        (limits.pairwise_loss_parity(["x", "y"], bound=0.1), "the limit is about 'x', and the groups of the data are"),
        (limits.pairwise_loss_parity(3, bound=0.1), "about 3 groups, and the data has 2"),
        (limits.pairwise_loss_parity(["A", "B"], bound=0.1, by="race"), "leave by= out"),
        ([limits.pairwise_loss_parity(2, bound=0.1)], "constraint must be one of pairwise_loss_parity"),
    ],
)
def test_limits_that_do_not_fit(constraint: Any, sentence: str) -> None:
    X, y, group = people(300)
    with pytest.raises(ValueError, match=sentence):
        small(constraint=constraint).fit(X, y, sensitive_features=group)


def test_a_function_that_gives_no_limit() -> None:
    X, y, group = people(300)
    with pytest.raises(TypeError, match="must return a limit, got NoneType"):
        small(constraint=lambda names, bound: None).fit(X, y, sensitive_features=group)


def test_violations_of_a_level_are_not_held_against_the_level() -> None:
    assert scale_of(limits.minimum_rate(0.8, groups=2)) == pytest.approx(0.02)
    assert scale_of(limits.loss_parity(2, bound=0.05)) == pytest.approx(0.05)
    assert scale_of(None) == 1.0


def test_logits_that_look_like_probabilities_are_logits() -> None:
    """Most labels are 1 and the inputs say nothing: every logit is about log(.62 / .38)."""
    rng = np.random.default_rng(0)
    group, X = np.where(rng.random(1500) < 0.4, "B", "A"), rng.standard_normal((1500, 3))
    y = (rng.random(1500) < 0.62).astype(int)
    fair = small(constraint="demographic_parity", hidden=(), mode="train_duals", steps=1500, learning_rate=0.02)
    fair.fit(X, y, sensitive_features=group)
    logits = fair.decision_function(X)
    assert logits.min() > 0
    assert logits.max() < 1
    assert fair.verdict_.decision == "holds"  # everybody gets the same decision


# Groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [["a", float("nan"), "b"], pd.Series(["a", None, "b"], dtype="string"), [["a", 1], ["b", None], ["a", 2]]],
)
def test_missing_groups_are_told(entries: Any) -> None:
    with pytest.raises(ValueError, match="missing entries"):
        group_codes(entries, 3)


def test_intersections_with_commas_are_kept_apart() -> None:
    codes, names = group_codes([["a, b", "c"], ["a", "b, c"], ["a", "d"]], 3)
    assert len(set(codes.tolist())) == len(set(names)) == 3


def test_a_column_of_numbers_is_no_column_of_groups() -> None:
    with pytest.raises(ValueError, match="900 different entries for 900 rows; cut it into a few groups"):
        group_codes(np.linspace(0, 1, 900), 900)
    assert len(group_codes(np.arange(900) % 30, 900)[1]) == 30


# Networks and methods -------------------------------------------------------------------------------------------------


def test_a_layer_that_is_used_twice() -> None:
    shared = nn.Linear(4, 4)
    module = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 1))
    X, y, group = people(400)
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
        ({"module": nn.Linear(4, 2)}, r"one logit a row; .*\(2, 2\)"),
        ({"module": nn.Linear(4, 1).double()}, "trains in float32"),
        ({"module": "mlp"}, "a torch module or a Keras model, got str"),
        ({"algorithm": SSLALM(samples=1), "mode": "held_out_duals"}, "leave mode='held_out_duals' or algorithm= out"),
        ({"algorithm": "sgd"}, "a method such as"),
    ],
)
def test_networks_and_methods_that_do_not_fit(settings: dict[str, Any], sentence: str) -> None:
    X, y, group = people(300)
    with pytest.raises((TypeError, ValueError), match=sentence):
        small(**settings).fit(X, y, sensitive_features=group)


@pytest.mark.parametrize("mode", ["auto", "train_duals", "held_out_duals"])
def test_early_stopping_does_not_stop_at_a_model_that_has_learnt_nothing(mode: str) -> None:
    """An untrained model treats everybody alike."""
    X, y, group = people(2000)
    settings: dict[str, Any] = {"mode": mode, "bound": 0.02, "steps": 800}
    stopped = small(early_stopping=True, n_iter_no_change=3, **settings).fit(X, y, sensitive_features=group)
    whole = small(**settings).fit(X, y, sensitive_features=group)
    assert stopped.score(X, y) > whole.score(X, y) - 0.04
    assert len(stopped.history_) < len(whole.history_)


# The line from the model without a limit ------------------------------------------------------------------------------


def test_own_rows_go_further_than_the_model_that_looks_best_unless_it_is_too_dear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, group = people(3000)

    def way() -> int:
        found = re.search(
            r"(\d+) % of the way", small(mode="held_out_duals").fit(X, y, sensitive_features=group).decision_
        )
        assert found is not None
        return int(found[1])

    monkeypatch.setattr(model_selection, "DEAREST", 100.0)
    further = way()
    monkeypatch.setattr(model_selection, "FURTHER", ())
    assert further == way() + 25
    monkeypatch.undo()
    monkeypatch.setattr(model_selection, "DEAREST", 0.0)
    assert way() == 25  # the nearest there is
