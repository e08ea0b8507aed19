"""`integrations.keras.fit`: the bound is met, the weights are the model's, and what is wrong is
said in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")

import keras
import keras_twins as twins
from keras import layers

from fairbound import SGD, BatchSpec, DescentAscent, Problem, Sampler, Split, constraints, run
from fairbound.algorithms.schedules import Linear
from fairbound.integrations.keras import fit, make_functional

X, Y, SEX = twins.as_numpy(twins.people())
SMALL = (9, 8, 1)
METHOD = DescentAscent(tau=Linear(0.2, 800), eta=0.05)


def losses_of(model: Any) -> np.ndarray:
    logits = keras.ops.convert_to_numpy(model(X))[:, 0]
    return np.logaddexp(0.0, logits) - Y * logits


def gap(model: Any) -> float:
    found = losses_of(model)
    return float(found[SEX == "B"].mean() - found[SEX == "A"].mean())


def test_a_bound_is_met_and_reported_as_the_model_has_it() -> None:
    plain, fair = twins.network(widths=SMALL), twins.network(widths=SMALL)
    fit(plain, X, Y, sensitive_features=SEX, method=SGD(tau=Linear(0.2, 800)), steps=800)
    found = fit(fair, X, Y, sensitive_features=SEX, bound=0.02, method=METHOD, steps=800)
    assert gap(plain) > 0.05
    assert abs(gap(fair)) < 0.03
    assert found.constraints == pytest.approx(
        {"A - B": -gap(fair) - 0.02, "B - A": gap(fair) - 0.02}, abs=1e-4
    )
    assert found.report.loss == pytest.approx(losses_of(fair).mean(), abs=1e-4)
    assert found.multipliers["B - A"] > 0
    assert found.multipliers["A - B"] == 0
    assert found.report.stationarity < found.report.gradient
    assert (found.skipped, found.infeasible, found.groups) == (0, None, ("A", "B"))
    assert [look["step"] for look in found.history] == list(range(40, 801, 40))
    assert found.history[-1]["loss"] == pytest.approx(found.report.loss, abs=1e-5)
    assert found.history[0]["violation"] > found.history[-1]["violation"]
    assert "B - A" in str(found)


def test_fit_is_a_run_on_the_same_rows() -> None:
    model = twins.network(widths=SMALL)
    forward, x0 = make_functional(model)
    data = twins.people()
    part = constraints.pairwise_loss_parity(["A", "B"], bound=0.02).bind(data.groups["group"])
    sampler = Sampler(Split.all_train(data.rows), part.cells, BatchSpec(16, 16), seed=7)
    by_hand = run(Problem(forward, twins.bce, part, data), METHOD, sampler, x0, 30).result()
    found = fit(model, X, Y, sensitive_features=SEX, method=METHOD, steps=30, batch_size=16, seed=7)
    assert torch.allclose(make_functional(model)[1], by_hand.x[0], atol=1e-6)
    assert list(found.multipliers.values()) == pytest.approx(
        by_hand.multipliers[0].tolist(), abs=1e-6
    )


@pytest.mark.parametrize(
    "constraint",
    [
        "demographic_parity",
        "equalized_odds",
        constraints.equal_opportunity,
        constraints.minimum_rate(0.3, groups=["A", "B"]),
    ],
    ids=str,
)
def test_other_constraints(constraint: Any) -> None:
    found = fit(
        twins.network(widths=SMALL),
        X,
        Y,
        sensitive_features=SEX,
        constraint=constraint,
        steps=20,
        batch_size=16,
    )
    assert len(found.constraints) >= 2
    assert all(np.isfinite(list(found.constraints.values())))


def test_several_classes_and_a_method_without_multipliers() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((9,)), layers.Dense(3)])
    labels = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    found = fit(model, X, labels, sensitive_features=SEX, method=SGD(tau=0.2), steps=200)
    right = keras.ops.convert_to_numpy(model(X)).argmax(1) == labels
    assert right.mean() > 0.7
    assert found.report.fitted


def test_a_loss_of_one_s_own() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((9,)), layers.Dense(1)])
    target = (X @ np.arange(9) / 9).astype("float32")
    squares = fit(
        model,
        X,
        target[:, None],
        sensitive_features=SEX,
        method=SGD(),
        steps=300,
        loss=lambda outputs, labels: (outputs - labels).square(),
    )
    assert squares.report.loss < 0.05 * target.var()


def test_frames_columns_and_precision() -> None:
    """Double precision rows, pandas columns, True and False as labels, two columns of groups."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.astype("float64"))
    groups = pandas.DataFrame({"sex": SEX, "old": X[:, 3] > 0})
    found = fit(
        twins.network(widths=SMALL),
        frame,
        Y == 1,
        sensitive_features=groups,
        steps=5,
        batch_size=16,
    )
    assert found.groups == ("A, False", "A, True", "B, False", "B, True")
    assert len(found.constraints) == 12


