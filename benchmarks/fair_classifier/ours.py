"""Our contestants: `FairClassifier` and `FairPostprocessor` on LightGBM, with and without the group
at prediction.

The uncorrected model comes with each fit (`unconstrained_`), so it costs no second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from contestants import Predicted, one_hot, trees
from sklearn.pipeline import make_pipeline
from tables import Floats, Split, measure, temperatures

import fairbound
from fairbound.integrations.sklearn import FairClassifier, FairPostprocessor

BOUNDS = {"loss": 0.02, "demographic_parity": 0.05, "equal_opportunity": 0.05}
FIVE_GROUPS = ("loss_parity", 0.05)  # VA5: each group's loss around their mean


def constraint(data: Split, notion: str) -> dict[str, Any]:
    if notion == "loss" and data.train.group.max() > 1:
        return {"constraint": FIVE_GROUPS[0], "bound": FIVE_GROUPS[1]}
    return {
        "constraint": "pairwise_loss_parity" if notion == "loss" else notion,
        "bound": BOUNDS[notion],
    }


def network(data: Split, notion: str, seed: int, **more: Any) -> FairClassifier:
    return FairClassifier(**constraint(data, notion), random_state=seed, **more)


def on_trees(data: Split, notion: str, seed: int, **more: Any) -> FairPostprocessor:
    return FairPostprocessor(trees(seed), **constraint(data, notion), random_state=seed, **more)


def fitted(model: Any, data: Split, aware: bool) -> Predicted:
    train, test = data.train, data.test
    model.cross_fit_cache = data.models.setdefault(type(model).__name__, {})
    model.fit(train.X, train.y, sensitive_features=train.group)
    seen = {"sensitive_features": test.group} if aware else {}
    decision, p = (
        np.asarray(model.predict(test.X, **seen)),
        model.predict_proba(test.X, **seen)[:, 1],
    )
    return Predicted(decision.astype(float), p, notes(model, test.X, data))


def notes(model: Any, X: Any, data: Split) -> dict[str, Any]:
    """The decision of the certificate, and the uncorrected model with its curve of temperatures."""
    verdict = getattr(model, "verdict_", None)
    plain: Floats = model.unconstrained_.predict_proba(X)[:, 1]
    return {
        "decision": None if verdict is None else str(verdict.decision),
        "unconstrained": measure(data.test, (plain > 0.5).astype(float), plain),
        "temperatures": temperatures(data.test, plain),
    }


def fair_classifier(data: Split, notion: str, seed: int) -> Predicted:
    return fitted(network(data, notion, seed), data, aware=False)


def fair_classifier_aware(data: Split, notion: str, seed: int) -> Predicted:
    return fitted(network(data, notion, seed, group_at_prediction=True), data, aware=True)


def fair_postprocessor(data: Split, notion: str, seed: int) -> Predicted:
    return fitted(on_trees(data, notion, seed), data, aware=False)


def fair_postprocessor_aware(data: Split, notion: str, seed: int) -> Predicted:
    return fitted(on_trees(data, notion, seed, group_at_prediction=True), data, aware=True)


def one_hot_pipeline(data: Split, notion: str, seed: int) -> Predicted:
    """The textbook: dummies of every code, then `FairClassifier`."""
    train, test = data.train, data.test
    pipeline = make_pipeline(one_hot(train.X), network(data, notion, seed))
    pipeline.fit(train.X, train.y, fairclassifier__sensitive_features=train.group)
    predicted = Predicted(
        pipeline.predict(test.X).astype(float), pipeline.predict_proba(test.X)[:, 1]
    )
    return predicted._replace(notes=notes(pipeline[-1], pipeline[:-1].transform(test.X), data))


def raw_codes(data: Split, notion: str, seed: int) -> Predicted:
    """Every code as the number that it is in the file."""
    numbers = [part._replace(X=as_floats(part.X)) for part in (data.train, data.test)]
    return fitted(network(data, notion, seed), Split(*numbers, {}), aware=False)


def as_floats(X: pd.DataFrame) -> Floats:
    return np.column_stack([X[name].astype(float) for name in X])


def version() -> str:
    """A hash of the estimators' code: results of other versions are not mixed with these."""
    folder = Path(fairbound.__file__).parent / "integrations" / "sklearn"
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(text).hexdigest()[:10]


Contestant = Callable[[Split, str, int], Predicted]
OURS: dict[str, Contestant] = {
    "fair_classifier": fair_classifier,
    "fair_postprocessor": fair_postprocessor,
    "fair_classifier_aware": fair_classifier_aware,
    "fair_postprocessor_aware": fair_postprocessor_aware,
    "one_hot_pipeline": one_hot_pipeline,
    "raw_codes": raw_codes,
}
