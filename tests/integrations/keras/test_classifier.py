"""`FairClassifier` around a Keras model: it trains a copy, reports, predicts and is saved like any
other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: make test-keras")

import keras
import keras_twins as twins
from keras import layers
from sklearn.base import clone

from fairbound.integrations.sklearn import FairClassifier

X, Y, SEX = twins.as_numpy(twins.people(rows=4_000))
ANSWER = np.array(["no", "yes"])[Y.astype(int)]


def fitted(model: Any, y: Any = ANSWER, **more: Any) -> FairClassifier:
    settings = {
        "epochs": 3,
        "ensemble_size": 2,
        "cv": 2,
        "learning_rate": 0.02,
        "bound": 0.3,
        "random_state": 0,
    } | more
    settings = {"constraint": "pairwise_loss_parity"} | settings
    return FairClassifier(module=model, **settings).fit(X, y, sensitive_features=SEX)


def test_copies_are_trained_reported_and_saved() -> None:
    model = twins.network(widths=(9, 8, 1))
    before = model.get_weights()
    found = fitted(model)
    assert all(
        np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)
    )
    assert len(found.networks_) == 2
    assert all(isinstance(one, keras.Model) and one is not model for one in found.networks_)
    assert found.score(X, ANSWER) > 0.75
    assert found.verdict_.decision in ("holds", "violated", "undecided")
    assert found.multipliers_.keys() == {"A - B", "B - A"}
    assert "Model: 2 networks, selected after" in " ".join(found.report().split())
    assert found.predict_proba(X[:4]).shape == (4, 2)
    # columns as they are
    logits = np.mean([one.predict(X, verbose=0)[:, 0] for one in found.networks_], axis=0)
    assert np.allclose(logits, found.unconstrained_.decision_function(X), atol=1e-4)
    again = pickle.loads(pickle.dumps(found))
    assert np.allclose(again.predict_proba(X), found.predict_proba(X), atol=1e-6)


def test_clones_and_seeds() -> None:
    model = twins.network(widths=(9, 8, 1))
    first = fitted(model, epochs=1)
    second = clone(first).fit(X, ANSWER, sensitive_features=SEX)
    assert np.allclose(first.decision_function(X), second.decision_function(X), atol=1e-5)


def test_several_classes() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((9,)), layers.Dense(3)])
    labels = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    found = fitted(model, labels)
    assert found.predict_proba(X[:4]).shape == (4, 3)
    assert found.score(X, labels) > 0.6


def test_another_number_of_outputs_than_classes() -> None:
    with pytest.raises(ValueError, match=r"2 classes, .*one output.* 2"):
        fitted(twins.network(widths=(9, 2)))
    with pytest.raises(ValueError, match=r"3 classes, .*3 outputs.* returns 1"):
        fitted(twins.network(widths=(9, 1)), (X[:, 0] > 0).astype(int) + (X[:, 1] > 0))


def test_probabilities_and_state_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sigmoid.*logits"):
        fitted(keras.Sequential([keras.Input((9,)), layers.Dense(1, "sigmoid")]))
    with pytest.raises(ValueError, match=r"off \(Dropout\)"):
        fitted(
            keras.Sequential([keras.Input((9,)), layers.Dropout(0.5, name="off"), layers.Dense(1)])
        )


def test_a_model_that_looks_its_inputs_up_is_refused() -> None:
    """Columns are floating-point numbers, and would be cast to places in a table."""
    model = keras.Sequential(
        [
            keras.Input((9,), dtype="int32"),
            layers.Embedding(10, 2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    with pytest.raises(ValueError, match=r"int32.*fairbound\.integrations\.keras\.fit"):
        fitted(model)


def test_a_model_for_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4,\), got X of shape"):
        fitted(twins.network(widths=(4, 8, 1)))
