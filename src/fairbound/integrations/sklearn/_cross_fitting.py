"""Cross-fitting: every example gets scores from models that have not seen it, and their average is
the final model.

Of K folds, model k trains on all but fold k. The average of the K models is what predicts; nothing
is trained a second time on all examples, so that what was chosen on out-of-fold scores belongs to
the models that are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits  # with scikit-learn
from torch import Tensor

from fairbound.data._splits import random_split

SMALLEST_PROBABILITY = 1e-6  # of an estimator: its logit is finite
MIN_CALIBRATION = 30  # examples: with fewer nothing is held out
# examples: below, several threads cost more than they save (18,000: 48 CPU s on two, 11 on one)
SMALL_TABLE = 100_000


class LogitModel(Protocol):
    """A trained model of some target."""

    def logits(self, inputs: Any) -> Tensor:
        """(N,) for two classes, else (N, classes), float64."""


class Development(NamedTuple):
    """The data that models are made from."""

    inputs: Any
    labels: Tensor  # (n,)
    groups: dict[str, Tensor]  # (n,) by column
    weight: Tensor | None  # (n,) of the examples in the constraints
    train_weight: Tensor | None  # (n,) of the examples in training: times class weights
    fold: NDArray[np.int64]  # (n,)
    seed: int


class CrossFitted(NamedTuple):
    model: LogitModel
    out_of_fold: Tensor  # (n,) or (n, classes) logits of the training examples
    note: str = ""  # what was trained, for the report


# (data, target, classes, weight, main=): models of a target (n,), `data.labels` or groups; `main`:
# those that predict
CrossFit = Callable[..., CrossFitted]


def calibration_split(
    strata: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Development and calibration examples, stratified; no calibration where it would be too small.

    >>> development, calibration = calibration_split(np.repeat([0, 1], [1000, 3]), 0.2, seed=0)
    >>> len(development), len(calibration)  # a stratum too small to divide is for development
    (803, 200)
    """
    everything = np.arange(len(strata))
    divisible = np.bincount(strata)[strata] * min(share, 1 - share) >= 1
    if share == 0 or divisible.sum() * share < MIN_CALIBRATION:
        return everything, everything[:0]
    parts = random_split(strata[divisible], {"train": 1 - share, "calibration": share}, seed=seed)
    calibration = np.sort(everything[divisible][parts.calibration.numpy()])
    return np.setdiff1d(everything, calibration), calibration


def stratified_folds(strata: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """(n,) the fold of every example; each stratum is dealt to the folds in turn.

    >>> stratified_folds(np.array([0, 0, 0, 0, 1, 1]), 2, seed=0).tolist()
    [0, 1, 1, 0, 1, 0]
    """
    order = np.random.default_rng(seed).permutation(len(strata))
    by_stratum = order[np.argsort(strata[order], kind="stable")]
    fold = np.empty(len(strata), dtype=np.int64)
    fold[by_stratum] = np.arange(len(strata)) % folds
    return fold


# Any scikit-learn classifier ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EstimatorAverage:
    """The average probability of several fitted classifiers."""

    estimators: Sequence[Any]
    names: NDArray[Any]  # of class 0, 1, ...

    def logits(self, inputs: Any) -> Tensor:
        each = [class_probabilities(estimator, inputs, self.names) for estimator in self.estimators]
        return as_logits(np.mean(each, axis=0))


def cross_fit_estimator(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    names: NDArray[Any],
    weight: NDArray[np.float64] | None,
    fold: NDArray[np.int64],
    progress: Callable[[str], None] | None = None,
) -> CrossFitted:
    """Clones of a classifier, one for every fold; `names` are the classes, and `weight` 0 leaves an
    example out."""
    used = np.ones(len(y), dtype=bool) if weight is None else weight > 0
    weight = None if weight is None or len(np.unique(weight[used])) == 1 else weight
    if weight is not None and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"{type(estimator).__name__} does not take sample_weight, and weights are needed here"
        )
    probabilities = np.empty((len(y), len(names)))
    fitted = []
    for k in range(int(fold.max()) + 1):
        train, held_out = np.flatnonzero((fold != k) & used), np.flatnonzero(fold == k)
        weights = {} if weight is None else {"sample_weight": weight[train]}
        fitted.append(clone(estimator).fit(_safe_indexing(X, train), y[train], **weights))
        if progress is not None:
            progress(f"{k + 1} of {int(fold.max()) + 1} folds")
        probabilities[held_out] = class_probabilities(
            fitted[-1], _safe_indexing(X, held_out), names
        )
    note = f"the average of {len(fitted)} fits of {type(estimator).__name__}"
    return CrossFitted(EstimatorAverage(fitted, names), as_logits(probabilities), note)


def class_probabilities(estimator: Any, X: Any, names: NDArray[Any]) -> NDArray[np.float64]:
    """(N, classes) in the order of `names`; 0 for a class that the estimator has not seen."""
    predicted = np.asarray(estimator.predict_proba(X), dtype=np.float64)
    ordered, place = (
        np.zeros((len(predicted), len(names))),
        {name: k for k, name in enumerate(names.tolist())},
    )
    for column, name in zip(predicted.T, np.asarray(estimator.classes_).tolist(), strict=True):
        ordered[:, place[name]] = column
    return ordered


def as_logits(probabilities: NDArray[np.float64]) -> Tensor:
    """Logits of probabilities (N, classes): (N,) for two classes, else logarithms."""
    p = torch.from_numpy(probabilities).clamp(min=SMALLEST_PROBABILITY)
    return (p[:, 1] / p[:, 0]).log() if p.shape[1] == 2 else (p / p.sum(1, keepdim=True)).log()


def seeded(estimator: Any, seed: int) -> Any:
    """A clone whose own seeds, where they are None, are set."""
    copy = clone(estimator)
    seeds = {
        name: value
        for name, value in copy.get_params().items()
        if name.split("__")[-1] == "random_state"
    }
    copy.set_params(**{name: seed for name, value in seeds.items() if value is None})
    return copy  # set_params of a FrozenEstimator returns None


@contextmanager
def one_thread_if_small(examples: int) -> Iterator[None]:
    """A small table with one thread of torch and of BLAS; other libraries keep theirs."""
    before, small = torch.get_num_threads(), examples < SMALL_TABLE
    with threadpool_limits(1, user_api="blas") if small else nullcontext():
        torch.set_num_threads(1 if small else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
