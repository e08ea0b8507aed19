"""Data with two groups, and small estimators for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fairbound.integrations.sklearn import FairClassifier, FairPostprocessor

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
NETWORK: dict[str, Any] = {
    "epochs": 2,
    "ensemble_size": 4,
    "hidden": (8,),
    "learning_rate": 0.02,
    "random_state": 0,
}


def make_data(examples: int = 1500, seed: int = 0, share: float = 0.35) -> Arrays:
    """`share` of the examples in B, whose labels follow another rule, so that one rule for all is
    worse for B."""
    rng = np.random.default_rng(seed)
    group = np.where(rng.random(examples) < share, "B", "A")
    X = rng.standard_normal((examples, 4))
    y = (X.sum(1) - 2 * (group == "B") * X[:, 0] + rng.standard_normal(examples) > 0).astype(int)
    return X, y, group


def make_shifted(examples: int = 800, seed: int = 0, shift: float = 1.5) -> Arrays:
    """One rule for all, and a first column that is larger in A: A gets more positive labels and
    decisions."""
    rng = np.random.default_rng(seed)
    group = np.where(rng.random(examples) < 0.4, "B", "A")
    X = rng.standard_normal((examples, 3))
    X[:, 0] += shift * (group == "A")
    y = (X[:, 0] + 0.5 * X[:, 1] + rng.standard_normal(examples) > shift / 2).astype(int)
    return X, y, group


def people(n: int = 600) -> tuple[pd.DataFrame, Any, Any]:
    """Numbers, text and a group of which one has more positive labels."""
    rng = np.random.default_rng(0)
    group = rng.choice(["f", "m"], n)
    X = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "work": rng.choice(["own", "state"], n),
            "hours": rng.random(n),
        }
    )
    X["hours"] += group == "m"
    return X, np.where(X["hours"] + (X["work"] == "own") + rng.random(n) > 1.7, "yes", "no"), group


def rate_gap(decisions: Any, group: Any) -> float:
    """The difference of the rates of positive decisions, A - B."""
    return float(np.mean(decisions[group == "A"]) - np.mean(decisions[group == "B"]))


def small(**settings: Any) -> FairClassifier:
    return FairClassifier(
        **NETWORK | {"constraint": "pairwise_loss_parity", "bound": 0.02} | settings
    )


def postprocessor(estimator: Any = None, **settings: Any) -> FairPostprocessor:
    """By default with demographic parity within .1 at any price, which `make_shifted` violates."""
    common = {
        "constraint": "demographic_parity",
        "bound": 0.1,
        "max_accuracy_loss": 1.0,
        "random_state": 0,
    }
    return FairPostprocessor(
        LogisticRegression() if estimator is None else estimator, **common | settings
    )