def test_steps_that_are_not_finite_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return twins.bce(outputs, labels.clamp(max=1)) + torch.where(labels > 1, torch.nan, 0.0)

    labels = Y.copy()
    labels[:10] = 2
    with pytest.raises(ValueError, match="NaN or infinite"):
        fit(
            twins.network(widths=SMALL),
            X,
            labels,
            sensitive_features=SEX,
            steps=50,
            batch_size=8,
            loss=loss,
        )
    assert "not finite" in caplog.text


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_probabilities_are_refused(activation: str) -> None:
    model = keras.Sequential(
        [keras.Input((9,)), layers.Dense(2, activation=activation, name="last")]
    )
    with pytest.raises(ValueError, match=rf"'last' .*{activation}.*logits"):
        fit(model, X, Y, sensitive_features=SEX)
    apart = keras.Sequential([keras.Input((9,)), layers.Dense(2), layers.Activation(activation)])
    with pytest.raises(ValueError, match=f"ends in {activation}"):
        fit(apart, X, Y, sensitive_features=SEX)
    kept = fit(
        model,
        X,
        Y,
        sensitive_features=SEX,
        steps=2,
        batch_size=8,
        loss=lambda p, y: (p[:, 1] - y).square(),
    )  # with a loss of one's own it is the user's affair
    assert np.isfinite(kept.report.loss)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": Y + 1}, r"labels must be whole numbers from 0 to 1, found \[1.0, 2.0\]"),
        ({"y": Y[:-1]}, "X has 2000 rows but y has 1999"),
        ({"y": np.stack([Y, 1 - Y], 1)}, "found several numbers per example"),
        ({"constraint": "parity"}, "there is no constraint 'parity'; did you mean .*loss_parity"),
        (
            {"sensitive_features": SEX[:5]},
            "one entry, or one row of entries, for each of the 2000 rows",
        ),
        ({"sensitive_features": np.repeat("A", 2000)}, "a comparison needs at least two groups"),
        ({"X": np.array([{"age": 3}])}, "X must be an array of numbers"),
        ({"X": X[:, :8]}, r"takes examples of shape \(9,\), got X of shape \(2000, 8\)"),
        ({"X": X[:0], "y": Y[:0], "sensitive_features": SEX[:0]}, r"got X of shape \(0, 9\)"),
        ({"steps": 0}, "steps must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"X": X, "y": Y, "sensitive_features": SEX, "steps": 3} | changed
    with pytest.raises(ValueError, match=words):
        fit(twins.network(widths=SMALL), given.pop("X"), given.pop("y"), **given)


@pytest.mark.parametrize("method", [DescentAscent, "DescentAscent"])
def test_a_method_is_an_object(method: Any) -> None:
    with pytest.raises(TypeError, match=r"method.*such as SSLALM\(tau=0.01\)"):
        fit(twins.network(widths=SMALL), X, Y, sensitive_features=SEX, method=method)


class WithoutTraining(keras.Model):
    """Its `call` has no argument `training`, as a subclass may."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(8, "tanh"), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.out(self.hidden(inputs))


def test_a_subclass_whose_call_has_no_training() -> None:
    model = WithoutTraining()
    model(X[:2])
    before = losses_of(model).mean()
    found = fit(model, X, Y, sensitive_features=SEX, method=METHOD, steps=200)
    assert losses_of(model).mean() < before - 0.05
    assert found.report.loss == pytest.approx(losses_of(model).mean(), abs=1e-4)


def test_a_notion_added_to_the_registry_works_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_worse(names: Any, *, bound: float) -> Any:
        return constraints.loss_parity(
            names, bound=bound, contrast=lambda n: constraints.pairwise(n, two_sided=False)
        )

    monkeypatch.setitem(constraints.NOTIONS, "no_worse", no_worse)
    found = fit(
        twins.network(widths=SMALL),
        X,
        Y,
        sensitive_features=SEX,
        constraint="no_worse",
        bound=0.02,
        steps=5,
    )
    assert [*found.constraints] == ["A - B"]
