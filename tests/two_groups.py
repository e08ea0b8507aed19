"""Data with two groups, and a small FairClassifier for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound.integrations.sklearn import FairClassifier

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def make_data(examples: int = 1500, seed: int = 0, share: float = 0.35) -> Arrays:
    """`share` of the examples in B, whose labels follow another rule, so that one rule for all is worse for B."""
    rng = np.random.default_rng(seed)
    group = np.where(rng.random(examples) < share, "B", "A")
    X = rng.standard_normal((examples, 4))
    y = (X.sum(1) - 2 * (group == "B") * X[:, 0] + rng.standard_normal(examples) > 0).astype(int)
    return X, y, group


def small(**settings: Any) -> FairClassifier:
    return FairClassifier(**{"steps": 200, "hidden": (16,), "learning_rate": 0.2, "random_state": 0} | settings)
