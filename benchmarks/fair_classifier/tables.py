"""The census tables, their splits into training and test data, and what is measured on the test
data.

The group is never an input. Codes are pandas categories, as LightGBM and `FairClassifier` take
them; age, schooling and hours are numbers.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from fairbound.data import load

Floats = NDArray[np.float64]
NUMBERS = ("AGEP", "SCHL", "WKHP")
CODES = ("COW", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P")
# name -> (state, group column, the code of the first of two groups; None: every code is a group)
REPORT = {
    "NC": ("NC", "RAC1P", 1),
    "TN": ("TN", "SEX", 1),
    "CO": ("CO", "RAC1P", 1),
    "OR": ("OR", "SEX", 1),
    "MO": ("MO", "MAR", 1),
    "MN": ("MN", "RAC1P", 1),
}
DEVELOPMENT = {  # every choice may look at these, none at the others
    "OK": ("OK", "RAC1P", 1),
    "VA": ("VA", "MAR", 1),
    "VA5": ("VA", "MAR", None),
    "KS": ("KS", "SEX", 1),
    "AL": ("AL", "RAC1P", 1),
}
TABLES = REPORT | DEVELOPMENT
# examples; tables below SMALL: TRAIN_SHARE of them
TRAIN, TRAIN_SHARE, SMALL, TEST = 14_000, 0.6, 20_000, 20_000
NOTIONS = ("loss", "demographic_parity", "equal_opportunity")


class Part(NamedTuple):
    X: pd.DataFrame  # (n, 9)
    y: NDArray[np.int64]  # (n,) 0 or 1
    # (n,) 0: white, male or married; with five groups 0 to 4 in the order of the codes
    group: NDArray[np.int64]


class Split(NamedTuple):
    train: Part
    test: Part
    # of our fits to these training data, by the kind of model: trained once
    models: dict[str, dict[Any, Any]]


@cache
def whole(name: str) -> Part:
    state, column, first = TABLES[name]
    table = load(f"acs:{state}")
    codes = np.asarray(table.columns[column])
    group = (
        np.unique(codes, return_inverse=True)[1]
        if first is None
        else (codes != first).astype(np.int64)
    )
    inputs = [one for one in (*NUMBERS, *CODES) if one != column]
    X = pd.DataFrame({one: np.asarray(table.columns[one]) for one in inputs})
    X = X.astype(
        {one: "category" for one in inputs if one in CODES} | dict.fromkeys(NUMBERS, float)
    )
    return Part(X, np.asarray(table.columns[table.label]).astype(np.int64), group)


@lru_cache(1)
def split(name: str, seed: int, train: int | None = None) -> Split:
    """Random, stratified by group and label."""
    all_ = whole(name)
    n = len(all_.y)
    if train is None:
        train = TRAIN if n >= SMALL else int(TRAIN_SHARE * n)
    parts = train_test_split(
        np.arange(n),
        train_size=train,
        test_size=min(TEST, n - train),
        stratify=2 * all_.group + all_.y,
        random_state=seed,
    )
    first, second = (
        Part(all_.X.iloc[i].reset_index(drop=True), all_.y[i], all_.group[i]) for i in parts
    )
    return Split(first, second, {})


def gap(values: Floats, group: NDArray[Any]) -> tuple[float, float]:
    """Mean of the first group less that of the second, and its standard error.

    With more than two groups: of the group farthest from the mean of the groups' means.
    """
    m = int(group.max()) + 1
    means = np.array([values[group == g].mean() for g in range(m)])
    variances = np.array([values[group == g].var(ddof=1) / (group == g).sum() for g in range(m)])
    contrasts = np.array([[1.0, -1.0]]) if m == 2 else np.eye(m) - 1 / m
    gaps = contrasts @ means
    worst = int(np.abs(gaps).argmax())
    return float(gaps[worst]), float(np.sqrt(contrasts[worst] ** 2 @ variances))


def losses(probability: Floats, y: NDArray[Any]) -> Floats:
    p = np.clip(probability, 1e-7, 1 - 1e-7)
    return -np.where(y == 1, np.log(p), np.log(1 - p))


def measure(test: Part, decision: Floats, probability: Floats | None) -> dict[str, Any]:
    """What a model does on the test data.

    Arguments:
        test: n examples.
        decision: (n,) 0 or 1; of a randomized classifier the probability of deciding 1, so that all
        here are means
            over its coin.
        probability: (n,) of label 1; None where a classifier only decides.
    """
    positive = test.y == 1
    found = {
        "accuracy": float(np.where(positive, decision, 1 - decision).mean()),
        "test": len(test.y),
    }
    found["demographic_parity"], found["demographic_parity_se"] = gap(decision, test.group)
    found["equal_opportunity"], found["equal_opportunity_se"] = gap(
        decision[positive], test.group[positive]
    )
    if probability is not None:
        each = losses(probability, test.y)
        found["log_loss"] = float(each.mean())
        found["loss"], found["loss_se"] = gap(each, test.group)
        found["group_losses"] = [float(each[test.group == g].mean()) for g in np.unique(test.group)]
    return found


def temperatures(test: Part, probability: Floats) -> list[dict[str, float]]:
    """Log loss and gap of the same model with all logits divided by one number."""
    p = np.clip(probability, 1e-7, 1 - 1e-7)
    logits, curve = np.log(p) - np.log1p(-p), []
    for divisor in (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 50):
        each = losses(1 / (1 + np.exp(-logits / divisor)), test.y)
        curve.append(
            {
                "temperature": divisor,
                "log_loss": float(each.mean()),
                "loss": gap(each, test.group)[0],
            }
        )
    return curve
