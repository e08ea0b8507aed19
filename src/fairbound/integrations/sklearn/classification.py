"""Labels and predictions of the classifiers: what `FairClassifier` and `FairPostprocessor` share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor

from fairbound.auditing import Verdict
from fairbound.integrations.sklearn.base import FairEstimator
from fairbound.integrations.sklearn.inputs import checked_weight
from fairbound.integrations.sklearn.membership import probabilities


class FairClassification(ClassifierMixin, FairEstimator):
    """Classes in and out; inside, labels are numbers, and of two classes the positive one is 1."""

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> Any:
        """Train, correct and certify; without `sensitive_features` unconstrained, with a warning."""
        self._check_parameters()
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        X = self._validate(X, reset=True)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_.tolist()}; a classifier needs two or more")
        weight = checked_weight(sample_weight, X)
        if weight is not None and len(left := np.unique(y[weight > 0])) < 2:
            raise ValueError(f"examples with a positive sample_weight have one class only, {left.tolist()}")
        self._order = self._class_order()
        labels = np.argsort(self._order)[labels]
        trained = weight
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            trained = by_class if weight is None else weight * by_class
        self._fit(
            X, torch.from_numpy(labels), len(self.classes_), sensitive_features, (weight, trained), self._outcomes()
        )
        return self

    def _check_parameters(self) -> None:
        self._check_common()

    def _class_order(self) -> NDArray[np.int64]:
        """(classes,) the place in `classes_` of class 0, 1, ...: of two classes the positive one is last."""
        order = np.arange(len(self.classes_))
        if self.pos_label is None:
            return order
        found = np.flatnonzero(self.classes_ == self.pos_label)
        if len(found) != 1:
            raise ValueError(f"pos_label={self.pos_label!r} is not among the classes {self.classes_.tolist()}")
        return order[::-1] if len(order) == 2 and found[0] == 0 else order

    def _outcomes(self) -> dict[int, str] | None:
        """With several classes: those that rates are about, `pos_label` or all."""
        if len(self.classes_) == 2:
            return None
        return {
            k: f"class {name}"
            for k, name in enumerate(self.classes_.tolist())
            if self.pos_label is None or name == self.pos_label
        }

    # Predicting -------------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any, sensitive_features: Any = None) -> NDArray[np.float64]:
        """Logits: one per example for two classes, of the second of `classes_`; else one per class."""
        check_is_fitted(self)
        logits = self._corrected(self._validate(X, reset=False), sensitive_features)
        found: NDArray[np.float64] = (logits if self._order[0] == 0 else -logits).numpy()
        return found

    def predict_proba(self, X: Any, sensitive_features: Any = None) -> NDArray[np.float64]:
        """The probability of each class; `sensitive_features` is needed with `group_at_prediction=True` only."""
        logits = torch.from_numpy(self.decision_function(X, sensitive_features))
        return probabilities(logits).numpy()

    def predict(self, X: Any, sensitive_features: Any = None) -> NDArray[Any]:
        """The most probable class."""
        logits = self.decision_function(X, sensitive_features)
        found: NDArray[Any] = self.classes_[(logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)]
        return found

    def judge(self, X: Any, y: Any, sensitive_features: Any, sample_weight: Any = None) -> Verdict:
        """Whether the constraints hold in the population that these examples, new to the model, were drawn from."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        return self._judged(X, self._numbered(y), sensitive_features, checked_weight(sample_weight, X))

    def _numbered(self, y: Any) -> Tensor:
        given = column_or_1d(y)
        unknown = set(np.unique(given).tolist()) - set(self.classes_.tolist())
        if unknown:
            raise ValueError(f"y has the class {min(unknown, key=str)!r}, and fit has seen {self.classes_.tolist()}")
        return torch.from_numpy(np.argsort(self._order)[np.searchsorted(self.classes_, given)])
